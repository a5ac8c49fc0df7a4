//! A seized thread: the one door to `ptrace` and to the memory of another process.
//!
//! # Safety
//! `ptrace` and `process_vm_*` write where they are told; every call here hands them a buffer of
//! its own with the length that the kernel gets, and nothing of it outlives the call.
//!
//! # Invariants
//! - `PTRACE_O_EXITKILL` is never set: when this tracer ends, the thread goes on.
//! - Every wait has a deadline.
//!
//! # Does not
//! - decide what a thread runs; know of chains or agents.
#![allow(unsafe_code, reason = "ptrace has no safe interface for register sets and rseq")]

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use traceprof_abi::layout::SIG_DATA_MARK;

use super::arch::{REGISTERS_LEN, Registers, zeroed};
use super::filter::{Instruction, LEN_MAX};
use crate::fault;
use crate::proc;

const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;
const XSTATE_MAX: usize = 32 * 1024;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const SIGINFO_LEN: usize = 128;
const PEEKED_MAX: usize = 32;
/// After so many looks for a stop the thread's state is looked at.
const LOOKS: u32 = 16;
/// Full pages of pending signals that are looked at; real-time signals queue up.
const PEEKS_MAX: u64 = 8;
/// `si_code` of a perf event's signal.
const TRAP_PERF: i32 = 6;
/// `si_code` of a timer's signal.
const SI_TIMER: i32 = -2;
/// `si_code` of a signal that was queued with a value.
const SI_QUEUE: i32 = -1;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The requested stop.
    Interrupt,
    /// The process is stopped by job control (a group stop).
    Group,
    /// It has just executed another program.
    Exec,
    /// It enters or leaves a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// It ended: exit code, or 128 and the signal's number.
    Ended(i32),
    /// It did not stop in time.
    Timeout,
}

/// How a stopped thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// Until it stops for some other reason.
    Run,
    /// Until the next system call's entry or exit.
    ToSyscall,
}

/// A signal that waits for its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    /// Its number.
    pub(super) number: i32,
    code: i32,
    overruns: u32,
    mark: u16,
}

impl Pending {
    fn read(record: &[u32; SIGINFO_LEN / 4]) -> Pending {
        // At byte 24 follows an event's `sig_data`, and a timer's or a queued signal's value; the
        // mark is its uppermost quarter. A timer's has its overruns at byte 20.
        Pending {
            number: record[0] as i32,
            code: record[2] as i32,
            overruns: record[5],
            mark: (record[7] >> 16) as u16,
        }
    }

    /// Its bit in a set; bit 0 is signal 1.
    pub(super) fn bit(self) -> u64 {
        1u64.checked_shl((self.number as u32).wrapping_sub(1)).unwrap_or(0)
    }

    /// An event or a timer of ours raised it, or the recorder sent it.
    pub(super) fn is_hit(self) -> bool {
        [TRAP_PERF, SI_TIMER, SI_QUEUE].contains(&self.code) && self.mark == SIG_DATA_MARK
    }

    /// Periods of a timer that are folded into its hit.
    pub(super) fn overruns(self) -> u32 {
        if self.code == SI_TIMER { (self.overruns as i32).max(0) as u32 } else { 0 }
    }
}

/// A thread that this thread traces. Dropping it does not detach: only a stopped thread can be.
#[derive(Debug)]
pub(super) struct Tracee {
    tid: i32,
    /// A stop that was seen and is still to be waited for.
    seen: Cell<Option<Stop>>,
}

