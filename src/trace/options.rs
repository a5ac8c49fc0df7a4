//! Options for writing a trace.

/// The largest `frame_bytes`: two blocks and the objects that they need stay below a frame's limit.
const MAX_FRAME_TARGET: usize = 1 << 20;

/// The compression of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression: an offset in the index is an offset in the file.
    None,
    /// Compression with zstd at this level.
    Zstd(i32),
}

/// The time at which samples are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// As they come, within a fixed memory budget, and at least at each
    /// [`flush`](super::TraceWriter::flush). The blocks of threads interleave.
    Streaming,
    /// All at [`finish`](super::TraceWriter::finish): one block per thread and stream, but
    /// everything stays in memory until then and is lost if the process dies. `flush` does nothing.
    Collect,
}

/// The loss that a crash of the machine may cause. If only the writing process dies, flushed data
/// survives in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The kernel writes to the disk at its own pace: a crash may lose about the last half minute.
    None,
    /// The writer syncs the data file (`fdatasync`) with the first frame after a second, and after
    /// 8 MiB.
    Interval,
    /// The writer syncs the data file after each frame.
    Frame,
}

/// The options of a trace writer.
///
/// A streaming writer takes at most three times [`buffer_bytes`](Self::buffer_bytes), plus 4 KiB
/// for each live thread with 30 open calls, whatever is written: 88 MiB for 10,000 threads. Each
/// further open call takes 40 bytes; without waiting data a thread takes 2.5 KiB (measured). In
/// addition there are the tables of the distinct objects and, with [`Durability::Interval`], the
/// index of the last 8 MiB. For collecting, see
/// [`Written::collected_bytes`](super::Written::collected_bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterOptions {
    /// Whether to replace existing files.
    pub force: bool,
    /// The compression of frames; zstd at level 3 by default.
    pub compress: Compression,
    /// The time at which samples are written; as they come by default.
    pub mode: WriteMode,
    /// The protection of written data against a crash of the machine; a sync about every second by
    /// default.
    pub durability: Durability,
    /// The target size of a decoded frame in bytes; 256 KiB by default, at most 1 MiB.
    pub frame_bytes: usize,
    /// The target size of a block in bytes; 64 KiB by default, at most that of a frame. A reader
    /// that seeks a position decodes one block; each block repeats the open stack.
    pub block_bytes: usize,
    /// The most bytes that wait in the blocks of all threads together; 16 MiB by default.
    pub buffer_bytes: usize,
    /// Whether to write the storage's call-trace id with every sample; without, readers get 0.
    pub trace_ids: bool,
    /// The salt that distinguishes this trace's frames from those of others. Random by default;
    /// with a fixed salt, equal input gives equal bytes.
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
    /// Returns the nearest options that the format supports.
    pub(super) fn within_limits(mut self) -> Self {
        self.frame_bytes = self.frame_bytes.clamp(1, MAX_FRAME_TARGET);
        self.block_bytes = self.block_bytes.clamp(1, self.frame_bytes);
        self
    }
}
