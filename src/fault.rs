//! Fault points: the moments between two steps of a recording at which a test can kill a process.
//!
//! A recorder and its guardian may be killed at any instruction. Between two steps that change
//! something, the exact instruction makes no difference, so one point lies between any two such
//! steps. A test kills the recorder, the guardian and the target at each point. Every system call
//! that changes a traced thread is followed by [`FaultPoint::ThreadTouched`], and the test kills
//! the guardian at each pass of that point. The compiler warns about a point that no code reaches,
//! and a test fails for a point that no scenario reaches.
//!
//! Builds without debug assertions have no fault points, and [`at`] is empty.
//!
//! # Environment variables of a build with fault points
//! `TRACEPROF_FAULT=POINT=ACTION[,POINT=ACTION]...` runs each action when a process reaches its
//! point for the first time. `POINT.N=ACTION` runs the action at the Nth pass. An action names the
//! process to kill, or makes the calling thread pause for a time (`stall`) or for ever (`hang`).
//! `stop` stops the target by SIGSTOP, and `freeze` the guardian. `crash` sends the target SIGSEGV.
//!
//! `TRACEPROF_FAULT_LOG=FILE` receives a line for each point that a process reaches, and for each
//! action. Before each [`FaultPoint::ThreadTouched`] it receives a line with `call` and the name of
//! the system call.

/// A process that an action can kill or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The process that records.
    Recorder,
    /// The guardian, which traces for the recorder.
    Guardian,
    /// The recorded process.
    Target,
}

/// Whether this build has fault points.
pub const IS_ARMED: bool = cfg!(debug_assertions);

/// Declares the points together with [`FaultPoint::ALL`], so that the list is complete.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A moment between two steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultPoint { $($(#[$doc])* $name,)* }

        impl FaultPoint {
            /// All points.
            pub const ALL: &[FaultPoint] = &[$(FaultPoint::$name),*];

            /// Returns the point's name in `TRACEPROF_FAULT`.
            pub fn name(self) -> &'static str {
                match self { $(FaultPoint::$name => stringify!($name)),* }
            }
        }
    };
}

