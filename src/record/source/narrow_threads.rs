//! Threads that get no sampling signal, since their stack has no room for it.
//!
//! Events that send no signal sample them where the engine has such events. If not, their CPU time
//! is not sampled.

use crate::proc;
use crate::record::target::narrow_stacks::NarrowThread;

/// The maximum number of threads that are reported while recording.
const REPORTED_MAX: usize = 8;

/// The threads of one program that get no signal, and their CPU time.
pub(crate) struct NarrowThreads {
    pid: i32,
    threads: Vec<NarrowUsage>,
    /// Whether events without a signal sample them.
    is_sampled: bool,
}

/// The CPU time of one thread in nanoseconds.
struct NarrowUsage {
    thread: NarrowThread,
    /// When its time began to count as unsampled.
    first_ns: u64,
    /// At the last reading, since a thread that has exited cannot be read.
    last_ns: u64,
}

/// The threads that got no signal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NarrowTotals {
    /// The ids and names of the threads.
    pub(crate) threads: Vec<(i32, String)>,
    /// Whether one of them was not sampled at all.
    pub(crate) is_unsampled: bool,
    /// The CPU time that was not sampled, in nanoseconds.
    pub(crate) unsampled_ns: u64,
}

impl NarrowTotals {
    /// Adds the totals of another program or process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.threads.extend(other.threads.iter().cloned());
        self.is_unsampled |= other.is_unsampled;
        self.unsampled_ns += other.unsampled_ns;
    }

    /// Describes the threads, if there are any: label and text.
    pub(crate) fn line(
        &self,
        names: impl FnOnce(&[(i32, String)]) -> String,
    ) -> Option<(&'static str, String)> {
        if self.threads.is_empty() {
            return None;
        }
        let names = names(&self.threads);
        let why = "have too little stack for a signal";
        Some(match self.is_unsampled {
            true => ("not sampled", format!("threads that {why}: {names}")),
            false => ("outside", format!("threads that {why}, sampled without one: {names}")),
        })
    }
}

impl NarrowThreads {
    /// Makes the list of these threads, none of which is sampled yet.
    pub(crate) fn new(pid: i32, threads: &[NarrowThread]) -> Self {
        let usage = |thread: &NarrowThread| {
            let now_ns = proc::task_cpu_or_ticks_ns(pid, thread.tid).unwrap_or(0);
            NarrowUsage { thread: thread.clone(), first_ns: now_ns, last_ns: now_ns }
        };
        Self { pid, threads: threads.iter().map(usage).collect(), is_sampled: false }
    }

    /// Whether a thread gets no signal.
    pub(crate) fn holds(&self, tid: i32) -> bool {
        self.threads.iter().any(|it| it.thread.tid == tid)
    }

    /// Notes that events without a signal sample the threads from now on, or no longer.
    pub(crate) fn set_sampled(&mut self, is_sampled: bool) {
        self.read();
        for it in &mut self.threads {
            it.first_ns = it.last_ns;
        }
        self.is_sampled = is_sampled;
    }

    /// Reads the CPU times.
    pub(crate) fn read(&mut self) {
        for it in &mut self.threads {
            let is_same = |stat: &proc::TaskStat| stat.start_time == it.thread.start_time;
            if proc::task_stat(self.pid, it.thread.tid).is_ok_and(|stat| is_same(&stat))
                && let Ok(now_ns) = proc::task_cpu_or_ticks_ns(self.pid, it.thread.tid)
            {
                it.last_ns = it.last_ns.max(now_ns);
            }
        }
    }

    /// Returns what to tell the user of each of the first threads.
    pub(crate) fn notices(&self) -> impl Iterator<Item = String> {
        let how = match self.is_sampled {
            true => "is sampled from outside",
            false => "is not sampled",
        };
        self.threads.iter().take(REPORTED_MAX).map(move |it| {
            let NarrowThread { tid, name, room, .. } = &it.thread;
            format!(
                "thread {tid} ({name}) {how}: a signal would not fit on its stack, of which {room} \
                 bytes are left"
            )
        })
    }

    /// Returns the totals.
    pub(crate) fn totals(&mut self) -> NarrowTotals {
        self.read();
        let unsampled = |it: &NarrowUsage| it.last_ns - it.first_ns;
        NarrowTotals {
            threads: self
                .threads
                .iter()
                .map(|it| (it.thread.tid, it.thread.name.clone()))
                .collect(),
            is_unsampled: !self.is_sampled && !self.threads.is_empty(),
            unsampled_ns: match self.is_sampled {
                true => 0,
                false => self.threads.iter().map(unsampled).sum(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_as_unsampled_while_nothing_samples_the_thread() {
        let pid = std::process::id() as i32;
        let tid = nix::unistd::gettid().as_raw();
        let start_time = proc::task_stat(pid, tid).unwrap().start_time;
        let thread = NarrowThread { tid, start_time, name: "own".to_owned(), room: 7 };
        let mut narrow = NarrowThreads::new(pid, std::slice::from_ref(&thread));
        assert!(narrow.holds(tid) && !narrow.holds(tid + 1));
        let spin = || {
            let start = proc::task_cpu_or_ticks_ns(pid, tid).unwrap();
            while proc::task_cpu_or_ticks_ns(pid, tid).unwrap() < start + 2_000_000 {}
        };
        spin();
        let totals = narrow.totals();
        assert!(totals.is_unsampled && totals.unsampled_ns >= 2_000_000, "{totals:?}");
        assert!(narrow.notices().all(|text| text.contains("is not sampled: a signal")));
        narrow.set_sampled(true);
        spin();
        let totals = narrow.totals();
        assert_eq!((totals.is_unsampled, totals.unsampled_ns), (false, 0));
        assert!(totals.line(|_| String::new()).is_some_and(|(label, _)| label == "outside"));
        let reused = NarrowThread { start_time: start_time + 1, ..thread };
        let mut narrow = NarrowThreads::new(pid, &[reused]);
        spin();
        assert_eq!(narrow.totals().unsampled_ns, 0, "another thread with its id");
    }
}
