//! What the command says about its version, and the commit of a source tree.

#[path = "../build/commit.rs"]
mod commit;

use std::fs;
use std::path::Path;
use std::process::Command;

use commit::{Commit, of_tree};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn git(directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    command.env("GIT_COMMITTER_DATE", "2026-02-03T04:05:06Z").env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn commit(directory: &Path) -> Commit {
    git(directory, &["commit", "-q", "--allow-empty", "-m", "x"]);
    of_tree(directory).unwrap()
}

#[test]
fn the_short_version_is_a_number_and_the_long_one_says_where_it_is_from() {
    let said = |word: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_traceprof")).arg(word).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said("-V"), format!("traceprof {VERSION}\n"));
    let long = said("--version");
    let rest = long.strip_prefix(&format!("traceprof {VERSION}")).unwrap().trim_end();
    // Neither the commit nor git is a matter of this test.
    assert!(rest.is_empty() || rest.starts_with(" (") && rest.ends_with(')'), "{long}");
    if cfg!(debug_assertions) {
        assert_eq!(rest, " (debug build)");
    }
}

#[test]
fn a_tree_has_the_commit_of_its_own_repository() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    assert_eq!(of_tree(root), None, "there is no repository");
    git(root, &["init", "-q", "-b", "main"]);
    assert_eq!(of_tree(root), None, "there is no commit");
    let first = commit(root);
    let hash = git(root, &["rev-parse", "HEAD"]);
    assert_eq!(first.name, format!("{} 2026-02-03", &hash[..12]));
    // An archive that was unpacked in another program's repository has no commit.
    let inner = root.join("vendor/traceprof");
    fs::create_dir_all(&inner).unwrap();
    assert_eq!(of_tree(&inner), None);
    // A working tree of its own has.
    let other = root.join("other");
    git(root, &["worktree", "add", "-q", other.to_str().unwrap(), "-b", "other"]);
    assert_eq!(of_tree(&other).unwrap().name, first.name);
    assert_ne!(of_tree(&other).unwrap().files, first.files);
}

/// Cargo builds anew when one of the files changes.
#[test]
fn each_commit_changes_a_file_that_cargo_watches() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    git(root, &["init", "-q", "-b", "main"]);
    let texts = |commit: &Commit| {
        let files = commit.files.iter();
        files.map(|file| fs::read_to_string(file).unwrap()).collect::<Vec<_>>()
    };
    let first = texts(&commit(root));
    git(root, &["pack-refs", "--all"]);
    let again = of_tree(root).unwrap();
    assert_eq!(texts(&again), first, "nothing was committed");
    let second = texts(&commit(root));
    assert_ne!(second, first);
    git(root, &["checkout", "-q", "-b", "side", "HEAD~1"]);
    assert_ne!(texts(&of_tree(root).unwrap()), second);
}
