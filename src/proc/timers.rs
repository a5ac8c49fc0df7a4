//! The POSIX timers of a process.

use std::fs;
use std::io;

/// A POSIX timer of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PosixTimer {
    /// The timer's id in the process.
    pub id: i32,
    /// The signal that the timer raises; 0 for none.
    pub signal: i32,
    /// The value that the signal carries.
    pub value: u64,
}

/// Returns all POSIX timers of a process. A kernel without checkpoint and restore shows none: that
/// is `NotFound`, as for a process that has exited.
pub fn posix_timers(pid: i32) -> io::Result<Vec<PosixTimer>> {
    Ok(parse(&fs::read_to_string(format!("/proc/{pid}/timers"))?))
}

fn parse(text: &str) -> Vec<PosixTimer> {
    let mut timers = Vec::new();
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("ID:").and_then(|id| id.trim().parse().ok()) {
            timers.push(PosixTimer { id, signal: 0, value: 0 });
        } else if let (Some(sent), Some(last)) = (line.strip_prefix("signal:"), timers.last_mut()) {
            let (number, value) = sent.trim().split_once('/').unwrap_or((sent, ""));
            last.signal = number.parse().unwrap_or(0);
            last.value = u64::from_str_radix(value, 16).unwrap_or(0);
        }
    }
    timers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_signals_are_read() {
        let text = "ID: 0\nsignal: 23/74501d0a00000004\nnotify: signal/tid.77\nClockID: -6\n\
                    ID: 4\nsignal: 0/0000000000000000\nnotify: none/pid.77\nClockID: 1\n";
        let expected = [(0, 23, 0x7450_1d0a_0000_0004), (4, 0, 0)];
        let expected = expected.map(|(id, signal, value)| PosixTimer { id, signal, value });
        assert_eq!(parse(text), expected);
        assert_eq!(parse(""), []);
    }
}
