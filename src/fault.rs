//! Fault points: the moments between two steps of a recording at which a test has somebody die.
//!
//! A recorder and its guardian may be killed at any instruction. Between two steps it makes no
//! difference at which, so a point stands between any two that change something, and a test kills at
//! each of them, and at each of them the target. [`Point::ThreadTouched`] is one that is passed after
//! every system call that does something to a thread; there the guardian dies at each passing. The list
//! below is all there are: one that is nowhere reached is a compiler's warning, and one that no scenario
//! reaches fails the test.
//!
//! Builds without debug assertions have none: there [`at`] is empty.
//!
//! # In a build that has them
//! `TRACEPROF_FAULT=POINT=DEED[,POINT=DEED]...` does each deed when its point is reached first, and
//! `POINT.N=DEED` when a process reaches it for the Nth time: who it names dies, or the thread that is
//! there stands still, for a time (`stall`) or for ever (`hang`). `TRACEPROF_FAULT_LOG=FILE` has a line
//! for each point that is reached, for each deed, and before [`Point::ThreadTouched`] one with `call` and
//! the name of the system call.

/// Who a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The process that records.
    Recorder,
    /// The process that traces for it.
    Guardian,
    /// The process that is recorded.
    Target,
}

/// This build has fault points.
pub const IS_ARMED: bool = cfg!(debug_assertions);

/// Lists the points, so that none is without a place in [`Point::ALL`].
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A moment between two steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point { $($(#[$doc])* $name,)* }

        impl Point {
            /// All of them.
            pub const ALL: &[Point] = &[$(Point::$name),*];

            /// What a fault calls it.
            pub fn name(self) -> &'static str {
                match self { $(Point::$name => stringify!($name)),* }
            }
        }
    };
}

