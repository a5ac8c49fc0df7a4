//! The peak memory of a command.

use std::fs;
use std::process::{Command, ExitStatus, Stdio};

/// Runs a command that must succeed and returns its peak resident memory in KiB. The peak that
/// `wait4` reports includes the memory of the test itself before the exec, so the test polls the
/// process while it runs.
pub(crate) fn peak_kib(mut command: Command) -> u64 {
    let (kib, status) = peak_of(command.stderr(Stdio::null()));
    assert!(status.success(), "{command:?}: {status}");
    kib
}

/// Runs a command and returns its peak resident memory in KiB, and how it ended.
pub(crate) fn peak_of(command: &mut Command) -> (u64, ExitStatus) {
    let mut child = command.stdout(Stdio::null()).spawn().expect("the command");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        // A process that has exited has none.
        peak = kib.unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().expect("its state") {
            return (peak, status);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
