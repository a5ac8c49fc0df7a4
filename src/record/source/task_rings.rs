//! The buffers into which the kernel writes what threads do.
//!
//! Perf writes side-band records (`task` and `comm`) into one ring per core. With privilege, one
//! event per core covers all threads of the machine. Without it, each thread at attach has one
//! event per core, which the threads that it starts inherit. Mappings (`mmap`) have events and
//! rings of their own: a runtime that generates code, in any process, causes more records than a
//! ring holds, and these must not displace the record of a thread's exit.
//!
//! # Invariants
//! - A record is in the ring of the core that its thread ran on, so no ring has two writers.

use std::io;
use std::os::fd::OwnedFd;

use crate::proc::{self, DescriptorUse, descriptor_limit};
use crate::record::source::kernel::cpus;
use crate::record::source::perf::{self, TaskRecords};
use crate::record::source::ring_buffer::RingBuffer;
use crate::record::source::task_record::{TIME_ALONE, TaskChange, TaskRecord, parse};

/// The length of each ring in bytes: some five thousand records between two turns of the loop.
const RING_LEN: usize = 256 << 10;
/// The length of each ring of mappings in bytes: some six hundred records.
const CODE_RING_LEN: usize = 64 << 10;
/// Each kind of record may use one part in this many of the permitted descriptors; sampling events
/// matter more.
const DESCRIPTORS_SHARE: u64 = 8;

/// The rings of both kinds of records.
#[derive(Default)]
pub(crate) struct TaskRings {
    lives: RingsOfKind,
    code: RingsOfKind,
}

/// The numbers of records that found a ring full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LostRecords {
    pub(crate) lives: u64,
    pub(crate) code: u64,
}

impl TaskRings {
    /// Opens the records of all threads of the machine.
    pub(crate) fn of_machine() -> io::Result<Self> {
        let open = |kind| RingsOfKind::of_machine(kind);
        Ok(Self { lives: open(TaskRecords::Lives)?, code: open(TaskRecords::Code)? })
    }

    /// Opens the records of the threads of a process, as far as they are permitted.
    pub(crate) fn of_family(pid: i32) -> Self {
        let open = |kind| RingsOfKind::of_family(kind, pid).unwrap_or_default();
        Self { lives: open(TaskRecords::Lives), code: open(TaskRecords::Code) }
    }

    /// Returns whether starts and exits are reported.
    pub(crate) fn has_lives(&self) -> bool {
        !self.lives.rings.is_empty()
    }

    /// Passes on all records, those of each ring in order, and returns how many were lost.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(TaskRecord)) -> LostRecords {
        LostRecords {
            lives: self.lives.drain(TaskRecords::Lives, &mut each),
            code: self.code.drain(TaskRecords::Code, &mut each),
        }
    }
}

/// The rings and events of one kind of record.
#[derive(Default)]
struct RingsOfKind {
    rings: Vec<RingBuffer>,
    // Kept open until no more records are needed.
    events: Vec<OwnedFd>,
}

impl RingsOfKind {
    fn ring_len(kind: TaskRecords) -> usize {
        match kind {
            TaskRecords::Lives => RING_LEN,
            TaskRecords::Code => CODE_RING_LEN,
        }
    }

    /// Opens one event per core for the whole machine.
    fn of_machine(kind: TaskRecords) -> io::Result<Self> {
        let (mut opened, cpus) = (Self::default(), cpus());
        check_descriptors(cpus.len())?;
        for cpu in cpus {
            let event = perf::open_task(kind, None, cpu)?;
            opened.rings.push(RingBuffer::map(&event, Self::ring_len(kind))?);
            opened.events.push(event);
        }
        Ok(opened)
    }

    /// Opens one event per core and thread; all events of a core share its ring.
    fn of_family(kind: TaskRecords, pid: i32) -> io::Result<Self> {
        let mut opened = Self::default();
        let cpus = cpus();
        check_descriptors(proc::tasks(pid)?.len() * cpus.len())?;
        for cpu in cpus {
            let mut first = None;
            perf::each_thread(pid, |tid| {
                let event = match perf::open_task(kind, Some(tid), cpu) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                    opened => opened?,
                };
                match first {
                    None => {
                        opened.rings.push(RingBuffer::map(&event, Self::ring_len(kind))?);
                        first = Some(opened.events.len());
                    }
                    Some(owner) => perf::share_output(&event, &opened.events[owner])?,
                }
                opened.events.push(event);
                Ok(true)
            })?;
        }
        Ok(opened)
    }

    /// Passes on the records of this kind, and returns the number of lost ones.
    fn drain(&mut self, kind: TaskRecords, each: &mut impl FnMut(TaskRecord)) -> u64 {
        let mut lost = 0;
        // Events for mappings report starts and exits as well.
        let is_mapped = |record: &TaskRecord| match record {
            TaskRecord::Changed(_, event) => matches!(event.change, TaskChange::Mapped { .. }),
            _ => false,
        };
        for ring in &mut self.rings {
            ring.drain(|record| match parse(record, TIME_ALONE) {
                Some(TaskRecord::Lost(count)) => lost += count,
                Some(record) if is_mapped(&record) == (kind == TaskRecords::Code) => each(record),
                _ => {}
            });
        }
        lost
    }
}

/// Checks that so many events are within their share of the descriptors.
fn check_descriptors(wanted: usize) -> io::Result<()> {
    if wanted as u64 > descriptor_limit() / DESCRIPTORS_SHARE {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    DescriptorUse::Savings.check(wanted as u64)
}
