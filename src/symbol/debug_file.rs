//! Finds or fetches a separate debug file, by build id or by the debug link in the ELF file.
//!
//! It searches this system and the target's. blazesym searches `.build-id` only for files with a
//! `.gnu_debuglink`, which many stripped files do not have. It knows neither the cache of
//! debuginfod clients nor the target's file system.
//!
//! # Invariants
//! - The file that is checked is the file that is used: it stays open from the first check on.
//! - Only regular files are opened, so nothing blocks on a writer.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::elf_file::{DebugFiles, System};
use super::elf_headers::{ElfHeaders, Packed};
use super::fetcher::debuginfod_cache;
use super::{ElfFile, panic_guard};
use crate::elf::build_id_text;
use crate::proc::{self, descriptor_path, open_regular};

const DEBUG_DIRS: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];
/// Minimum length of a build id in bytes. Shorter ids are not unique enough to trust a file by its
/// name.
const BUILD_ID_LENGTH_MIN: usize = 8;
/// Maximum length in bytes of a file whose checksum is computed: a longer file takes seconds.
const CHECKED_MAX: u64 = 4 << 30;
/// Maximum length in bytes of a file whose checksum is computed for a caller that must not block:
/// some milliseconds of work.
const CHECKED_SOON_MAX: u64 = 16 << 20;

/// A debug file.
#[derive(Debug, Clone)]
pub(super) struct DebugFile {
    /// The path of the file in the system that holds it.
    pub(super) path: PathBuf,
    /// The unpacked size of the compressed sections.
    pub(super) packed: Packed,
    file: Arc<File>,
}

impl DebugFile {
    /// Returns a path by which this process can open the file while `self` lives.
    pub(super) fn reachable_path(&self) -> PathBuf {
        descriptor_path(&*self.file)
    }
}

/// The source of an ELF file's debug information.
#[derive(Debug, Clone)]
pub(super) enum DebugSource {
    /// The file itself contains it.
    Own,
    /// A separate debug file.
    Separate(DebugFile),
}

/// Returns the debug file of an ELF file, if there is one that belongs to it and has debug
/// information.
pub(super) fn find(elf: &ElfFile, headers: &ElfHeaders) -> Option<DebugFile> {
    find_here(elf, headers, CHECKED_MAX).or_else(|| {
        let (build_id, files) = (elf.build_id(), elf.debug_files());
        let fetcher = files.fetcher.as_ref().filter(|_| build_id.len() >= BUILD_ID_LENGTH_MIN)?;
        found_by_id(fetcher.fetch(build_id)?, open_regular, build_id)
    })
}

/// Searches without asking servers, and computes no checksum of a file longer than `checked_max`.
fn find_here(elf: &ElfFile, headers: &ElfHeaders, checked_max: u64) -> Option<DebugFile> {
    let build_id = elf.build_id();
    let here = installed(build_id).chain(debuginfod_cached(build_id));
    let mut found = here.filter_map(|path| found_by_id(path, open_regular, build_id));
    found.next().or_else(|| in_targets_system(elf, headers, checked_max))
}

impl ElfFile {
    /// Maps the debug file, if there is one and the file has no debug information itself.
    ///
    /// This neither waits for servers nor computes the checksum of a large file.
    pub fn map_debug_file(&self) -> Option<Mmap> {
        let find = || {
            let headers = ElfHeaders::read(&self.descriptor_path())?;
            let found = if headers.has_debug_info {
                None
            } else {
                find_here(self, &headers, CHECKED_SOON_MAX)
            };
            proc::map_file(&*found?.file).ok()
        };
        panic_guard::contain(find).flatten()
    }
}

/// Returns the paths where packages install the debug file of a build.
pub(super) fn installed(build_id: &[u8]) -> impl Iterator<Item = PathBuf> {
    let path = (build_id.len() >= BUILD_ID_LENGTH_MIN).then(|| build_id_path(build_id));
    path.into_iter().flat_map(|path| DEBUG_DIRS.map(|dir| Path::new(dir).join(&path)))
}

fn debuginfod_cached(build_id: &[u8]) -> Option<PathBuf> {
    let dir = debuginfod_cache().filter(|_| build_id.len() >= BUILD_ID_LENGTH_MIN)?;
    Some(dir.join(build_id_text(build_id)).join("debuginfo"))
}

fn found_by_id(
    path: PathBuf,
    open: impl FnOnce(&Path) -> io::Result<File>,
    build_id: &[u8],
) -> Option<DebugFile> {
    let file = Arc::new(open(&path).ok()?);
    let headers = ElfHeaders::read(&descriptor_path(&*file))?;
    let belongs = headers.has_debug_info && headers.build_id.as_deref() == Some(build_id);
    belongs.then_some(DebugFile { path, packed: headers.packed, file })
}

