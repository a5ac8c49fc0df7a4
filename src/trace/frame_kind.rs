//! The kinds of frames: what kind of code a frame runs, and in which language.

macro_rules! frame_kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal $language:ident,)*) => {
        /// The kind of code that a frame runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(u8)]
        pub enum FrameKind {
            $($(#[$doc])* $variant = $number,)*
        }

        impl FrameKind {
            /// All kinds in the order of their numbers.
            pub const ALL: &[FrameKind] = &[$(FrameKind::$variant,)*];

            /// Returns the kind with this number; [`FrameKind::Other`] for a number of a later
            /// version.
            pub fn from_number(number: u32) -> FrameKind {
                match number {
                    $($number => FrameKind::$variant,)*
                    _ => FrameKind::Other,
                }
            }

            /// Returns the name, as in the format's specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(FrameKind::$variant => $name,)*
                }
            }

            /// Returns the language of the code.
            pub fn language(self) -> Language {
                match self {
                    $(FrameKind::$variant => Language::$language,)*
                }
            }
        }
    };
}

frame_kinds! {
    /// Machine code of a file, or of a just-in-time compiler that is none of those below.
    #[default]
    Native = 0 "native" Native,
    /// Code of the kernel.
    Kernel = 1 "kernel" Kernel,
    /// Native code of a language's runtime that only carries the frames of that language. Views
    /// leave it out unless the user asks for native frames.
    Interpreter = 2 "interpreter" Native,
    /// A function of CPython.
    Python = 16 "python" Python,
    /// A Java method that is interpreted.
    JavaInterpreted = 32 "java-interpreted" Java,
    /// A Java method that the first compiler compiled.
    JavaC1 = 33 "java-c1" Java,
    /// A Java method that the second compiler compiled.
    JavaC2 = 34 "java-c2" Java,
    /// A Java method that was compiled, it is not known by which compiler.
    JavaCompiled = 35 "java-compiled" Java,
    /// A JavaScript function that is interpreted (Ignition).
    JavaScriptInterpreted = 48 "javascript-interpreted" JavaScript,
    /// A JavaScript function that the baseline compiler compiled (Sparkplug).
    JavaScriptBaseline = 49 "javascript-baseline" JavaScript,
    /// A JavaScript function that the middle compiler compiled (Maglev).
    JavaScriptMiddle = 50 "javascript-middle" JavaScript,
    /// A JavaScript function that the optimizing compiler compiled (Turbofan).
    JavaScriptOptimized = 51 "javascript-optimized" JavaScript,
    /// A JavaScript function of which it is not known how it runs.
    JavaScript = 52 "javascript" JavaScript,
    /// A function of PHP.
    Php = 64 "php" Php,
    /// A method, a block or other code of Ruby.
    Ruby = 80 "ruby" Ruby,
    /// A sub or other code of Perl.
    Perl = 96 "perl" Perl,
    /// A function of Lua.
    Lua = 112 "lua" Lua,
    /// A kind of a later version.
    Other = 255 "other" Other,
}

/// The language of a frame's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Any language that is compiled to machine code ahead of time, and the runtimes.
    Native,
    /// The kernel.
    Kernel,
    /// Python.
    Python,
    /// Java and other languages of the Java virtual machine.
    Java,
    /// JavaScript.
    JavaScript,
    /// PHP.
    Php,
    /// Ruby.
    Ruby,
    /// Perl.
    Perl,
    /// Lua.
    Lua,
    /// A language that only later versions know.
    Other,
}

impl Language {
    /// All languages.
    pub const ALL: [Language; 10] = [
        Language::Native,
        Language::Kernel,
        Language::Python,
        Language::Java,
        Language::JavaScript,
        Language::Php,
        Language::Ruby,
        Language::Perl,
        Language::Lua,
        Language::Other,
    ];

    /// Returns the name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Python => "python",
            Self::Java => "java",
            Self::JavaScript => "javascript",
            Self::Php => "php",
            Self::Ruby => "ruby",
            Self::Perl => "perl",
            Self::Lua => "lua",
            Self::Other => "other",
        }
    }

    /// Returns whether a runtime manages the frames of the language, so that they are not
    /// functions of a file of machine code.
    pub fn is_managed(self) -> bool {
        !matches!(self, Self::Native | Self::Kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (place, kind) in FrameKind::ALL.iter().enumerate() {
            assert_eq!(FrameKind::from_number(*kind as u32), *kind);
            assert!(FrameKind::ALL[..place].iter().all(|it| (*it as u8) < *kind as u8));
            assert!(FrameKind::ALL[..place].iter().all(|it| it.name() != kind.name()));
            assert!(
                kind.name().starts_with(kind.language().name()) || *kind == FrameKind::Interpreter
            );
        }
        assert_eq!(FrameKind::default(), FrameKind::Native);
        assert_eq!(FrameKind::from_number(100), FrameKind::Other);
        assert_eq!(FrameKind::from_number(u32::MAX), FrameKind::Other);
    }
}
