//! The CPU times of threads and processes.

use std::io;

use super::schedule::parse_turns;
use super::task_stat;

/// Returns the CPU time that a thread has used, in nanoseconds, from the scheduler.
fn task_cpu_ns(pid: i32, tid: i32) -> io::Result<u64> {
    let text = std::fs::read(format!("/proc/{pid}/task/{tid}/schedstat"))?;
    let turns = parse_turns(&text).map(|turns| turns.run_ns);
    turns.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat holds no numbers"))
}

/// Returns the CPU time that a process has spent in user mode and inside the kernel, in
/// nanoseconds, at the resolution of the kernel's clock tick.
pub fn mode_times_ns(pid: i32) -> io::Result<(u64, u64)> {
    let (user, system) = super::process_ticks(pid)?;
    Ok((ticks_ns(user), ticks_ns(system)))
}

/// Returns the CPU time that a process has spent inside the kernel, as in [`mode_times_ns`].
pub fn system_time_ns(pid: i32) -> io::Result<u64> {
    mode_times_ns(pid).map(|(_, system)| system)
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000) / procfs::ticks_per_second().max(1)
}

/// Returns the CPU time of a thread in nanoseconds, from clock ticks where the scheduler does not
/// count.
pub fn task_cpu_or_ticks_ns(pid: i32, tid: i32) -> io::Result<u64> {
    task_cpu_ns(pid, tid).or_else(|_| Ok(ticks_ns(task_stat(pid, tid)?.cpu_ticks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_grows() {
        let pid = std::process::id() as i32;
        let tid = nix::unistd::gettid().as_raw();
        let before = task_cpu_ns(pid, tid).unwrap();
        let mut sum = 0u64;
        while task_cpu_or_ticks_ns(pid, tid).unwrap() < before + 20_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(system_time_ns(pid).is_ok());
    }
}
