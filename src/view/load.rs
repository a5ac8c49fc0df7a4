//! From the files of a trace to a profile.

use std::path::Path;

use super::profile::{Profile, ThreadGrower};
use crate::trace::{self, LoadedTrace, TraceError};

/// Reads a trace and aggregates its samples.
pub fn load(path: &Path) -> Result<Profile, TraceError> {
    trace::load(path).map(Profile::from)
}

impl From<LoadedTrace> for Profile {
    fn from(trace: LoadedTrace) -> Self {
        let threads = trace.threads.iter().map(|thread| {
            let mut grower = ThreadGrower::default();
            thread.for_each_sample(&mut |sample, stack| grower.add(sample, stack));
            grower.finish(thread.thread().clone())
        });
        Self {
            threads: threads.collect(),
            metadata: trace.metadata,
            modules: trace.modules,
            methods: trace.methods,
            locations: trace.locations,
            closed: trace.closed,
            notices: trace.notices,
        }
    }
}
