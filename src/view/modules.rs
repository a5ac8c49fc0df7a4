//! What is known of each module of a trace: its build, its share, where its names came from, and how
//! to get more.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::calls::Step;
use super::escape::{escaped, shell_quoted};
use super::profile::Profile;
use super::rows::percent;
use crate::elf::build_id_text;
use crate::trace::{Method, ModuleId, SYMBOLS, Value};

/// Code outside of all files.
const UNKNOWN: &str = "[unknown]";
const UNKNOWN_REMEDY: &str = "a runtime made this code: it names it when started with `node \
    --perf-basic-prof`, `python3 -X perf` or `erl +JPperf true`; Java is asked with `traceprof record \
    --jvm-names`";

/// Sources that know no lines, and how those end that lack something.
const POOR: [&str; 3] =
    ["its symbol table", "its compressed symbol table", "its exported names only"];
const SPLIT: [&str; 2] = [" split file (.dwo)", " split files (.dwo)"];
const PUT_ASIDE: &str = ", without what dwz put aside";
/// Around the number of MiB that all debug files together may have.
const CROWDED: [&str; 2] = [", without what did not fit in the ", " MiB for debug files"];
const PUT_ASIDE_REMEDY: &str = "install the file that dwz made with its debug package: `readelf \
    --string-dump=.gnu_debugaltlink` of the file with the debug information says where it is wanted";

/// What is shown of a module.
#[derive(Debug, Default)]
struct Share {
    /// Sampling periods in the module itself.
    own: u64,
    /// Of them those in functions without a name.
    nameless: u64,
}

/// Writes a block for each module, those with most samples first.
pub fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let total = profile.count().weight;
    let mut shares: Vec<(ModuleId, Share)> = shares(profile).into_iter().collect();
    shares.sort_by_key(|(id, share)| (std::cmp::Reverse(share.own), id.0));
    for (position, (id, share)) in shares.iter().enumerate() {
        if position > 0 {
            writeln!(out)?;
        }
        write_module(profile, *id, share, total, out)?;
    }
    Ok(())
}

fn shares(profile: &Profile) -> BTreeMap<ModuleId, Share> {
    let mut shares: BTreeMap<ModuleId, Share> = BTreeMap::new();
    for method in &profile.methods {
        // A module that only calls others has no samples of its own, and is shown all the same.
        method.module.map(|module| shares.entry(module).or_default());
    }
    for call in profile.threads.iter().flat_map(|thread| thread.tree.calls()) {
        let Step::Frame(location) = call.step else { continue };
        let method = profile.method_of(location).and_then(|id| profile.method(id));
        if let Some((method, module)) = method.and_then(|it| Some((it, it.module?))) {
            let share = shares.entry(module).or_default();
            share.own += call.own.weight;
            share.nameless += if is_nameless(method) { call.own.weight } else { 0 };
        }
    }
    shares
}

/// The recorder had nothing but an address, in brackets.
fn is_nameless(method: &Method) -> bool {
    method.name == UNKNOWN || (method.name.starts_with('[') && method.name.contains("+0x"))
}

fn write_module(
    profile: &Profile,
    id: ModuleId,
    share: &Share,
    total: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    // An id without a module is of a damaged trace.
    let Some(module) = profile.modules.get(id.0 as usize) else { return Ok(()) };
    let source = match profile.recording.metadata.get(&format!("{SYMBOLS}{}", id.0)) {
        Some(Value::Text(source)) => Some(source.as_str()),
        _ => None,
    };
    writeln!(out, "{}", escaped(&module.path))?;
    let mut line = |label: &str, text: &str| writeln!(out, "  {label:9} {}", escaped(text));
    let build_id = build_id_text(&module.build_id);
    line("build id", if build_id.is_empty() { "none" } else { &build_id })?;
    let own = percent(share.own, total);
    line(
        "samples",
        &match percent(share.nameless, share.own) {
            0.0 => format!("{own:.1} %"),
            nameless => format!("{own:.1} %, {nameless:.1} % of them without a name"),
        },
    )?;
    line("names", source.unwrap_or("not told"))?;
    match missing(&module.path, &build_id, source, share.nameless > 0) {
        Some(remedy) => line("for more", &remedy),
        None => Ok(()),
    }
}

/// How to get the names and lines that were not there.
fn missing(path: &str, build_id: &str, source: Option<&str>, has_nameless: bool) -> Option<String> {
    if path == UNKNOWN {
        return has_nameless.then(|| UNKNOWN_REMEDY.to_owned());
    }
    // What the kernel maps has no debug file.
    let source = source.filter(|_| !path.starts_with('['));
    if source.is_some_and(|it| SPLIT.iter().any(|lack| it.ends_with(lack))) {
        let path = shell_quoted(path);
        return Some(format!(
            "keep its .dwo files where the compiler put them or beside it, or pack them with \
             `dwp -e {path}`"
        ));
    }
    if source.is_some_and(|it| it.ends_with(PUT_ASIDE)) {
        return Some(PUT_ASIDE_REMEDY.to_owned());
    }
    if let Some(what) = source.and_then(crowded) {
        let file = shell_quoted(what.strip_prefix("debug file ").unwrap_or(path));
        return Some(format!(
            "`objcopy --decompress-debug-sections {file}`, which takes less memory then, or record \
             where there is more of it"
        ));
    }
    // The path of a debug file may be any text.
    let is_poor = source.is_some_and(|it| POOR.contains(&it));
    is_poor.then(|| match build_id {
        "" => "build it with -g, or do not strip it".to_owned(),
        id => format!(
            "install its debug package, or `debuginfod-find debuginfo {}`, or record with \
             --debuginfod",
            shell_quoted(id)
        ),
    })
}

/// The source of which a part was left out because of the memory that it takes.
fn crowded(source: &str) -> Option<&str> {
    let (source, mib) = source.strip_suffix(CROWDED[1])?.rsplit_once(CROWDED[0])?;
    mib.parse::<u64>().ok()?;
    source.split(", without ").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_is_that_of_what_is_missing() {
        let of = |source: &str| missing("/opt/a b", "abcd", Some(source), true).unwrap_or_default();
        for source in POOR {
            assert!(of(source).contains("debuginfod-find debuginfo abcd"), "{source}");
            assert!(missing("/a", "", Some(source), false).unwrap().contains("-g"), "{source}");
            assert_eq!(missing("[vdso]", "abcd", Some(source), true), None);
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
        assert_eq!(missing("/a", "", None, true), None);
    }

    #[test]
    fn runtimes_are_to_name_what_has_no_name_only() {
        assert_eq!(missing(UNKNOWN, "", None, true).as_deref(), Some(UNKNOWN_REMEDY));
        assert_eq!(missing(UNKNOWN, "", None, false), None);
    }
}
