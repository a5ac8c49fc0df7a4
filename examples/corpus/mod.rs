//! A corpus: stacks of real programs, without anything that names the program.
//!
//! Modules, methods and source files are numbers only. Addresses (SVMAs), lines, inlining, the
//! times of the samples in nanoseconds and their call-trace ids are as recorded. `codec` has the
//! format on disk. The examples share this module.
//!
//! The committed corpora come from `traceprof record --freq 999` on a machine with two cores that
//! also did other work:
//!
//! | file in tests/corpus | program | cut |
//! |---|---|---|
//! | cc1 | GCC 12's cc1 -O2, a C library of 45,000 lines as one file | 11,000 samples from the 2,500th on |
//! | rustc | rustc -O of a crate, its code generation on 35 further threads | all |
//! | python | CPython 3.11, five threads: json, re, ast and dis, sqlite3, a mix | 12,000 from the 3,000th on |
//! | redis | redis-server with two more I/O threads under its benchmark | 42,000 from the 3,000th on |
#![allow(dead_code, reason = "one example writes a corpus, the other ones read it")]

use std::path::Path;

mod codec;
pub(crate) mod replay;

/// A part of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Corpus {
    /// The sampling period in nanoseconds.
    pub(crate) period_ns: u64,
    /// Number of modules.
    pub(crate) modules: u32,
    /// Functions.
    pub(crate) methods: Vec<Method>,
    /// Code locations, in the order in which the recorder met them.
    pub(crate) locations: Vec<Location>,
    /// Stacks as a tree. A parent comes before its children.
    pub(crate) paths: Vec<Step>,
    /// Threads in the order of their first samples.
    pub(crate) threads: Vec<Thread>,
}

/// A function. Functions with different names have different indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) module: Option<u32>,
    pub(crate) start_svma: u64,
}

/// A code location in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) method: u32,
    pub(crate) svma: u64,
    pub(crate) file: Option<u32>,
    pub(crate) line: u32,
    pub(crate) inline_parent: Option<u32>,
}

/// A stack: its innermost frame, and the index of the stack without that frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub(crate) parent: Option<u32>,
    pub(crate) location: u32,
}

/// A thread's samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Thread {
    /// Time of its first sample in nanoseconds, after the first sample of all threads.
    pub(crate) begin_ns: u64,
    pub(crate) samples: Vec<Sample>,
}

/// A sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Time in nanoseconds after the thread's first sample.
    pub(crate) time_ns: u64,
    /// Index of a [`Step`], or `None` if the stack is unknown.
    pub(crate) path: Option<u32>,
    /// Call-trace id: number of the table and slot in it.
    pub(crate) epoch: u32,
    pub(crate) slot: u32,
    pub(crate) weight: u32,
    pub(crate) end_reason: u16,
    pub(crate) flags: u32,
}

impl Corpus {
    /// Reads a corpus file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let says = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(|error| says(&error))?;
        let bytes = zstd::decode_all(file).map_err(|error| says(&error))?;
        let corpus = codec::decode(&bytes).map_err(|error| says(&error))?;
        corpus.check().map_err(|error| says(&error))?;
        Ok(corpus)
    }

    /// Refuses a corpus without a period or samples.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match (self.period_ns, self.samples()) {
            (0, _) => Err("the sampling period is not known"),
            (_, 0) => Err("there are no samples"),
            _ => Ok(()),
        }
    }

    /// Returns the bytes of a corpus file.
    pub(crate) fn to_file(&self) -> std::io::Result<Vec<u8>> {
        let bytes = codec::encode(self);
        debug_assert_eq!(codec::decode(&bytes).as_ref(), Ok(self));
        zstd::bulk::compress(&bytes, 19)
    }

    /// Returns the locations of a stack, root first.
    pub(crate) fn stack(&self, path: Option<u32>) -> Vec<u32> {
        let mut stack = Vec::new();
        let mut next = path;
        while let Some(place) = next {
            let Step { parent, location } = self.paths[place as usize];
            stack.push(location);
            next = parent;
        }
        stack.reverse();
        stack
    }

    /// Returns the number of samples.
    pub(crate) fn samples(&self) -> usize {
        self.threads.iter().map(|thread| thread.samples.len()).sum()
    }

    /// Returns a line that describes the corpus.
    pub(crate) fn summary(&self) -> String {
        let samples = || self.threads.iter().flat_map(|thread| &thread.samples);
        let count = self.samples().max(1) as f64;
        let frames: usize = samples().map(|sample| self.stack(sample.path).len()).sum();
        let stacks: std::collections::HashSet<_> = samples().map(|sample| sample.path).collect();
        let truncated = samples().filter(|sample| sample.end_reason != 0).count();
        let physical = self.locations.iter().filter(|location| location.inline_parent.is_none());
        format!(
            "{} samples, {} threads, {} addresses ({} locations with inlined ones), {} methods, \
             {:.3} distinct stacks a sample, {:.2} new tree nodes a sample, mean depth {:.1}, \
             {:.1} % truncated",
            self.samples(),
            self.threads.len(),
            physical.count(),
            self.locations.len(),
            self.methods.len(),
            stacks.len() as f64 / count,
            self.paths.len() as f64 / count,
            frames as f64 / count,
            truncated as f64 * 100.0 / count,
        )
    }
}
