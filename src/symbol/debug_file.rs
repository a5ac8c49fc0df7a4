//! A separate debug file, found by build id.
//!
//! blazesym looks into `.build-id` only for files that carry a `.gnu_debuglink`, which many stripped
//! files do not; and it does not know the cache of debuginfod clients.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::outline::Outline;

const DEBUG_DIRS: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];
/// Shorter ids are not unique enough to trust a file by its name.
const BUILD_ID_LENGTH_MIN: usize = 8;

/// The debug file of this build id, if one is installed that carries the same id and has debug
/// information.
pub(super) fn find(build_id: &[u8]) -> Option<PathBuf> {
    if build_id.len() < BUILD_ID_LENGTH_MIN {
        return None;
    }
    let in_dirs = DEBUG_DIRS.iter().map(|dir| Path::new(dir).join(build_id_path(build_id)));
    let cached = debuginfod_cache().map(|dir| dir.join(hex(build_id)).join("debuginfo"));
    in_dirs.chain(cached).find(|path| belongs(path, build_id))
}

fn belongs(path: &Path, build_id: &[u8]) -> bool {
    Outline::read(path).is_some_and(|outline| {
        outline.has_debug_info && outline.build_id.as_deref() == Some(build_id)
    })
}

/// `.build-id/ab/cdef....debug`.
fn build_id_path(build_id: &[u8]) -> PathBuf {
    let (first, rest) = build_id.split_at(1);
    PathBuf::from(format!(".build-id/{}/{}.debug", hex(first), hex(rest)))
}

/// Where `debuginfod-find` keeps what it fetched (debuginfod-client-config(7)).
fn debuginfod_cache() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("DEBUGINFOD_CACHE_PATH").filter(|dir| !dir.is_empty()) {
        return Some(dir.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("debuginfod_client"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_split_after_the_first_byte() {
        assert_eq!(build_id_path(&[0xab, 0x0c, 0xde]), Path::new(".build-id/ab/0cde.debug"));
    }

    #[test]
    fn short_and_unknown_ids_find_nothing() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1; 7]), None);
        assert_eq!(find(&[0x5a; 20]), None);
    }
}