points! {
    /// The guardian is independent of the recorder's terminal and descriptors.
    GuardianStarted,
    /// A program is seized before its exec.
    HoldSeized,
    /// The held program has executed.
    HoldExecuted,
    /// The held program is stopped before its first instruction.
    HoldStopped,
    /// The guardian has received the command to attach.
    AttachRequested,
    /// The guardian holds the claim on the target.
    AttachClaimed,
    /// The guardian has attached the data segment, and every check has passed.
    AttachReady,
    /// The attach is done, and the guardian has not answered yet.
    AttachDone,
    /// The guardian has received the command to run the agent's entry.
    EntryRequested,
    /// The agent's entry has run.
    EntryDone,
    /// The guardian has received the command to restore the target.
    DetachRequested,
    /// The restore is done, and the guardian has not answered yet.
    DetachDone,
    /// The recorder has exited without a message.
    OrphanNoticed,
    /// The guardian has restored the target of a recorder that exited.
    OrphanRestored,
    /// The guardian is about to remove the residue of another recording.
    ResidueFound,
    /// The guardian has removed one agent of that residue.
    ResidueRemoved,
    /// The thread that maps the segments is stopped, and its state is saved completely.
    MapStopped,
    /// A bare call has attached the data segment.
    MapBare,
    /// A chain that returns through the code segment has attached that segment.
    MapOwnRestorer,
    /// A stepped thread has attached all segments.
    MapStepped,
    /// The thread that attaches the segments is launched.
    MapLaunched,
    /// All segments are visible in the target's maps.
    MapSeen,
    /// A system call has changed a traced thread, or has consumed its stop.
    ThreadTouched,
    /// A thread is seized.
    ThreadSeized,
    /// A seized thread has been interrupted.
    ThreadInterrupted,
    /// A thread has stopped, and its state is saved.
    ThreadStopped,
    /// A thread has stopped for a signal, before the tracer resumes it.
    ThreadTakesSignal,
    /// The tracer has resumed a stopped thread with its signal.
    ThreadTookSignal,
    /// The frames of a chain are written for a thread that the guardian is about to launch.
    LaunchWritten,
    /// The thread's registers are at the start of its chain.
    LaunchSet,
    /// The signals of the thread that the guardian is about to launch are blocked.
    LaunchMasked,
    /// The launched thread is detached.
    LaunchGone,
    /// A launched thread is seized, to be taken off its chain.
    WithdrawSeized,
    /// A launched thread has stopped on its chain.
    WithdrawStopped,
    /// A launched thread is back in its saved state.
    WithdrawDone,
    /// The frames of a chain are written for a thread that the guardian is about to step.
    StepWritten,
    /// The thread's registers are set for a step of its chain.
    StepSet,
    /// The signals of a stepped thread are blocked, and the step is next.
    StepMasked,
    /// A stepped thread is at the entry of its system call.
    StepSyscallEntry,
    /// A stepped thread has made its system call.
    StepSyscallExit,
    /// A stepped thread has run the agent's entry.
    StepEntryDone,
    /// The thread's registers are set for a bare call.
    BareSet,
    /// The thread is at the entry of the bare call.
    BareEntry,
    /// The thread has made the bare call.
    BareExit,
    /// A thread has its own signal mask again.
    BackMasked,
    /// A thread has its own registers again.
    BackSet,
    /// A thread is detached.
    BackGone,
    /// A thread is stopped for the agent's entry.
    EntryStopped,
    /// A thread was used for the agent's entry, and the guardian waits for the outcome.
    EntryAwaited,
    /// The agent is stopped.
    RestoreStarted,
    /// The agent has deleted as many timers as it could.
    RestoreDisarmed,
    /// All threads of the target are stopped.
    RestoreStopped,
    /// No timer is left.
    RestoreTimersGone,
    /// The guardian has read the current action of a signal.
    RestoreActionKnown,
    /// The application's action of a signal is installed again.
    RestoreActionBack,
    /// All threads except the worker are released.
    RestoreOthersReleased,
    /// A thread is launched to detach the segments.
    RestoreLaunched,
    /// A stepped chain has detached segments.
    RestoreUnmapped,
    /// A bare call has detached a segment.
    RestoreUnmappedBare,
    /// No part of the agent is left.
    RestoreDone,
    /// The recorder has its guardian.
    RecordStarted,
    /// The recorder has created a segment, which would outlive it.
    SegmentMade,
    /// The recorder has marked the segment for removal.
    SegmentMarked,
    /// The recorder has examined the target and has changed nothing.
    RecordOpened,
    /// The recorder has sent its guardian a request.
    GuardianRequested,
    /// The agent is attached to the target.
    RecordAttached,
    /// The trace has its first frame.
    RecordWriting,
    /// Events are open, or timers are armed.
    RecordReady,
    /// Sampling is on.
    RecordSampling,
    /// The recorder has released a held program.
    RecordReleased,
    /// The recording loop has started its first round.
    RecordLooped,
    /// The recorder has read samples from shared memory.
    RecordDrained,
    /// Events with the new rate are open and disabled; those with the old rate are enabled.
    RateOpened,
    /// All events of the old rate are disabled.
    RateOff,
    /// The recording is about to end.
    RecordEnding,
    /// The perf events of the recording are closed.
    RecordEventsClosed,
    /// The agent is removed from the target.
    RecordDetached,
    /// The trace is written.
    RecordWritten,
}

/// Passes a fault point, where a test may kill a process.
#[inline]
pub fn at(point: FaultPoint) {
    if IS_ARMED {
        armed::at(point);
    }
}

/// Passes [`FaultPoint::ThreadTouched`], and logs the name of the system call.
#[inline]
pub fn touched(call: &'static str) {
    if IS_ARMED {
        armed::call(call);
        armed::at(FaultPoint::ThreadTouched);
    }
}

/// Sets the pid of a party, for actions.
#[inline]
pub fn set_party(party: Party, pid: i32) {
    if IS_ARMED {
        armed::set_party(party, pid);
    }
}

