//! Traces in the formats of other tools.

mod firefox;
mod folded;
mod pprof;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use super::error::ViewError;
use super::profile::Profile;
use super::selection::Selected;
use crate::trace::LazyTrace;

/// A format of another tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `root;caller;leaf COUNT`, a line per stack: what flame graph tools read.
    Folded,
    /// A gzipped protobuf message: what `go tool pprof` reads.
    Pprof,
    /// JSON with every sample: what the Firefox Profiler reads.
    Firefox,
}

/// How files of a format are called.
const ENDS: [(&str, Format); 5] = [
    (".folded", Format::Folded),
    (".collapsed", Format::Folded),
    (".pb.gz", Format::Pprof),
    (".pprof", Format::Pprof),
    (".json", Format::Firefox),
];

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Folded, Self::Pprof, Self::Firefox];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Pprof => "pprof",
            Self::Firefox => "firefox",
        }
    }

    /// The format that a file of this name is expected to hold.
    pub fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let known = ENDS.iter().find(|(end, _)| name.ends_with(end));
        known.map(|(_, format)| *format)
    }

    /// Whether threads and contexts are kept beside the stacks, not in them.
    pub fn has_labels(self) -> bool {
        match self {
            Self::Folded => false,
            Self::Pprof | Self::Firefox => true,
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "folded" | "collapsed" => Ok(Self::Folded),
            "pprof" => Ok(Self::Pprof),
            "firefox" => Ok(Self::Firefox),
            _ => {
                let known = Self::ALL.map(Self::name).join(", ");
                Err(format!("the formats are: {known}"))
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a trace is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// The format.
    pub format: Format,
    /// Keep threads apart: the thread's name is the first frame.
    pub threads: bool,
    /// Leave out threads that only wait for work; of CPU time there are none.
    pub no_idle: bool,
}

/// Writes what is selected of a trace, which the profile was loaded from, in another tool's format.
pub fn write(
    trace: &LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    match options.format {
        Format::Folded => Ok(folded::write(profile, options, out)?),
        Format::Pprof => Ok(pprof::write(profile, options, out)?),
        Format::Firefox => firefox::write(trace, (selected, profile), options, out),
    }
}

/// Writes the stacks of a profile, of whatever trace, as lines of text.
pub fn write_folded(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    folded::write(profile, options, out)
}
