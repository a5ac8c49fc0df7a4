//! Samples of the processes that a process starts, taken by the kernel from outside.
//!
//! Each thread of the process gets an event on each core, which its children inherit and which
//! stays disabled until they execute a program. From then on the kernel writes samples, with the
//! user registers and the top of the stack, and records of what the threads map, execute, start and
//! end. Nothing is changed in any of these processes, so it does not matter how short they live.
//!
//! # Invariants
//! - Records are passed on in the order of their times, each once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::{self, Snapshot};

use super::buffers::{check_descriptors, ring_len, stack_len};
use super::copied_stack::CopiedStack;
use super::sample_record::{InterruptedThread, Words};
use super::{FREQ_MAX, KERNEL_NAMELESS, MODE_MASK, MODE_USER, cpus, shown};
use super::{PERF_RECORD_LOST, PERF_RECORD_SAMPLE};
use crate::proc::Mapping;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::sampling::{KernelFrames, Setup};
use crate::record::source::perf::{self, Modes, SampleContent, Scope};
use crate::record::source::ring_buffer::RingBuffer;
use crate::record::source::task_record::{TaskChange, TaskRecord, parse, u32_at, u64_at};

const PERF_RECORD_MMAP2: u32 = 10;
/// The distance of the time from the end of a record without a sample: the ids of the process and
/// the thread, the time, the id of the event, the core.
const TIME_FROM_END: usize = 24;
/// The most events whose counts are read.
const COUNTED_MAX: usize = 256;
/// Records that are younger than this wait: another core may be about to write an earlier one.
const SETTLED_NS: u64 = 2_000_000;

/// The events and buffers of the descendants of some processes.
pub(crate) struct DescendantEvents {
    setup: DescendantSetup,
    events: Vec<OwnedFd>,
    /// The buffers by core, each with the index of the event that owns it.
    rings: BTreeMap<i32, (RingBuffer, usize)>,
    /// Records that are not settled.
    later: Vec<DescendantRecord>,
}

/// What samples of descendants are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescendantSetup {
    /// What a sample stands for, in periods of the recording.
    pub(crate) weight: u32,
    /// Whether time in the kernel is sampled.
    pub(crate) has_kernel: bool,
    frames: KernelFrames,
    period_ns: u64,
}

/// A record of a descendant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DescendantRecord {
    /// The time in CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) change: DescendantChange,
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DescendantChange {
    /// A thread was interrupted.
    Sampled(DescendantSample),
    /// A process has mapped code.
    Mapped(i32, Mapping),
    /// A thread or a process has done something else.
    Task(TaskRecord),
}

/// A sample, as the kernel wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DescendantSample {
    body: Box<[u8]>,
    is_user: bool,
    frames: KernelFrames,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    /// The core, and the event that the thread's one was inherited from.
    pub(crate) event: (u32, u64),
}

/// A stack, as its frame words and the flags of its trace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SampledStack {
    pub(crate) words: Vec<u64>,
    pub(crate) flags: u32,
    pub(crate) reason: u16,
    pub(crate) is_user: bool,
}

impl DescendantSetup {
    /// Returns what is permitted for the descendants of a process, and wanted: `setup` has the
    /// recording's period, and says whether time in the kernel is wanted.
    pub(crate) fn of(pid: i32, setup: Setup, has_kernel_frames: bool) -> Self {
        let seen = shown(pid, setup);
        let weight = (1_000_000_000 / setup.period_ns.max(1)).div_ceil(FREQ_MAX).max(1) as u32;
        Self {
            weight,
            has_kernel: setup.kernel && seen != KernelFrames::NotSampled,
            frames: if has_kernel_frames { seen } else { KernelFrames::Unwanted },
            period_ns: setup.period_ns.saturating_mul(u64::from(weight)),
        }
    }
}

impl DescendantEvents {
    /// Makes the events of no process.
    pub(crate) fn new(setup: DescendantSetup) -> Self {
        Self { setup, events: Vec::new(), rings: BTreeMap::new(), later: Vec::new() }
    }

    /// Opens events on all threads of a process. All events of a core share its buffer.
    pub(crate) fn add(&mut self, pid: i32) -> io::Result<()> {
        let cpus = cpus();
        check_descriptors(pid, cpus.len(), self.events.len())?;
        let ring_len = ring_len(cpus.len());
        let opened = self.events.len();
        let added = cpus.into_iter().try_for_each(|cpu| self.add_core(pid, cpu, ring_len));
        if added.is_err() {
            // All or nothing. The buffers belong to the events of the first process.
            if opened == 0 {
                self.rings.clear();
            }
            perf::close_all(self.events.split_off(opened));
        }
        added
    }