points! {
    /// The guardian has become independent of what the recorder is bound to.
    GuardianBorn,
    /// A program is seized before its exec.
    HoldSeized,
    /// It has executed.
    HoldExecuted,
    /// It is stopped before its first instruction.
    HoldStopped,
    /// The guardian got the command to attach.
    AttachAsked,
    /// It has the claim on the target.
    AttachClaimed,
    /// It has the data segment, and nothing else stands in the target.
    AttachReady,
    /// The attach is done, and not yet answered.
    AttachDone,
    /// The guardian got the command to run the entry once more.
    EnterAsked,
    /// That is done.
    EnterDone,
    /// The guardian got the command to cure.
    DetachAsked,
    /// The cure is done, and not yet answered.
    DetachDone,
    /// The recorder has ended without a word.
    OrphanNoticed,
    /// The guardian has cured for it.
    OrphanCured,
    /// Rests of another recording are about to be removed.
    RestFound,
    /// One of them is removed.
    RestRemoved,
    /// A thread is chosen for the mapping, its state complete.
    MapStopped,
    /// The data segment is attached by a call with nothing behind it.
    MapNaked,
    /// The code segment is attached by a chain that returns through it.
    MapOwnRestorer,
    /// All are attached by a thread that was led.
    MapLed,
    /// A thread that attaches them was set going and let go.
    MapLaunched,
    /// All segments are seen in the target.
    MapSeen,
    /// Something of a traced thread was changed by one system call, or its stop was waited for.
    ThreadTouched,
    /// A thread is seized.
    ThreadSeized,
    /// It was asked to stop.
    ThreadAsked,
    /// It has stopped, its state is saved.
    ThreadStopped,
    /// It has stopped to take a signal.
    ThreadTakesSignal,
    /// It was told to take it.
    ThreadTookSignal,
    /// The frames of a chain are written for a thread that is to be set going.
    LaunchWritten,
    /// Its registers are at the chain's begin.
    LaunchSet,
    /// Its signals are blocked.
    LaunchMasked,
    /// It was let go.
    LaunchGone,
    /// A thread that was set going is seized to take it off its chain.
    RecallSeized,
    /// It has stopped on its chain.
    RecallStopped,
    /// It was put back.
    RecallDone,
    /// The frames of a chain are written for a thread that is to be led.
    LeadWritten,
    /// Its registers are those of a step.
    LeadSet,
    /// Its signals are blocked, the step is next.
    LeadMasked,
    /// It is at the entry of the step's call.
    LeadEntry,
    /// It has made the step's call.
    LeadExit,
    /// It has run the agent's entry.
    LeadEntered,
    /// The registers of a thread are those of a call with nothing behind it.
    BareSet,
    /// It is at the call's entry.
    BareEntry,
    /// It has made the call.
    BareExit,
    /// A thread has its own mask again.
    BackMasked,
    /// It has its own registers again.
    BackSet,
    /// It was let go.
    BackGone,
    /// A thread is stopped for the agent's entry.
    EntryStopped,
    /// A thread was used for the agent's entry; what came of it is waited for.
    EntryAwaited,
    /// The agent was told to do nothing any more.
    CureBegun,
    /// Its timers are deleted, as far as the agent could do that.
    CureDisarmed,
    /// All threads of the target are stopped.
    CureStopped,
    /// No timer is left.
    CureTimeless,
    /// The action of a signal is known.
    CureActionKnown,
    /// The old action of a signal is back.
    CureActionBack,
    /// All threads but one were let go.
    CureOthersGone,
    /// A thread that detaches the segments was set going and let go.
    CureLaunched,
    /// Segments are detached on frames.
    CureUnmapped,
    /// A segment is detached by a call with nothing behind it.
    CureUnmappedBare,
    /// Nothing is left.
    CureDone,
    /// The recorder has its guardian.
    RecordBegun,
    /// It has made a segment, which would outlive it.
    SegmentMade,
    /// It has marked the segment for removal.
    SegmentMarked,
    /// It knows the target, and has touched nothing.
    RecordOpened,
    /// It has asked its guardian for something.
    GuardianAsked,
    /// The agent is in the target.
    RecordAttached,
    /// The trace has its first frame.
    RecordWriting,
    /// Events are open, or timers armed.
    RecordReady,
    /// Sampling is on.
    RecordSampling,
    /// A program that was parked goes on.
    RecordReleased,
    /// The first turn of the loop.
    RecordTurned,
    /// Samples have been read from the storage.
    RecordDrained,
    /// Events of another rate are open, and off; those before are on.
    RateOpened,
    /// All of them are off.
    RateOff,
    /// The recording is about to end.
    RecordEnding,
    /// Its events are closed.
    RecordSilent,
    /// The agent is out of the target.
    RecordDetached,
    /// The trace is written.
    RecordWritten,
}

/// The moment is here: a test may have somebody die.
#[inline]
pub fn at(point: Point) {
    if IS_ARMED {
        armed::at(point);
    }
}

/// A thread was touched by this system call: [`Point::ThreadTouched`], and its name for the log.
#[inline]
pub fn touched(call: &'static str) {
    if IS_ARMED {
        armed::call(call);
        armed::at(Point::ThreadTouched);
    }
}

/// Tells who is who, for deeds.
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

    /// Time for another process to die of a signal, or to act upon it.
    const EFFECT: Duration = Duration::from_millis(3);
    /// How long a thread stands still that is not to hang.
    const STALL: Duration = Duration::from_secs(5);
    /// Pids by [`Party`]. Relaxed everywhere: set before the threads start that read them.
    static PARTIES: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];

    struct Fault {
        point: String,
        /// Which time the point is reached.
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
            // Relaxed: each turn is one's who passes.
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
        // One write: lines of two processes do not mix. A test that finds none fails.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    /// Others die first.
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
                // One that is gone is as good as killed.
                let _ = kill(Pid::from_raw(pid_of(party)), signal);
            }
        }
        std::thread::sleep(EFFECT);
    }
}
