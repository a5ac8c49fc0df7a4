//! The plan of an injection: segments and addresses.

use serde::{Deserialize, Serialize};
use traceprof_abi::layout;

use super::error::InjectError;
use super::syscall::Syscall;
use crate::proc::Mapping;

/// How the target may use a segment.
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
    /// All kinds of access.
    pub(super) const ALL: [Self; 3] = [Self::ReadExecute, Self::Read, Self::ReadWrite];

    /// The flags of `shmat`.
    pub(super) fn flags(self) -> u64 {
        let flags = match self {
            Self::ReadExecute => libc::SHM_RDONLY | libc::SHM_EXEC,
            Self::Read => libc::SHM_RDONLY,
            Self::ReadWrite => 0,
        };
        flags as u64
    }
}

/// One System V segment and its place in the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSegment {
    /// Its id. The recorder has it attached, its owner is the target's effective user, and it is
    /// marked for removal.
    pub shm_id: i32,
    /// Its address in the target, page aligned.
    pub avma: u64,
    /// Its length in bytes.
    pub len: u64,
    /// How the target may use it.
    pub access: Access,
}

impl SharedSegment {
    /// The call that attaches it.
    pub(super) fn attach(&self) -> Syscall {
        Syscall::new(libc::SYS_shmat, &[self.shm_id as u64, self.avma, self.access.flags()])
    }

    /// The call that detaches it.
    pub(super) fn detach(&self) -> Syscall {
        Syscall::new(libc::SYS_shmdt, &[self.avma])
    }

    /// Whether the target has it attached at its place.
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
    /// When the target started (field 22 of its stat), so that a reused pid is noticed.
    pub start_time: u64,
    /// The agent's image.
    pub code: SharedSegment,
    /// Unwind tables and mappings.
    pub tables: SharedSegment,
    /// Control block and everything else of [`traceprof_abi::layout`].
    pub data: SharedSegment,
    /// The agent's entry `extern "C" fn(op: u64) -> i64`, inside the code.
    pub entry_avma: u64,
    /// `mov eax, 15; syscall`, inside the code.
    pub restorer_avma: u64,
    /// The signals that the agent handles, in the order of [`layout::ControlBlock::signals`]; 0 for
    /// none.
    pub signals: [i32; layout::SIGNALS],
    /// For a program held at its exec: the read end of a pipe in the target. The program waits for
    /// a byte or the pipe's end before its first instruction, and closes it.
    pub hold_fd: Option<i32>,
}

impl AttachPlan {
    /// The segments with their names, in the order of their attaches. The data segment comes first
    /// because it identifies the others, if only a part gets attached.
    pub(super) fn segments(&self) -> [(&'static str, &SharedSegment); 3] {
        [("data", &self.data), ("code", &self.code), ("tables", &self.tables)]
    }

    /// Upper end of the area for the frames of the mapping chain.
    pub(super) fn first_top(&self) -> u64 {
        self.data.avma + layout::INJECT_OFFSET + layout::INJECT_LEN
    }

    /// Upper end of the area for the entry's frame and stack. The mapping chain may still run when
    /// the entry starts, so the two areas are distinct.
    pub(super) fn second_top(&self) -> u64 {
        self.first_top() - layout::INJECT_LEN / 2
    }

    /// Upper end of the area for a thread that is stepped through the entry of a running agent. A
    /// thread that was launched from the second area may still use that one.
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