mod armed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::{FaultPoint, Party};

    /// The time that another process gets to die of a signal, or to act on it.
    const EFFECT: Duration = Duration::from_millis(3);
    /// The pause of a stalled thread.
    const STALL: Duration = Duration::from_secs(3);
    /// The pids, by [`Party`]. Relaxed everywhere: they are set before the threads that read them
    /// start.
    static PARTIES: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];

    struct ScheduledFault {
        point: String,
        /// The pass at which the action runs, counted from 1.
        pass: usize,
        action: String,
        reached: AtomicUsize,
    }

    impl ScheduledFault {
        fn parse(text: &str) -> Option<ScheduledFault> {
            let (when, action) = text.split_once('=')?;
            let (point, pass) = when.split_once('.').unwrap_or((when, "1"));
            Some(ScheduledFault {
                point: point.to_owned(),
                pass: pass.parse().ok()?,
                action: action.to_owned(),
                reached: AtomicUsize::new(0),
            })
        }
    }

    struct Faults {
        faults: Vec<ScheduledFault>,
        log: Option<std::path::PathBuf>,
    }

    fn faults() -> &'static Faults {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        FAULTS.get_or_init(|| {
            let text = std::env::var("TRACEPROF_FAULT").unwrap_or_default();
            Faults {
                faults: text.split(',').filter_map(ScheduledFault::parse).collect(),
                log: std::env::var_os("TRACEPROF_FAULT_LOG").map(Into::into),
            }
        })
    }

    pub(super) fn set_party(party: Party, pid: i32) {
        PARTIES[party as usize].store(pid, Ordering::Relaxed);
    }

    fn pid_of(party: Party) -> i32 {
        PARTIES[party as usize].load(Ordering::Relaxed)
    }

    pub(super) fn at(point: FaultPoint) {
        let all = faults();
        log(all, &format!("{} {}\n", point.name(), own_name()));
        for fault in all.faults.iter().filter(|fault| fault.point == point.name()) {
            // Relaxed: each pass has a number of its own.
            if fault.reached.fetch_add(1, Ordering::Relaxed) + 1 == fault.pass {
                log(all, &format!("{}={}\n", fault.point, fault.action));
                act(&fault.action);
            }
        }
    }

    pub(super) fn call(name: &str) {
        log(faults(), &format!("call {name}\n"));
    }

    fn own_name() -> &'static str {
        let own = std::process::id() as i32;
        if own == pid_of(Party::Guardian) { "guardian" } else { "recorder" }
    }

    fn log(all: &Faults, line: &str) {
        let Some(path) = &all.log else { return };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // A single write keeps lines of two processes apart. A test fails if the file is missing.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    /// Runs an action. Other processes die before this one.
    fn act(action: &str) {
        let (mut doomed, signal) = match action {
            "recorder" => (vec![Party::Recorder], Signal::SIGKILL),
            "guardian" => (vec![Party::Guardian], Signal::SIGKILL),
            "both" => (vec![Party::Recorder, Party::Guardian], Signal::SIGKILL),
            "target" => (vec![Party::Target], Signal::SIGKILL),
            "stop" => (vec![Party::Target], Signal::SIGSTOP),
            "freeze" => (vec![Party::Guardian], Signal::SIGSTOP),
            "crash" => (vec![Party::Target], Signal::SIGSEGV),
            "exec" => (vec![Party::Target], Signal::SIGUSR1),
            "exit" => (vec![Party::Target], Signal::SIGUSR2),
            "stall" => return std::thread::sleep(STALL),
            "hang" => return std::thread::sleep(Duration::MAX),
            _ => return,
        };
        let own = std::process::id() as i32;
        doomed.sort_by_key(|party| pid_of(*party) == own);
        for party in doomed {
            if pid_of(party) > 0 {
                // A process that has exited already counts as killed.
                let _ = kill(Pid::from_raw(pid_of(party)), signal);
            }
        }
        std::thread::sleep(EFFECT);
    }
}
