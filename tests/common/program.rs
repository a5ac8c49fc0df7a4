//! Builds the target programs, each once for all test processes and runs.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets")
}

/// Returns the directory of the built programs, in Cargo's scratch directory for integration tests.
fn built_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("targets")
}

/// Returns the program built from `tests/targets/NAME.c` or `.rs`, or a shared object.
pub(crate) fn program(name: &str) -> PathBuf {
    let source = source_dir();
    if source.join(format!("{name}.rs")).exists() {
        return rust_variant(name, &format!("{name}.rs"), &["-O"]);
    }
    let flags = match name {
        "plugin" | "posing_v8" | "sync_log" => &["-shared", "-fPIC", "-pthread"][..],
        "bare" => &["-nostdlib", "-static", "-fno-stack-protector"],
        // Kept small, because hundreds of them are recorded briefly.
        "prey" => &["-static", "-pthread"],
        _ => &["-pthread"],
    };
    variant(name, &format!("{name}.c"), "cc", flags)
}

/// Returns the program `name`, built from this file of `tests/targets` with this compiler and these
/// flags.
pub(crate) fn variant(name: &str, file: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fomit-frame-pointer"]);
        command.args(flags).arg(source_dir().join(file)).arg("-ldl").arg("-o").arg(fresh);
        command
    })
}

/// Returns the Rust program `name`, built from this file of `tests/targets` with these flags.
pub(crate) fn rust_variant(name: &str, file: &str, flags: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut compiler = Command::new("rustc");
        compiler.args(["--edition", "2024", "-g"]).args(flags).arg(source_dir().join(file));
        compiler.arg("-o").arg(fresh);
        compiler
    })
}

/// Returns the Rust program `name`, built from this file of `tests/targets`, which publishes spans
/// with the crate `traceprof-context`.
pub(crate) fn rust_program_with_context(name: &str, file: &str) -> PathBuf {
    let library = |name: &str, file: &str, flags: &[&str]| {
        made(&format!("lib{name}.rlib"), |fresh| {
            let mut compiler = Command::new("rustc");
            compiler.args(["--edition", "2024", "-O", "-g", "--cap-lints", "allow"]).args(flags);
            compiler.args(["--crate-type", "rlib", "--crate-name", name]);
            compiler.arg(source_dir().join(file)).arg("-o").arg(fresh);
            compiler
        })
    };
    let abi = library("traceprof_abi", "../../abi/src/lib.rs", &[]);
    let of_abi = format!("traceprof_abi={}", abi.display());
    let context = library("traceprof_context", "../../context/src/lib.rs", &["--extern", &of_abi]);
    let of_context = format!("traceprof_context={}", context.display());
    let folder = format!("dependency={}", abi.parent().expect("a folder").display());
    rust_variant(name, file, &["-O", "--extern", &of_context, "-L", &folder])
}

/// Returns the C++ program built from `tests/targets/NAME.cpp`.
pub(crate) fn cpp_program(name: &str) -> PathBuf {
    variant(name, &format!("{name}.cpp"), "c++", &["-std=c++17", "-pthread"])
}

/// Returns the Go program built from `tests/targets/FILE`.
pub(crate) fn go_program(name: &str, file: &str) -> PathBuf {
    go_program_by(Path::new("go"), name, file, &[])
}

/// Returns the newest Go compiler, if `scripts/test` has installed it.
pub(crate) fn newest_go() -> Option<PathBuf> {
    Some(tool("go-1.27/go/bin/go")).filter(|go| go.exists())
}

/// Returns the path of what `scripts/test` unpacks for the tests, which may not exist.
pub(crate) fn tool(path: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a build directory");
    built.join("tools").join(path)
}

/// Returns the Go program built with the compiler `go` and these options.
pub(crate) fn go_program_by(go: &Path, name: &str, file: &str, options: &[&str]) -> PathBuf {
    go_program_of(go, name, &[file], options)
}

/// Returns the Go program built from these files.
pub(crate) fn go_program_of(go: &Path, name: &str, files: &[&str], options: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut go = Command::new(go);
        go.arg("build").args(options).arg("-o").arg(fresh);
        go.args(files.iter().map(|file| source_dir().join(file))).env("CGO_ENABLED", "1");
        // The compiler needs a cache directory even if there is no home directory.
        go.env("GOCACHE", built_dir().join("go-cache")).env("GO111MODULE", "off");
        // Uses this toolchain even where another one is configured.
        go.env("GOTOOLCHAIN", "local").env_remove("GOROOT");
        go
    })
}

