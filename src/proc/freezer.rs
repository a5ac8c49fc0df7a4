//! Frozen control groups, whose processes can neither run nor be stopped.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The file that keeps a control group frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freezer {
    file: PathBuf,
    /// What thaws the group when it is written there.
    thaw: &'static str,
}

impl Freezer {
    /// Returns a shell command that thaws the group, unless its name cannot be quoted in a line.
    pub fn thaw_command(&self) -> Option<String> {
        let file = self.file.to_str()?;
        let is_quotable = !file.contains(|it: char| it == '\'' || it.is_control());
        is_quotable.then(|| format!("echo {} > '{file}'", self.thaw))
    }
}

/// Returns what keeps a process frozen: the outermost frozen one of its control groups, of either
/// version. Returns `None` if nothing does, or if the groups are not mounted where they usually
/// are.
pub fn freezer(pid: i32) -> Option<Freezer> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    freezer_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// Does the same for the text of /proc/PID/cgroup.
fn freezer_of(groups: &str, root: &Path) -> Option<Freezer> {
    groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = Path::new(path.trim_start_matches('/'));
        // The name of a group outside this namespace leads nowhere.
        if !path.components().all(|it| matches!(it, Component::Normal(_))) {
            return None;
        }
        match controllers {
            // Beside groups of version 1, those of version 2 are mounted below. A group whose
            // processes are still on their way to the freezer is not frozen yet.
            "" => [root.to_owned(), root.join("unified")].iter().find_map(|root| {
                let file = "cgroup.freeze";
                let group = root.join(path);
                let events = fs::read_to_string(group.join("cgroup.events")).ok()?;
                let is_frozen = events.lines().any(|line| line == "frozen 1");
                let own = outermost(&group, root, file);
                let group = own.or_else(|| is_frozen.then_some(group))?;
                Some(Freezer { file: group.join(file), thaw: "0" })
            }),
            _ if controllers.split(',').any(|it| it == "freezer") => {
                let (root, state) = (root.join("freezer"), "freezer.state");
                let group = root.join(path);
                let text = fs::read_to_string(group.join(state)).ok()?;
                let is_frozen = matches!(text.trim(), "FROZEN" | "FREEZING");
                let own = || outermost(&group, &root, "freezer.self_freezing");
                let group = is_frozen.then(|| own().unwrap_or_else(|| group.clone()))?;
                Some(Freezer { file: group.join(state), thaw: "THAWED" })
            }
            _ => None,
        }
    })
}

/// Returns the outermost group from this one up that is to be frozen itself, as its file `own`
/// says.
fn outermost(group: &Path, root: &Path, own: &str) -> Option<PathBuf> {
    let groups = group.ancestors().take_while(|it| it.starts_with(root));
    let is_one = |it: &&Path| fs::read_to_string(it.join(own)).is_ok_and(|text| text.trim() == "1");
    groups.filter(is_one).last().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &str = "6:cpu:/other\n5:freezer,devices:/docker/a\n0::/docker/a\n";

    /// Writes these files and returns the freezer of a process in the groups above.
    fn found(files: &[(&str, &str)], groups: &str) -> Option<(String, Option<String>)> {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let freezer = freezer_of(groups, root.path())?;
        let file = freezer.file.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned();
        Some((file, freezer.thaw_command()))
    }

    fn check(files: &[(&str, &str)], file: &str, command: &str) {
        let (found, thaw) = found(files, GROUPS).expect(file);
        assert_eq!(found, file);
        let thaw = thaw.unwrap();
        assert!(thaw.starts_with(command) && thaw.ends_with(&format!("/{file}'")), "{thaw}");
    }

    #[test]
    fn the_group_to_thaw_is_the_outermost_one_that_is_frozen_itself() {
        let frozen = "populated 1\nfrozen 1\n";
        for root in ["", "unified/"] {
            let [events, own, outer] =
                ["docker/a/cgroup.events", "docker/a/cgroup.freeze", "docker/cgroup.freeze"]
                    .map(|file| format!("{root}{file}"));
            check(&[(&events, frozen), (&own, "1\n"), (&outer, "0\n")], &own, "echo 0 > '");
            check(&[(&events, frozen), (&own, "0\n"), (&outer, "1\n")], &outer, "echo 0 > '");
            let not_yet = "populated 1\nfrozen 0\n";
            check(&[(&events, not_yet), (&own, "1\n")], &own, "echo 0 > '");
            assert_eq!(found(&[(&events, "populated 1\nfrozen 0\n"), (&own, "0\n")], GROUPS), None);
        }
        let [state, own, outer] = [
            "docker/a/freezer.state",
            "docker/a/freezer.self_freezing",
            "docker/freezer.self_freezing",
        ]
        .map(|file| format!("freezer/{file}"));
        check(&[(&state, "FROZEN\n"), (&own, "1\n")], &state, "echo THAWED > '");
        check(
            &[(&state, "FREEZING\n"), (&own, "0\n"), (&outer, "1\n")],
            "freezer/docker/freezer.state",
            "echo THAWED > '",
        );
        assert_eq!(found(&[(&state, "THAWED\n")], GROUPS), None);
        assert_eq!(found(&[], GROUPS), None);
    }

    #[test]
    fn no_command_is_shown_for_a_name_that_a_shell_would_not_take_as_one_word() {
        let files = [("it's/cgroup.events", "frozen 1\n")];
        assert_eq!(found(&files, "0::/it's\n"), Some(("it's/cgroup.freeze".to_owned(), None)));
        assert_eq!(found(&files, "0::/../it's\n"), None);
    }
}
