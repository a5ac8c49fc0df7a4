//! The shared segments that the agents of a recording use in turn, and the modules with tables in
//! them.
//!
//! # Invariants
//! - A segment that another process still has attached (a child of an earlier program) is neither
//!   cleared nor given to the next agent: a new segment replaces it.
//! - The tables outlive a program. They name only the addresses that were published last, and the
//!   mappings of the next program are published before its agent starts.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use traceprof_abi::layout;

use crate::record::contract::error::RecordError;
use crate::record::target::modules::{ModuleFiles, Modules};
use crate::record::target::shm::{SharedMemory, Use};
use crate::unwind::TableWriter;

/// The shared segments and the modules of the target.
pub(crate) struct Segments {
    /// The target's modules and their tables, declared before the segments that they refer to.
    pub(crate) modules: Modules<'static>,
    /// The data that handlers write.
    pub(crate) data: SharedMemory,
    /// The tables that handlers look up.
    pub(crate) tables: SharedMemory,
    /// The agent's code.
    pub(crate) code: SharedMemory,
    /// Whether the guardian was killed, so that a thread may attach the segments later.
    pub(crate) may_be_late: bool,
}

impl Segments {
    /// Creates the segments for the agents in a process. `files` are known from other processes.
    pub(crate) fn new(pid: i32, files: Arc<ModuleFiles>) -> Result<Self, RecordError> {
        Self::with_room(pid, files, layout::TABLES_LEN)
    }

    fn with_room(pid: i32, files: Arc<ModuleFiles>, tables_len: u64) -> Result<Self, RecordError> {
        let create = |purpose: Use, len: u64, what: &str| {
            SharedMemory::create(purpose, len)
                .with_context(|| {
                    format!(
                        "creating the shared {what} segment; check the limits of shared memory \
                        (sysctl kernel.shmmni kernel.shmall) and of the control group's memory"
                    )
                })
                .map_err(RecordError::Other)
        };
        let code = create(Use::Code, layout::CODE_LEN, "code")?;
        let tables = create(Use::Tables, tables_len, "tables")?;
        let data = create(Use::Data, layout::DATA_LEN, "data")?;
        let modules = Modules::new(pid, files, TableWriter::new(tables.words()), 0..0);
        Ok(Self { data, tables, code, modules, may_be_late: false })
    }

    /// Prepares for the next agent, in a program with this user and group, at the addresses `span`.
    pub(crate) fn prepare(&mut self, owner: (u32, u32), span: Range<u64>) -> io::Result<()> {
        for segment in [&mut self.data, &mut self.code] {
            if !segment.is_alone() {
                *segment = segment.another()?;
            }
            segment.release();
        }
        self.modules.start_program(span);
        if self.modules.is_crowded(self.tables.len()) {
            let another = match self.tables.is_alone() {
                true => None,
                false => Some(self.tables.another()?),
            };
            self.tables.release();
            let tables = another.as_ref().unwrap_or(&self.tables);
            self.modules.restart_tables(TableWriter::new(tables.words()));
            // Nothing refers to the old segment any more.
            if let Some(another) = another {
                self.tables = another;
            }
        }
        [&self.data, &self.tables, &self.code].into_iter().try_for_each(|it| it.give(owner))
    }

    /// Frees the memory that only the last agent used.
    pub(crate) fn release(&self) {
        // A late attachment of a cleared segment could not be recognised and removed.
        if !self.may_be_late {
            [&self.data, &self.code].into_iter().for_each(SharedMemory::release);
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if self.may_be_late {
            // A late attachment must find all segments: a partial agent would be harder to remove.
            [&mut self.data, &mut self.tables, &mut self.code]
                .into_iter()
                .for_each(SharedMemory::keep);
            return;
        }
        self.release();
        self.tables.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use crate::record::target::shm::SecondAttachment;

    fn owner() -> (u32, u32) {
        (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
    }

    #[test]
    fn the_next_agent_gets_cleared_segments_and_filled_tables() {
        let pid = std::process::id() as i32;
        let mut segments = Segments::new(pid, Arc::default()).unwrap();
        segments.prepare(owner(), 0..0).unwrap();
        let ids = (segments.data.id(), segments.code.id(), segments.tables.id());
        segments.code.exclusive(8).unwrap().fill(7);
        let mappings = proc::mappings(pid).unwrap();
        let first = segments.modules.refresh(&mappings).unwrap().unwrap();
        let used = segments.modules.table_bytes();
        segments.prepare(owner(), 0..0).unwrap();
        assert_eq!(ids, (segments.data.id(), segments.code.id(), segments.tables.id()));
        assert_eq!(segments.code.exclusive(8).unwrap(), [0; 8]);
        assert!(segments.modules.current().ranges.is_empty(), "nothing of the last program");
        let second = segments.modules.refresh(&mappings).unwrap().unwrap();
        assert_eq!(first.ranges.len(), second.ranges.len());
        let grown = segments.modules.table_bytes() - used;
        assert!(grown < used / 10, "no table is compiled twice: {grown} bytes more than {used}");
    }

    /// Counts how many of these segments this process has attached.
    fn attached(ids: [i32; 3]) -> usize {
        let mappings = proc::mappings(std::process::id() as i32).unwrap();
        let is_one =
            |it: &&proc::Mapping| it.is_segment() && ids.map(|id| id as u64).contains(&it.inode);
        mappings.iter().filter(is_one).count()
    }

    #[test]
    fn segments_are_detached_at_the_end_unless_an_attachment_may_come_late() {
        for may_be_late in [false, true] {
            let mut segments = Segments::new(std::process::id() as i32, Arc::default()).unwrap();
            segments.prepare(owner(), 0..0).unwrap();
            let ids = [segments.data.id(), segments.code.id(), segments.tables.id()];
            assert_eq!(attached(ids), 3);
            segments.may_be_late = may_be_late;
            drop(segments);
            assert_eq!(attached(ids), if may_be_late { 3 } else { 0 });
        }
    }

    #[test]
    fn a_segment_that_another_process_has_attached_is_left_alone() {
        let mut segments = Segments::new(std::process::id() as i32, Arc::default()).unwrap();
        let _child = SecondAttachment::of(&segments.code);
        let (data, code) = (segments.data.id(), segments.code.id());
        segments.prepare(owner(), 0..0).unwrap();
        assert_ne!(segments.code.id(), code);
        assert_eq!(segments.data.id(), data);
    }

    #[test]
    fn crowded_tables_are_replaced_by_empty_ones() {
        let pid = std::process::id() as i32;
        let mappings = proc::mappings(pid).unwrap();
        let used = |segments: &mut Segments| {
            segments.modules.refresh(&mappings).unwrap();
            let current = segments.modules.current();
            let modules = current.ranges.iter().filter_map(|range| range.module.as_ref());
            (segments.modules.table_bytes(), modules.map(|module| module.index).max().unwrap())
        };
        let (bytes, last) = used(&mut Segments::new(pid, Arc::default()).unwrap());
        for other in [false, true] {
            let mut segments = Segments::with_room(pid, Arc::default(), bytes * 3 / 2).unwrap();
            let _child = other.then(|| SecondAttachment::of(&segments.tables));
            used(&mut segments);
            segments.prepare(owner(), 0..0).unwrap();
            let (again, numbers) = used(&mut segments);
            assert_eq!((again, numbers), (bytes, 2 * last + 1), "no number is used twice");
        }
    }
}
