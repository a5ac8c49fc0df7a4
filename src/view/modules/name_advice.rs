//! Advice on how to get the missing names and lines of a module.
//!
//! # Does not
//! - recommend the impossible, such as a debug package for a program that was not installed from a
//!   package.

use crate::view::text::escape::shell_quoted;

/// The name of code outside all files.
pub(super) const UNKNOWN: &str = "[unknown]";
/// Prefixes of the file names of runtimes, and how each can name its code.
const RUNTIMES: [(&[&str], &str); 5] = [
    (
        &["libjvm.so"],
        "Java's methods have names without an option, unless their code was freed before it was \
         read: traceprof-runtimes(7) says which versions are supported",
    ),
    (
        &["node", "nodejs"],
        "JavaScript has names without an option in the versions that traceprof-runtimes(7) lists, \
         and other code with `node --perf-basic-prof`",
    ),
    (&["python3", "libpython3"], "start it with `python3 -X perf`, from 3.12 on"),
    (&["beam.smp"], "start it with `erl +JPperf true`"),
    (&["luajit", "libluajit"], "it has no names for compiled code; `luajit -joff` compiles none"),
];
const ANY_RUNTIME: &str = "a runtime made this code: it names it when started with `node \
    --perf-basic-prof`, `python3 -X perf` or `erl +JPperf true`";

/// Sources without lines.
const POOR: [&str; 3] =
    ["its symbol table", "its compressed symbol table", "its exported names only"];
/// Ends of the sources that miss a part.
const SPLIT: [&str; 2] = [" split file (.dwo)", " split files (.dwo)"];
const PUT_ASIDE: &str = ", without what dwz put aside";
/// The texts around the number of MiB of memory for debug files.
const CROWDED: [&str; 2] = [", without what did not fit in the ", " MiB for debug files"];
const PUT_ASIDE_REMEDY: &str = "install the debug package with the supplementary file of dwz: \
    `readelf --string-dump=.gnu_debugaltlink` on the file with the debug information shows \
    its path";

const NOT_READ: &str = "nowhere: ";
const NOT_READ_REMEDY: &str = "record as root, or as the user of the process, while the file \
    exists; `traceprof record` reports what it could not read, and why";

/// Folders with installed packages, which have debug packages.
const PACKAGED: [&str; 5] = ["/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/"];
/// A folder below them without packages.
const UNPACKAGED: &str = "/usr/local/";

/// Returns advice for code outside all files, in a process with these modules.
pub(super) fn of_runtime<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> String {
    let is_there = |starts: &[&str]| {
        let mut names = paths.clone().filter_map(|path| path.rsplit('/').next());
        names.any(|name| starts.iter().any(|start| is_program(name, start)))
    };
    let found = RUNTIMES.iter().filter(|(starts, _)| is_there(starts)).map(|(_, remedy)| *remedy);
    let found: Vec<&str> = found.collect();
    if found.is_empty() { ANY_RUNTIME.to_owned() } else { found.join("; ") }
}

/// Returns whether a file name is that of this program or library, in any version.
fn is_program(name: &str, start: &str) -> bool {
    let rest = name.strip_prefix(start);
    rest.is_some_and(|rest| !rest.starts_with(|first: char| first.is_alphabetic() || first == '_'))
}

/// Returns advice for a module with a file, whose names come from this source.
pub(super) fn missing(path: &str, build_id: &str, source: Option<&str>) -> Option<String> {
    // The kernel's mappings have no debug file.
    let source = source.filter(|_| !path.starts_with('['))?;
    if SPLIT.iter().any(|lack| source.ends_with(lack)) {
        let path = shell_quoted(path);
        return Some(format!(
            "keep its .dwo files where the compiler put them or beside it, or pack them with \
             `dwp -e {path}`"
        ));
    }
    if source.ends_with(PUT_ASIDE) {
        return Some(PUT_ASIDE_REMEDY.to_owned());
    }
    if let Some(what) = crowded(source) {
        let file = shell_quoted(what.strip_prefix("debug file ").unwrap_or(path));
        return Some(format!(
            "`objcopy --decompress-debug-sections {file}`, which then needs less memory, or record \
             on a machine with more memory"
        ));
    }
    if source.starts_with(NOT_READ) {
        return Some(NOT_READ_REMEDY.to_owned());
    }
    // The path of a debug file may be any text, so sources must be equal.
    POOR.contains(&source).then(|| of_poor(path, build_id))
}

