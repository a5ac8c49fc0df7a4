//! The triggers that request a save of the ring: a state of the target, or a file.

mod files;

use crate::record::contract::trigger::Trigger;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::files::TriggerFiles;

/// Interval between checks of the target's state, over which CPU usage is measured. Also the
/// interval between scans of files that inotify does not report.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The state of the target that triggers check.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TargetLoad {
    /// The CPU time that it has used, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// The number of its threads.
    pub(crate) threads: u64,
}

/// The trigger state that all processes of a recording share: the files, which belong to no
/// process, and the time until which no trigger fires.
#[derive(Debug)]
pub(crate) struct SharedTriggers {
    files: Option<Mutex<TriggerFiles>>,
    quiet: Mutex<QuietPeriod>,
    /// Whether a save is requested that waits for room in the writer's queue. Any process starts it
    /// that finds room, because the requesting process may end first.
    is_requested: AtomicBool,
}

/// The quiet period after a save, as long as the ring's time: another save would mostly have the
/// same samples. A request in this period is served at its end, or at the end of the recording.
#[derive(Debug, Default)]
struct QuietPeriod {
    until: Option<Instant>,
    /// The reason of a request that waits for the end of the period.
    waiting: Option<String>,
    /// The time and the reason of the last save by a trigger.
    last: Option<(Instant, String)>,
}

impl QuietPeriod {
    fn request(&mut self, now: Instant, why: String) {
        // A file that is created and then written requests one save.
        let is_same = |(then, last): &(Instant, String)| {
            *last == why && now.saturating_duration_since(*then) < CHECK_INTERVAL
        };
        if !self.last.as_ref().is_some_and(is_same) {
            self.waiting.get_or_insert(why);
        }
    }

    /// Returns why to save now, if so, and starts the quiet period.
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

impl SharedTriggers {
    /// Creates the state, and watches the files from now on.
    pub(crate) fn new(triggers: &[Trigger]) -> Self {
        let path =
            |it: &Trigger| if let Trigger::File(path) = it { Some(path.clone()) } else { None };
        let paths: Vec<PathBuf> = triggers.iter().filter_map(path).collect();
        let files = (!paths.is_empty()).then(|| Mutex::new(TriggerFiles::new(paths)));
        Self { files, quiet: Mutex::default(), is_requested: AtomicBool::new(false) }
    }

