//! Building the target programs, each once per test run.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use tempfile::TempDir;

static BUILT: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets")
}

/// The program built from `tests/targets/NAME.c` or `.rs`, or a shared object.
pub(crate) fn program(name: &str) -> PathBuf {
    let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    built.entry(name.to_owned()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    // Cargo's own scratch directory for integration tests, inside the target directory.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("targets");
    fs::create_dir_all(&dir).expect("directory for built targets");
    let source = source_dir();
    let finished = dir.join(name);
    // Built under another name first: an earlier run's program may still be executing.
    let fresh = dir.join(format!("{name}.{}", std::process::id()));
    let mut compiler = if source.join(format!("{name}.rs")).exists() {
        let mut compiler = Command::new("rustc");
        compiler.args(["--edition", "2024", "-O", "-g"]).arg(source.join(format!("{name}.rs")));
        compiler
    } else {
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fomit-frame-pointer"]);
        compiler.args(match name {
            "plugin" | "sync_log" => &["-shared", "-fPIC"][..],
            "bare" => &["-nostdlib", "-static", "-fno-stack-protector"],
            // Small, as hundreds are recorded for a moment each.
            "prey" => &["-static", "-pthread"],
            _ => &["-pthread"],
        });
        compiler.arg(source.join(format!("{name}.c"))).arg("-ldl");
        compiler
    };
    let output = compiler.arg("-o").arg(&fresh).output();
    let output = output.unwrap_or_else(|error| panic!("{compiler:?} is needed: {error}"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&fresh, &finished).expect("built target in its place");
    finished
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
