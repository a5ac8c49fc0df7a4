//! Traces in the formats of other tools.

mod firefox;
pub(super) mod flamegraph;
pub(super) mod folded;
mod otlp;
mod perf_script;
mod pprof;
mod speedscope;
mod thread_samples;
pub(super) mod title;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use super::html::{self, PageOptions};
use crate::trace::LazyTrace;
use crate::view::profile::thread_profile::Profile;
use crate::view::select::error::ViewError;
use crate::view::select::selection::Selected;

/// A format of another tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `root;caller;leaf COUNT`, a line per stack, for flame graph tools.
    Folded,
    /// The same stacks as an SVG picture, for a browser.
    Flamegraph,
    /// A gzipped protobuf message, for `go tool pprof`.
    Pprof,
    /// JSON with every sample, for the Firefox Profiler.
    Firefox,
    /// JSON with every sample, for speedscope.
    Speedscope,
    /// Text with every sample, as `perf script` writes it, for many tools.
    PerfScript,
    /// A protobuf message, for collectors of OpenTelemetry.
    Otlp,
    /// A page with every sample, which a browser shows by itself.
    Html,
}

/// The file name extensions of the formats.
const ENDS: [(&str, Format); 10] = [
    (".folded", Format::Folded),
    (".collapsed", Format::Folded),
    (".svg", Format::Flamegraph),
    (".pb.gz", Format::Pprof),
    (".pprof", Format::Pprof),
    // This comes before `.json`, which such names end with too.
    (".speedscope.json", Format::Speedscope),
    (".json", Format::Firefox),
    (".perf", Format::PerfScript),
    (".otlp", Format::Otlp),
    (".html", Format::Html),
];

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Folded,
        Self::Flamegraph,
        Self::Pprof,
        Self::Firefox,
        Self::Speedscope,
        Self::PerfScript,
        Self::Otlp,
        Self::Html,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Flamegraph => "flamegraph",
            Self::Pprof => "pprof",
            Self::Firefox => "firefox",
            Self::Speedscope => "speedscope",
            Self::PerfScript => "perf-script",
            Self::Otlp => "otlp",
            Self::Html => "html",
        }
    }

    /// Returns the format that a file with this name is expected to have.
    pub fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let known = ENDS.iter().find(|(end, _)| name.ends_with(end));
        known.map(|(_, format)| *format)
    }

    /// Returns whether the stacks of all threads are merged, so that threads and groups can be
    /// frames.
    pub fn is_merged(self) -> bool {
        matches!(self, Self::Folded | Self::Flamegraph)
    }

    /// Returns whether the format is not text.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Pprof | Self::Otlp)
    }

    /// Returns whether samples are grouped by their spans and tags before they are summed up.
    pub fn is_by_context(self) -> bool {
        matches!(self, Self::Pprof | Self::Otlp)
    }

    /// Returns whether the format has spans and tags next to the stacks.
    pub fn has_contexts(self) -> bool {
        matches!(self, Self::Pprof | Self::Firefox | Self::Otlp | Self::Html)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "folded" | "collapsed" => Ok(Self::Folded),
            "flamegraph" | "svg" => Ok(Self::Flamegraph),
            "pprof" => Ok(Self::Pprof),
            "firefox" => Ok(Self::Firefox),
            "speedscope" => Ok(Self::Speedscope),
            "perf-script" | "perf" => Ok(Self::PerfScript),
            "otlp" => Ok(Self::Otlp),
            "html" => Ok(Self::Html),
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

/// The options of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// The format.
    pub format: Format,
    /// Whether threads are separate, with the thread's name as the first frame.
    pub threads: bool,
    /// Whether idle threads are left out. CPU time has none.
    pub no_idle: bool,
}

/// Writes the selected part of a trace in another tool's format. The profile was loaded from the
/// same selection.
pub fn write(
    trace: &LazyTrace,
    (selected, profile): (&Selected, &Profile),
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ViewError> {
    match options.format {
        Format::Folded => Ok(folded::write(profile, options, out)?),
        Format::Flamegraph => Ok(flamegraph::write(profile, options, out)?),
        Format::Pprof => Ok(pprof::write(profile, options, out)?),
        Format::Otlp => Ok(otlp::write(profile, options, out)?),
        Format::Firefox => firefox::write(trace, (selected, profile), options, out),
        Format::Speedscope => speedscope::write(trace, (selected, profile), options, out),
        Format::PerfScript => perf_script::write(trace, (selected, profile), options, out),
        Format::Html => {
            let page = PageOptions { no_idle: options.no_idle, ..PageOptions::default() };
            html::write(trace, &[(selected, profile)], &page, out).map(drop)
        }
    }
}

/// Writes the stacks of a profile of any trace as lines of text.
pub fn write_folded(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    folded::write(profile, options, out)
}
