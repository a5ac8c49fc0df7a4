//! The check that `/proc` shows the processes of this namespace.

use anyhow::anyhow;

use crate::proc;
use crate::record::contract::error::RecordError;

/// Refuses a `/proc` of another pid namespace, where every pid means another process.
pub(crate) fn check_proc() -> Result<(), RecordError> {
    if proc::is_of_own_namespace() {
        return Ok(());
    }
    Err(RecordError::Other(anyhow!(
        "/proc is not mounted, or belongs to another pid namespace: record from that namespace, or \
         mount a /proc of this one (unshare --mount-proc)"
    )))
}
