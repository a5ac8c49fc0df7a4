//! How the sections of a frame are stored.

/// How the sections of a frame are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Codec {
    /// As they are.
    Plain = 0,
    /// As zstd frames.
    Zstd = 1,
    /// As zstd frames, the trace points in columns.
    Columns = 2,
}

impl Codec {
    /// Whether frames of both may lie in one file: positions mean the same in both.
    pub(super) fn goes_with(self, other: Self) -> bool {
        (self == Self::Plain) == (other == Self::Plain)
    }

    /// The offset in the file that a position means: of the byte, or of its frame.
    pub(super) fn offset_of(self, position: u64) -> u64 {
        match self {
            Self::Plain => position,
            Self::Zstd | Self::Columns => position >> 24,
        }
    }

    /// How `part` is stored.
    pub(super) fn of(self, part: Part) -> Self {
        match self {
            Self::Columns if part != Part::Points => Self::Zstd,
            codec => codec,
        }
    }
}

/// A part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The blocks' entries.
    Directory = 0,
    /// The block of thread-neutral objects.
    Neutral = 1,
    /// The blocks of threads.
    Points = 2,
}
