//! A recording of several processes at the same time: one clock, one trace.
//!
//! Each process has a thread of the recorder, which does for it what is done for one alone, with a
//! guardian of its own. This thread starts them, hears what they tell, and looks for new children.
//!
//! # Invariants
//! - No process waits for another one: that one ends, or cannot be recorded, concerns no other.
//! - When nothing more can be written all end, and none is begun with.
//! - The recording is over when all processes are.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::fault::{self, Party, Point};
use crate::inject::ForkServer;
use crate::record::batch::process::Number;
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::contract::every::Every;
use crate::record::contract::observer::Observer;
use crate::record::contract::summary::Summary;
use crate::record::run::common::Common;
use crate::record::run::ended::{Ended, Refused};
use crate::record::run::opened::{Opened, Process};
use crate::record::run::priority::Raised;
use crate::record::run::recording::{Begun, Recording};
use crate::record::run::{finish, report};

mod birth;
mod family;
mod members;
pub(crate) mod named;
pub(crate) mod search;

use self::family::{Child, Family};
use self::members::Members;

/// Between two looks for new children, unless they take too long.
const LOOK: Duration = Duration::from_millis(10);
/// Between two looks at whether all is over.
const NAP: Duration = Duration::from_millis(100);
/// Processes that are recorded at once: each has a thread, a guardian, and shared segments of its
/// own, some 20 MB of the recorder's memory.
const AT_ONCE_MAX: usize = 200;

/// What a process tells.
enum News {
    /// It is known, and nothing is changed in it.
    Opened(Number, i32),
    Event(Number, Event),
    /// The others wait for it no more, for this reason.
    Late(Number, String),
    /// It is begun with after all, so long after it was found.
    TakenUp(Number, Duration),
    Tick(Number, Progress),
    /// It is over.
    Over(Number, Box<Result<Ended, RecordError>>),
}

/// Tells of one process.
struct Teller {
    number: Number,
    news: Sender<News>,
}

impl Teller {
    fn tell(&self, news: News) {
        // Whoever listens ends after all who tell.
        let _ = self.news.send(news);
    }
}

impl Observer for Teller {
    fn event(&mut self, event: Event) {
        self.tell(News::Event(self.number, event));
    }

    fn tick(&mut self, progress: &Progress) {
        self.tell(News::Tick(self.number, *progress));
    }
}

/// Refuses more processes than can be recorded at once.
pub(crate) fn check_count(count: usize) -> Result<(), RecordError> {
    if count <= AT_ONCE_MAX {
        return Ok(());
    }
    Err(RecordError::Usage(format!(
        "{count} processes are meant, and {AT_ONCE_MAX} can be recorded at once: narrow --name, or \
         give fewer to --pid"
    )))
}

/// Records processes, and with `--subprocesses` their descendants.
pub(crate) fn record(
    common: &Common<'_>,
    fork_server: ForkServer,
    chosen: &[Process],
    observer: &mut dyn Observer,
) -> Result<Summary, RecordError> {
    let fork_server = Mutex::new(fork_server);
    let (tell, news) = channel();
    let mut members = std::thread::scope(|scope| {
        let start = Start { scope, common, fork_server: &fork_server, tell };
        let crew = Crew::new(start, chosen);
        crew.run(&news, observer)
    });
    // None is needed any more, and a started program may go on for long.
    drop(fork_server);
    let late = members.late_lines();
    let Members { ended_processes, refused, missed, .. } = members;
    if ended_processes.is_empty() {
        return Err(none_of(refused));
    }
    let mut over = finish(common, ended_processes, observer)?;
    (over.refused, over.missed, over.late) = (refused, missed, late);
    fault::at(Point::RecordWritten);
    report::conclude(over, common.named())
}

/// Why there is no recording at all: of several reasons, the one that can be done most about.
fn none_of(mut refused: Vec<Refused>) -> RecordError {
    let of_use = |error: &RecordError| match error {
        RecordError::Usage(_) => 0,
        RecordError::Output(_) => 1,
        RecordError::NotPermitted(_) => 2,
        RecordError::Other(_) => 3,
        RecordError::TargetGone(_) => 4,
    };
    refused.sort_by_key(|it| (of_use(&it.error), it.pid));
    let texts: Vec<String> =
        refused.iter().map(|it| format!("{}: {}", it.title(), it.error.text())).collect();
    let count = refused.len();
    match (refused.into_iter().next(), count) {
        (None, _) => {
            RecordError::TargetGone(anyhow!("all processes ended before they were sampled"))
        }
        (Some(only), 1) => only.error,
        (Some(first), _) => first.error.saying(format!(
            "none of these {count} processes can be recorded: {}",
            texts.join("; ")
        )),
    }
}

/// What it takes to start with a process.
struct Start<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    common: &'scope Common<'scope>,
    fork_server: &'scope Mutex<ForkServer>,
    tell: Sender<News>,
}

impl Start<'_, '_> {
    /// Begins with a process in a thread of its own.
    fn begin(&self, number: Number, process: Process) {
        let (common, fork_server) = (self.common, self.fork_server);
        let mut teller = Teller { number, news: self.tell.clone() };
        let failed = Teller { number, news: self.tell.clone() };
        let work = move || {
            let one = || run(common, fork_server, process, &mut teller);
            let outcome = caught(one);
            teller.tell(News::Over(number, Box::new(outcome)));
        };
        let builder = std::thread::Builder::new().name(format!("process {number}"));
        if let Err(error) = builder.spawn_scoped(self.scope, work) {
            failed.tell(News::Over(number, Box::new(Err(RecordError::Other(error.into())))));
        }
    }
}

