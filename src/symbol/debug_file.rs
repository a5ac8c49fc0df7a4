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
    let dirs = DEBUG_DIRS.map(PathBuf::from);
    find_in(&dirs, debuginfod_cache().as_deref(), build_id)
}

fn find_in(dirs: &[PathBuf], cache: Option<&Path>, build_id: &[u8]) -> Option<PathBuf> {
    if build_id.len() < BUILD_ID_LENGTH_MIN {
        return None;
    }
    let in_dirs = dirs.iter().map(|dir| dir.join(build_id_path(build_id)));
    let cached = cache.map(|dir| dir.join(hex(build_id)).join("debuginfo"));
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
    use std::fs;
    use std::process::Command;

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

    #[test]
    fn file_under_the_right_name_must_carry_the_id_and_debug_information() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(dir.path().join("a.c"), "int main(void) { return 0; }").unwrap();
        let cc = |flags: &[&str]| {
            let mut cc = Command::new("cc");
            cc.args(flags).args(["-Wl,--build-id", "-o", "program", "a.c"]).current_dir(dir.path());
            assert!(cc.status().expect("cc is needed here").success());
        };
        cc(&["-g"]);
        let build_id = Outline::read(&program).unwrap().build_id.unwrap();

        let installed = dir.path().join(build_id_path(&build_id));
        fs::create_dir_all(installed.parent().unwrap()).unwrap();
        fs::copy(&program, &installed).unwrap();
        let dirs = [PathBuf::from("/nowhere"), dir.path().to_owned()];
        assert_eq!(find_in(&dirs, None, &build_id), Some(installed.clone()));

        cc(&["-g0"]);
        fs::copy(&program, &installed).unwrap();
        assert_eq!(find_in(&dirs, None, &build_id), None, "another build");
        let own_id = Outline::read(&program).unwrap().build_id.unwrap();
        let own_path = dir.path().join(build_id_path(&own_id));
        fs::create_dir_all(own_path.parent().unwrap()).unwrap();
        fs::copy(&program, own_path).unwrap();
        assert_eq!(find_in(&dirs, None, &own_id), None, "without debug information");

        cc(&["-g"]);
        let cached = dir.path().join(hex(&build_id)).join("debuginfo");
        fs::create_dir_all(cached.parent().unwrap()).unwrap();
        fs::copy(&program, &cached).unwrap();
        assert_eq!(find_in(&[], Some(dir.path()), &build_id), Some(cached));
    }
}
