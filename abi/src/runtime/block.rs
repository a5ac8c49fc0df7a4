//! The block in the tables segment that describes a runtime of the target.
//!
//! # Safety
//! A block and the layouts in it consist of integers without padding, so any bytes are valid.

use super::java::JavaLayout;
use super::python::PythonLayout;
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

/// What a handler must know about a runtime. The first word is the kind of the layout that follows.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeBlock {
    kind: u64,
    layout: [u64; BLOCK_WORDS - 1],
}

const PYTHON_WORDS: usize = size_of::<PythonLayout>() / 8;
const V8_WORDS: usize = size_of::<V8Layout>() / 8;
const JAVA_WORDS: usize = size_of::<JavaLayout>() / 8;
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<RuntimeBlock>() == BLOCK_BYTES);
    assert!(size_of::<PythonLayout>() == PYTHON_WORDS * 8 && align_of::<PythonLayout>() == 8);
    assert!(PYTHON_WORDS < BLOCK_WORDS);
    assert!(size_of::<V8Layout>() == V8_WORDS * 8 && align_of::<V8Layout>() <= 8);
    assert!(V8_WORDS < BLOCK_WORDS);
    assert!(size_of::<JavaLayout>() == JAVA_WORDS * 8 && align_of::<JavaLayout>() == 8);
    assert!(JAVA_WORDS < BLOCK_WORDS);
};

impl RuntimeBlock {
    /// The block of a runtime that the process has unloaded.
    pub const UNLOADED: Self = Self { kind: 0, layout: [0; BLOCK_WORDS - 1] };

    /// Creates the block of a Python interpreter.
    pub fn of_python(layout: &PythonLayout) -> Self {
        let start = core::ptr::from_ref(layout).cast::<[u64; PYTHON_WORDS]>();
        // SAFETY: both types have the same size and alignment (asserted above), and the layout
        // consists of integers without padding.
        let words = unsafe { &*start };
        let mut block = Self { kind: PYTHON, layout: [0; BLOCK_WORDS - 1] };
        if let Some(head) = block.layout.first_chunk_mut() {
            *head = *words;
        }
        block
    }

    /// Returns the layout of a Python interpreter, if this is its block.
    pub fn python(&self) -> Option<&PythonLayout> {
        let words = self.layout.first_chunk::<PYTHON_WORDS>().filter(|_| self.kind == PYTHON)?;
        // SAFETY: the words have the size and alignment of the layout (asserted above). It consists
        // of integers, so any bytes are valid.
        Some(unsafe { &*core::ptr::from_ref(words).cast::<PythonLayout>() })
    }

    /// Creates the block of V8.
    pub fn of_v8(layout: &V8Layout) -> Self {
        let mut block = Self { kind: V8, layout: [0; BLOCK_WORDS - 1] };
        if let Some(head) = block.layout.first_chunk_mut::<V8_WORDS>() {
            let start = core::ptr::from_mut(head).cast::<V8Layout>();
            // SAFETY: the words have the size of the layout and at least its alignment (asserted
            // above), and only this function knows them.
            unsafe { *start = *layout };
        }
        block
    }

    /// Returns the layout of V8, if this is its block.
    pub fn v8(&self) -> Option<&V8Layout> {
        let words = self.layout.first_chunk::<V8_WORDS>().filter(|_| self.kind == V8)?;
        // SAFETY: the words have the size of the layout and at least its alignment (asserted
        // above). It consists of integers, so any bytes are valid.
        Some(unsafe { &*core::ptr::from_ref(words).cast::<V8Layout>() })
    }

    /// Creates the block of a Java machine.
    pub fn of_java(layout: &JavaLayout) -> Self {
        let start = core::ptr::from_ref(layout).cast::<[u64; JAVA_WORDS]>();
        // SAFETY: both types have the same size and alignment (asserted above), and the layout
        // consists of integers without padding.
        let words = unsafe { &*start };
        let mut block = Self { kind: JAVA, layout: [0; BLOCK_WORDS - 1] };
        if let Some(head) = block.layout.first_chunk_mut() {
            *head = *words;
        }
        block
    }

    /// Returns the layout of a Java machine, if this is its block.
    pub fn java(&self) -> Option<&JavaLayout> {
        let words = self.layout.first_chunk::<JAVA_WORDS>().filter(|_| self.kind == JAVA)?;
        // SAFETY: the words have the size and alignment of the layout (asserted above). It consists
        // of integers, so any bytes are valid.
        Some(unsafe { &*core::ptr::from_ref(words).cast::<JavaLayout>() })
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