/// What comes of the work. A panic is an error of this process; the others go on, and their trace
/// is finished. What is left in the process the guardian takes out, which it was dropped with.
fn caught<T>(work: impl FnOnce() -> Result<T, RecordError>) -> Result<T, RecordError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = text_of(&*panic);
        Err(RecordError::Other(anyhow!("its part of the recorder failed: {text}")))
    })
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Records one process, from its attach to its end.
fn run(
    common: &Common<'_>,
    fork_server: &Mutex<ForkServer>,
    process: Process,
    teller: &mut Teller,
) -> Result<Ended, RecordError> {
    // First: what this thread does before its process is sampled is charged to nobody.
    let _worker = common.ledger.enter(teller.number);
    if let Process::Child { pid, parent, is_new } = process {
        let late = |text| teller.tell(News::Late(teller.number, text));
        if let Some(after) = birth::wait((pid, parent), is_new, &common.stop, late)? {
            teller.tell(News::TakenUp(teller.number, after));
        }
    }
    let guardian = fork_server.lock().unwrap_or_else(PoisonError::into_inner).guardian();
    let mut guardian =
        guardian.context("starting a guardian process").map_err(RecordError::Other)?;
    fault::at(Point::RecordStarted);
    let raised = Raised::raise();
    let opened = Opened::open(common.options, process, &mut guardian, &raised)?;
    fault::is(Party::Target, opened.pid);
    fault::at(Point::RecordOpened);
    teller.tell(News::Opened(teller.number, opened.pid));
    let begun = Begun { number: teller.number, guardian, opened, raised };
    Recording::new(begun, common, teller)?.run()
}

/// All of them, seen from the thread that they were started by.
struct Crew<'scope, 'env> {
    start: Start<'scope, 'env>,
    members: Members,
    family: Option<Family>,
    look: Every,
}

impl<'scope, 'env> Crew<'scope, 'env> {
    /// Begins with those that there are.
    fn new(start: Start<'scope, 'env>, chosen: &[Process]) -> Self {
        let pids: Vec<i32> = chosen.iter().filter_map(|process| process.pid()).collect();
        let family = start.common.options.subprocesses.then(|| Family::of(&pids));
        let mut crew = Self { start, members: Members::default(), family, look: Every::new(LOOK) };
        chosen.iter().for_each(|process| crew.add(*process));
        crew.look(false);
        crew.members.all_are_there();
        crew
    }

    fn add(&mut self, process: Process) {
        let number = self.members.add(process.pid());
        self.start.begin(number, process);
    }

    /// Begins with children that were not there before.
    fn look(&mut self, are_new: bool) {
        let children = self.family.as_mut().map_or_else(Vec::new, Family::look);
        for Child { pid, parent } in children {
            if self.members.running() >= AT_ONCE_MAX {
                let why = anyhow!("{AT_ONCE_MAX} processes are recorded at once already");
                self.members.refuse(pid, RecordError::Other(why));
            } else {
                self.add(Process::Child { pid, parent, is_new: are_new });
            }
        }
    }

    /// Hears of them until all are over.
    fn run(mut self, news: &Receiver<News>, observer: &mut dyn Observer) -> Members {
        let options = self.start.common.options;
        let mut is_ending = false;
        while self.members.running() > 0 {
            match news.recv_timeout(if self.family.is_some() { LOOK } else { NAP }) {
                Ok(news) => self.hear(news, observer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if !is_ending && self.start.common.stop.is_due() {
                is_ending = true;
                observer.event(Event::Detaching);
            }
            if !is_ending && self.look.is_due() {
                let begin = Instant::now();
                self.look(true);
                self.look.spare(begin.elapsed());
            }
            if let Some(progress) = self.members.progress(options.duration) {
                observer.tick(&progress);
            }
        }
        self.members
    }

    fn hear(&mut self, news: News, observer: &mut dyn Observer) {
        match news {
            News::Opened(number, pid) => {
                self.members.opened(number, pid);
                if let Some(family) = &mut self.family {
                    family.add(pid);
                }
            }
            News::Event(_, Event::Detaching) => {}
            News::Event(number, event) => self.members.event(number, event),
            News::Late(number, text) => self.members.late(number, text),
            News::TakenUp(number, after) => self.members.taken_up(number, after),
            News::Tick(number, progress) => self.members.tick(number, progress),
            News::Over(number, outcome) => {
                if outcome.as_ref().as_ref().is_ok_and(Ended::is_end_of_all) {
                    self.start.common.stop.end();
                }
                self.members.over(number, *outcome, self.start.common.options.preserve);
            }
        }
        self.members.tell().into_iter().for_each(|event| observer.event(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processes_than_fit_are_refused_with_what_to_do() {
        assert!(check_count(AT_ONCE_MAX).is_ok());
        let error = check_count(AT_ONCE_MAX + 1).unwrap_err();
        assert!(matches!(error, RecordError::Usage(_)), "{error:?}");
        let text = error.text();
        assert!(text.starts_with("201 processes") && text.contains("narrow --name"), "{text}");
    }

    #[test]
    fn a_panic_is_an_error_that_says_what_it_said() {
        let of = |work: fn() -> Result<(), RecordError>| caught(work).unwrap_err().text();
        assert!(of(|| panic!("a plain text")).ends_with(": a plain text"));
        let number = || panic!("number {}", std::process::id());
        assert!(of(number).contains(": number "));
        assert!(of(|| std::panic::panic_any(1u8)).ends_with(": no reason given"));
        assert_eq!(of(|| Err(RecordError::Usage("an error".to_owned()))), "an error");
    }
}