impl Tracee {
    /// Seizes a thread; it goes on running.
    pub(super) fn seize(tid: i32) -> io::Result<Tracee> {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        change(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        Ok(Tracee { tid, seen: Cell::new(None) })
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Asks for a stop.
    pub(super) fn interrupt(&self) -> io::Result<()> {
        change(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// It has stopped, or ended, and nobody has waited for that.
    pub(super) fn has_stopped(&self) -> bool {
        self.seen.set(self.look().ok().flatten());
        self.seen.get().is_some()
    }

    /// Waits for the next stop.
    ///
    /// A thread that stopped to take a signal takes it when its tracer dies, unless the tracer has
    /// waited for that stop in the ordinary way: the kernel then thinks the tracer has the signal, and
    /// the application never gets it. So such a stop is looked at and left unwaited for; the next
    /// request lets the thread go on all the same. So is the stop that was asked for, of which the
    /// kernel forgets all when the thread goes on: with many threads that saves a call for each.
    pub(super) fn wait(&self, deadline: Instant) -> io::Result<Stop> {
        let mut looks = 0u32;
        loop {
            looks = looks.wrapping_add(1);
            match self.seen.take().map_or_else(|| self.look(), |stop| Ok(Some(stop))) {
                Ok(None) if Instant::now() >= deadline => return Ok(Stop::Timeout),
                // A leader's end is not told of before all others' of its process have been taken notice
                // of, which this very thread may trace as well.
                Ok(None) if looks.is_multiple_of(LOOKS) && self.is_zombie() => {
                    return Ok(Stop::Ended(0));
                }
                Ok(None) => await_child(deadline),
                Ok(Some(stop @ (Stop::Signal(_) | Stop::Interrupt))) => return Ok(stop),
                // Whoever started it in this process waits for its end.
                Ok(Some(stop @ Stop::Ended(_))) if self.is_own_child() => return Ok(stop),
                Ok(Some(stop)) => {
                    let mut status = 0;
                    // SAFETY: `status` is this call's own.
                    unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) };
                    fault::touched("waitpid");
                    return Ok(stop);
                }
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The thread vanished, as all others do when one of them executes.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    return Ok(Stop::Ended(0));
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

    /// The stop that the thread is in, or its end.
    fn look(&self) -> io::Result<Option<Stop>> {
        const LOOK: i32 =
            libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        // SAFETY: all zero is a value of this plain structure.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes one structure, which is ours.
        if unsafe { libc::waitid(libc::P_PID, self.tid as u32, &mut about, LOOK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: filled in for a child's change, or zero.
        let pid = unsafe { about.si_pid() };
        // SAFETY: as above.
        let status = unsafe { about.si_status() };
        Ok((pid != 0).then(|| match about.si_code {
            libc::CLD_EXITED => Stop::Ended(status),
            libc::CLD_KILLED | libc::CLD_DUMPED => Stop::Ended(128 + status),
            _ => stopped_for(status),
        }))
    }

    /// Lets a stopped thread go on, with a signal to deliver if it stopped for one.
    pub(super) fn resume(&self, how: Resume, signal: i32) -> io::Result<()> {
        let code = match how {
            Resume::Run => libc::PTRACE_CONT,
            Resume::ToSyscall => libc::PTRACE_SYSCALL,
        };
        change(code, self.tid, 0, signal as usize)
    }

    /// Ends the tracing of a stopped thread; it goes on, with a signal to deliver if it stopped for
    /// one.
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

    /// The thread has stopped at the entry of a system call, which has not yet been made.
    pub(super) fn is_at_entry(&self) -> bool {
        /// `PTRACE_SYSCALL_INFO_ENTRY`, in the first byte.
        const ENTRY: u8 = 1;
        let mut about = [0u64; 11];
        let place = about.as_mut_ptr() as usize;
        let got = request(libc::PTRACE_GET_SYSCALL_INFO, self.tid, size_of_val(&about), place);
        got.is_ok() && about[0].to_le_bytes()[0] == ENTRY
    }

    /// The registers; `None` if the thread runs 32-bit code.
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

    /// The vector state as `NT_X86_XSTATE` gives it.
    pub(super) fn xstate(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; XSTATE_MAX];
        let part = bytes.as_mut_ptr().cast::<c_void>();
        let got = self.regset(NT_X86_XSTATE, part, XSTATE_MAX)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Puts a vector state back that was read.
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

    /// The signal mask that holds outside a call that replaces it for its time.
    pub(super) fn mask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask as usize)?;
        Ok(mask)
    }

    pub(super) fn set_mask(&self, mask: u64) -> io::Result<()> {
        let mut copy = mask;
        change(libc::PTRACE_SETSIGMASK, self.tid, 8, &raw mut copy as usize)
    }

    /// Signals pending for the thread or its process.
    pub(super) fn pending(&self) -> io::Result<Vec<Pending>> {
        let mut pending = self.own_pending()?;
        pending.extend(self.queue(libc::PTRACE_PEEKSIGINFO_SHARED)?);
        Ok(pending)
    }

    /// Signals pending for the thread alone, as those of its timers and events are.
    pub(super) fn own_pending(&self) -> io::Result<Vec<Pending>> {
        self.queue(0)
    }

    fn queue(&self, flags: u32) -> io::Result<Vec<Pending>> {
        let mut pending = Vec::new();
        for page in 0..PEEKS_MAX {
            let mut records = [[0u32; SIGINFO_LEN / 4]; PEEKED_MAX];
            let off = page * PEEKED_MAX as u64;
            let args = libc::ptrace_peeksiginfo_args { off, flags, nr: PEEKED_MAX as i32 };
            let (args, place) = (&raw const args as usize, records.as_mut_ptr() as usize);
            let got = request(libc::PTRACE_PEEKSIGINFO, self.tid, args, place)?;
            pending.extend(records.iter().take(got as usize).map(Pending::read));
            if got < PEEKED_MAX as i64 {
                break;
            }
        }
        Ok(pending)
    }

    /// The signal that the thread has stopped to take.
    pub(super) fn taken(&self) -> io::Result<Pending> {
        let mut record = [0u32; SIGINFO_LEN / 4];
        request(libc::PTRACE_GETSIGINFO, self.tid, 0, record.as_mut_ptr() as usize)?;
        Ok(Pending::read(&record))
    }

    /// The seccomp filters of the stopped thread, the last installed first.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<Instruction>>> {
        let mut filters = Vec::new();
        loop {
            let mut program = vec![Instruction::default(); LEN_MAX];
            let place = program.as_mut_ptr() as usize;
            // The kernel writes no more than the longest program that it accepts.
            match request(PTRACE_SECCOMP_GET_FILTER, self.tid, filters.len(), place) {
                Ok(len) => program.truncate(len as usize),
                // There is none with this number.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
                Err(error) => return Err(error),
            }
            filters.push(program);
        }
    }

    /// Address of the thread's rseq area, if it registered one.
    pub(super) fn rseq(&self) -> Option<u64> {
        let mut configuration = [0u64; 3];
        let place = configuration.as_mut_ptr() as usize;
        request(PTRACE_GET_RSEQ_CONFIGURATION, self.tid, 24, place).ok()?;
        (configuration[0] != 0).then_some(configuration[0])
    }

    /// Reads memory, all of it or an error.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        whole(read(self.tid, address, into), into.len())
    }

    /// Writes memory that the target itself may write, all of it or an error.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
        // SAFETY: reads `bytes`; the kernel checks the address in the other process.
        let got = unsafe { libc::process_vm_writev(self.tid, &local, 1, &remote, 1, 0) };
        let written = whole(got, bytes.len());
        fault::touched("process_vm_writev");
        written
    }
}

/// Reads the memory of a process, by the id of one of its threads, as far as it is there; says how
/// many bytes.
pub fn read_part(tid: i32, address: u64, into: &mut [u8]) -> usize {
    usize::try_from(read(tid, address, into)).unwrap_or(0)
}

fn read(tid: i32, address: u64, into: &mut [u8]) -> isize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: writes `into.len()` bytes at most to `into`, which is ours.
    unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) }
}

