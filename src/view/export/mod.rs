//! Traces in the formats of other tools.

mod folded;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use super::profile::Profile;

/// A format of another tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `root;caller;leaf COUNT`, a line per stack: what flame graph tools read.
    Folded,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 1] = [Self::Folded];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
        }
    }

    /// The format that a file of this name is expected to hold.
    pub fn of_path(path: &Path) -> Option<Self> {
        path.extension()?.to_str()?.parse().ok()
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "folded" | "collapsed" => Ok(Self::Folded),
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

/// Writes the trace in another tool's format.
pub fn write(profile: &Profile, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    match options.format {
        Format::Folded => folded::write(profile, options, out),
    }
}
