//! The kinds of objects: the first byte of every object, and of every index cell.

/// Kinds from here on are followed by a varint length, so that readers skip those they don't know.
pub(super) const FIRST_SIZED: u8 = 128;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// The kind of an object or an index cell. 0 is no kind, so that zeros never validate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Kind {
            /// All kinds in the order of their numbers.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];

            /// The kind with this number.
            pub fn from_number(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$variant),)*
                    _ => None,
                }
            }

            /// Its name, as in the format's specification.
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
    /// A place in a function.
    Location = 4 "CODE_LOCATION",
    /// A thread; again with another name when it is renamed.
    Thread = 7 "THREAD",
    /// A range of addresses that a module was mapped at.
    Mapping = 8 "MAPPING",
    /// A key and its value.
    Metadata = 9 "METADATA",
    /// Text of more than 65,535 bytes.
    LongString = 10 "LONG_STRING",
    /// Header of a method call.
    Call = 16 "TRACEPOINT_CALL",
    /// End of one or more method calls.
    Footer = 17 "TRACEPOINT_FOOTER",
    /// The innermost call moved to another location.
    Site = 18 "TRACEPOINT_SITE",
    /// An outer call moved to another location: one that inlined calls hang on.
    OuterSite = 19 "TRACEPOINT_OUTER_SITE",
    /// A sample.
    Sample = 20 "TRACEPOINT_SAMPLE",
    /// A time of which nothing is known.
    Gap = 21 "TRACEPOINT_GAP",
    /// The thread began.
    ThreadStart = 22 "TRACEPOINT_THREAD_START",
    /// The thread ended.
    ThreadExit = 23 "TRACEPOINT_THREAD_EXIT",
    /// Begin of a block.
    BlockStart = 24 "BLOCK_START",
    /// End of a block.
    BlockEnd = 25 "BLOCK_END",
    /// End of a complete file.
    Eof = 26 "EOF",
    /// Index only: which trace the index belongs to.
    Identity = 27 "IDENTITY",
    /// Index only: begin of the cells of one frame.
    Group = 28 "GROUP",
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