/// Searches by the debug link, and by the build id if the target has another file system.
fn in_targets_system(elf: &ElfFile, headers: &ElfHeaders, checked_max: u64) -> Option<DebugFile> {
    let (files, build_id) = (elf.debug_files(), elf.build_id());
    let by_id = matches!(files.system, System::Another(_))
        .then(|| installed(build_id))
        .into_iter()
        .flatten();
    let mut by_id = by_id.filter_map(|path| found_by_id(path, |it| files.open(it), build_id));
    by_id.next().or_else(|| {
        let (name, checksum) = headers.debug_link.as_ref()?;
        linked(Path::new(elf.path()), name).into_iter().find_map(|path| {
            let file = Arc::new(files.open(&path).ok()?);
            let packed = linked_packed(&file, (*checksum, checked_max), build_id)?;
            Some(DebugFile { path, packed, file })
        })
    })
}

/// Returns the candidate paths of the debug file `name` for a file at `path`.
fn linked(path: &Path, name: &Path) -> Vec<PathBuf> {
    // A name without a folder is not a path: the kernel's own code has such names.
    let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else {
        return Vec::new();
    };
    let below = |dir: &str| Path::new(dir).join(folder.strip_prefix("/").unwrap_or(folder));
    let mut candidates = vec![folder.join(name), folder.join(".debug").join(name)];
    candidates.extend(DEBUG_DIRS.map(|dir| below(dir).join(name)));
    candidates.retain(|candidate| candidate != path);
    candidates
}

/// Returns the unpacked size of a file's sections, if it is the linked file.
///
/// If both files have a build id, the ids must be equal. Otherwise the checksum in the link must
/// match.
fn linked_packed(
    file: &File,
    (checksum, checked_max): (u32, u64),
    build_id: &[u8],
) -> Option<Packed> {
    let headers =
        ElfHeaders::read(&descriptor_path(file)).filter(|headers| headers.has_debug_info)?;
    let is_linked = match headers.build_id {
        Some(its) if !build_id.is_empty() => its == build_id,
        _ => checksum_of(file, checked_max) == Some(checksum),
    };
    is_linked.then_some(headers.packed)
}

/// Returns the checksum of a file as in `.gnu_debuglink`, if the file has at most `len_max` bytes.
fn checksum_of(file: &File, len_max: u64) -> Option<u32> {
    if file.metadata().ok()?.len() > len_max {
        return None;
    }
    // The file may grow in the meantime.
    let mut rest = file.take(len_max);
    let (mut hasher, mut chunk) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match rest.read(&mut chunk).ok()? {
            0 => return Some(hasher.finalize()),
            len => hasher.update(&chunk[..len]),
        }
    }
}

impl DebugFiles {
    /// Opens a file of the target's system for reading.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        match &self.system {
            System::This => open_regular(path),
            System::Another(root) => root.read_linked(path),
            System::Unknown => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Returns the path `.build-id/ab/cdef....debug`.
fn build_id_path(build_id: &[u8]) -> PathBuf {
    let (first, rest) = build_id.split_at(1);
    PathBuf::from(format!(".build-id/{}/{}.debug", build_id_text(first), build_id_text(rest)))
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
    fn short_ids_have_no_file() {
        assert_eq!(installed(&[1; 7]).count() + installed(&[]).count(), 0);
        assert_eq!(installed(&[1; 20]).count(), 2);
        assert!(debuginfod_cached(&[1; 7]).is_none());
    }

    #[test]
    fn links_are_followed_below_the_folder_of_the_file() {
        let at = |path: &str| linked(Path::new(path), Path::new("a.debug"));
        let expected = [
            "/opt/it/a.debug",
            "/opt/it/.debug/a.debug",
            "/usr/lib/debug/opt/it/a.debug",
            "/lib/debug/opt/it/a.debug",
        ];
        assert_eq!(at("/opt/it/a"), expected.map(PathBuf::from));
        assert_eq!(at("/opt/it/a.debug").len(), 3, "it is not its own debug file");
        assert!(at("[vdso]").is_empty() && at("a").is_empty());
    }

    #[test]
    fn checksums_of_endless_files_are_not_computed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "123456789").unwrap();
        assert_eq!(checksum_of(&File::open(&path).unwrap(), CHECKED_MAX), Some(0xcbf4_3926));
        let written = File::options().write(true).open(&path).unwrap();
        written.set_len(CHECKED_MAX + 1).unwrap();
        assert_eq!(checksum_of(&written.try_clone().unwrap(), CHECKED_MAX), None);
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
        let find = |build_id: &[u8]| found_by_id(program.clone(), open_regular, build_id);
        cc(&["-g"]);
        let build_id = ElfHeaders::read(&program).unwrap().build_id.unwrap();
        assert_eq!(find(&build_id).map(|found| found.path), Some(program.clone()));
        cc(&["-g0"]);
        assert!(find(&build_id).is_none(), "another build");
        let own_id = ElfHeaders::read(&program).unwrap().build_id.unwrap();
        assert!(find(&own_id).is_none(), "without debug information");
    }
}
