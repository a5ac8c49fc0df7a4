//! What asks for the ring to be saved: a state of the target, a file.

mod files;

use crate::record::contract::trigger::Trigger;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::files::Files;

/// How often the state is looked at; also the time that CPU usage is of. Files are looked at as
/// often where nobody tells of them.
const LOOK: Duration = Duration::from_millis(500);

/// The state of the target that triggers look at.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    /// CPU time that it has used.
    pub(crate) cpu_ns: u64,
    /// Its threads.
    pub(crate) threads: u64,
}

/// What the processes of a recording have in common: the files, which are nobody's, and until when
/// no trigger fires.
#[derive(Debug)]
pub(crate) struct Shared {
    files: Option<Mutex<Files>>,
    quiet: Mutex<Quiet>,
    /// A save was asked for that the writer has no room for yet. Whichever process finds room makes
    /// it: the one that asked may end before.
    is_owed: AtomicBool,
}

/// For the ring's time after a save most of another one would be the same again. What asks for one
/// then has it when the time is over, or the recording.
#[derive(Debug, Default)]
struct Quiet {
    until: Option<Instant>,
    /// Why the ring is to be saved then.
    waiting: Option<String>,
    /// What a trigger fired for, and when.
    last: Option<(Instant, String)>,
}

impl Quiet {
    fn ask(&mut self, now: Instant, why: String) {
        // A file that is made and then written to asks once.
        let is_same = |(then, last): &(Instant, String)| {
            *last == why && now.saturating_duration_since(*then) < LOOK
        };
        if !self.last.as_ref().is_some_and(is_same) {
            self.waiting.get_or_insert(why);
        }
    }

    /// Why to save now; the quiet time begins.
    fn fire(&mut self, now: Instant, pause: Duration) -> Option<String> {
        if self.until.is_some_and(|until| now < until) {
            return None;
        }
        let why = self.waiting.take()?;
        self.until = now.checked_add(pause);
        self.last = Some((now, why.clone()));
        Some(why)
    }
}

impl Shared {
    /// Files are watched from now on.
    pub(crate) fn new(triggers: &[Trigger]) -> Self {
        let path =
            |it: &Trigger| if let Trigger::File(path) = it { Some(path.clone()) } else { None };
        let paths: Vec<PathBuf> = triggers.iter().filter_map(path).collect();
        let files = (!paths.is_empty()).then(|| Mutex::new(Files::new(paths)));
        Self { files, quiet: Mutex::default(), is_owed: AtomicBool::new(false) }
    }

    /// Asks for a save.
    pub(crate) fn owe_save(&self) {
        // Relaxed, here and below: it carries nothing with it.
        self.is_owed.store(true, Ordering::Relaxed);
    }

    /// A save was asked for that is not begun.
    pub(crate) fn owes_save(&self) -> bool {
        self.is_owed.load(Ordering::Relaxed)
    }

    /// The same, for one who begins it.
    pub(crate) fn takes_save(&self) -> bool {
        let is_taken = self.owes_save() && self.is_owed.swap(false, Ordering::Relaxed);
        if is_taken {
            // It has what was asked for up to now.
            self.quiet().waiting = None;
        }
        is_taken
    }

    /// A save was asked for that is not begun, when the recording is over: nothing is waited for
    /// any more, and what a program wrote as it died is still to be seen.
    pub(crate) fn owes_save_at_end(&self, now: Instant) -> bool {
        let written = self.files().and_then(|mut files| files.last_look(now).map(was_written));
        let mut quiet = self.quiet();
        if let Some(why) = written {
            quiet.ask(now, why);
        }
        quiet.waiting.is_some() || self.owes_save()
    }

    /// A save has failed: the next trigger waits for nothing.
    pub(crate) fn save_failed(&self) {
        let mut quiet = self.quiet();
        (quiet.until, quiet.last) = (None, None);
    }

    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        // Never half changed in a way that matters.
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Option<MutexGuard<'_, Files>> {
        // At worst a look is done twice.
        Some(self.files.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which file was written since any process asked before.
    fn written(&self, now: Instant) -> Option<String> {
        self.files()?.look(now).map(was_written)
    }
}

fn was_written(path: &Path) -> String {
    format!("{} was written", path.display())
}

/// Watches for all triggers of a recording, in one of its processes.
#[derive(Debug)]
pub(crate) struct Watch {
    states: Vec<Watched>,
    /// After one the next one waits for so long.
    pause: Duration,
    shared: Arc<Shared>,
    last: Option<(Instant, Load)>,
}

#[derive(Debug)]
struct Watched {
    trigger: Trigger,
    /// It held at the last look: it fires when it begins to hold.
    held: bool,
}

impl Watch {
    pub(crate) fn new(triggers: &[Trigger], pause: Duration, shared: Arc<Shared>) -> Self {
        let states = triggers.iter().filter(|it| !matches!(it, Trigger::File(_)));
        let states = states.map(|trigger| Watched { trigger: trigger.clone(), held: false });
        Self { states: states.collect(), pause, shared, last: None }
    }

