//! The blocks that are kept until the end, so that each thread is contiguous in the file.

use std::collections::BTreeMap;

use crate::trace::SIDE;
use crate::trace::checkpoint::Ends;
use crate::trace::stream::Block;

/// The parts of blocks by stream.
#[derive(Debug, Default)]
pub(super) struct CollectedBlocks {
    by_stream: BTreeMap<u32, Vec<Block>>,
    bytes: u64,
}

impl CollectedBlocks {
    /// Adds the next part of its stream's block.
    pub(super) fn add(&mut self, block: Block) {
        self.bytes += block.memory() as u64;
        self.by_stream.entry(block.entry.stream).or_default().push(block);
    }

    /// Returns the number of bytes of memory that all parts take, or took.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the parts, one thread after the other.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Block> + use<> {
        // A thread's two streams are adjacent.
        let mut streams: Vec<_> = std::mem::take(&mut self.by_stream).into_iter().collect();
        streams.sort_by_key(|(stream, _)| (stream & !SIDE, *stream));
        streams.into_iter().flat_map(|(_, mut parts)| {
            let last = parts.len() - 1;
            for (place, part) in parts.iter_mut().enumerate() {
                part.entry.ends = Ends { first: place == 0, last: place == last };
            }
            parts
        })
    }
}