    fn add_core(&mut self, pid: i32, cpu: i32, ring_len: usize) -> io::Result<()> {
        let setup = self.setup;
        let modes = if setup.has_kernel { Modes::All } else { Modes::User };
        let content = SampleContent {
            user_stack: stack_len(setup.period_ns) / 2 * 3,
            has_chain: setup.frames == KernelFrames::Chain,
        };
        perf::each_thread(pid, |tid| {
            let scope = (Scope::Descendants, modes);
            let event = match perf::open_kernel(scope, (tid, cpu), setup.period_ns, content) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                opened => opened?,
            };
            match self.rings.get(&cpu) {
                None => {
                    let ring = RingBuffer::map(&event, ring_len)?;
                    self.rings.insert(cpu, (ring, self.events.len()));
                }
                Some((_, owner)) => perf::share_output(&event, &self.events[*owner])?,
            }
            self.events.push(event);
            Ok(true)
        })
    }

    /// Returns the setup.
    pub(crate) fn setup(&self) -> DescendantSetup {
        self.setup
    }

    /// Returns the CPU time of all descendants so far in nanoseconds, each from its first program
    /// on; `None` if there are too many events to read.
    pub(crate) fn cpu_ns(&self) -> Option<u64> {
        if self.events.len() > COUNTED_MAX {
            return None;
        }
        self.events.iter().map(|event| perf::read_count(event).ok()).sum()
    }

    /// Adds the records that have arrived to `out`, in the order of their times, and returns how
    /// many were lost. The last call, with `is_last`, leaves none for later.
    pub(crate) fn drain(&mut self, is_last: bool, out: &mut Vec<DescendantRecord>) -> u64 {
        let until_ns = if is_last { u64::MAX } else { monotonic_now_ns() - SETTLED_NS };
        let mut records = std::mem::take(&mut self.later);
        let (mut lost, frames) = (0, self.setup.frames);
        for (ring, _) in self.rings.values_mut() {
            ring.drain(|record| match read(record, frames) {
                Some(Ok(record)) => records.push(record),
                Some(Err(count)) => lost += count,
                None => {}
            });
        }
        records.sort_by_key(|record| record.time_ns);
        let settled = records.partition_point(|record| record.time_ns <= until_ns);
        self.later = records.split_off(settled);
        out.append(&mut records);
        lost
    }
}

impl Drop for DescendantEvents {
    fn drop(&mut self) {
        perf::close_all(std::mem::take(&mut self.events));
    }
}

/// Reads a record; an error is a number of lost ones.
fn read(record: &[u8], frames: KernelFrames) -> Option<Result<DescendantRecord, u64>> {
    let (header, body) = record.split_first_chunk::<8>()?;
    let mode = u16::from_ne_bytes([header[4], header[5]]) & MODE_MASK;
    match u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) {
        PERF_RECORD_LOST => Some(Err(Words(body).nth(1).unwrap_or(0))),
        PERF_RECORD_SAMPLE => {
            let interrupted = InterruptedThread::parse(body, frames == KernelFrames::Chain)?;
            let (pid, tid, time_ns) =
                (interrupted.pid, interrupted.tid as i32, interrupted.time_ns);
            let is_user = mode == MODE_USER;
            let event = (interrupted.cpu, interrupted.event);
            let sample = DescendantSample { body: body.into(), is_user, frames, pid, tid, event };
            let change = DescendantChange::Sampled(sample);
            Some(Ok(DescendantRecord { time_ns, change }))
        }
        PERF_RECORD_MMAP2 => mapped(record).map(Ok),
        _ => {
            let task = parse(record, TIME_FROM_END)?;
            let time_ns = match &task {
                // The same code, in another record.
                TaskRecord::Changed(_, event)
                    if matches!(event.change, TaskChange::Mapped { .. }) =>
                {
                    return None;
                }
                TaskRecord::Changed(_, event) => event.time_ns,
                TaskRecord::Forked(fork) => fork.time_ns,
                TaskRecord::Lost(_) => return None,
            };
            Some(Ok(DescendantRecord { time_ns, change: DescendantChange::Task(task) }))
        }
    }
}

/// Reads a record of mapped code.
fn mapped(record: &[u8]) -> Option<DescendantRecord> {
    let (word, long) = (|offset| u32_at(record, offset), |offset| u64_at(record, offset));
    let path = record.get(72..)?.split(|byte| *byte == 0).next()?;
    let path = std::os::unix::ffi::OsStrExt::from_bytes(path);
    let start = long(16)?;
    let mapping = Mapping {
        start,
        end: start.checked_add(long(24)?)?,
        read: true,
        exec: true,
        file_offset: long(32)?,
        device: (word(40)?, word(44)?),
        inode: long(48)?,
        path: std::ffi::OsStr::to_os_string(path),
        ..Mapping::default()
    };
    let time_ns = long(record.len().checked_sub(TIME_FROM_END)?)?;
    Some(DescendantRecord { time_ns, change: DescendantChange::Mapped(word(8)? as i32, mapping) })
}

