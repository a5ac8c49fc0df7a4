//! Finds and reads the pieces of debug information that is spread over files: `.dwo` files, `.dwp`
//! packages, and the supplementary files of `dwz`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{Dwarf, DwarfPackage, EndianArcSlice, LittleEndian, Reader, SectionId};
use object::{Object, ObjectSection};

use super::debug_file::installed;
use super::elf_file::DebugFiles;
use super::elf_headers::ElfHeaders;
use super::memory_budget::ReservedMemory;
use crate::elf::unpack;
use crate::proc::{self, descriptor_path, open_regular};

/// Maximum bytes of sections that are kept for one program and its pieces.
pub(super) const LEN_MAX: u64 = 1 << 30;

/// The bytes of a section.
pub(super) type SectionBytes = EndianArcSlice<LittleEndian>;
/// A unit whose piece is needed.
pub(super) type WantedUnit = SplitDwarfLoad<SectionBytes>;

/// The reason why the sections of a file cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The file is missing or malformed.
    File,
    /// The file is larger than the limit.
    Size,
    /// The debug information is malformed.
    Dwarf(gimli::Error),
}

impl From<gimli::Error> for Unreadable {
    fn from(error: gimli::Error) -> Self {
        Self::Dwarf(error)
    }
}

/// The part of the debug information in the program or in its debug file.
pub(super) struct OwnPart {
    pub(super) dwarf: Dwarf<SectionBytes>,
    /// Whether the supplementary file of `dwz` is missing.
    pub(super) is_supplement_missing: bool,
}

/// The files with the pieces of a program.
pub(super) struct DwoFiles {
    files: Arc<DebugFiles>,
    /// The program's folder: a build that is moved takes its pieces along.
    folder: PathBuf,
    /// The folder of the file with the debug information.
    debug_folder: PathBuf,
    /// Candidate paths of a package of all pieces.
    packages: Vec<PathBuf>,
    /// The package, once searched. The inner value is `None` if there is no package.
    package: Option<Option<DwarfPackage<SectionBytes>>>,
    /// Bytes of sections that may still be kept.
    bytes_left: u64,
    /// Reservations of the shared budget for the kept sections.
    taken: Vec<ReservedMemory>,
    /// Whether the shared budget was too small.
    pub(super) is_over_budget: bool,
}

impl DwoFiles {
    /// Returns the files of a program at `path`. `debug_file` is set if its debug information is
    /// separate.
    pub(super) fn of(files: Arc<DebugFiles>, path: &Path, debug_file: Option<&Path>) -> Self {
        let folder = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        let (folder, debug_folder) = (folder(path), folder(debug_file.unwrap_or(path)));
        let mut packages = vec![with_ending(path)];
        if let Some(debug_file) = debug_file {
            packages.extend([with_ending(debug_file), with_ending(&debug_file.with_extension(""))]);
        }
        packages.retain(|path| path.is_absolute());
        let (package, taken) = (None, Vec::new());
        let (bytes_left, is_over_budget) = (LEN_MAX, false);
        Self { files, folder, debug_folder, packages, package, bytes_left, taken, is_over_budget }
    }

    /// Reads the debug information of the program or of its debug file, whichever `path` names.
    pub(super) fn own(&mut self, path: &Path) -> Result<OwnPart, Unreadable> {
        let file = File::open(path).map_err(|_| Unreadable::File)?;
        let mut dwarf = Dwarf::load(self.sections(&file, |id| Some(id.name()))?)?;
        let link = supplement_of(&file);
        let supplement = link.as_ref().and_then(|link| self.open_supplement(link));
        let is_supplement_missing = link.is_some() && supplement.is_none();
        supplement.into_iter().for_each(|supplement| dwarf.set_sup(supplement));
        Ok(OwnPart { dwarf, is_supplement_missing })
    }

    /// Opens the supplementary file on the target's system or on this one: a debug file from this
    /// system has its supplementary file here.
    fn open_supplement(
        &mut self,
        (name, build_id): &(PathBuf, Vec<u8>),
    ) -> Option<Dwarf<SectionBytes>> {
        let named = Some(self.debug_folder.join(name)).filter(|path| path.is_absolute());
        let theirs = named.into_iter().chain(installed(build_id));
        let theirs = theirs.filter_map(|path| self.files.open(&path).ok());
        // The name is a path in the target's system. Here it could name an unrelated file.
        let ours = installed(build_id).filter_map(|path| open_regular(&path).ok());
        let is_it = |file: &File| {
            let headers = ElfHeaders::read(&descriptor_path(file));
            headers.is_some_and(|headers| headers.build_id.as_ref() == Some(build_id))
        };
        let file = theirs.chain(ours).find(is_it)?;
        self.kept(|it| Dwarf::load(it.sections(&file, |id| Some(id.name())).ok()?).ok())
    }