/// Returns the directory with the classes of a Java program from `tests/targets`.
pub(crate) fn java_classes(name: &str) -> PathBuf {
    java_classes_of(name, &[&format!("{name}.java")])
}

/// Returns the directory with the classes of these files, relative to `tests/targets`.
pub(crate) fn java_classes_of(name: &str, files: &[&str]) -> PathBuf {
    // Machines of all supported versions run them.
    let options = ["--release", "8", "-encoding", "UTF-8", "-g", "-nowarn"];
    made(&format!("{name}.classes"), |fresh| {
        let mut javac = Command::new("javac");
        javac
            .args(options)
            .arg("-d")
            .arg(fresh)
            .args(files.iter().map(|file| source_dir().join(file)));
        javac
    })
}

/// Returns the archive of an agent of Java, which has the manifest `tests/targets/NAME.manifest` and
/// no class: those are on the class path.
pub(crate) fn java_agent(name: &str) -> PathBuf {
    made(&format!("{name}.jar"), |fresh| {
        let mut jar = Command::new("jar");
        jar.arg("cfm").arg(fresh).arg(source_dir().join(format!("{name}.manifest")));
        jar
    })
}

/// Returns the path of a script from `tests/targets`.
pub(crate) fn script(file: &str) -> PathBuf {
    source_dir().join(file)
}

/// Whether a command with this name can be started.
pub(crate) fn has_command(name: &str) -> bool {
    executable(name.as_ref()).is_some()
}

/// Returns the output that the command writes to the path that it is given. It is made once from
/// the same source by the same command. Each test is its own process, so the tests share it as a
/// file.
fn made(name: &str, command: impl Fn(&Path) -> Command) -> PathBuf {
    let dir = built_dir().join(key_of(&command(Path::new(name))));
    fs::create_dir_all(&dir).expect("directory for a built target");
    let lock = File::create(dir.join("lock")).expect("lock of a built target");
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).expect("lock of a built target");
    let finished = dir.join(name);
    if finished.exists() {
        return finished;
    }
    // A compiler that is killed leaves no partial program under the final name.
    let fresh = dir.join("fresh");
    let mut compiler = command(&fresh);
    let output = compiler.output();
    let output = output.unwrap_or_else(|error| panic!("{compiler:?} is needed: {error}"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&fresh, &finished).expect("built target in its place");
    finished
}

/// Returns a file name for the result of a command, from its arguments, its compiler and its
/// sources.
fn key_of(command: &Command) -> String {
    let mut key = Sha256::new();
    key.update(format!("{command:?}"));
    let compiler = executable(command.get_program().as_ref());
    let compiler = compiler.unwrap_or_else(|| panic!("{command:?} is needed"));
    let meta = fs::metadata(&compiler).expect("a compiler");
    key.update(format!("{compiler:?} {} {}", meta.size(), meta.mtime()));
    let mut sources: Vec<PathBuf> = command
        .get_args()
        .map(PathBuf::from)
        .filter(|path| path.starts_with(source_dir()) && path.is_file())
        .flat_map(with_modules)
        .collect();
    let folders: Vec<PathBuf> = command
        .get_args()
        .filter_map(|arg| arg.to_str()?.strip_prefix("-I").map(PathBuf::from))
        .collect();
    while let Some(path) = sources.pop() {
        let text = fs::read_to_string(&path).expect("source of a target");
        let included = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        let included = included.filter_map(|line| line.strip_suffix('"'));
        sources.extend(included.map(|name| {
            let beside = path.with_file_name(name);
            let in_folder = folders.iter().map(|folder| folder.join(name)).find(|it| it.exists());
            if beside.exists() { beside } else { in_folder.expect("a header of a target") }
        }));
        key.update(text);
    }
    key.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the file, and with the root of a Rust library all files of the library.
fn with_modules(path: PathBuf) -> Vec<PathBuf> {
    if !path.ends_with("src/lib.rs") {
        return vec![path];
    }
    let mut folders = vec![path.parent().expect("a folder").to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources of a library").flatten() {
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files.sort();
    files
}

/// Returns the executable file that this name starts.
fn executable(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.exists())
}

/// Creates a directory that every user can use and that is removed when the value is dropped.
pub(crate) fn scratch_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("mode of directory");
    dir
}

/// Copies a program to a directory from which any user can run it. The build directory may be
/// closed to other users.
pub(crate) fn program_for_everyone(path: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join(path.file_name().expect("a program has a name"));
    if !copy.exists() {
        fs::copy(path, &copy).expect("copy of a program");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("mode of a program");
    }
    copy
}