impl DescendantSample {
    /// Unwinds the stack. `frames` is room for its frames.
    pub(crate) fn unwind(
        &self,
        snapshot: &Snapshot<'_>,
        frames: &[AtomicU64],
    ) -> Option<SampledStack> {
        let has_chain = self.frames == KernelFrames::Chain;
        let interrupted = InterruptedThread::parse(&self.body, has_chain)?;
        let mut memory = CopiedStack::new(snapshot, &interrupted);
        let unwound = unwind::unwind(snapshot, &interrupted.registers, &mut memory, frames);
        let end = memory.end(unwound.end);
        let mut words: Vec<u64> = interrupted.chain.frame_words().collect();
        if self.frames == KernelFrames::Nameless && !self.is_user {
            words.push(KERNEL_NAMELESS);
        }
        // Relaxed: this thread's own buffer.
        let user = frames.iter().take(unwound.depth).map(|frame| frame.load(Ordering::Relaxed));
        words.extend(user);
        let flags = unwind::trace_flags(end, snapshot.epoch());
        Some(SampledStack { words, flags, reason: end as u16, is_user: self.is_user })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::proc;

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn setup() -> DescendantSetup {
        let setup = Setup { period_ns: 1_000_000, kernel: true, ..Setup::default() };
        DescendantSetup::of(own(), setup, true)
    }

    /// Runs a shell with this script, and returns its id and the records of it.
    fn records_of(script: &str) -> Option<(i32, Vec<DescendantRecord>)> {
        let mut events = DescendantEvents::new(setup());
        if let Err(error) = events.add(own()) {
            // Not permitted to everyone.
            assert!(!nix::unistd::geteuid().is_root(), "{error}");
            return None;
        }
        let mut shell = Command::new("sh").args(["-c", script]).spawn().unwrap();
        shell.wait().unwrap();
        let mut records = Vec::new();
        assert_eq!(events.drain(true, &mut records), 0);
        Some((shell.id() as i32, records))
    }

    #[test]
    fn programs_are_sampled_from_their_start_to_their_end() {
        let script = "n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done; exec sleep 0";
        let Some((pid, records)) = records_of(script) else { return };
        assert!(records.is_sorted_by_key(|record| record.time_ns));
        let executed = records.iter().filter_map(|record| match &record.change {
            DescendantChange::Task(TaskRecord::Changed(of, event)) if *of == pid => {
                match &event.change {
                    TaskChange::Executed(name) => Some(name.as_str()),
                    _ => None,
                }
            }
            _ => None,
        });
        assert_eq!(executed.collect::<Vec<_>>(), ["sh", "sleep"]);
        let position = |is_it: &dyn Fn(&DescendantChange) -> bool| {
            records.iter().position(|record| is_it(&record.change))
        };
        let mapped = |name: &str| {
            let name = name.to_owned();
            position(&move |change| match change {
                DescendantChange::Mapped(of, mapping) => {
                    *of == pid && mapping.path.to_string_lossy().contains(&name)
                }
                _ => false,
            })
        };
        let first = position(&|change| match change {
            DescendantChange::Sampled(sample) => sample.pid == pid && sample.is_user,
            _ => false,
        });
        let (libc, vdso, sample) = (mapped("libc.so").unwrap(), mapped("[vdso]"), first.unwrap());
        assert!(vdso.is_some() && libc < records.len());
        let samples = records.iter().filter_map(|record| match &record.change {
            DescendantChange::Sampled(sample) => Some(sample),
            _ => None,
        });
        assert!(samples.clone().all(|sample| sample.pid == pid && sample.tid == pid));
        assert!(samples.count() > 10 && sample > 0);
        let last = &records[records.len() - 1];
        let is_exit = match &last.change {
            DescendantChange::Task(TaskRecord::Changed(of, event)) => {
                *of == pid && matches!(event.change, TaskChange::Exited { .. })
            }
            _ => false,
        };
        assert!(is_exit, "{last:?}");
    }

    #[test]
    fn a_mapping_is_that_of_the_file() {
        let Some((_, records)) = records_of(":") else { return };
        let own = proc::mappings(own()).unwrap();
        let libc = own.iter().find(|it| it.exec && it.path.to_string_lossy().contains("libc.so"));
        let libc = libc.unwrap();
        let of_shell = records.iter().find_map(|record| match &record.change {
            DescendantChange::Mapped(_, mapping) if mapping.path == libc.path => Some(mapping),
            _ => None,
        });
        let of_shell = of_shell.unwrap();
        assert_eq!(
            (of_shell.device, of_shell.inode, of_shell.file_offset, of_shell.end - of_shell.start),
            (libc.device, libc.inode, libc.file_offset, libc.end - libc.start)
        );
    }

    #[test]
    fn garbage_is_left_out() {
        for kind in [1, 2, 3, 4, 7, 9, 10, 77u32] {
            let words =
                [kind, 0, 1, 1, 7, 6, 5, 0, 9, 0, 3, 3, 3, 3, 3, 3, 3, 3, 0x2f, 0, 4, 4, 4, 4];
            let complete: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            for len in 0..complete.len() {
                let _ = read(&complete[..len], KernelFrames::Chain);
            }
        }
        let huge = [u64::MAX; 16].map(u64::to_ne_bytes).concat();
        let record = [&10u32.to_ne_bytes()[..], &[0; 12], &huge].concat();
        assert_eq!(read(&record, KernelFrames::Chain), None, "the end of the mapping overflows");
    }
}
