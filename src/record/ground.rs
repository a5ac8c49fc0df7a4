//! What the agents of a recording stand on, one after the other: the shared segments, and the
//! modules whose unwind tables lie in one of them.
//!
//! # Invariants
//! - A segment that somebody else still has attached (a child of a program that is gone) is neither
//!   emptied nor given to the next agent: another one takes its place.
//! - The tables outlive a program. They name no address of it but those that were published last, and
//!   what the next program maps is published before its agent is there.

use std::io;
use std::ops::Range;

use anyhow::Context;
use traceprof_abi::layout;

use super::RecordError;
use super::modules::Modules;
use super::shm::Shared;
use crate::unwind::TableWriter;

/// The segments, and what is known of the modules.
pub(super) struct Ground {
    /// The target's modules and their tables. Before what they refer to.
    pub(super) modules: Modules<'static>,
    /// What handlers write.
    pub(super) data: Shared,
    /// What they look up.
    pub(super) tables: Shared,
    /// The agent's code.
    pub(super) code: Shared,
    /// The guardian was killed: a thread may attach the segments after all.
    pub(super) may_be_late: bool,
}

impl Ground {
    /// For the agents in process `pid`.
    pub(super) fn new(pid: i32) -> Result<Self, RecordError> {
        Self::with_room(pid, layout::TABLES_LEN)
    }

    fn with_room(pid: i32, tables_len: u64) -> Result<Self, RecordError> {
        let create = |len: u64, what: &str| {
            Shared::create(len)
                .with_context(|| {
                    format!(
                        "creating the shared {what} segment; look at the limits of shared memory \
                         (sysctl kernel.shmmni kernel.shmall) and of the control group's memory"
                    )
                })
                .map_err(RecordError::Other)
        };
        let code = create(layout::CODE_LEN, "code")?;
        let tables = create(tables_len, "tables")?;
        let data = create(layout::DATA_LEN, "data")?;
        let modules = Modules::new(pid, TableWriter::new(tables.words()), 0..0);
        Ok(Self { data, tables, code, modules, may_be_late: false })
    }

    /// Makes it ready for the next agent, of a program whose user and group are `owner`, at the
    /// addresses `span`.
    pub(super) fn prepare(&mut self, owner: (u32, u32), span: Range<u64>) -> io::Result<()> {
        for segment in [&mut self.data, &mut self.code] {
            if !segment.is_alone() {
                *segment = Shared::create(segment.len())?;
            }
            segment.release();
        }
        self.modules.begin(span);
        if self.modules.is_crowded(self.tables.len()) {
            let another = match self.tables.is_alone() {
                true => None,
                false => Some(Shared::create(self.tables.len())?),
            };
            self.tables.release();
            let tables = another.as_ref().unwrap_or(&self.tables);
            self.modules.begin_again(TableWriter::new(tables.words()));
            // Nothing refers to the one before any more.
            if let Some(another) = another {
                self.tables = another;
            }
        }
        [&self.data, &self.tables, &self.code].into_iter().try_for_each(|it| it.give(owner))
    }

    /// Gives back the memory that was the last agent's alone.
    pub(super) fn release(&self) {
        // Emptied, what comes late could not be told from anything else, and not be removed.
        if !self.may_be_late {
            [&self.data, &self.code].into_iter().for_each(Shared::release);
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.may_be_late {
            // What comes late finds them: half of an agent would be harder to remove.
            [&mut self.data, &mut self.tables, &mut self.code].into_iter().for_each(Shared::keep);
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
    use crate::record::shm::Other;

    fn owner() -> (u32, u32) {
        (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
    }

    #[test]
    fn the_next_agent_finds_its_segments_empty_and_the_tables_filled() {
        let pid = std::process::id() as i32;
        let mut ground = Ground::new(pid).unwrap();
        ground.prepare(owner(), 0..0).unwrap();
        let ids = (ground.data.id(), ground.code.id(), ground.tables.id());
        ground.code.exclusive(8).unwrap().fill(7);
        let mappings = proc::mappings(pid).unwrap();
        let first = ground.modules.refresh(&mappings).unwrap().unwrap();
        let used = ground.modules.table_bytes();
        ground.prepare(owner(), 0..0).unwrap();
        assert_eq!(ids, (ground.data.id(), ground.code.id(), ground.tables.id()));
        assert_eq!(ground.code.exclusive(8).unwrap(), [0; 8]);
        assert!(ground.modules.current().ranges.is_empty(), "nothing of the last program");
        let second = ground.modules.refresh(&mappings).unwrap().unwrap();
        assert_eq!(first.ranges.len(), second.ranges.len());
        let grown = ground.modules.table_bytes() - used;
        assert!(grown < used / 10, "no table is compiled twice: {grown} bytes more than {used}");
    }

    /// How many of these segments this process has attached.
    fn attached(ids: [i32; 3]) -> usize {
        let mappings = proc::mappings(std::process::id() as i32).unwrap();
        let is_one = |it: &&proc::Mapping| {
            it.path.to_string_lossy().starts_with("/SYSV")
                && ids.map(|id| id as u64).contains(&it.inode)
        };
        mappings.iter().filter(is_one).count()
    }

    #[test]
    fn segments_are_detached_when_the_recording_is_over_and_kept_for_what_may_come_late() {
        for may_be_late in [false, true] {
            let mut ground = Ground::new(std::process::id() as i32).unwrap();
            ground.prepare(owner(), 0..0).unwrap();
            let ids = [ground.data.id(), ground.code.id(), ground.tables.id()];
            assert_eq!(attached(ids), 3);
            ground.may_be_late = may_be_late;
            drop(ground);
            assert_eq!(attached(ids), if may_be_late { 3 } else { 0 });
        }
    }

    #[test]
    fn a_segment_that_somebody_has_attached_is_left_alone() {
        let mut ground = Ground::new(std::process::id() as i32).unwrap();
        let _child = Other::of(&ground.code);
        let (data, code) = (ground.data.id(), ground.code.id());
        ground.prepare(owner(), 0..0).unwrap();
        assert_ne!(ground.code.id(), code);
        assert_eq!(ground.data.id(), data);
    }

    #[test]
    fn tables_that_are_crowded_begin_anew() {
        let pid = std::process::id() as i32;
        let mappings = proc::mappings(pid).unwrap();
        let used = |ground: &mut Ground| {
            ground.modules.refresh(&mappings).unwrap();
            let current = ground.modules.current();
            let modules = current.ranges.iter().filter_map(|range| range.module.as_ref());
            (ground.modules.table_bytes(), modules.map(|module| module.index).max().unwrap())
        };
        let (bytes, last) = used(&mut Ground::new(pid).unwrap());
        for other in [false, true] {
            let mut ground = Ground::with_room(pid, bytes * 3 / 2).unwrap();
            let _child = other.then(|| Other::of(&ground.tables));
            used(&mut ground);
            ground.prepare(owner(), 0..0).unwrap();
            let (again, numbers) = used(&mut ground);
            assert_eq!((again, numbers), (bytes, 2 * last + 1), "no number is used twice");
        }
    }
}
