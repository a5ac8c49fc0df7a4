//! Fault points: the moments between two steps of a recording at which a test kills a process.
//!
//! A recorder and its guardian may be killed at any instruction. Between two steps it makes no
//! difference at which, so there is a point between any two steps that change something. A test
//! kills the recorder, the guardian and the target at each of them. [`Point::ThreadTouched`] is
//! passed after every system call that changes a traced thread; the guardian dies at each passing.
//! The compiler warns of a point that no code reaches, and a test fails for a point that no
//! scenario reaches.
//!
//! Without debug assertions there are no points, and [`at`] is empty.
//!
//! # In a build with fault points
//! `TRACEPROF_FAULT=POINT=DEED[,POINT=DEED]...` does each deed when its point is reached for the
//! first time, and `POINT.N=DEED` when a process reaches it for the Nth time. A deed names who is
//! killed, or makes the thread pause for a time (`stall`) or for ever (`hang`).
//!
//! `TRACEPROF_FAULT_LOG=FILE` gets a line for each point that is reached and for each deed. Before
//! each [`Point::ThreadTouched`] it gets a line with `call` and the name of the system call.

/// A process that a deed can concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The process that records.
    Recorder,
    /// The process that traces for it.
    Guardian,
    /// The process that is recorded.
    Target,
}

/// Whether this build has fault points.
pub const IS_ARMED: bool = cfg!(debug_assertions);

