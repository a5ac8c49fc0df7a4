//! The block in the tables segment that describes a runtime of the target.
//!
//! # Safety
//! A block and the layouts in it consist of integers without padding, so any bytes are valid.

use super::java::JavaLayout;
use super::lua::LuaLayout;
use super::perl::PerlLayout;
use super::php::PhpLayout;
use super::python::PythonLayout;
use super::ruby::RubyLayout;
use super::v8::V8Layout;

/// Maximum number of runtimes in one process.
pub const RUNTIMES_MAX: usize = 4;
/// Size of a block in words.
pub const BLOCK_WORDS: usize = 32;
/// Size of a block in bytes.
pub const BLOCK_BYTES: usize = BLOCK_WORDS * 8;

/// The kind of a block that holds a [`PythonLayout`].
const PYTHON: u64 = 1;
/// The kind of a block that holds a [`V8Layout`].
const V8: u64 = 2;
/// The kind of a block that holds a [`JavaLayout`].
const JAVA: u64 = 3;
/// The kind of a block that holds a [`PhpLayout`].
const PHP: u64 = 4;
/// The kind of a block that holds a [`RubyLayout`].
const RUBY: u64 = 5;
/// The kind of a block that holds a [`PerlLayout`].
const PERL: u64 = 6;
/// The kind of a block that holds a [`LuaLayout`].
const LUA: u64 = 7;

/// What a handler must know about a runtime. The first word is the kind of the layout that follows.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeBlock {
    kind: u64,
    layout: [u64; BLOCK_WORDS - 1],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RuntimeBlock>() == BLOCK_BYTES);

/// A layout that a block can hold.
///
/// # Safety
/// It consists of integers without padding, so any bytes are valid.
unsafe trait Layout: Copy {
    /// The kind of a block that holds it.
    const KIND: u64;
    /// Holds if there is room for it in a block, and the block's words are aligned for it.
    const FITS: () = {
        assert!(size_of::<Self>() <= size_of::<[u64; BLOCK_WORDS - 1]>());
        assert!(size_of::<Self>().is_multiple_of(8) && align_of::<Self>() <= 8);
    };
}

// SAFETY: the sizes of its fields, which are integers, add up to its own.
unsafe impl Layout for PythonLayout {
    const KIND: u64 = PYTHON;
}
// SAFETY: as above.
unsafe impl Layout for V8Layout {
    const KIND: u64 = V8;
}
// SAFETY: as above.
unsafe impl Layout for JavaLayout {
    const KIND: u64 = JAVA;
}
// SAFETY: as above.
unsafe impl Layout for PhpLayout {
    const KIND: u64 = PHP;
}
// SAFETY: as above.
unsafe impl Layout for RubyLayout {
    const KIND: u64 = RUBY;
}
// SAFETY: as above.
unsafe impl Layout for PerlLayout {
    const KIND: u64 = PERL;
}
// SAFETY: as above.
unsafe impl Layout for LuaLayout {
    const KIND: u64 = LUA;
}

impl RuntimeBlock {
    /// The block of a runtime that the process has unloaded.
    pub const UNLOADED: Self = Self { kind: 0, layout: [0; BLOCK_WORDS - 1] };

    fn of<L: Layout>(layout: &L) -> Self {
        const { L::FITS };
        let mut block = Self { kind: L::KIND, ..Self::UNLOADED };
        // SAFETY: the words have room for the layout and at least its alignment (asserted above),
        // and only this function knows them.
        unsafe { *block.layout.as_mut_ptr().cast::<L>() = *layout };
        block
    }

    fn layout<L: Layout>(&self) -> Option<&L> {
        const { L::FITS };
        // SAFETY: the words have the size of the layout and at least its alignment (asserted
        // above). It consists of integers, so any bytes are valid.
        (self.kind == L::KIND).then(|| unsafe { &*self.layout.as_ptr().cast::<L>() })
    }

    /// Creates the block of a Python interpreter.
    pub fn of_python(layout: &PythonLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of a Python interpreter, if this is its block.
    pub fn python(&self) -> Option<&PythonLayout> {
        self.layout()
    }

    /// Creates the block of V8.
    pub fn of_v8(layout: &V8Layout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of V8, if this is its block.
    pub fn v8(&self) -> Option<&V8Layout> {
        self.layout()
    }

    /// Creates the block of a Java machine.
    pub fn of_java(layout: &JavaLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of a Java machine, if this is its block.
    pub fn java(&self) -> Option<&JavaLayout> {
        self.layout()
    }

    /// Creates the block of an interpreter of PHP.
    pub fn of_php(layout: &PhpLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of an interpreter of PHP, if this is its block.
    pub fn php(&self) -> Option<&PhpLayout> {
        self.layout()
    }

    /// Creates the block of an interpreter of Ruby.
    pub fn of_ruby(layout: &RubyLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of an interpreter of Ruby, if this is its block.
    pub fn ruby(&self) -> Option<&RubyLayout> {
        self.layout()
    }

    /// Creates the block of an interpreter of Perl.
    pub fn of_perl(layout: &PerlLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of an interpreter of Perl, if this is its block.
    pub fn perl(&self) -> Option<&PerlLayout> {
        self.layout()
    }

    /// Creates the block of an interpreter of Lua.
    pub fn of_lua(layout: &LuaLayout) -> Self {
        Self::of(layout)
    }

    /// Returns the layout of an interpreter of Lua, if this is its block.
    pub fn lua(&self) -> Option<&LuaLayout> {
        self.layout()
    }

    /// Returns the words of the block.
    pub fn words(&self) -> [u64; BLOCK_WORDS] {
        let mut words = [0; BLOCK_WORDS];
        words[0] = self.kind;
        if let Some((_, rest)) = words.split_first_mut() {
            rest.copy_from_slice(&self.layout);
        }
        words
    }
}