    /// Calls `read`, and returns the memory to the budget if it fails.
    fn kept<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let (bytes_left, taken) = (self.bytes_left, self.taken.len());
        let kept = read(self);
        if kept.is_none() {
            self.bytes_left = bytes_left;
            self.taken.truncate(taken);
        }
        kept
    }

    /// Returns the piece of a unit.
    pub(super) fn find(&mut self, wanted: &WantedUnit) -> Option<Dwarf<SectionBytes>> {
        if self.package.is_none() {
            self.package = Some(self.open_package());
        }
        let package = self.package.as_ref()?.as_ref();
        let packed = package.and_then(|it| it.find_cu(wanted.dwo_id, &wanted.parent).ok()?);
        let fits = |dwarf: &Dwarf<SectionBytes>| is_of(dwarf, wanted);
        packed.filter(fits).or_else(|| {
            let paths = self.paths(wanted).into_iter();
            let mut found = paths.filter_map(|path| self.kept(|it| it.open(&path, wanted)));
            found.next()
        })
    }

    fn open_package(&mut self) -> Option<DwarfPackage<SectionBytes>> {
        let files = self.packages.iter().filter_map(|path| self.files.open(path).ok());
        let files: Vec<File> = files.collect();
        files.iter().find_map(|file| {
            self.kept(|it| {
                let sections = it.sections(file, SectionId::dwo_name).ok()?;
                let package = DwarfPackage::load::<_, Unreadable>(sections, empty()).ok()?;
                (package.cu_index.unit_count() > 0).then_some(package)
            })
        })
    }

    /// Returns the candidate paths of a unit's piece.
    fn paths(&self, wanted: &WantedUnit) -> Vec<PathBuf> {
        let path = |bytes: &Option<SectionBytes>| {
            let bytes = bytes.as_ref()?.to_slice().ok()?;
            Some(PathBuf::from(OsStr::from_bytes(&bytes)))
        };
        let Some(name) = path(&wanted.path) else { return Vec::new() };
        let compiled = path(&wanted.comp_dir).map(|dir| dir.join(&name));
        let beside =
            [Some(self.folder.join(&name)), name.file_name().map(|it| self.folder.join(it))];
        let mut paths: Vec<PathBuf> =
            compiled.into_iter().chain(beside.into_iter().flatten()).collect();
        paths.retain(|path| path.is_absolute());
        paths.dedup();
        paths
    }

    fn open(&mut self, path: &Path, wanted: &WantedUnit) -> Option<Dwarf<SectionBytes>> {
        let file = self.files.open(path).ok()?;
        let sections = self.sections(&file, SectionId::dwo_name).ok()?;
        let mut dwarf = Dwarf::load(sections).ok()?;
        dwarf.make_dwo(&wanted.parent);
        is_of(&dwarf, wanted).then_some(dwarf)
    }

    /// Reads the sections of a file on demand.
    fn sections<'p>(
        &'p mut self,
        file: &File,
        name: impl Fn(SectionId) -> Option<&'static str> + 'p,
    ) -> Result<impl FnMut(SectionId) -> Result<SectionBytes, Unreadable> + 'p, Unreadable> {
        ElfHeaders::read(&descriptor_path(file)).ok_or(Unreadable::File)?;
        let map = proc::map_file(file).map_err(|_| Unreadable::File)?;
        Ok(move |id| {
            let Some(name) = name(id) else { return Ok(empty()) };
            let elf = object::File::parse(&*map).map_err(|_| Unreadable::File)?;
            let Some(section) = elf.section_by_name(name) else { return Ok(empty()) };
            let range = section.compressed_file_range().map_err(|_| Unreadable::File)?;
            let len = range.uncompressed_size;
            self.bytes_left = self.bytes_left.checked_sub(len).ok_or(Unreadable::Size)?;
            let taken = self.files.budget.take(len);
            self.is_over_budget |= taken.is_none();
            self.taken.push(taken.ok_or(Unreadable::Size)?);
            let packed = section.compressed_data().map_err(|_| Unreadable::File)?;
            let bytes = unpack(packed, len).ok_or(Unreadable::File)?;
            Ok(SectionBytes::new(Arc::from(bytes), LittleEndian))
        })
    }
}

/// Returns the name and build id of the supplementary file, if there is one.
fn supplement_of(file: &File) -> Option<(PathBuf, Vec<u8>)> {
    let map = proc::map_file(file).ok()?;
    let elf = object::File::parse(&*map).ok()?;
    let (name, build_id) = elf.gnu_debugaltlink().ok()??;
    Some((PathBuf::from(OsStr::from_bytes(name)), build_id.to_vec()))
}

/// Returns whether the piece has the identifier that the program states.
fn is_of(dwarf: &Dwarf<SectionBytes>, wanted: &WantedUnit) -> bool {
    let header = dwarf.units().next().ok().flatten();
    let unit = header.and_then(|header| dwarf.unit(header).ok());
    unit.is_some_and(|unit| unit.dwo_id == Some(wanted.dwo_id))
}

fn with_ending(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".dwp");
    name.into()
}

fn empty() -> SectionBytes {
    SectionBytes::new(Arc::default(), LittleEndian)
}
