//! The plan of an injection: its segments and addresses.

use serde::{Deserialize, Serialize};
use traceprof_abi::layout;

use super::error::InjectError;
use super::syscall::Syscall;
use crate::proc::Mapping;

/// The access that the target has to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Code.
    ReadExecute,
    /// Tables.
    Read,
    /// Data.
    ReadWrite,
}

impl Access {
    /// All values.
    pub(super) const ALL: [Self; 3] = [Self::ReadExecute, Self::Read, Self::ReadWrite];

    /// Returns the flags for `shmat`.
    pub(super) fn flags(self) -> u64 {
        let flags = match self {
            Self::ReadExecute => libc::SHM_RDONLY | libc::SHM_EXEC,
            Self::Read => libc::SHM_RDONLY,
            Self::ReadWrite => 0,
        };
        flags as u64
    }
}

/// A System V segment and its address in the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSegment {
    /// The segment's id. The recorder has it attached, it belongs to the target's effective user,
    /// and it is marked for removal.
    pub shm_id: i32,
    /// The address in the target, page aligned.
    pub avma: u64,
    /// The length in bytes.
    pub len: u64,
    /// The access of the target.
    pub access: Access,
}

impl SharedSegment {
    /// Returns the call that attaches the segment.
    pub(super) fn attach(&self) -> Syscall {
        Syscall::new(libc::SYS_shmat, &[self.shm_id as u64, self.avma, self.access.flags()])
    }

    /// Returns the call that detaches the segment.
    pub(super) fn detach(&self) -> Syscall {
        Syscall::new(libc::SYS_shmdt, &[self.avma])
    }

    /// Whether the target has the segment attached at its address.
    pub(super) fn is_in(&self, mappings: &[Mapping]) -> bool {
        mappings.iter().any(|m| m.start == self.avma && m.shared && m.inode == self.shm_id as u64)
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.avma..self.avma.saturating_add(self.len)).contains(&address)
    }
}

/// The segments of one injection, and the agent's addresses in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachPlan {
    /// The target.
    pub pid: i32,
    /// The target's start time (field 22 of its stat), which detects a reused pid.
    pub start_time: u64,
    /// The agent's image.
    pub code: SharedSegment,
    /// Unwind tables and mappings.
    pub tables: SharedSegment,
    /// Control block and everything else of [`traceprof_abi::layout`].
    pub data: SharedSegment,
    /// The agent's entry `extern "C" fn(op: u64) -> i64`, inside the code segment.
    pub entry_avma: u64,
    /// The agent's restorer (`mov eax, 15; syscall`), inside the code segment.
    pub restorer_avma: u64,
    /// The signals that the agent handles, in the order of [`layout::ControlBlock::signals`]; 0 for
    /// an unused entry.
    pub signals: [i32; layout::SIGNALS],
    /// For a program that is held at its exec: the read end of a pipe in the target. Before its
    /// first instruction the program waits for a byte or the end of the pipe, and closes the
    /// descriptor.
    pub hold_fd: Option<i32>,
}

impl AttachPlan {
    /// Returns the segments with their names, in the order of their attaches. The data segment
    /// comes first because it identifies the other segments if the attach stops halfway.
    pub(super) fn segments(&self) -> [(&'static str, &SharedSegment); 3] {
        [("data", &self.data), ("code", &self.code), ("tables", &self.tables)]
    }

    /// Returns the upper end of the area for the frames of the mapping chain.
    pub(super) fn first_top(&self) -> u64 {
        self.data.avma + layout::INJECT_OFFSET + layout::INJECT_LEN
    }

    /// Returns the upper end of the area for the entry's frame and stack. The mapping chain may
    /// still run when the entry starts, so the two areas are distinct.
    pub(super) fn second_top(&self) -> u64 {
        self.first_top() - layout::INJECT_LEN / 2
    }

    /// Returns the upper end of the area for a thread that is stepped through the entry of a
    /// running agent. A thread that was launched from the second area may still use the second
    /// area.
    pub(super) fn third_top(&self) -> u64 {
        self.first_top() - layout::INJECT_LEN / 4
    }

    pub(super) fn check(&self) -> Result<(), InjectError> {
        let page = |segment: &SharedSegment| segment.avma.is_multiple_of(4096) && segment.len > 0;
        let reason = if !self.segments().iter().all(|(_, segment)| page(segment)) {
            "a segment is empty or not page aligned"
        } else if self.data.len < layout::INJECT_OFFSET + layout::INJECT_LEN {
            "the data segment has no room for frames"
        } else if !self.code.contains(self.entry_avma) || !self.code.contains(self.restorer_avma) {
            "the agent's entry lies outside its code"
        } else {
            return Ok(());
        };
        Err(InjectError::BadPlan { reason: reason.to_owned() })
    }
}
