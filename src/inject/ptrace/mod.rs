//! A seized thread: the only module that calls `ptrace`.
//!
//! # Safety
//! Every request passes `ptrace` a buffer of its own with its length; nothing outlives the call.
//!
//! # Invariants
//! - `PTRACE_O_EXITKILL` is never set: when this tracer dies, the thread continues.
//! - Every wait has a deadline.
//! - A watchdog ends this process if it does not run while it traces.
//!
//! # Does not
//! - decide what a thread runs, or know chains and agents.
#![allow(unsafe_code, reason = "ptrace has no safe interface for register sets and rseq")]

mod filter_program;
mod memory;
mod pending;
pub(super) mod priority;
pub(super) mod sigchld;
pub(super) mod tracing_thread;
pub(super) mod wait;
pub(super) mod watchdog;

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::time::Instant;

pub(super) use self::filter_program::FilterInstruction;
use self::filter_program::LEN_MAX;
pub use self::memory::read_part;
pub(super) use self::pending::PendingSignal;
use self::pending::SIGINFO_LEN;
use self::wait::await_child;
use super::arch::{REGISTERS_LEN, Registers, zeroed};
use crate::fault;
use crate::proc;

const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;
const XSTATE_MAX: usize = 32 * 1024;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const PEEKED_MAX: usize = 32;
/// Checks for a stop between two checks of the thread's state.
const PEEKS: u32 = 16;
/// Most pages of pending signals that are read; real-time signals queue up.
const PEEKS_MAX: u64 = 8;
/// The event that ended a wait for a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceeEvent {
    /// The thread has made the requested stop.
    Interrupt,
    /// Job control has stopped the process (a group stop).
    Group,
    /// The process has executed another program.
    Exec,
    /// The thread enters or leaves a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// The thread exited, with its exit code, or 128 plus the signal's number.
    Exited(i32),
    /// The thread did not stop in time.
    Timeout,
}

/// How far a stopped thread continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// Until the next stop other than a system call's.
    Run,
    /// Until the entry or the exit of the next system call.
    ToSyscall,
}

/// A thread that the calling thread traces. Dropping the value does not detach the thread: only a
/// stopped thread can be detached.
#[derive(Debug)]
pub(super) struct Tracee {
    tid: i32,
    /// A stop that was seen and is not consumed yet.
    seen: Cell<Option<TraceeEvent>>,
}

