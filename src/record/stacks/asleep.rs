//! What a thread does by the kernel's account: its state, and the system call that it sleeps in.

use crate::inject::Portrait;
use crate::proc::{self, Activity};

/// What was seen of a thread just before it was stopped.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its state: `R`, `S`, `D`, `T` ...; `X` if it was gone already.
    pub state: char,
    /// Its kernel functions, innermost first, if they were asked for; or why they are not there.
    pub kernel: Option<Result<Vec<String>, String>>,
    /// The system call that it is in: number, arguments.
    raw_call: Option<(u64, [u64; 6])>,
    /// Where it is, if it does not run: stack pointer and pc.
    place: Option<(u64, u64)>,
}

impl Seen {
    /// Looks at a thread.
    pub(super) fn look(pid: i32, tid: i32, kernel: bool) -> Self {
        let stat = proc::task_stat(pid, tid);
        let (name, state) = stat.map_or((String::new(), 'X'), |stat| (stat.name, stat.state));
        let (raw_call, place) = match proc::task_activity(pid, tid) {
            Ok(Activity::Syscall { number, args, sp, pc }) => {
                (Some((number, args)), Some((sp, pc)))
            }
            Ok(Activity::Blocked { sp, pc }) => (None, Some((sp, pc))),
            Ok(Activity::Running) | Err(_) => (None, None),
        };
        // That of a thread that runs is what an interrupt left.
        let kernel = (kernel && state != 'R').then(|| {
            proc::kernel_stack(pid, tid).map_err(|error| format!("no kernel functions: {error}"))
        });
        Self { name, state, kernel, raw_call, place }
    }

    /// The same at the time of its stop, which is what its stack belongs to.
    pub(super) fn at_stop(self, portrait: &Portrait) -> Self {
        let registers = &portrait.registers;
        let was_there = self.place == Some((registers.sp, registers.pc));
        // A call that the stop ended by itself shows in the look before only.
        let raw_call = portrait.call.or(if was_there { self.raw_call } else { None });
        let state = match (self.state, raw_call) {
            ('R', Some(_)) => 'S',
            ('S' | 'D', None) if !was_there => 'R',
            (state, _) => state,
        };
        Self { state, raw_call, ..self }
    }

    /// The call that it sleeps in. A thread that runs is in none that matters.
    pub(super) fn call(&self, pid: i32) -> Option<Call> {
        self.raw_call
            .filter(|_| self.state != 'R')
            .map(|(number, args)| Call::new(pid, number, args))
    }
}

/// A system call that a thread sleeps in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name, if it is known.
    pub name: Option<&'static str>,
    /// Its arguments as they are.
    pub args: [u64; 6],
    /// Those of them that say something to people: `3 </dev/null>`.
    pub told: Vec<String>,
}

impl Call {
    fn new(pid: i32, number: u64, args: [u64; 6]) -> Self {
        let told = tell(pid, number, &args);
        Self { number, name: proc::call_name(number), args, told }
    }
}

/// What the arguments mean of the calls that threads mostly sleep in.
fn tell(pid: i32, number: u64, args: &[u64; 6]) -> Vec<String> {
    let descriptor = |number: i32| {
        let open = proc::descriptor(pid, number).ok();
        let open = open.map(|name| format!(" <{}>", name.to_string_lossy()));
        format!("{number}{}", open.unwrap_or_default())
    };
    let mut told: Vec<String> = Vec::new();
    told.extend(proc::waited_descriptor(number, args).map(descriptor));
    let [first, second, third, fourth, ..] = *args;
    match number as i64 {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => told.push(time_limit_ms(fourth)),
        libc::SYS_poll => told.extend([format!("{second} descriptors"), time_limit_ms(third)]),
        libc::SYS_futex => {
            let limit = if fourth == 0 { "no time limit" } else { "a time limit" };
            let operation = futex_operation(second).to_owned();
            told.extend([format!("{first:#x}"), operation, limit.to_owned()]);
        }
        libc::SYS_restart_syscall => told.push("what was interrupted before".to_owned()),
        libc::SYS_wait4 => told.push(format!("pid {}", first as i32)),
        _ => {}
    }
    told
}

fn time_limit_ms(arg: u64) -> String {
    match arg as i32 {
        ..0 => "no time limit".to_owned(),
        ms => format!("{ms} ms at most"),
    }
}

/// The operation without its flags.
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

    fn seen(state: char, place: Option<(u64, u64)>, raw_call: Option<(u64, [u64; 6])>) -> Seen {
        Seen { name: "x".to_owned(), state, kernel: None, raw_call, place }
    }

    fn portrait(sp: u64, pc: u64, call: Option<(u64, [u64; 6])>) -> Portrait {
        let registers = Registers { sp, pc, ..Registers::default() };
        Portrait { registers, call, stack_avma: 0, stack: Vec::new(), stopped_ns: 0 }
    }

    #[test]
    fn the_state_is_that_of_the_stop() {
        let (read, write) = (Some((0, [0; 6])), Some((1, [0; 6])));
        let check = |seen: Seen, portrait: Portrait, state, call| {
            let now = seen.at_stop(&portrait);
            assert_eq!((now.state, now.raw_call), (state, call));
        };
        // It went to sleep between the look and the stop, woke up, or went on to another call.
        check(seen('R', None, None), portrait(8, 4, read), 'S', read);
        check(seen('S', Some((8, 4)), read), portrait(16, 4, None), 'R', None);
        check(seen('S', Some((8, 4)), read), portrait(8, 4, write), 'S', write);
        // A call that the stop ended, a page fault, job control.
        check(seen('S', Some((8, 4)), read), portrait(8, 4, None), 'S', read);
        check(seen('D', Some((8, 4)), None), portrait(8, 4, None), 'D', None);
        check(seen('T', Some((8, 4)), None), portrait(8, 4, None), 'T', None);
        assert_eq!(seen('R', None, None).at_stop(&portrait(8, 4, None)).call(1), None);
    }

    #[test]
    fn arguments_say_what_is_waited_for() {
        let own = std::process::id() as i32;
        let check = |number: i64, args: [u64; 4], told: &[&str]| {
            let all = [args[0], args[1], args[2], args[3], 0, 0];
            assert_eq!(tell(own, number as u64, &all), told);
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        check(libc::SYS_read, [number as u64, 0, 0, 0], &[&format!("{number} </dev/null>")]);
        check(libc::SYS_poll, [0, 2, u64::MAX, 0], &["2 descriptors", "no time limit"]);
        check(libc::SYS_poll, [0, 2, 50, 0], &["2 descriptors", "50 ms at most"]);
        check(libc::SYS_futex, [0x10, 128, 0, 0], &["0x10", "FUTEX_WAIT", "no time limit"]);
        check(libc::SYS_futex, [0x10, 393, 0, 9], &["0x10", "FUTEX_WAIT_BITSET", "a time limit"]);
        check(libc::SYS_wait4, [u64::MAX, 0, 0, 0], &["pid -1"]);
        check(libc::SYS_restart_syscall, [0; 4], &["what was interrupted before"]);
        check(libc::SYS_pause, [1, 2, 3, 4], &[]);
    }
}
