//! Whether `/proc` shows the processes of this namespace.

use anyhow::anyhow;

use crate::proc;
use crate::record::contract::error::RecordError;

/// Refuses the `/proc` of another pid namespace, in which every pid is another process.
pub(crate) fn check_proc() -> Result<(), RecordError> {
    if proc::is_of_own_namespace() {
        return Ok(());
    }
    Err(RecordError::Other(anyhow!(
        "/proc is that of another pid namespace than this one, or not mounted: record from the \
         namespace that it belongs to, or with a /proc of this one (unshare --mount-proc)"
    )))
}
