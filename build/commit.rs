//! The commit that a source tree is at.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A commit, as git names it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// Hash and date, such as `834de7a3a388 2026-11-28`.
    pub(super) name: String,
    /// Files that change with each commit.
    pub(super) files: Vec<PathBuf>,
}

/// Returns the commit of the tree in this directory. `None` if the tree is in no repository of its
/// own, or without git: then it comes from a source archive.
pub(super) fn of_tree(root: &Path) -> Option<Commit> {
    // A repository further up is another program's.
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let name = git(root, &["show", "-s", "--abbrev=12", "--format=%h %cs", "HEAD"])?;
    let mut files = Vec::new();
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", file])?);
        // Cargo would take a file that is not there for one that always changes.
        if path.exists() {
            files.push(path);
        }
    }
    Some(Commit { name, files })
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A hook of another repository, which runs a build, sets these.
    command.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
    let output = command.arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
