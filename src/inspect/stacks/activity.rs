//! The activity of a thread as the kernel reports it: its state, and the system call that it sleeps
//! in.

use crate::inject::ThreadSnapshot;
use crate::proc::{self, TaskActivity};

/// The activity of a thread just before its stop.
#[derive(Debug, Clone)]
pub struct ThreadActivity {
    /// The thread's name.
    pub name: String,
    /// The state: `R`, `S`, `D`, `T` ...; `X` if the thread had exited already.
    pub state: char,
    /// The kernel functions, innermost first, if requested; or why they are missing.
    pub kernel: Option<Result<Vec<String>, String>>,
    /// The number and arguments of its system call.
    raw_call: Option<(u64, [u64; 6])>,
    /// The stack pointer and the pc, if the thread does not run.
    place: Option<(u64, u64)>,
}

impl ThreadActivity {
    /// Reads a thread.
    pub(super) fn read(pid: i32, tid: i32, kernel: bool) -> Self {
        let stat = proc::task_stat(pid, tid);
        let (name, state) = stat.map_or((String::new(), 'X'), |stat| (stat.name, stat.state));
        let (raw_call, place) = match proc::task_activity(pid, tid) {
            Ok(TaskActivity::Syscall { number, args, sp, pc }) => {
                (Some((number, args)), Some((sp, pc)))
            }
            Ok(TaskActivity::Blocked { sp, pc }) => (None, Some((sp, pc))),
            Ok(TaskActivity::Running) | Err(_) => (None, None),
        };
        // A running thread shows only what an interrupt left there.
        let kernel = (kernel && state != 'R').then(|| {
            proc::kernel_stack(pid, tid).map_err(|error| format!("no kernel functions: {error}"))
        });
        Self { name, state, kernel, raw_call, place }
    }

    /// Corrects the activity to the time of the stop, to which the stack belongs.
    pub(super) fn at_stop(self, stopped: &ThreadSnapshot) -> Self {
        let registers = &stopped.registers;
        let was_there = self.place == Some((registers.sp, registers.pc));
        // A call that the stop itself ended shows only in the earlier reading.
        let raw_call = stopped.call.or(if was_there { self.raw_call } else { None });
        let state = match (self.state, raw_call) {
            ('R', Some(_)) => 'S',
            ('S' | 'D', None) if !was_there => 'R',
            (state, _) => state,
        };
        Self { state, raw_call, ..self }
    }

    /// Returns the call that it sleeps in; for a running thread no call matters.
    ///
    /// `lock_at` returns the name of the language runtime's lock at an address.
    pub(super) fn call(
        &self,
        pid: i32,
        lock_at: impl Fn(u64) -> Option<&'static str>,
    ) -> Option<SleepingCall> {
        let (number, args) = self.raw_call.filter(|_| self.state != 'R')?;
        let mut call = SleepingCall::new(pid, number, args);
        if let Some(lock) = proc::waited_address(number, &args).and_then(lock_at) {
            call.described.insert(0, lock.to_owned());
        }
        Some(call)
    }
}

/// A system call that a thread sleeps in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SleepingCall {
    /// The number of the call.
    pub number: u64,
    /// The name of the call, if it is known.
    pub name: Option<&'static str>,
    /// The raw arguments.
    pub args: [u64; 6],
    /// The arguments that matter to people, such as `3 </dev/null>`.
    pub described: Vec<String>,
}

impl SleepingCall {
    fn new(pid: i32, number: u64, args: [u64; 6]) -> Self {
        let described = describe(pid, number, &args);
        Self { number, name: proc::call_name(number), args, described }
    }
}

/// Describes the arguments of the calls that threads mostly sleep in.
fn describe(pid: i32, number: u64, args: &[u64; 6]) -> Vec<String> {
    let descriptor = |number: i32| {
        let open = proc::descriptor(pid, number).ok();
        let open = open.map(|name| format!(" <{}>", name.to_string_lossy()));
        format!("{number}{}", open.unwrap_or_default())
    };
    let mut described: Vec<String> = Vec::new();
    described.extend(proc::waited_descriptor(number, args).map(descriptor));
    let [first, second, third, fourth, ..] = *args;
    match number as i64 {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => described.push(time_limit_ms(fourth)),
        libc::SYS_poll => described.extend([format!("{second} descriptors"), time_limit_ms(third)]),
        libc::SYS_futex => {
            let limit = if fourth == 0 { "no time limit" } else { "a time limit" };
            let operation = futex_operation(second).to_owned();
            described.extend([format!("{first:#x}"), operation, limit.to_owned()]);
        }
        libc::SYS_restart_syscall => described.push("the call that was interrupted".to_owned()),
        libc::SYS_wait4 => described.push(format!("pid {}", first as i32)),
        _ => {}
    }
    described
}