fn whole(got: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(got) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(got) if got < wanted => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Ok(_) => Ok(()),
    }
}

/// A request that makes a difference to the thread.
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
    // SAFETY: the callers pass the address and the length of a buffer that is theirs, or numbers.
    match unsafe { libc::ptrace(code, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// What a stopped thread's code says: a signal, and above it the event.
fn stopped_for(code: i32) -> Stop {
    match (code >> 8, code & 0xff) {
        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Stop::Interrupt,
        (libc::PTRACE_EVENT_STOP, _) => Stop::Group,
        (libc::PTRACE_EVENT_EXEC, _) => Stop::Exec,
        (0, SYSCALL_STOP) => Stop::Syscall,
        (_, signal) => Stop::Signal(signal),
    }
}

/// Sleeps until a child changes state, the deadline at most. Every signal is blocked in whoever
/// traces, so SIGCHLD waits to be taken here. The slice bounds what a SIGCHLD that was merged
/// with another, or taken by another thread, can cost.
pub(super) fn await_child(deadline: Instant) {
    const SLICE: Duration = Duration::from_millis(2);
    let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    // SAFETY: reads the set and the timeout, writes nothing.
    unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &timeout) };
}

/// Lets so many threads come to the stops that they were asked for. Each of them would wake up whoever
/// waits for a child, which takes the processor from the next: of real-time priority, as a guardian has
/// it, it was half of the time for which a hundred threads were held.
pub(super) fn await_children(how_many: usize, deadline: Instant) {
    /// What a thread takes to stop, with the change to the next one.
    const EACH: Duration = Duration::from_micros(2);
    /// Less is not worth a timer.
    const LEAST: Duration = Duration::from_micros(20);
    const MOST: Duration = Duration::from_micros(100);
    let pause = EACH.saturating_mul(u32::try_from(how_many).unwrap_or(u32::MAX)).min(MOST);
    if pause < LEAST {
        return await_child(deadline);
    }
    std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_told_from_other_signals_and_only_those_of_timers_have_overruns() {
        let mut record = [0; SIGINFO_LEN / 4];
        (record[0], record[5], record[7]) =
            (libc::SIGTRAP as u32, 7, u32::from(SIG_DATA_MARK) << 16);
        let check = |code: i32, mark: u32, expected| {
            let mut record = record;
            (record[2], record[7]) = (code as u32, mark);
            let read = Pending::read(&record);
            assert_eq!((read.is_hit(), read.overruns()), expected, "{code}");
        };
        check(SI_TIMER, record[7], (true, 7));
        check(TRAP_PERF, record[7], (true, 0));
        check(SI_QUEUE, record[7], (true, 0));
        check(SI_QUEUE, 0, (false, 0));
        check(0, record[7], (false, 0));
    }
}
