//! The storage of a frame's sections.

/// The storage format of a frame's sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Codec {
    /// Without compression.
    Plain = 0,
    /// As zstd frames.
    Zstd = 1,
    /// As zstd frames, with the trace points in columns.
    Columns = 2,
}

impl Codec {
    /// Returns whether one file may hold frames of both codecs: positions mean the same in both.
    pub(super) fn shares_positions_with(self, other: Self) -> bool {
        (self == Self::Plain) == (other == Self::Plain)
    }

    /// Returns the file offset for a position: the offset of the byte itself if the data is plain,
    /// else the offset of its frame.
    pub(super) fn offset_of(self, position: u64) -> u64 {
        match self {
            Self::Plain => position,
            Self::Zstd | Self::Columns => position >> 24,
        }
    }

    /// Returns the codec of one section.
    pub(super) fn of(self, section: SectionKind) -> Self {
        match self {
            Self::Columns if section != SectionKind::Points => Self::Zstd,
            codec => codec,
        }
    }
}

/// A section of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    /// The directory entries of the blocks.
    Directory = 0,
    /// The block of thread-neutral objects.
    Neutral = 1,
    /// The blocks of threads.
    Points = 2,
}
