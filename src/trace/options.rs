//! How a trace is written.

/// Largest `frame_bytes`: two blocks and the objects that they need stay below a frame's limit.
const MAX_FRAME_TARGET: usize = 1 << 20;

/// How frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: an offset in the index is an offset in the file.
    None,
    /// With zstd at this level.
    Zstd(i32),
}

/// When samples are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// As they come, within a fixed budget of memory, and at least at each
    /// [`flush`](super::TraceWriter::flush). Threads' blocks interleave.
    Streaming,
    /// All at [`finish`](super::TraceWriter::finish): one block per thread and stream, but all in
    /// memory until then, and lost if the process dies. `flush` does nothing.
    Collect,
}

/// What a crash of the whole machine may cost. The death of the process that writes costs nothing
/// that was flushed, in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The system writes to the disk when it likes: everything of the last half minute or so.
    None,
    /// The data file is synced (`fdatasync`) with the first frame after a second, and after 8 MiB.
    Interval,
    /// The data file is synced after each frame.
    Frame,
}

/// How a trace is written.
///
/// A streaming writer takes at most three times [`buffer_bytes`](Self::buffer_bytes), and 4 KiB per
/// living thread with 30 open calls (40 bytes per call more or less; measured are 2.5 KiB while
/// nothing of the thread waits), whatever is written through it: 88 MiB for 10,000 threads. To this
/// come tables of the distinct objects, and with [`Durability::Interval`] the index of the last
/// 8 MiB. Collecting takes what [`Written::collected_bytes`](super::Written::collected_bytes) says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterOptions {
    /// Replace files that exist.
    pub force: bool,
    /// How frames are compressed; zstd at level 3 by default.
    pub compress: Compression,
    /// When samples are written; as they come by default.
    pub mode: WriteMode,
    /// When what was written is made to survive a crash of the machine; about every second by
    /// default.
    pub durability: Durability,
    /// Bytes of a decoded frame to aim at; 256 KiB by default, at most 1 MiB.
    pub frame_bytes: usize,
    /// Bytes of a block to aim at; 64 KiB by default, at most those of a frame. A reader that looks
    /// for one place decodes one block; each repeats the open stack.
    pub block_bytes: usize,
    /// Bytes that may wait in the blocks of all threads together; 16 MiB by default.
    pub buffer_bytes: usize,
    /// Write the storage's call-trace id with every sample; without, it is read as 0.
    pub trace_ids: bool,
    /// Distinguishes this trace's frames from others'. Random by default; given, equal input makes
    /// equal bytes.
    pub salt: Option<u64>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            force: false,
            compress: Compression::Zstd(3),
            mode: WriteMode::Streaming,
            durability: Durability::Interval,
            frame_bytes: 256 << 10,
            block_bytes: 64 << 10,
            buffer_bytes: 16 << 20,
            trace_ids: true,
            salt: None,
        }
    }
}

impl WriterOptions {
    /// The nearest ones that the format can do.
    pub(super) fn within_limits(mut self) -> Self {
        self.frame_bytes = self.frame_bytes.clamp(1, MAX_FRAME_TARGET);
        self.block_bytes = self.block_bytes.clamp(1, self.frame_bytes);
        self
    }
}