    /// Requests a save.
    pub(crate) fn request_save(&self) {
        // Relaxed, here and below: the flag publishes no other memory.
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Whether a save is requested that has not started.
    pub(crate) fn is_save_requested(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    /// Takes the request, for a caller that starts the save. Returns whether there was one.
    pub(crate) fn take_save(&self) -> bool {
        let is_taken = self.is_save_requested() && self.is_requested.swap(false, Ordering::Relaxed);
        if is_taken {
            // This save also serves the requests that wait.
            self.quiet().waiting = None;
        }
        is_taken
    }

    /// Whether a requested save has not started at the end of the recording. The quiet period no
    /// longer counts, and a final scan finds a file that the program wrote as it exited.
    pub(crate) fn is_save_due_at_end(&self, now: Instant) -> bool {
        let written = self.files().and_then(|mut files| files.final_poll(now).map(was_written));
        let mut quiet = self.quiet();
        if let Some(why) = written {
            quiet.request(now, why);
        }
        quiet.waiting.is_some() || self.is_save_requested()
    }

    /// Ends the quiet period after a failed save, so that the next trigger fires at once.
    pub(crate) fn save_failed(&self) {
        let mut quiet = self.quiet();
        (quiet.until, quiet.last) = (None, None);
    }

    fn quiet(&self) -> MutexGuard<'_, QuietPeriod> {
        // A panic cannot leave it in an inconsistent state.
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Option<MutexGuard<'_, TriggerFiles>> {
        // After a panic, a scan is repeated at worst.
        Some(self.files.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns which file was written since the last poll by any process.
    fn written(&self, now: Instant) -> Option<String> {
        self.files()?.poll(now).map(was_written)
    }
}

fn was_written(path: &Path) -> String {
    format!("{} was written", path.display())
}

/// Checks all triggers of a recording, for one of its processes.
#[derive(Debug)]
pub(crate) struct Watch {
    states: Vec<WatchedState>,
    /// The length of the quiet period after a save.
    pause: Duration,
    shared: Arc<SharedTriggers>,
    last: Option<(Instant, TargetLoad)>,
}

#[derive(Debug)]
struct WatchedState {
    trigger: Trigger,
    /// Whether the condition held at the last check: the trigger fires when it starts to hold.
    held: bool,
}

impl Watch {
    pub(crate) fn new(triggers: &[Trigger], pause: Duration, shared: Arc<SharedTriggers>) -> Self {
        let states = triggers.iter().filter(|it| !matches!(it, Trigger::File(_)));
        let states = states.map(|trigger| WatchedState { trigger: trigger.clone(), held: false });
        Self { states: states.collect(), pause, shared, last: None }
    }

    /// Returns why to save the ring now, if so. The loop calls this in every turn.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        load: impl FnOnce() -> TargetLoad,
    ) -> Option<String> {
        let written = self.shared.written(now);
        let state = self.state(now, load);
        let mut quiet = self.shared.quiet();
        if let Some(why) = written.or(state) {
            quiet.request(now, why);
        }
        quiet.fire(now, self.pause)
    }

    fn state(&mut self, now: Instant, load: impl FnOnce() -> TargetLoad) -> Option<String> {
        let is_early = |(last, _): &(Instant, TargetLoad)| {
            now.saturating_duration_since(*last) < CHECK_INTERVAL
        };
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
            why = watched.poll(percent, load.threads).or(why);
        }
        why
    }
}

impl WatchedState {
    fn poll(&mut self, percent: Option<f64>, threads: u64) -> Option<String> {
        let (holds, why) = match &self.trigger {
            Trigger::Cpu(limit) => {
                let percent = percent?;
                (percent > *limit as f64, format!("cpu {percent:.0} % > {limit} %"))
            }
            Trigger::Threads(limit) => (threads > *limit, format!("{threads} threads > {limit}")),
            // Never: files have no condition that holds.
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
        Watch::new(triggers, pause, Arc::new(SharedTriggers::new(triggers)))
    }

    fn at(start: Instant, checks: u32) -> Instant {
        start + CHECK_INTERVAL * checks
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
    fn a_condition_fires_when_it_starts_and_again_after_the_quiet_period() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Threads(5)], CHECK_INTERVAL * 4);
        let mut poll = |checks, threads| {
            let load = || TargetLoad { cpu_ns: 0, threads };
            watch.poll(at(start, checks), load).is_some()
        };
        let seen =
            [(0, 5), (1, 6), (2, 6), (3, 6), (5, 5), (6, 6), (7, 5), (8, 6), (9, 5), (10, 5)];
        let fired: Vec<u32> =
            seen.into_iter().filter(|(at, threads)| poll(*at, *threads)).map(|it| it.0).collect();
        // The condition starts to hold at 1, 6 and 8. At 6 the first quiet period is over. The
        // request at 8 waits for the end of the second one.
        assert_eq!(fired, [1, 6, 10]);
    }

    /// Returns a trigger that waits for the end of the quiet period of four checks.
    fn waiting(start: Instant, path: &Path) -> Watch {
        let triggers = [Trigger::File(path.to_owned())];
        let mut watch = watch(&triggers, CHECK_INTERVAL * 4);
        let mut write = |checks, text| {
            fs::write(path, text).unwrap();
            watch.poll(at(start, checks), TargetLoad::default).is_some()
        };
        assert!(write(0, "a") && !write(2, "ab"));
        watch
    }

