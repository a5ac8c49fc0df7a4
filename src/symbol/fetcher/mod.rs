//! Fetches debug files from servers, with the `debuginfod-find` program of elfutils.
//!
//! # Invariants
//! - The fetcher exits with the thread that started it: a killed recorder leaves none behind.
//! - A file in the fetcher's cache has its final name only when it is complete. A killed fetcher
//!   leaves a file with another name, which the next fetch of the same file removes.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::elf::build_id_text;
use crate::proc::{kill_with_starter, with_original_limit};

/// The program that asks servers for debug information and keeps it in its own cache.
const PROGRAM: &str = "debuginfod-find";
/// The environment variable with the servers to ask.
pub const DEBUGINFOD_SERVERS: &str = "DEBUGINFOD_URLS";
/// The environment variable with the number of seconds after which the program gives up and removes
/// its incomplete file.
const GIVE_UP: &str = "DEBUGINFOD_MAXTIME";
const GIVE_UP_S: u64 = 50;
/// Maximum time to wait for the program. Names that take longer are missing.
const WAIT: Duration = Duration::from_secs(60);
/// If no server answers within this time, the servers are not asked again.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);
/// Maximum length in bytes of a path in the program's output.
const PATH_MAX: u64 = 4096;
/// Age of the last write to an incomplete file after which its fetcher has certainly exited.
const ABANDONED: Duration = Duration::from_secs(600);

/// Fetches debug files from servers until the servers stop answering.
#[derive(Debug)]
pub struct Fetcher {
    program: PathBuf,
    wait: Duration,
    patience: Duration,
    /// Whether the servers did not answer. Then they are not asked again.
    is_silent: AtomicBool,
}

impl Default for Fetcher {
    fn default() -> Self {
        let is_silent = AtomicBool::new(false);
        Self { program: PROGRAM.into(), wait: WAIT, patience: PATIENCE, is_silent }
    }
}

impl Fetcher {
    /// Returns the debug file of a build, if a server has it.
    pub(super) fn fetch(&self, build_id: &[u8]) -> Option<PathBuf> {
        env::var_os(DEBUGINFOD_SERVERS).filter(|it| !it.is_empty())?;
        if let Some(cache) = debuginfod_cache() {
            remove_abandoned(&cache.join(build_id_text(build_id)), ABANDONED);
        }
        self.ask(build_id)
    }

    fn ask(&self, build_id: &[u8]) -> Option<PathBuf> {
        // Relaxed: a thread that does not see the new value yet waits once more. Nothing else
        // depends on it.
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let started = Instant::now();
        let found = self.run(build_id, started + self.wait);
        if found.is_none() && started.elapsed() >= self.patience {
            // Relaxed: as above.
            self.is_silent.store(true, Ordering::Relaxed);
        }
        found
    }

    fn run(&self, build_id: &[u8], deadline: Instant) -> Option<PathBuf> {
        let mut command = Command::new(&self.program);
        command.arg("debuginfo").arg(build_id_text(build_id)).env(GIVE_UP, give_up_s());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // The child gets its own process group: the key that ends a recording must not signal it.
        command.process_group(0);
        kill_with_starter(&mut command);
        with_original_limit(&mut command);
        let mut child = command.spawn().ok()?;
        while child.try_wait().ok()?.is_none() {
            if Instant::now() >= deadline {
                kill(&mut child);
                return None;
            }
            std::thread::sleep(STEP);
        }
        // Reads one line, not to the end of file: a process that the child left running may hold
        // the pipe open.
        let mut text = Vec::new();
        BufReader::new(child.stdout.take()?).take(PATH_MAX).read_until(b'\n', &mut text).ok()?;
        let path = text.trim_ascii_end().to_vec();
        (!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path)))
    }
}

/// Returns the folder where `debuginfod-find` keeps fetched files (debuginfod-client-config(7)).
pub(super) fn debuginfod_cache() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("DEBUGINFOD_CACHE_PATH").filter(|dir| !dir.is_empty()) {
        return Some(dir.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("debuginfod_client"))
}

/// Returns the value of [`GIVE_UP`]. The user may have set a shorter time.
fn give_up_s() -> String {
    let own = env::var(GIVE_UP).ok().and_then(|text| text.parse().ok());
    own.filter(|own| *own > 0).map_or(GIVE_UP_S, |own: u64| own.min(GIVE_UP_S)).to_string()
}

/// Kills the fetcher and its children. It may exit by itself at the same moment.
fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).map(Pid::from_raw);
    let _ = group.map(|group| killpg(group, Signal::SIGKILL));
    let _ = child.kill();
    let _ = child.wait();
}

/// Removes the incomplete files of a build: `debuginfo.` with six unique characters.
fn remove_abandoned(folder: &Path, age: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ending = name.to_str().and_then(|name| name.strip_prefix("debuginfo."));
        let is_unfinished = ending
            .is_some_and(|it| it.len() == 6 && it.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let written = entry.metadata().and_then(|meta| meta.modified()).ok();
        let is_old = written.and_then(|it| it.elapsed().ok()).is_some_and(|it| it >= age);
        if is_unfinished && is_old {
            // The file may no longer exist, or belong to another user.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
