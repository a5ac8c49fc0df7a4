//! A child program that does not outlive the thread that started it.
//!
//! # Safety
//! One closure runs between fork and exec; it makes system calls only.
#![allow(unsafe_code, reason = "pre_exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// Makes the kernel kill the program when the thread that starts it ends, so that thread must wait
/// for the program.
pub fn kill_with_starter(command: &mut Command) {
    let starter = Pid::this();
    let before_exec = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // prctl does not notice a parent that exited before it.
        if getppid() == starter { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: the closure is async-signal-safe: it makes system calls, allocates nothing and takes
    // no lock.
    unsafe { command.pre_exec(before_exec) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn program_is_killed_with_the_thread_that_started_it() {
        let start = |dies: bool| {
            let mut command = Command::new("sleep");
            command.arg("120");
            if dies {
                kill_with_starter(&mut command);
            }
            std::thread::spawn(move || command.spawn().unwrap()).join().unwrap()
        };
        assert_eq!(start(true).wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        let mut other = start(false);
        assert_eq!(other.try_wait().unwrap(), None, "the premise");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