    #[test]
    fn a_request_in_the_quiet_period_is_served_after_it_or_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let mut late = waiting(start, &path);
        let mut poll = |checks| late.poll(at(start, checks), TargetLoad::default).is_some();
        assert_eq!([3, 4, 5, 9].map(&mut poll), [false, true, false, false]);
        assert!(!late.shared.is_save_due_at_end(at(start, 9)), "all was saved");
        let ending = waiting(start, &path);
        assert!(ending.shared.is_save_due_at_end(at(start, 3)));
        // A signal requests a save, which also serves the waiting request.
        let saved = waiting(start, &path);
        saved.shared.request_save();
        assert!(saved.shared.take_save() && !saved.shared.is_save_due_at_end(at(start, 3)));
        let mut failed = waiting(start, &path);
        failed.shared.save_failed();
        assert!(failed.poll(at(start, 3), TargetLoad::default).is_some());
    }

    #[test]
    fn a_file_written_just_before_the_end_requests_a_save() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let mut watch = watch(&[Trigger::File(path.clone())], CHECK_INTERVAL * 4);
        assert!(watch.poll(start, TargetLoad::default).is_none());
        assert!(!watch.shared.is_save_due_at_end(start));
        fs::write(&path, "a").unwrap();
        assert!(watch.shared.is_save_due_at_end(start));
        // Writes in quick succession request one save, however often they are polled.
        let mut watch = self::watch(&[Trigger::File(path.clone())], CHECK_INTERVAL * 4);
        fs::write(&path, "ab").unwrap();
        assert!(watch.poll(start, TargetLoad::default).is_some());
        fs::write(&path, "abc").unwrap();
        assert!(!watch.shared.is_save_due_at_end(start + CHECK_INTERVAL / 2));
        fs::write(&path, "abcd").unwrap();
        assert!(watch.shared.is_save_due_at_end(at(start, 1)));
    }

    #[test]
    fn cpu_usage_covers_the_time_since_the_last_check() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Cpu(150)], Duration::ZERO);
        let interval_ns = CHECK_INTERVAL.as_nanos() as u64;
        let used =
            [0, interval_ns, interval_ns * 3, interval_ns * 5, interval_ns * 6, interval_ns * 8];
        let fired = used.iter().enumerate().map(|(checks, cpu_ns)| {
            let load = || TargetLoad { cpu_ns: *cpu_ns, threads: 1 };
            watch.poll(at(start, checks as u32), load)
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
        let mut poll = |checks| watch.poll(at(start, checks), TargetLoad::default).is_some();
        assert!(!poll(0));
        fs::write(&path, "a").unwrap();
        assert!(poll(1) && !poll(2));
        // A file that exists when the recording starts does not fire.
        let mut later = self::watch(&triggers, Duration::ZERO);
        assert_eq!(later.poll(at(start, 0), TargetLoad::default), None);
        fs::write(&path, "ab").unwrap();
        assert!(poll(3));
        fs::remove_file(&path).unwrap();
        assert!(!poll(4));
    }

    #[test]
    fn nothing_is_measured_between_two_checks() {
        let start = Instant::now();
        let mut watch = watch(&[Trigger::Threads(5)], Duration::ZERO);
        let mut checks = 0;
        for ms in [0, 100, 499, 500, 900, 1000] {
            watch.poll(start + Duration::from_millis(ms), || {
                checks += 1;
                TargetLoad::default()
            });
        }
        assert_eq!(checks, 3, "at 0, 500 and 1000 ms");
        let mut none = self::watch(&[], Duration::ZERO);
        assert_eq!(none.poll(start, || panic!("nobody asks for it")), None);
    }

    #[test]
    fn a_file_that_several_processes_poll_fires_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let start = Instant::now();
        let triggers = [Trigger::File(path.clone())];
        let shared = Arc::new(SharedTriggers::new(&triggers));
        let mut watches: Vec<Watch> = (0..3)
            .map(|_| Watch::new(&triggers, CHECK_INTERVAL * 4, Arc::clone(&shared)))
            .collect();
        let mut fired = |checks| {
            let each = watches.iter_mut().map(|it| it.poll(at(start, checks), TargetLoad::default));
            each.filter(Option::is_some).count()
        };
        assert_eq!(fired(0), 0);
        fs::write(&path, "a").unwrap();
        assert_eq!((fired(1), fired(2)), (1, 0));
        fs::write(&path, "ab").unwrap();
        assert_eq!(fired(5), 1);
    }
}
