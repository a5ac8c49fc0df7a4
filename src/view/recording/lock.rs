//! The lock that a thread must hold to run functions of its language, such as the GIL of Python.

use traceprof_abi::storage::log::flags::HOLDS_LOCK;

use crate::runtime::ManagedLanguage;
use crate::trace::{LOCK_HOLDERS, Sample};
use crate::view::recording::recording_info::RecordingInfo;

/// Returns whether the thread of a sample held the lock.
pub(in crate::view) fn holds_lock(sample: &Sample) -> bool {
    sample.flags & HOLDS_LOCK != 0
}

/// Returns the name of the lock. Only one language has one.
pub(in crate::view) fn lock_name() -> &'static str {
    ManagedLanguage::Python.lock_name().unwrap_or_default()
}

impl RecordingInfo {
    /// Returns the name of the lock whose holders the samples tell, if they do. If the metadata
    /// are lost, the samples say it.
    pub fn lock(&self) -> Option<&'static str> {
        let is_told = |language: ManagedLanguage| {
            let key = format!("{LOCK_HOLDERS}{}", language.name().to_lowercase());
            self.metadata.contains_key(&key) || self.flags_left & HOLDS_LOCK != 0
        };
        ManagedLanguage::ALL
            .into_iter()
            .find(|it| is_told(*it))
            .and_then(ManagedLanguage::lock_name)
    }

    /// Returns whether samples in the kernel tell who held the lock, too. Those of perf events do
    /// not.
    pub(in crate::view) fn tells_lock_in_kernel(&self) -> bool {
        let is_perf = self.text("engine").is_some_and(|engine| engine.starts_with("perf"));
        !is_perf || self.number("kernel_included") == Some(0)
    }
}