impl Tracee {
    /// Seizes a thread, which keeps running.
    pub(super) fn seize(tid: i32) -> io::Result<Tracee> {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        change(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        Ok(Tracee { tid, seen: Cell::new(None) })
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Requests a stop.
    pub(super) fn interrupt(&self) -> io::Result<()> {
        change(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// Whether the thread has stopped or exited, and the stop is not consumed yet.
    pub(super) fn has_stopped(&self) -> bool {
        self.seen.set(self.peek_stop().ok().flatten());
        self.seen.get().is_some()
    }

    /// Waits for the next stop.
    ///
    /// The tracer sees a stop for a signal with WNOWAIT and never consumes it. If the tracer
    /// consumed the stop and died, the kernel would assume that the tracer had taken the signal,
    /// and the application would lose it. The next request continues the thread all the same.
    ///
    /// The requested stop is not consumed, either: the kernel forgets it when the thread continues.
    /// That saves one system call for each thread.
    pub(super) fn wait(&self, deadline: Instant) -> io::Result<TraceeEvent> {
        let mut peeks = 0u32;
        loop {
            watchdog::feed();
            peeks = peeks.wrapping_add(1);
            match self.seen.take().map_or_else(|| self.peek_stop(), |stop| Ok(Some(stop))) {
                Ok(None) if Instant::now() >= deadline => return Ok(TraceeEvent::Timeout),
                // The kernel reports a leader's exit only after the exits of all other threads of
                // its process were consumed. This very thread may trace those threads.
                Ok(None) if peeks.is_multiple_of(PEEKS) && self.is_zombie() => {
                    return Ok(TraceeEvent::Exited(0));
                }
                Ok(None) => await_child(deadline),
                Ok(Some(stop @ (TraceeEvent::Signal(_) | TraceeEvent::Interrupt))) => {
                    return Ok(stop);
                }
                // Another part of this process started the child, and waits for its exit.
                Ok(Some(stop @ TraceeEvent::Exited(_))) if self.is_own_child() => return Ok(stop),
                Ok(Some(stop)) => {
                    let mut status = 0;
                    // SAFETY: `status` is this call's own.
                    unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) };
                    fault::touched("waitpid");
                    return Ok(stop);
                }
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The thread no longer exists: an exec by one thread ends all others.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    return Ok(TraceeEvent::Exited(0));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn is_zombie(&self) -> bool {
        proc::task_stat(self.tid, self.tid).is_ok_and(|stat| proc::has_ended(stat.state))
    }

    fn is_own_child(&self) -> bool {
        proc::status(self.tid).is_ok_and(|status| status.parent == std::process::id() as i32)
    }

    /// Returns the stop that the thread is in, or its exit.
    fn peek_stop(&self) -> io::Result<Option<TraceeEvent>> {
        const PEEK: i32 =
            libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        // SAFETY: all zero is a value of this plain structure.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes one structure, which this function owns.
        if unsafe { libc::waitid(libc::P_PID, self.tid as u32, &mut about, PEEK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: filled in for a child's change, or zero.
        let pid = unsafe { about.si_pid() };
        // SAFETY: as above.
        let status = unsafe { about.si_status() };
        Ok((pid != 0).then(|| match about.si_code {
            libc::CLD_EXITED => TraceeEvent::Exited(status),
            libc::CLD_KILLED | libc::CLD_DUMPED => TraceeEvent::Exited(128 + status),
            _ => stopped_for(status),
        }))
    }

    /// Continues a stopped thread. If the thread stopped for a signal, `signal` is delivered.
    pub(super) fn resume(&self, how: Resume, signal: i32) -> io::Result<()> {
        let code = match how {
            Resume::Run => libc::PTRACE_CONT,
            Resume::ToSyscall => libc::PTRACE_SYSCALL,
        };
        change(code, self.tid, 0, signal as usize)
    }

    /// Detaches a stopped thread, which then continues. If the thread stopped for a signal,
    /// `signal` is delivered.
    pub(super) fn detach(&self, signal: i32) -> io::Result<()> {
        change(libc::PTRACE_DETACH, self.tid, 0, signal as usize)
    }

    /// Sends the thread a signal.
    pub(super) fn send(&self, signal: i32) -> io::Result<()> {
        // SAFETY: takes numbers only.
        match unsafe { libc::syscall(libc::SYS_tkill, self.tid, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the thread is stopped at the entry of a system call, before the call.
    pub(super) fn is_at_entry(&self) -> bool {
        /// `PTRACE_SYSCALL_INFO_ENTRY`, in the first byte.
        const ENTRY: u8 = 1;
        let mut about = [0u64; 11];
        let place = about.as_mut_ptr() as usize;
        let got = request(libc::PTRACE_GET_SYSCALL_INFO, self.tid, size_of_val(&about), place);
        got.is_ok() && about[0].to_le_bytes()[0] == ENTRY
    }

    /// Returns the registers; `None` if the thread runs 32-bit code.
    pub(super) fn registers(&self) -> io::Result<Option<Registers>> {
        let mut registers = zeroed();
        let part = (&raw mut registers).cast::<c_void>();
        let got = self.regset(NT_PRSTATUS, part, REGISTERS_LEN)?;
        Ok((got == REGISTERS_LEN).then_some(registers))
    }

    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let mut copy = *registers;
        let part = (&raw mut copy).cast::<c_void>();
        self.set_regset(NT_PRSTATUS, part, REGISTERS_LEN)
    }

    /// Returns the vector state in the format of `NT_X86_XSTATE`.
    pub(super) fn xstate(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; XSTATE_MAX];
        let part = bytes.as_mut_ptr().cast::<c_void>();
        let got = self.regset(NT_X86_XSTATE, part, XSTATE_MAX)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Writes back a vector state from [`Self::xstate`].
    pub(super) fn set_xstate(&self, bytes: &[u8]) -> io::Result<()> {
        let mut copy = bytes.to_vec();
        let part = copy.as_mut_ptr().cast::<c_void>();
        self.set_regset(NT_X86_XSTATE, part, copy.len())
    }

    fn regset(&self, set: usize, base: *mut c_void, len: usize) -> io::Result<usize> {
        let mut part = libc::iovec { iov_base: base, iov_len: len };
        request(libc::PTRACE_GETREGSET, self.tid, set, &raw mut part as usize)?;
        Ok(part.iov_len)
    }

    fn set_regset(&self, set: usize, base: *mut c_void, len: usize) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: base, iov_len: len };
        change(libc::PTRACE_SETREGSET, self.tid, set, &raw mut part as usize)
    }

    /// Returns the signal mask, without the temporary mask of a call such as `ppoll`.
    pub(super) fn mask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask as usize)?;
        Ok(mask)
    }

    pub(super) fn set_mask(&self, mask: u64) -> io::Result<()> {
        let mut copy = mask;
        change(libc::PTRACE_SETSIGMASK, self.tid, 8, &raw mut copy as usize)
    }

    /// Returns the signals that are pending for the thread or its process.
    pub(super) fn pending(&self) -> io::Result<Vec<PendingSignal>> {
        let mut pending = self.own_pending()?;
        pending.extend(self.queue(libc::PTRACE_PEEKSIGINFO_SHARED)?);
        Ok(pending)
    }

    /// Returns the signals that are pending for the thread alone. Signals of its timers and perf
    /// events are among them.
    pub(super) fn own_pending(&self) -> io::Result<Vec<PendingSignal>> {
        self.queue(0)
    }

    fn queue(&self, flags: u32) -> io::Result<Vec<PendingSignal>> {
        let mut pending = Vec::new();
        for page in 0..PEEKS_MAX {
            let mut records = [[0u32; SIGINFO_LEN / 4]; PEEKED_MAX];
            let off = page * PEEKED_MAX as u64;
            let args = libc::ptrace_peeksiginfo_args { off, flags, nr: PEEKED_MAX as i32 };
            let (args, place) = (&raw const args as usize, records.as_mut_ptr() as usize);
            let got = request(libc::PTRACE_PEEKSIGINFO, self.tid, args, place)?;
            pending.extend(records.iter().take(got as usize).map(PendingSignal::read));
            if got < PEEKED_MAX as i64 {
                break;
            }
        }
        Ok(pending)
    }

    /// Returns the signal that the thread has stopped for.
    pub(super) fn taken(&self) -> io::Result<PendingSignal> {
        let mut record = [0u32; SIGINFO_LEN / 4];
        request(libc::PTRACE_GETSIGINFO, self.tid, 0, record.as_mut_ptr() as usize)?;
        Ok(PendingSignal::read(&record))
    }

    /// Returns the seccomp filters of the stopped thread, the latest first.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<FilterInstruction>>> {
        let mut filters = Vec::new();
        loop {
            let mut program = vec![FilterInstruction::default(); LEN_MAX];
            let place = program.as_mut_ptr() as usize;
            // The kernel writes no more than the longest program that it accepts.
            match request(PTRACE_SECCOMP_GET_FILTER, self.tid, filters.len(), place) {
                Ok(len) => program.truncate(len as usize),
                // No filter has this number.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
                Err(error) => return Err(error),
            }
            filters.push(program);
        }
    }

    /// Returns the address of the thread's rseq area, if the thread registered one.
    ///
    /// # Errors
    /// Fails on kernels before 5.13.
    pub(super) fn rseq(&self) -> io::Result<Option<u64>> {
        let mut configuration = [0u64; 3];
        let place = configuration.as_mut_ptr() as usize;
        request(PTRACE_GET_RSEQ_CONFIGURATION, self.tid, 24, place)?;
        Ok((configuration[0] != 0).then_some(configuration[0]))
    }

    /// Reads the target's memory completely, or returns an error.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        memory::read_all(self.tid, address, into)
    }

    /// Writes memory that the target itself may write, completely, or returns an error.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        memory::write_all(self.tid, address, bytes)
    }
}

/// Makes a request that changes the thread's state.
fn change(code: u32, tid: i32, address: usize, data: usize) -> io::Result<()> {
    request(code, tid, address, data)?;
    fault::touched(match code {
        libc::PTRACE_INTERRUPT => "PTRACE_INTERRUPT",
        libc::PTRACE_CONT => "PTRACE_CONT",
        libc::PTRACE_SYSCALL => "PTRACE_SYSCALL",
        libc::PTRACE_SETREGSET => "PTRACE_SETREGSET",
        _ => "another of ptrace",
    });
    Ok(())
}

fn request(code: u32, tid: i32, address: usize, data: usize) -> io::Result<i64> {
    watchdog::feed();
    // SAFETY: the callers pass the address and the length of a buffer that they own, or numbers.
    match unsafe { libc::ptrace(code, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Decodes a stop: a signal in the low byte, and the event above it.
fn stopped_for(code: i32) -> TraceeEvent {
    match (code >> 8, code & 0xff) {
        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => TraceeEvent::Interrupt,
        (libc::PTRACE_EVENT_STOP, _) => TraceeEvent::Group,
        (libc::PTRACE_EVENT_EXEC, _) => TraceeEvent::Exec,
        (0, SYSCALL_STOP) => TraceeEvent::Syscall,
        (_, signal) => TraceeEvent::Signal(signal),
    }
}