    /// Why the ring is to be saved now, if it is. Asked in every turn of the loop.
    pub(crate) fn look(&mut self, now: Instant, load: impl FnOnce() -> Load) -> Option<String> {
        let written = self.shared.written(now);
        let state = self.state(now, load);
        let mut quiet = self.shared.quiet();
        if let Some(why) = written.or(state) {
            quiet.ask(now, why);
        }
        quiet.fire(now, self.pause)
    }

    fn state(&mut self, now: Instant, load: impl FnOnce() -> Load) -> Option<String> {
        let is_early = |(last, _): &(Instant, Load)| now.saturating_duration_since(*last) < LOOK;
        if self.states.is_empty() || self.last.as_ref().is_some_and(is_early) {
            return None;
        }
        let load = load();
        let before = self.last.replace((now, load));
        let percent = before.map(|(then, before)| {
            let ns = now.saturating_duration_since(then).as_nanos().max(1) as f64;
            load.cpu_ns.saturating_sub(before.cpu_ns) as f64 * 100.0 / ns
        });
        let mut why = None;
        for watched in &mut self.states {
            why = watched.look(percent, load.threads).or(why);
        }
        why
    }
}

impl Watched {
    fn look(&mut self, percent: Option<f64>, threads: u64) -> Option<String> {
        let (holds, why) = match &self.trigger {
            Trigger::Cpu(limit) => {
                let percent = percent?;
                (percent > *limit as f64, format!("cpu {percent:.0} % > {limit} %"))
            }
            Trigger::Threads(limit) => (threads > *limit, format!("{threads} threads > {limit}")),
            // Not among them: files have no state that holds.
            Trigger::File(_) => return None,
        };
        let held = std::mem::replace(&mut self.held, holds);
        (holds && !held).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn watch(triggers: &[Trigger], pause: Duration) -> Watch {
        Watch::new(triggers, pause, Arc::new(Shared::new(triggers)))
    }

    fn at(start: Instant, looks: u32) -> Instant {
        start + LOOK * looks
    }

    #[test]
    fn triggers_are_read_as_they_are_typed() {
        assert_eq!("cpu>80%".parse(), Ok(Trigger::Cpu(80)));
        assert_eq!("cpu > 350".parse(), Ok(Trigger::Cpu(350)));
        assert_eq!("threads>500".parse(), Ok(Trigger::Threads(500)));
        assert_eq!("file:/tmp/x".parse(), Ok(Trigger::File("/tmp/x".into())));
        for text in ["cpu>80%", "threads>500", "file:/tmp/x"] {
            assert_eq!(text.parse::<Trigger>().unwrap().to_string(), text);
        }
        for text in ["", "cpu", "cpu<5", "cpu>", "cpu>x", "memory>5", "threads>-1", "file:"] {
            assert!(text.parse::<Trigger>().unwrap_err().contains("file:PATH"), "{text}");
        }
    }

    #[test]
    fn a_state_fires_when_it_begins_and_again_when_the_quiet_time_is_over() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Threads(5)], LOOK * 4);
        let mut look = |looks, threads| {
            let load = || Load { cpu_ns: 0, threads };
            watch.look(at(start, looks), load).is_some()
        };
        let seen =
            [(0, 5), (1, 6), (2, 6), (3, 6), (5, 5), (6, 6), (7, 5), (8, 6), (9, 5), (10, 5)];
        let fired: Vec<u32> =
            seen.into_iter().filter(|(at, threads)| look(*at, *threads)).map(|it| it.0).collect();
        // It holds once in the first time, and begins twice: at 6 by itself, at 8 for when that is
        // over.
        assert_eq!(fired, [1, 6, 10]);
    }

    /// A trigger that waits for the end of the quiet time, which has four looks.
    fn waiting(start: Instant, path: &Path) -> Watch {
        let triggers = [Trigger::File(path.to_owned())];
        let mut watch = watch(&triggers, LOOK * 4);
        let mut write = |looks, text| {
            fs::write(path, text).unwrap();
            watch.look(at(start, looks), Load::default).is_some()
        };
        assert!(write(0, "a") && !write(2, "ab"));
        watch
    }

    #[test]
    fn what_is_asked_for_in_the_quiet_time_is_saved_after_it_or_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let mut late = waiting(start, &path);
        let mut look = |looks| late.look(at(start, looks), Load::default).is_some();
        assert_eq!([3, 4, 5, 9].map(&mut look), [false, true, false, false]);
        assert!(!late.shared.owes_save_at_end(at(start, 9)), "all was saved");
        let ending = waiting(start, &path);
        assert!(ending.shared.owes_save_at_end(at(start, 3)));
        // A signal has asked for a save, which has it.
        let saved = waiting(start, &path);
        saved.shared.owe_save();
        assert!(saved.shared.takes_save() && !saved.shared.owes_save_at_end(at(start, 3)));
        let mut failed = waiting(start, &path);
        failed.shared.save_failed();
        assert!(failed.look(at(start, 3), Load::default).is_some());
    }

    #[test]
    fn a_file_that_is_written_as_the_end_comes_owes_a_save() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let mut watch = watch(&[Trigger::File(path.clone())], LOOK * 4);
        assert!(watch.look(start, Load::default).is_none());
        assert!(!watch.shared.owes_save_at_end(start));
        fs::write(&path, "a").unwrap();
        assert!(watch.shared.owes_save_at_end(start));
        // What is written in one go is asked for once, however often somebody looks meanwhile.
        let mut watch = self::watch(&[Trigger::File(path.clone())], LOOK * 4);
        fs::write(&path, "ab").unwrap();
        assert!(watch.look(start, Load::default).is_some());
        fs::write(&path, "abc").unwrap();
        assert!(!watch.shared.owes_save_at_end(start + LOOK / 2));
        fs::write(&path, "abcd").unwrap();
        assert!(watch.shared.owes_save_at_end(at(start, 1)));
    }

    #[test]
    fn processor_time_is_of_the_time_since_the_last_look() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Cpu(150)], Duration::ZERO);
        let look_ns = LOOK.as_nanos() as u64;
        let used = [0, look_ns, look_ns * 3, look_ns * 5, look_ns * 6, look_ns * 8];
        let fired = used.iter().enumerate().map(|(looks, cpu_ns)| {
            let load = || Load { cpu_ns: *cpu_ns, threads: 1 };
            watch.look(at(start, looks as u32), load)
        });
        let fired: Vec<bool> = fired.map(|why| why.is_some()).collect();
        assert_eq!(fired, [false, false, true, false, false, true]);
    }

    #[test]
    fn a_file_fires_when_it_appears_and_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let triggers = [Trigger::File(path.clone())];
        let mut watch = watch(&triggers, Duration::ZERO);
        let mut look = |looks| watch.look(at(start, looks), Load::default).is_some();
        assert!(!look(0));
        fs::write(&path, "a").unwrap();
        assert!(look(1) && !look(2));
        // One that is there already when the recording begins says nothing.
        let mut later = self::watch(&triggers, Duration::ZERO);
        assert_eq!(later.look(at(start, 0), Load::default), None);
        fs::write(&path, "ab").unwrap();
        assert!(look(3));
        fs::remove_file(&path).unwrap();
        assert!(!look(4));
    }

    #[test]
    fn between_two_looks_nothing_is_measured() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Threads(5)], Duration::ZERO);
        let mut looks = 0;
        for ms in [0, 100, 499, 500, 900, 1000] {
            watch.look(start + Duration::from_millis(ms), || {
                looks += 1;
                Load::default()
            });
        }
        assert_eq!(looks, 3, "at 0, 500 and 1000 ms");
        let mut none = self::watch(&[], Duration::ZERO);
        assert_eq!(none.look(start, || panic!("nobody asks for it")), None);
    }

    #[test]
    fn what_several_processes_see_fires_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let triggers = [Trigger::File(path.clone())];
        let shared = Arc::new(Shared::new(&triggers));
        let mut watches: Vec<Watch> =
            (0..3).map(|_| Watch::new(&triggers, LOOK * 4, Arc::clone(&shared))).collect();
        let mut fired = |looks| {
            let each = watches.iter_mut().map(|it| it.look(at(start, looks), Load::default));
            each.filter(Option::is_some).count()
        };
        assert_eq!(fired(0), 0);
        fs::write(&path, "a").unwrap();
        assert_eq!((fired(1), fired(2)), (1, 0));
        fs::write(&path, "ab").unwrap();
        assert_eq!(fired(5), 1);
    }
}
