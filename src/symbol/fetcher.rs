//! Asks servers for debug files, by the program of elfutils that does so and keeps what it fetched.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::elf::build_id_text;

/// Asks servers for debug information, and keeps it in a cache of its own.
const PROGRAM: &str = "debuginfod-find";
/// The servers that it asks.
pub const DEBUGINFOD_SERVERS: &str = "DEBUGINFOD_URLS";
/// Names come later than that, or not at all.
const WAIT: Duration = Duration::from_secs(60);
/// Who has not even said no by then will not do so for the next file.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);
/// Longest path that is taken for one.
const PATH_MAX: u64 = 4096;

/// What asks, as long as somebody answers.
#[derive(Debug, Default)]
pub struct Fetcher {
    /// The servers did not answer: nobody waits for them again.
    is_silent: AtomicBool,
}

impl Fetcher {
    /// The debug file of a build, if servers have it.
    pub(super) fn fetch(&self, build_id: &[u8]) -> Option<PathBuf> {
        // Relaxed: whoever does not see it yet waits once more, and nothing else hangs on it.
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        if is_silent || env::var_os(DEBUGINFOD_SERVERS).is_none_or(|it| it.is_empty()) {
            return None;
        }
        let started = Instant::now();
        let found = run(build_id, started + WAIT);
        if found.is_none() && started.elapsed() >= PATIENCE {
            // Relaxed: as above.
            self.is_silent.store(true, Ordering::Relaxed);
        }
        found
    }
}

fn run(build_id: &[u8], deadline: Instant) -> Option<PathBuf> {
    let mut command = Command::new(PROGRAM);
    command.arg("debuginfo").arg(build_id_text(build_id));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // In a group of its own: the key that ends a recording is not meant for it.
    let mut child = command.process_group(0).spawn().ok()?;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= deadline {
            kill(&mut child);
            return None;
        }
        std::thread::sleep(STEP);
    }
    // One line, and not up to the end: something that it left running may hold that open.
    let mut text = Vec::new();
    BufReader::new(child.stdout.take()?).take(PATH_MAX).read_until(b'\n', &mut text).ok()?;
    let path = text.trim_ascii_end().to_vec();
    (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(path)))
}

/// With what it started; it may end by itself in the same moment.
fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).map(Pid::from_raw);
    let _ = group.map(|group| killpg(group, Signal::SIGKILL));
    let _ = child.kill();
    let _ = child.wait();
}
