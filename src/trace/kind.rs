//! The kinds of objects: the first byte of every object, and of every index cell.

/// The first kind that is followed by a varint length, so that readers skip the kinds that they do
/// not know.
pub(super) const FIRST_SIZED: u8 = 128;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// The kind of an object or an index cell. 0 is no kind, so zeros never validate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Kind {
            /// All kinds in the order of their numbers.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];

            /// Returns the kind with this number.
            pub fn from_number(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name, as in the format's specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$variant => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Text of up to 65,535 bytes.
    String = 1 "STRING",
    /// An ELF file.
    Module = 2 "MODULE",
    /// A function.
    Method = 3 "METHOD",
    /// A location in a function.
    Location = 4 "CODE_LOCATION",
    /// A frame of call traces: its caller's node and its location.
    StackNode = 5 "STACK_NODE",
    /// A call trace with its 64-bit id.
    CallTrace = 6 "CALL_TRACE",
    /// A thread; written again when it is renamed or exits.
    Thread = 7 "THREAD",
    /// A range of addresses at which a module was mapped.
    Mapping = 8 "MAPPING",
    /// A key and its value.
    Metadata = 9 "METADATA",
    /// Text of more than 65,535 bytes.
    LongString = 10 "LONG_STRING",
    /// The header of a method call.
    Call = 16 "TRACEPOINT_CALL",
    /// The end of one or more method calls.
    Footer = 17 "TRACEPOINT_FOOTER",
    /// The innermost call moved to another location.
    Site = 18 "TRACEPOINT_SITE",
    /// An outer call, into which calls are inlined, moved to another location.
    OuterSite = 19 "TRACEPOINT_OUTER_SITE",
    /// A sample.
    Sample = 20 "TRACEPOINT_SAMPLE",
    /// A time about which nothing is known.
    Gap = 21 "TRACEPOINT_GAP",
    /// The thread started.
    ThreadStart = 22 "TRACEPOINT_THREAD_START",
    /// The thread exited.
    ThreadExit = 23 "TRACEPOINT_THREAD_EXIT",
    /// The start of a block.
    BlockStart = 32 "BLOCK_START",
    /// The end of a block.
    BlockEnd = 33 "BLOCK_END",
    /// The end of a complete file.
    Eof = 34 "EOF",
    /// Index only: the identity of the trace that the index belongs to.
    Identity = 40 "IDENTITY",
    /// Index only: the start of the cells of one frame.
    Group = 41 "GROUP",
    /// Index only: a frame of the data file.
    Frame = 42 "FRAME",
    /// Index only: the part of a block in a later frame.
    BlockPart = 43 "BLOCK_PART",
    /// Index only: the time, offset and number of samples of the previous block.
    BlockSpan = 44 "BLOCK_SPAN",
    /// Index only: the contents of the previous call.
    CallSummary = 45 "CALL_SUMMARY",
    /// Index only: the location of the cells of one kind.
    Table = 46 "TABLE",
    /// Index only: the checksum of a page of the index.
    Page = 47 "PAGE",
    /// Index only: the checksum of the pages' checksums.
    Seal = 48 "SEAL",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_never_zero() {
        for (place, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::from_number(*kind as u8), Some(*kind));
            assert!(Kind::ALL[..place].iter().all(|other| (*other as u8) < *kind as u8));
            assert!((*kind as u8) < FIRST_SIZED);
        }
        assert_eq!(Kind::from_number(0), None);
    }
}
