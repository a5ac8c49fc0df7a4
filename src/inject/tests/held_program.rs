//! Programs that are held between their execve and their first instruction.
//!
//! # Safety
//! The forked child makes only system calls.
#![allow(unsafe_code, reason = "forks a program that is to be held at its exec")]

use nix::unistd::Pid;

use super::alone;
use super::stand_in::{StandIn, start_guardian};
use super::victim::build;
use crate::inject::*;
use crate::proc;

const HELD: &str = include_str!("victims/held.c");

/// Forks a child that waits for a byte on `go`, then executes the program with `hold` open.
fn fork_waiting(program: &std::path::Path, argument: &str) -> (i32, [i32; 2], [i32; 2], [i32; 2]) {
    let pipe = |flags| {
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) }, 0);
        ends
    };
    let (go, hold, output) = (pipe(libc::O_CLOEXEC), pipe(libc::O_CLOEXEC), pipe(libc::O_CLOEXEC));
    let path = std::ffi::CString::new(program.to_str().unwrap()).unwrap();
    let argument = std::ffi::CString::new(argument).unwrap();
    let arguments = [path.as_ptr(), argument.as_ptr(), std::ptr::null()];
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut byte = 0u8;
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one child, six system calls")]
        // SAFETY: system calls on buffers of the parent's copy.
        unsafe {
            libc::dup2(output[1], 1);
            libc::close(hold[1]);
            libc::fcntl(hold[0], libc::F_SETFD, 0);
            libc::read(go[0], (&raw mut byte).cast(), 1);
            libc::execv(path.as_ptr(), arguments.as_ptr());
            libc::_exit(127)
        }
    }
    (pid, go, hold, output)
}

fn write_byte(fd: i32) {
    // SAFETY: writes one byte.
    assert_eq!(unsafe { libc::write(fd, c"x".as_ptr().cast(), 1) }, 1);
}

fn readable(fd: i32, milliseconds: u16) -> bool {
    // SAFETY: the descriptor stays open during the call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, milliseconds).unwrap() > 0
}

fn exit_code(pid: i32) -> i32 {
    match nix::sys::wait::waitpid(Pid::from_raw(pid), None).unwrap() {
        nix::sys::wait::WaitStatus::Exited(_, code) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn program_is_held_before_its_first_instruction() {
    let _alone = alone();
    for release_by_death in [false, true] {
        for flags in [&[][..], &["-static"]] {
            let (pid, go, hold, output) = fork_waiting(&build("held", HELD, flags), "9");
            let mut guardian = start_guardian();
            guardian.hold_at_exec(pid).unwrap();
            write_byte(go[1]);
            guardian.wait_exec().unwrap();
            let mut stand_in = StandIn::new(pid);
            stand_in.plan.hold_fd = Some(hold[0]);
            let report = guardian.attach(&stand_in.plan).unwrap();
            eprintln!("held: {report:?}");
            assert!(!readable(output[0], 100), "it ran before its release");
            assert_eq!(proc::status(pid).unwrap().tracer, 0);
            if release_by_death {
                // SAFETY: closes the only writing end.
                unsafe { libc::close(hold[1]) };
            } else {
                write_byte(hold[1]);
            }
            assert!(readable(output[0], 2000));
            let held = std::path::PathBuf::from(format!("/proc/{pid}/fd/{}", hold[0]));
            assert!(!held.exists(), "the pipe is still open");
            let report = guardian.detach().unwrap();
            assert_eq!((report.threads, report.residue), (1, None));
            assert_eq!(exit_code(pid), 9);
        }
    }
}

#[test]
fn command_that_cannot_be_executed_is_reported() {
    let _alone = alone();
    let (pid, go, ..) = fork_waiting(std::path::Path::new("/nonexistent/program"), "");
    let mut guardian = start_guardian();
    guardian.hold_at_exec(pid).unwrap();
    write_byte(go[1]);
    assert_eq!(guardian.wait_exec(), Err(InjectError::ExitedBeforeExec { code: 127 }));
    assert_eq!(exit_code(pid), 127);
}