/// Lists the points, so that none is missing in [`Point::ALL`].
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A moment between two steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point { $($(#[$doc])* $name,)* }

        impl Point {
            /// All points.
            pub const ALL: &[Point] = &[$(Point::$name),*];

            /// Its name in `TRACEPROF_FAULT`.
            pub fn name(self) -> &'static str {
                match self { $(Point::$name => stringify!($name)),* }
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
    /// The guardian got the command to attach.
    AttachRequested,
    /// The guardian has the claim on the target.
    AttachClaimed,
    /// The guardian has attached the data segment, and has no other reason to refuse.
    AttachReady,
    /// The attach is done, and not answered yet.
    AttachDone,
    /// The guardian got the command to run the agent's entry.
    EntryRequested,
    /// The run of the entry is done.
    EntryDone,
    /// The guardian got the command to restore the target.
    DetachRequested,
    /// The restore is done, and not answered yet.
    DetachDone,
    /// The recorder has ended without a message.
    OrphanNoticed,
    /// The guardian has restored the target for a recorder that ended.
    OrphanRestored,
    /// The residue of another recording is about to be removed.
    ResidueFound,
    /// One agent of that residue is removed.
    ResidueRemoved,
    /// A thread is chosen for the mapping, its state complete.
    MapStopped,
    /// The data segment is attached by a call with nothing behind it.
    MapBare,
    /// The code segment is attached by a chain that returns through it.
    MapOwnRestorer,
    /// All segments are attached by a thread that was stepped.
    MapStepped,
    /// A thread that attaches the segments was launched.
    MapLaunched,
    /// All segments are visible in the target's maps.
    MapSeen,
    /// A system call changed something of a traced thread, or its stop was consumed.
    ThreadTouched,
    /// A thread is seized.
    ThreadSeized,
    /// A seized thread was interrupted.
    ThreadInterrupted,
    /// A thread has stopped, and its state is saved.
    ThreadStopped,
    /// A thread has stopped for a signal.
    ThreadTakesSignal,
    /// A stopped thread was resumed with its signal.
    ThreadTookSignal,
    /// The frames of a chain are written for a thread that is to be launched.
    LaunchWritten,
    /// The thread's registers are at the start of its chain.
    LaunchSet,
    /// The signals of a thread that is to be launched are blocked.
    LaunchMasked,
    /// The launched thread was detached.
    LaunchGone,
    /// A launched thread is seized to take it off its chain.
    WithdrawSeized,
    /// A launched thread has stopped on its chain.
    WithdrawStopped,
    /// A launched thread was put back to its saved state.
    WithdrawDone,
    /// The frames of a chain are written for a thread that is to be stepped.
    StepWritten,
    /// The thread's registers are those of a step.
    StepSet,
    /// The signals of a stepped thread are blocked, and the step is next.
    StepMasked,
    /// A stepped thread is at the entry of its system call.
    StepSyscallEntry,
    /// A stepped thread has made its system call.
    StepSyscallExit,
    /// A stepped thread has run the agent's entry.
    StepEntryDone,
    /// A thread's registers are those of a call with nothing behind it.
    BareSet,
    /// The thread is at the entry of the bare call.
    BareEntry,
    /// The thread has made the bare call.
    BareExit,
    /// A thread has its own signal mask again.
    BackMasked,
    /// A thread has its own registers again.
    BackSet,
    /// A thread was detached.
    BackGone,
    /// A thread is stopped for the agent's entry.
    EntryStopped,
    /// A thread was used for the agent's entry, whose outcome is awaited.
    EntryAwaited,
    /// The agent is stopped.
    RestoreStarted,
    /// The agent has deleted the timers that it could.
    RestoreDisarmed,
    /// All threads of the target are stopped.
    RestoreStopped,
    /// No timer is left.
    RestoreTimersGone,
    /// The current action of a signal is known.
    RestoreActionKnown,
    /// The old action of a signal is back.
    RestoreActionBack,
    /// All threads except the worker were released.
    RestoreOthersReleased,
    /// A thread was launched to detach the segments.
    RestoreLaunched,
    /// Segments are detached with frames.
    RestoreUnmapped,
    /// A segment is detached by a call with nothing behind it.
    RestoreUnmappedBare,
    /// Nothing of the agent is left.
    RestoreDone,
    /// The recorder has its guardian.
    RecordStarted,
    /// The recorder has made a segment, which would outlive it.
    SegmentMade,
    /// The recorder has marked the segment for removal.
    SegmentMarked,
    /// The recorder knows the target, and has touched nothing.
    RecordOpened,
    /// The recorder has sent its guardian a request.
    GuardianRequested,
    /// The agent is in the target.
    RecordAttached,
    /// The trace has its first frame.
    RecordWriting,
    /// Events are open, or timers are armed.
    RecordReady,
    /// Sampling is on.
    RecordSampling,
    /// A held program continues.
    RecordReleased,
    /// The recording loop has started its first round.
    RecordLooped,
    /// Samples were read from the storage.
    RecordDrained,
    /// Events of another rate are open and disabled; those before are enabled.
    RateOpened,
    /// All events of the old rate are disabled.
    RateOff,
    /// The recording is about to end.
    RecordEnding,
    /// The recording's events are closed.
    RecordEventsClosed,
    /// The agent is out of the target.
    RecordDetached,
    /// The trace is written.
    RecordWritten,
}

/// Passes a fault point, at which a test may kill a process.
#[inline]
pub fn at(point: Point) {
    if IS_ARMED {
        armed::at(point);
    }
}

/// Passes [`Point::ThreadTouched`], and logs the name of the system call.
#[inline]
pub fn touched(call: &'static str) {
    if IS_ARMED {
        armed::call(call);
        armed::at(Point::ThreadTouched);
    }
}

/// Tells which process has which role, for deeds.
#[inline]
pub fn is(party: Party, pid: i32) {
    if IS_ARMED {
        armed::is(party, pid);
    }
}

mod armed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::{Party, Point};

    /// Time for another process to die of a signal, or to act on it.
    const EFFECT: Duration = Duration::from_millis(3);
    /// How long a stalled thread pauses.
    const STALL: Duration = Duration::from_secs(5);
    /// Pids by [`Party`]. Relaxed everywhere: set before the threads start that read them.
    static PARTIES: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];

    struct Fault {
        point: String,
        /// The passing at which the deed is done, from 1.
        turn: usize,
        deed: String,
        reached: AtomicUsize,
    }

    impl Fault {
        fn parse(text: &str) -> Option<Fault> {
            let (when, deed) = text.split_once('=')?;
            let (point, turn) = when.split_once('.').unwrap_or((when, "1"));
            Some(Fault {
                point: point.to_owned(),
                turn: turn.parse().ok()?,
                deed: deed.to_owned(),
                reached: AtomicUsize::new(0),
            })
        }
    }

    struct Faults {
        faults: Vec<Fault>,
        log: Option<std::path::PathBuf>,
    }

    fn faults() -> &'static Faults {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        FAULTS.get_or_init(|| {
            let text = std::env::var("TRACEPROF_FAULT").unwrap_or_default();
            Faults {
                faults: text.split(',').filter_map(Fault::parse).collect(),
                log: std::env::var_os("TRACEPROF_FAULT_LOG").map(Into::into),
            }
        })
    }

    pub(super) fn is(party: Party, pid: i32) {
        PARTIES[party as usize].store(pid, Ordering::Relaxed);
    }

    fn pid_of(party: Party) -> i32 {
        PARTIES[party as usize].load(Ordering::Relaxed)
    }

    pub(super) fn at(point: Point) {
        let all = faults();
        log(all, &format!("{} {}\n", point.name(), own_name()));
        for fault in all.faults.iter().filter(|fault| fault.point == point.name()) {
            // Relaxed: each passing has a number of its own.
            if fault.reached.fetch_add(1, Ordering::Relaxed) + 1 == fault.turn {
                log(all, &format!("{}={}\n", fault.point, fault.deed));
                act(&fault.deed);
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
        // One write, so that lines of two processes do not mix. A test without the file fails.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    /// Does a deed; other processes die before this one.
    fn act(deed: &str) {
        let (mut doomed, signal) = match deed {
            "recorder" => (vec![Party::Recorder], Signal::SIGKILL),
            "guardian" => (vec![Party::Guardian], Signal::SIGKILL),
            "both" => (vec![Party::Recorder, Party::Guardian], Signal::SIGKILL),
            "target" => (vec![Party::Target], Signal::SIGKILL),
            "stop" => (vec![Party::Target], Signal::SIGSTOP),
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
                // A process that is gone counts as killed.
                let _ = kill(Pid::from_raw(pid_of(party)), signal);
            }
        }
        std::thread::sleep(EFFECT);
    }
}
