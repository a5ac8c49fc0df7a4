//! Building the target programs, each once for all test processes and runs.

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

/// Where the built programs are: in Cargo's own scratch directory for integration tests.
fn built_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("targets")
}

/// The program built from `tests/targets/NAME.c` or `.rs`, or a shared object.
pub(crate) fn program(name: &str) -> PathBuf {
    let source = source_dir();
    if source.join(format!("{name}.rs")).exists() {
        return rust_variant(name, &format!("{name}.rs"), &["-O"]);
    }
    let flags = match name {
        "plugin" | "sync_log" => &["-shared", "-fPIC"][..],
        "bare" => &["-nostdlib", "-static", "-fno-stack-protector"],
        // Small, as hundreds are recorded for a moment each.
        "prey" => &["-static", "-pthread"],
        _ => &["-pthread"],
    };
    variant(name, &format!("{name}.c"), "cc", flags)
}

/// The program NAME built from this file of `tests/targets` by this compiler with these flags.
pub(crate) fn variant(name: &str, file: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fomit-frame-pointer"]);
        command.args(flags).arg(source_dir().join(file)).arg("-ldl").arg("-o").arg(fresh);
        command
    })
}

/// The Rust program NAME built from this file of `tests/targets` with these flags.
pub(crate) fn rust_variant(name: &str, file: &str, flags: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut compiler = Command::new("rustc");
        compiler.args(["--edition", "2024", "-g"]).args(flags).arg(source_dir().join(file));
        compiler.arg("-o").arg(fresh);
        compiler
    })
}

/// The C++ program built from `tests/targets/NAME.cpp`.
pub(crate) fn cpp_program(name: &str) -> PathBuf {
    variant(name, &format!("{name}.cpp"), "c++", &["-std=c++17", "-pthread"])
}

/// The Go program built from `tests/targets/FILE`.
pub(crate) fn go_program(name: &str, file: &str) -> PathBuf {
    go_program_by(Path::new("go"), name, file, &[])
}

/// The newest Go, which `scripts/test` puts there.
pub(crate) fn newest_go() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    Some(tools.join("go-1.27/go/bin/go")).filter(|go| go.exists())
}

/// The same, built by this `go` with these options.
pub(crate) fn go_program_by(go: &Path, name: &str, file: &str, options: &[&str]) -> PathBuf {
    made(name, |fresh| {
        let mut go = Command::new(go);
        go.arg("build").args(options).arg("-o").arg(fresh).arg(source_dir().join(file));
        // The compiler wants a place for its cache even where there is no home.
        go.env("GOCACHE", built_dir().join("go-cache")).env("GO111MODULE", "off");
        // It is taken as it is, wherever another one may be.
        go.env("GOTOOLCHAIN", "local").env_remove("GOROOT");
        go
    })
}

/// The directory with the classes of a Java program from `tests/targets`.
pub(crate) fn java_classes(name: &str) -> PathBuf {
    made(&format!("{name}.classes"), |fresh| {
        let mut javac = Command::new("javac");
        javac.arg("-d").arg(fresh).arg(source_dir().join(format!("{name}.java")));
        javac
    })
}

/// A script from `tests/targets`.
pub(crate) fn script(file: &str) -> PathBuf {
    source_dir().join(file)
}

/// Whether a command with this name can be started.
pub(crate) fn has_command(name: &str) -> bool {
    executable(name.as_ref()).is_some()
}

/// What the command makes in the place that it is given. It is made once from the same source by
/// the same command: each test is a process of its own, so what they share is a file.
fn made(name: &str, command: impl Fn(&Path) -> Command) -> PathBuf {
    let dir = built_dir().join(key_of(&command(Path::new(name))));
    fs::create_dir_all(&dir).expect("directory for a built target");
    let lock = File::create(dir.join("lock")).expect("lock of a built target");
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).expect("lock of a built target");
    let finished = dir.join(name);
    if finished.exists() {
        return finished;
    }
    // A compiler that is killed leaves no half of a program.
    let fresh = dir.join("fresh");
    let mut compiler = command(&fresh);
    let output = compiler.output();
    let output = output.unwrap_or_else(|error| panic!("{compiler:?} is needed: {error}"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&fresh, &finished).expect("built target in its place");
    finished
}

/// Names the result of a command: by its words, its compiler and the sources that it reads.
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
        .collect();
    while let Some(path) = sources.pop() {
        let text = fs::read_to_string(&path).expect("source of a target");
        let included = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        let included = included.filter_map(|line| line.strip_suffix('"'));
        sources.extend(included.map(|name| path.with_file_name(name)));
        key.update(text);
    }
    key.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file that is started by this name.
fn executable(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.exists())
}

/// A directory that is removed with the value, open to every user.
pub(crate) fn scratch_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("mode of directory");
    dir
}

/// Copies a program to where any user can run it: the build directory may be closed to others.
pub(crate) fn program_for_everyone(path: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join(path.file_name().expect("a program has a name"));
    if !copy.exists() {
        fs::copy(path, &copy).expect("copy of a program");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("mode of a program");
    }
    copy
}
