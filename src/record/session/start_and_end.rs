//! What a session starts with, and how it ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::record::contract::clock::Clock;
use crate::record::name::contexts::Contexts;
use crate::record::session::program_run::ProgramRun;
use crate::record::source::machine_tasks::MachineTasks;
use crate::record::store::collector::Collector;
use crate::record::target::attach::Attached;
use crate::record::weigh::overhead::Overhead;
use crate::record::write::saving::Saving;
use crate::record::write::writer::Writer;

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The time was up, or a signal or the observer requested it.
    Asked,
    /// The target exited.
    Exited,
    /// The kernel sampled the process from outside, until the recorder attached to it.
    Attached,
    /// The target runs another program now, which has no agent.
    Executed,
    /// The time was up, or a signal requested the end, between two executed programs.
    AskedBetween,
    /// The application replaced the agent's signal handler.
    SignalTaken,
    /// The trace could not be written.
    Output,
    /// The files have reached their largest size.
    Full,
    /// All call-trace ids are used up.
    OutOfIds,
}

/// The parts that a session starts with.
pub(crate) struct SessionParts<'a> {
    /// The injected agent, with its segments and modules.
    pub(crate) attached: Attached<'a>,
    /// The samples' clock.
    pub(crate) clock: Clock,
    /// The storage.
    pub(crate) collector: Collector,
    /// The records of what threads do.
    pub(crate) tasks: &'a Arc<MachineTasks>,
    /// The writer's thread.
    pub(crate) writer: &'a Writer,
    /// Readable once the target has exited.
    pub(crate) exit: &'a OwnedFd,
    /// The sum of the programs that were recorded before.
    pub(crate) before: Option<&'a ProgramRun>,
    /// Whether the next program that the target executes is attached to.
    pub(crate) is_followed: bool,
    /// The contexts of threads.
    pub(crate) contexts: &'a mut Contexts,
    /// The cost of sampling.
    pub(crate) overhead: Overhead,
    /// What requests that the ring be saved.
    pub(crate) saving: &'a mut Saving,
    /// The interval between two wall-clock scans, if requested.
    pub(crate) wall_interval: Option<Duration>,
}
