//! Builds and runs the C programs of the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Returns the path of a file of the crate.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the path for a build output.
pub(crate) fn built(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Builds the source at `path` without warnings into a file with this name.
pub(crate) fn compile(compiler: &str, flags: &[&str], path: &str, name: &str) -> PathBuf {
    // The output gets a temporary name first, because tests run concurrently.
    let (finished, fresh) = (built(name), built(&format!("{name}.{}", std::process::id())));
    let mut command = Command::new(compiler);
    command.args(STRICT).args(["-O2", "-g"]).args(flags);
    command.arg("-I").arg(source("include")).arg(source(path));
    run(command.args(["-pthread", "-o"]).arg(&fresh));
    std::fs::rename(fresh, &finished).expect("the program in its place");
    finished
}

/// Runs a command that must succeed, and returns what it prints.
pub(crate) fn run(command: &mut Command) -> String {
    let output: Output =
        command.output().unwrap_or_else(|error| panic!("{command:?} is needed: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    assert!(!err.contains("warning"), "{command:?}: {err}");
    out
}

/// Whether a command with this name exists in PATH.
pub(crate) fn has_command(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).exists())
}