/// Returns advice for a module without lines, or even without names.
fn of_poor(path: &str, build_id: &str) -> String {
    const BUILD: &str = "build it with -g, or do not strip it";
    if build_id.is_empty() {
        return BUILD.to_owned();
    }
    let is_packaged =
        PACKAGED.iter().any(|start| path.starts_with(start)) && !path.starts_with(UNPACKAGED);
    let own = if is_packaged { "install its debug package" } else { BUILD };
    let id = shell_quoted(build_id);
    format!("{own}, or `debuginfod-find debuginfo {id}`, or record with --debuginfod")
}

/// Returns the source of names that left out a part to save memory.
fn crowded(source: &str) -> Option<&str> {
    let (source, mib) = source.strip_suffix(CROWDED[1])?.rsplit_once(CROWDED[0])?;
    mib.parse::<u64>().ok()?;
    source.split(", without ").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_missing_part() {
        let of = |source: &str| missing("/opt/a b", "abcd", Some(source)).unwrap_or_default();
        for source in POOR {
            assert!(of(source).contains("debuginfod-find debuginfo abcd"), "{source}");
            assert!(missing("/a", "", Some(source)).unwrap().contains("-g"), "{source}");
            assert_eq!(missing("[vdso]", "abcd", Some(source)), None);
        }
        for count in ["1 split file", "2 split files"] {
            let remedy = of(&format!("its own debug information, without {count} (.dwo)"));
            assert!(remedy.contains("`dwp -e '/opt/a b'`"), "{remedy}");
        }
        assert_eq!(of("its own debug information, without what dwz put aside"), PUT_ASIDE_REMEDY);
        for (source, file) in [("its own debug information", "'/opt/a b'"), ("debug file /d", "/d")]
        {
            let remedy =
                of(&format!("{source}, without what did not fit in the 512 MiB for debug files"));
            let command = format!("`objcopy --decompress-debug-sections {file}`");
            assert!(remedy.starts_with(&command), "{remedy}");
        }
        for path in ["exported", "symbol table", "1 split file", "put aside"] {
            assert_eq!(of(&format!("debug file /srv/{path}/x")), "", "all of it is there");
        }
        assert_eq!(missing("/a", "", None), None);
    }

    #[test]
    fn only_packaged_files_get_debug_packages() {
        let of = |path| missing(path, "abcd", Some("its exported names only")).unwrap();
        for path in ["/usr/bin/perl", "/lib/x86_64-linux-gnu/libz.so.1", "/usr/libexec/a"] {
            assert!(
                of(path).starts_with("install its debug package, or `debuginfod-find"),
                "{path}"
            );
        }
        for path in ["/srv/me/a", "/opt/usr/bin/a", "/usr/local/bin/a", "/tmp/lib/a", "a"] {
            assert!(
                of(path).starts_with("build it with -g, or do not strip it, or `debug"),
                "{path}"
            );
        }
    }

    #[test]
    fn files_that_could_not_be_read_have_a_remedy() {
        for source in
            ["nowhere: it cannot be read as an ELF file", "nowhere: its file could not be read"]
        {
            assert_eq!(missing("/a", "", Some(source)).as_deref(), Some(NOT_READ_REMEDY));
            assert_eq!(missing("[vdso]", "", Some(source)), None);
        }
    }

    #[test]
    fn advice_fits_the_runtime_of_the_process() {
        let of = |paths: &[&str]| of_runtime(paths.iter().copied());
        for (path, part) in [
            ("/usr/lib/jvm/java-17/lib/server/libjvm.so", "traceprof-runtimes(7)"),
            ("/usr/bin/node", "node --perf-basic-prof"),
            ("/opt/n/bin/nodejs", "node --perf-basic-prof"),
            ("/usr/bin/python3.12", "python3 -X perf"),
            ("/x/libpython3.11.so.1.0", "python3 -X perf"),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "erl +JPperf"),
            ("/usr/lib/libluajit-5.1.so.2", "-joff"),
        ] {
            let remedy = of(&["/usr/lib/libc.so.6", path]);
            assert!(remedy.contains(part) && remedy != ANY_RUNTIME, "{path}: {remedy}");
        }
        for path in ["/usr/bin/nodemon", "/usr/node/x", "/a/python3_tool", "/usr/lib/libc.so.6"] {
            assert_eq!(of(&[path]), ANY_RUNTIME, "{path}");
        }
        assert_eq!(of(&["/a/node", "/a/libjvm.so"]).matches("; ").count(), 1, "both");
    }
}
