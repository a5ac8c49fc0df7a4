//! Fetchers and servers of all kinds, simulated by scripts.

use std::fs;

use super::*;

const BUILD_ID: [u8; 8] = [0xab; 8];
/// A timeout that no test reaches.
const LONG: Duration = Duration::from_secs(3600);

/// A fetcher that is a script, in its own folder.
struct ScriptedFetcher {
    folder: tempfile::TempDir,
    fetcher: Fetcher,
}

impl ScriptedFetcher {
    fn by(script: &str, wait: Duration, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fetcher");
        let place = folder.path().display();
        let text = folder.path().join("text");
        fs::write(&text, format!("#!/bin/sh\ncd {place}\necho $$ >> asked\n{script}\n")).unwrap();
        // `install` writes the file, not this process: a fork of another test could hold it open
        // for writing when it is executed.
        let status = Command::new("install").args([&text, &program]).status();
        assert!(status.unwrap().success());
        let fetcher = Fetcher { program, wait, patience, ..Fetcher::default() };
        Self { folder, fetcher }
    }

    fn ask(&self) -> Option<PathBuf> {
        self.fetcher.ask(&BUILD_ID)
    }

    /// Returns the ids of the processes that were asked, in order.
    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default();
        asked.lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_answer_is_a_path_of_one_line() {
    for (script, found) in [
        ("echo /a/b c", Some("/a/b c")),
        ("echo /a; echo /b", Some("/a")),
        ("printf /a", Some("/a")),
        // The fetcher leaves a process running that holds its output open.
        ("echo /a; sleep 1000 2>/dev/null & echo $! > left", Some("/a")),
        ("true", None),
        ("echo; echo /a", None),
        ("exit 1", None),
    ] {
        let played = ScriptedFetcher::by(script, LONG, LONG);
        assert_eq!(played.ask().as_deref(), found.map(Path::new), "{script}");
        if let Ok(left) = fs::read_to_string(played.folder.path().join("left")) {
            let left = Pid::from_raw(left.trim().parse().unwrap());
            nix::sys::signal::kill(left, Signal::SIGKILL).unwrap();
        }
    }
}

#[test]
fn servers_without_one_file_are_asked_for_the_next_file() {
    let played = ScriptedFetcher::by("exit 1", LONG, LONG);
    assert_eq!((played.ask(), played.ask()), (None, None));
    assert_eq!(played.asked().len(), 2);
}

#[test]
fn slow_servers_are_waited_for() {
    let script = "if [ -e slow ]; then echo /a; else touch slow; sleep 1; echo /a; fi";
    let played = ScriptedFetcher::by(script, LONG, Duration::ZERO);
    assert_eq!(played.ask().as_deref(), Some(Path::new("/a")));
    assert_eq!(played.ask().as_deref(), Some(Path::new("/a")), "they did answer");
}

/// A server that sends nothing, and a server that sends text without a line end.
#[test]
fn silent_servers_are_left_and_not_asked_again() {
    for script in ["exec sleep 100000", "printf /a; exec sleep 100000", "sleep 100000"] {
        let played =
            ScriptedFetcher::by(script, Duration::from_millis(300), Duration::from_millis(1));
        assert_eq!((played.ask(), played.ask()), (None, None), "{script}");
        let asked = played.asked();
        assert!(asked.len() <= 1, "{script}: {asked:?}");
        let is_there = |pid: &String| Path::new("/proc").join(pid).exists();
        assert!(!asked.iter().any(is_there), "{script}: it is still there");
    }
}

#[test]
fn missing_fetcher_is_no_server() {
    let fetcher = Fetcher { program: "/nowhere/fetcher".into(), ..Fetcher::default() };
    assert_eq!(fetcher.ask(&BUILD_ID), None);
}

#[test]
fn only_what_an_earlier_fetcher_abandoned_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let names =
        ["debuginfo", "debuginfo.aB3xyz", "debuginfo.aB3xy", "debuginfo.aB3x-z", "source.aB3xyz"];
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    remove_abandoned(folder.path(), LONG);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), names.len(), "somebody writes to it");
    remove_abandoned(folder.path(), Duration::ZERO);
    let left = |name: &&&str| folder.path().join(name).exists();
    let left: Vec<&str> = names.iter().filter(left).copied().collect();
    assert_eq!(left, ["debuginfo", "debuginfo.aB3xy", "debuginfo.aB3x-z", "source.aB3xyz"]);
    remove_abandoned(Path::new("/nowhere"), Duration::ZERO);
}