fn time_limit_ms(arg: u64) -> String {
    match arg as i32 {
        ..0 => "no time limit".to_owned(),
        ms => format!("{ms} ms at most"),
    }
}

/// Returns the operation without its flags.
fn futex_operation(arg: u64) -> &'static str {
    match arg as i32 & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAIT => "FUTEX_WAIT",
        libc::FUTEX_WAIT_BITSET => "FUTEX_WAIT_BITSET",
        libc::FUTEX_LOCK_PI => "FUTEX_LOCK_PI",
        libc::FUTEX_WAIT_REQUEUE_PI => "FUTEX_WAIT_REQUEUE_PI",
        _ => "other operation",
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::unwind::Registers;

    use super::*;

    fn seen(
        state: char,
        place: Option<(u64, u64)>,
        raw_call: Option<(u64, [u64; 6])>,
    ) -> ThreadActivity {
        ThreadActivity { name: "x".to_owned(), state, kernel: None, raw_call, place }
    }

    fn stopped(sp: u64, pc: u64, call: Option<(u64, [u64; 6])>) -> ThreadSnapshot {
        let registers = Registers { sp, pc, ..Registers::default() };
        ThreadSnapshot { registers, call, stack_avma: 0, stack: Vec::new(), stopped_ns: 0 }
    }

    #[test]
    fn the_state_is_the_one_at_the_stop() {
        let (read, write) = (Some((0, [0; 6])), Some((1, [0; 6])));
        let check = |seen: ThreadActivity, stopped: ThreadSnapshot, state, call| {
            let now = seen.at_stop(&stopped);
            assert_eq!((now.state, now.raw_call), (state, call));
        };
        // It went to sleep between the reading and the stop, woke up, or made another call.
        check(seen('R', None, None), stopped(8, 4, read), 'S', read);
        check(seen('S', Some((8, 4)), read), stopped(16, 4, None), 'R', None);
        check(seen('S', Some((8, 4)), read), stopped(8, 4, write), 'S', write);
        // A call that the stop ended, a page fault, job control.
        check(seen('S', Some((8, 4)), read), stopped(8, 4, None), 'S', read);
        check(seen('D', Some((8, 4)), None), stopped(8, 4, None), 'D', None);
        check(seen('T', Some((8, 4)), None), stopped(8, 4, None), 'T', None);
        let running = seen('R', None, None).at_stop(&stopped(8, 4, None));
        assert_eq!(running.call(1, |_| None), None);
    }

    #[test]
    fn arguments_say_what_the_thread_waits_for() {
        let own = std::process::id() as i32;
        let check = |number: i64, args: [u64; 4], described: &[&str]| {
            let all = [args[0], args[1], args[2], args[3], 0, 0];
            assert_eq!(describe(own, number as u64, &all), described);
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        check(libc::SYS_read, [number as u64, 0, 0, 0], &[&format!("{number} </dev/null>")]);
        check(libc::SYS_poll, [0, 2, u64::MAX, 0], &["2 descriptors", "no time limit"]);
        check(libc::SYS_poll, [0, 2, 50, 0], &["2 descriptors", "50 ms at most"]);
        check(libc::SYS_futex, [0x10, 128, 0, 0], &["0x10", "FUTEX_WAIT", "no time limit"]);
        check(libc::SYS_futex, [0x10, 393, 0, 9], &["0x10", "FUTEX_WAIT_BITSET", "a time limit"]);
        check(libc::SYS_wait4, [u64::MAX, 0, 0, 0], &["pid -1"]);
        check(libc::SYS_restart_syscall, [0; 4], &["the call that was interrupted"]);
        check(libc::SYS_pause, [1, 2, 3, 4], &[]);
    }
}
