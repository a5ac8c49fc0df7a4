//! What is to be injected where, and what came of it.

use serde::{Deserialize, Serialize};
use traceprof_abi::layout;

use super::chain::Call;
use super::error::InjectError;
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
    /// All three.
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
pub struct Segment {
    /// Its id. The recorder (or somebody) has it attached; its owner is the target's effective
    /// user; it is already removed.
    pub shm_id: i32,
    /// Where the target attaches it, page aligned.
    pub avma: u64,
    /// Its length in bytes.
    pub len: u64,
    /// How the target may use it.
    pub access: Access,
}

impl Segment {
    /// The call that attaches it.
    pub(super) fn attach(&self) -> Call {
        Call::new(libc::SYS_shmat, &[self.shm_id as u64, self.avma, self.access.flags()])
    }

    /// The call that detaches it.
    pub(super) fn detach(&self) -> Call {
        Call::new(libc::SYS_shmdt, &[self.avma])
    }

    /// The target has it attached where it belongs.
    pub(super) fn is_in(&self, mappings: &[Mapping]) -> bool {
        mappings.iter().any(|m| m.start == self.avma && m.shared && m.inode == self.shm_id as u64)
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.avma..self.avma.saturating_add(self.len)).contains(&address)
    }
}

/// What is to be injected where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachPlan {
    /// The target.
    pub pid: i32,
    /// When it started (field 22 of its stat), so that a reused pid is noticed.
    pub start_time: u64,
    /// The agent's image.
    pub code: Segment,
    /// Unwind tables and mappings.
    pub tables: Segment,
    /// Control block and all else, laid out as in [`traceprof_abi::layout`].
    pub data: Segment,
    /// The agent's entry `extern "C" fn(op: u64) -> i64`, inside the code.
    pub entry_avma: u64,
    /// `mov eax, 15; syscall`, inside the code.
    pub restorer_avma: u64,
    /// The signals that the agent handles, at their places in [`layout::ControlBlock::signals`]; 0
    /// for none.
    pub signals: [i32; layout::SIGNALS],
    /// For a program held at its exec: the read end of a pipe in the target. The program waits for
    /// a byte, or for the end of the pipe, before its first instruction, and closes it.
    pub hold_fd: Option<i32>,
}

impl AttachPlan {
    /// The segments with their names, in the order in which they are attached. The data segment tells
    /// what the others are, should no more than a part get there.
    pub(super) fn segments(&self) -> [(&'static str, &Segment); 3] {
        [("data", &self.data), ("code", &self.code), ("tables", &self.tables)]
    }

    /// Address of the top of the area where the mapping chain's frames lie.
    pub(super) fn first_top(&self) -> u64 {
        self.data.avma + layout::INJECT_OFFSET + layout::INJECT_LEN
    }

    /// Address of the top of the area where the entry's frame and stack lie. It is another area
    /// than the first: the first chain may not have ended when the second starts.
    pub(super) fn second_top(&self) -> u64 {
        self.first_top() - layout::INJECT_LEN / 2
    }

    /// Address of the top of the area in which a thread is led through the entry of an agent that
    /// runs already. A thread that was launched from the second area may still be on its way home.
    pub(super) fn third_top(&self) -> u64 {
        self.first_top() - layout::INJECT_LEN / 4
    }

    pub(super) fn check(&self) -> Result<(), InjectError> {
        let page = |segment: &Segment| segment.avma.is_multiple_of(4096) && segment.len > 0;
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

/// What an attach cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReport {
    /// How long a thread was stopped, each stop, from the request to its detach.
    pub stops_ns: Vec<u64>,
    /// A system call was made with nothing behind it, because the thread's stack could not be used.
    pub naked: bool,
    /// The thread that mapped the segments.
    pub tid: i32,
}

/// What a run of the agent's entry cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// How long a thread was stopped for it.
    pub stopped_ns: u64,
}

/// What a cure cost and left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// From the first request to stop until the last thread went on.
    pub stopped_ns: u64,
    /// Threads that were stopped; 0 if the target had ended.
    pub threads: usize,
    /// What is left in the target, and why.
    pub residue: Option<String>,
    /// It should not have been left, and may be taken away later.
    pub unfinished: bool,
}

impl DetachReport {
    /// With a later attempt: the longest stop, and what is left after the last.
    pub(super) fn and(self, later: DetachReport) -> DetachReport {
        DetachReport {
            stopped_ns: self.stopped_ns.max(later.stopped_ns),
            threads: self.threads.max(later.threads),
            residue: later.residue,
            unfinished: later.unfinished,
        }
    }
}
