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

/// Returns the name that other tools have for a module: that of the kernel is perf's.
fn shown_path(path: &str) -> &str {
    if path == "[kernel]" { "[kernel.kallsyms]" } else { path }
}

/// What is known about a format.
struct Properties {
    /// The name on the command line.
    name: &'static str,
    /// A second name on the command line.
    alias: Option<&'static str>,
    /// The file name extensions.
    extensions: &'static [&'static str],
    /// Whether the stacks of all threads are merged, so that threads and groups can be frames.
    is_merged: bool,
    /// Whether the format is not text.
    is_binary: bool,
    /// Whether samples are grouped by their spans and tags before they are summed up.
    is_by_context: bool,
    /// Whether the format has spans and tags next to the stacks.
    has_contexts: bool,
}

impl Properties {
    /// A text format without spans and tags, which separates threads.
    const TEXT: Self = Self {
        name: "",
        alias: None,
        extensions: &[],
        is_merged: false,
        is_binary: false,
        is_by_context: false,
        has_contexts: false,
    };
    /// A binary format whose samples have spans and tags.
    const BINARY: Self =
        Self { is_binary: true, is_by_context: true, has_contexts: true, ..Self::TEXT };
}

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

    const fn properties(self) -> Properties {
        const TEXT: Properties = Properties::TEXT;
        const BINARY: Properties = Properties::BINARY;
        match self {
            Self::Folded => Properties {
                name: "folded",
                alias: Some("collapsed"),
                extensions: &[".folded", ".collapsed"],
                is_merged: true,
                ..TEXT
            },
            Self::Flamegraph => Properties {
                name: "flamegraph",
                alias: Some("svg"),
                extensions: &[".svg"],
                is_merged: true,
                ..TEXT
            },
            Self::Pprof => {
                Properties { name: "pprof", extensions: &[".pb.gz", ".pprof"], ..BINARY }
            }
            Self::Firefox => {
                Properties { name: "firefox", extensions: &[".json"], has_contexts: true, ..TEXT }
            }
            Self::Speedscope => {
                Properties { name: "speedscope", extensions: &[".speedscope.json"], ..TEXT }
            }
            Self::PerfScript => Properties {
                name: "perf-script",
                alias: Some("perf"),
                extensions: &[".perf"],
                ..TEXT
            },
            Self::Otlp => Properties { name: "otlp", extensions: &[".otlp"], ..BINARY },
            Self::Html => {
                Properties { name: "html", extensions: &[".html"], has_contexts: true, ..TEXT }
            }
        }
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the file name extensions.
    pub fn extensions(self) -> &'static [&'static str] {
        self.properties().extensions
    }

    /// Returns the format that a file with this name is expected to have.
    pub fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ends = |format: &Self| {
            let fitting = format.extensions().iter().filter(|end| name.ends_with(**end));
            fitting.map(|end| end.len()).max()
        };
        // The longest extension: `.speedscope.json` ends with `.json` too.
        let known = Self::ALL.into_iter().filter(|format| ends(format).is_some());
        known.max_by_key(ends)
    }

    /// Returns whether the stacks of all threads are merged, so that threads and groups can be
    /// frames.
    pub fn is_merged(self) -> bool {
        self.properties().is_merged
    }

    /// Returns whether the format is not text.
    pub fn is_binary(self) -> bool {
        self.properties().is_binary
    }

    /// Returns whether samples are grouped by their spans and tags before they are summed up.
    pub fn is_by_context(self) -> bool {
        self.properties().is_by_context
    }

    /// Returns whether the format has spans and tags next to the stacks.
    pub fn has_contexts(self) -> bool {
        self.properties().has_contexts
    }
}

/// A variant that [`Format::ALL`] misses moves the last one.
const _: () = assert!(Format::ALL.len() == Format::Html as usize + 1);

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_named =
            |format: &Self| format.name() == text || format.properties().alias == Some(text);
        Self::ALL.into_iter().find(is_named).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("the formats are: {known}")
        })
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
    /// Whether folded stacks have marks for the kinds of frames.
    pub annotate: bool,
    /// Whether idle threads are left out. CPU time has none.
    pub no_idle: bool,
}

impl ExportOptions {
    /// Returns the options of a plain export in a format.
    pub const fn new(format: Format) -> Self {
        Self { format, threads: false, annotate: false, no_idle: false }
    }
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
