//! How the real programs are started, with enough work for a recording.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Target, has_command, script, wait_until};

/// Starts the program to record, with files in its own directory; `None` if something is missing.
pub(super) type Start = fn(&Path) -> Option<Target>;

/// Number of commits of the history for `git log`: each makes a file, which git compares with all
/// others.
const COMMITS: usize = 1000;
const LINES: usize = 200;

/// Returns the program of the system, which is stripped and has unwind information like all its
/// packages.
fn of_system(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/bin").join(name);
    path.exists().then_some(path)
}

pub(super) fn python(dir: &Path) -> Option<Target> {
    interpreter("python3", &[], ("work.py", dir))
}

pub(super) fn perl(dir: &Path) -> Option<Target> {
    interpreter("perl", &[], ("work.pl", dir))
}

/// It writes the names of its compiled code to a file, which both profilers read.
pub(super) fn node(dir: &Path) -> Option<Target> {
    interpreter("node", &["--perf-basic-prof"], ("work.js", dir))
}

fn interpreter(name: &str, options: &[&str], (file, dir): (&str, &Path)) -> Option<Target> {
    let mut command = Command::new(of_system(name)?);
    command.args(options).arg(script(file)).current_dir(dir);
    Some(Target::spawn(command))
}

pub(super) fn openssl_sha256(dir: &Path) -> Option<Target> {
    openssl(dir, &["-bytes", "8192", "sha256"])
}

pub(super) fn openssl_rsa(dir: &Path) -> Option<Target> {
    openssl(dir, &["rsa2048"])
}

fn openssl(dir: &Path, what: &[&str]) -> Option<Target> {
    let mut command = Command::new(of_system("openssl")?);
    command.args(["speed", "-seconds", "3600"]).args(what);
    Some(executed(command, dir))
}

/// The compiler itself, with the sources of a library.
pub(super) fn cc1(dir: &Path) -> Option<Target> {
    let mut cc = Command::new("cc");
    let cc1 = text_of(cc.arg("-print-prog-name=cc1"))?;
    let sources = zstd_sources()?;
    let all = dir.join("all.c");
    let mut text = String::new();
    for part in ["common", "compress", "decompress"] {
        let mut files: Vec<_> = std::fs::read_dir(sources.join(part)).ok()?.flatten().collect();
        files.sort_by_key(std::fs::DirEntry::path);
        for path in files.iter().map(std::fs::DirEntry::path) {
            if path.extension().is_some_and(|it| it == "c") {
                writeln!(text, "#include \"{}\"", path.display()).expect("text grows");
            }
        }
    }
    std::fs::write(&all, text).expect("a source");
    let ready = dir.join("all.i");
    let mut cc = Command::new("cc");
    cc.args(["-E", "-P", "-w", "-DZSTD_DISABLE_ASM"]).arg(&all).arg("-o").arg(&ready);
    assert!(cc.status().expect("cc").success(), "sources are not preprocessed");
    let mut command = Command::new(cc1.trim());
    command.args(["-quiet", "-w", "-O3", "-fpreprocessed"]).arg(&ready);
    command.args(["-o", "/dev/null"]);
    Some(executed(command, dir))
}

/// Returns where the package manager keeps the sources of a library that we use.
fn zstd_sources() -> Option<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    // Crates that only other systems need are not downloaded.
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu", "--manifest-path"]);
    cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    let metadata: serde_json::Value = serde_json::from_str(&text_of(&mut cargo)?).ok()?;
    let mut packages = metadata["packages"].as_array()?.iter();
    let package = packages.find(|package| package["name"] == "zstd-sys")?;
    let manifest = Path::new(package["manifest_path"].as_str()?);
    Some(manifest.parent()?.join("zstd/lib"))
}

fn text_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The differences of a long history, with a search for copies in all files.
pub(super) fn git(dir: &Path) -> Option<Target> {
    let git = of_system("git")?;
    let here = |args: &[&str]| {
        let mut command = Command::new(&git);
        command.current_dir(dir).env("HOME", dir).args(args);
        command
    };
    assert!(here(&["init", "-q", "."]).status().expect("git").success(), "no repository");
    let mut import = here(&["fast-import", "--quiet"]);
    let mut import = import.stdin(Stdio::piped()).spawn().expect("git");
    let mut stream = import.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stream, history().as_bytes()).expect("a history");
    drop(stream);
    assert!(import.wait().expect("git").success(), "no history");
    let log = ["log", "-p", "--stat", "--find-copies-harder", "--minimal", "refs/heads/main"];
    Some(executed(here(&log), dir))
}

/// Returns a stream to import, of commits that make a file and change two others each.
fn history() -> String {
    let mut random = 88_172_645_463_325_252u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit as u64) as usize
    };
    let (mut files, mut text): (Vec<Vec<String>>, _) = (Vec::new(), String::new());
    for commit in 0..COMMITS {
        let date = 1_700_000_000 + 60 * commit;
        text += "commit refs/heads/main\n";
        writeln!(text, "committer A <a@b> {date} +0000\ndata 2\nx").expect("text grows");
        files.push((0..LINES).map(|line| format!("{line} of {commit}: {}", below(1000))).collect());
        for at in [commit, below(files.len()), below(files.len())] {
            for _ in 0..10 {
                let line = below(LINES);
                files[at][line] = format!("{line} changed by {commit}: {}", below(1000));
            }
            let content = files[at].join("\n");
            let head = format!("M 100644 inline file{at}\ndata {}", content.len());
            writeln!(text, "{head}\n{content}").expect("text grows");
        }
    }
    text
}

/// Starts a program that does not report when it is ready. It counts as ready once it has replaced
/// the shell.
fn executed(command: Command, dir: &Path) -> Target {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; exec \"$@\" >/dev/null 2>&1", "sh"]);
    shell.arg(command.get_program()).args(command.get_args()).current_dir(dir);
    let shell_path = std::fs::canonicalize("/bin/sh").expect("a shell");
    let target = Target::spawn(shell);
    let exe = format!("/proc/{}/exe", target.pid());
    let is_other = || std::fs::read_link(&exe).is_ok_and(|path| path != shell_path);
    assert!(wait_until(Duration::from_secs(20), is_other), "the program is not executed");
    target
}

/// Whether perf is installed.
pub(super) fn has_perf() -> bool {
    has_command("perf")
}
