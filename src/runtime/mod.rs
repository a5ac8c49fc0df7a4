//! Language runtimes in a live process: where their frames are, and the names of their functions.
//!
//! A handler stores the managed frames of a thread as identities: addresses of code objects,
//! positions in them, and cookies ([`traceprof_abi::runtime`]). This module makes the block with
//! which it does so, and later reads the names.
//!
//! 1. [`RuntimeExports::of`] reads what a file says about a runtime, once for each file.
//! 2. [`RuntimeExports::locate`] finds the runtime in a process that has loaded the file, and
//!    returns its [`Runtime`] with the block for the handlers.
//! 3. [`Runtime::functions`] reads the functions of frames, soon after their capture: code objects
//!    do not live forever. A [`Function`] needs no read of the target afterwards.
//! 4. [`NamesThreads::thread_names`] reads the names that the program has given its threads,
//!    or that say what a thread of the runtime is for.
//!
//! # Invariants
//! - All that is read from the target may be anything. Lengths are bounded, and no read, loop or
//!   allocation depends on a number that was not checked.
//! - A name that may be that of another function is not returned: [`Gone`] says why.
//! - A version or build whose structures are not known for certain is refused by name.
//!
//! # Does not
//! - stop, change or call anything in the target;
//! - capture frames, or align them with native frames.

mod carriers;
mod decode;
mod foreign_frames;
mod function;
#[cfg(any(test, fuzzing))]
pub mod fuzz_entry;
mod interpreter_file;
pub mod java;
mod loops;
mod lua;
mod memory;
pub mod node;
mod outside;
mod pages;
mod perl;
mod php;
pub mod pthreads;
mod python;
mod ruby;
mod task;
#[cfg(test)]
mod tests;
mod thread_names;
pub mod v8;
mod witness;

use std::fmt;
use std::ops::Range;

use object::elf::EM_X86_64;
use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::php::{PhpLayout, REGISTERS_IN_LOOP};
use traceprof_abi::runtime::python::{ABSENT, PythonLayout};

use crate::elf::Elf;
pub use function::{Function, Gone};
use interpreter_file::InterpreterFile;
use lua::{LuaExports, LuaReader};
pub use memory::{TargetMemory, TargetWords};
pub use outside::{ManagedInputs, ManagedReader, ManagedStack, ManagedThread};
use perl::{PerlExports, PerlReader};
use php::{PhpExports, PhpReader};
use python::{CodeReader, PythonExports, ThreadDirectory, ThreadNameKeys};
use ruby::{RubyExports, RubyReader};
pub use task::{TaskKind, TaskName, running_task, task_name};
pub use thread_names::{NamesThreads, ThreadNameMemo, WantedNames};
pub use witness::{Witness, which_hold};

/// The language of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagedLanguage {
    /// Python.
    Python,
    /// Java.
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
}

impl ManagedLanguage {
    /// All languages, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Python, Self::Java, Self::JavaScript, Self::Php, Self::Ruby, Self::Perl, Self::Lua];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Java => "Java",
            Self::JavaScript => "JavaScript",
            Self::Php => "PHP",
            Self::Ruby => "Ruby",
            Self::Perl => "Perl",
            Self::Lua => "Lua",
        }
    }

    /// Returns whether the kernel's samples have the frames: what tells their functions is on the
    /// native stack.
    pub fn is_in_kernel_samples(self) -> bool {
        self == Self::Java
    }

    /// Returns the name of the lock that a thread must hold to run functions, if there is one.
    pub fn lock_name(self) -> Option<&'static str> {
        (self == Self::Python).then_some("the GIL")
    }
}

/// The reason why a runtime's frames are not read, for the user: it names the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    text: String,
    /// Whether the runtime may only not have described itself completely yet.
    pub may_be_starting: bool,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Unsupported {}

/// What the file of a module says about the runtime in it.
#[derive(Debug, Clone)]
pub struct RuntimeExports(Exports);

/// What the file of an interpreter says about it.
#[derive(Debug, Clone)]
enum Exports {
    Python(PythonExports),
    Php(PhpExports),
    Ruby(RubyExports),
    Perl(PerlExports),
    Lua(LuaExports),
}

impl RuntimeExports {
    /// Reads a file. `None` if it has no runtime that keeps its frames in memory of its own.
    pub fn of(bytes: &[u8], path: &str) -> Option<Self> {
        let elf = &Elf::parse(bytes).ok().filter(|elf| elf.machine() == EM_X86_64.0)?;
        let python = PythonExports::of(elf, path).map(Exports::Python);
        let php = || PhpExports::of(elf, path).map(Exports::Php);
        let ruby = || RubyExports::of(elf, path).map(Exports::Ruby);
        let perl = || PerlExports::of(elf, path).map(Exports::Perl);
        let lua = || LuaExports::of(elf, path).map(Exports::Lua);
        python.or_else(php).or_else(ruby).or_else(perl).or_else(lua).map(Self)
    }

    /// Returns whether the runtime's version is one whose structures are known.
    pub fn is_supported(&self) -> bool {
        match &self.0 {
            Exports::Python(python) => python.is_supported(),
            Exports::Php(php) => php.is_supported(),
            Exports::Ruby(ruby) => ruby.is_supported(),
            Exports::Perl(perl) => perl.is_supported(),
            Exports::Lua(lua) => lua.is_supported(),
        }
    }

    /// Returns the start of the loop that interprets code, if the address (SVMA) is in it.
    pub fn loop_start(&self, svma: u64) -> Option<u64> {
        let loops = self.file().loops();
        let is_in_loop = loops.iter().any(|it| it.contains(&svma));
        loops.first().filter(|_| is_in_loop).map(|it| it.start)
    }

    /// Returns the loop that interprets code (SVMAs), if the runtime may compile functions to code
    /// that shares the loop's frame.
    pub fn shared_loop(&self) -> Option<Range<u64>> {
        match &self.0 {
            Exports::Php(php) => php.shared_loop(),
            _ => None,
        }
    }

    /// Returns the language of the runtime.
    pub fn language(&self) -> ManagedLanguage {
        self.file().language()
    }

    /// Returns whether a function of this file only carries managed frames: it has this name, or
    /// none.
    pub fn is_carrier(&self, function: Option<&str>) -> bool {
        self.file().is_carrier(function)
    }

    fn file(&self) -> &InterpreterFile {
        match &self.0 {
            Exports::Python(python) => &python.file,
            Exports::Php(php) => &php.file,
            Exports::Ruby(ruby) => &ruby.file,
            Exports::Perl(perl) => &perl.file,
            Exports::Lua(lua) => &lua.file,
        }
    }

    /// Finds the runtime in a process that has loaded the file.
    ///
    /// `bias` is the load bias of the module. `vector` is the layout of the dynamic thread vector,
    /// which tells the C library ([`RecordKind::Glibc`] or [`RecordKind::Musl`]). The result is
    /// `None` if the runtime is not initialised yet, has ended, or stands still while it changes
    /// its frames: a later call may find it.
    ///
    /// # Errors
    /// [`Unsupported`] if the version or build of the runtime is not known.
    pub fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
        vector: RecordKind,
    ) -> Result<Option<Runtime>, Unsupported> {
        match &self.0 {
            Exports::Python(python) => python.locate(bias, memory, vector),
            Exports::Php(php) => php.locate(bias, memory).map(Some),
            Exports::Ruby(ruby) => ruby.locate(bias, memory, vector),
            Exports::Perl(perl) => perl.locate(bias, memory, vector),
            Exports::Lua(lua) => lua.locate(bias).map(Some),
        }
    }
}

/// A runtime of a live process.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The block for the handlers.
    pub block: RuntimeBlock,
    /// The runtime with its version, such as `Python 3.11.2`.
    pub label: String,
    /// The language of its functions.
    pub language: ManagedLanguage,
    /// The code that interprets functions (AVMAs): one range for each contiguous part, that in
    /// which it starts first. Each run of frames that ends with an entry has one native frame in
    /// it. Empty if it was not found.
    pub loops: Vec<Range<u64>>,
    /// The addresses (AVMAs) of the code of the runtime's module.
    pub code: Range<u64>,
    /// The locks (AVMAs) that a thread must hold to run functions, each with its condition
    /// variables.
    pub(crate) locks: Vec<Range<u64>>,
    names: Names,
}

/// What reads the names of functions and threads.
#[derive(Debug, Clone)]
enum Names {
    Python(Box<(CodeReader, ThreadDirectory)>),
    Php(PhpReader),
    Ruby(RubyReader),
    Perl(PerlReader),
    Lua(LuaReader),
}

impl Runtime {
    /// Returns the block for the handlers of a process whose runtime has compiled functions to code
    /// that shares the frame of its loop.
    pub fn block_with_compiled(&self) -> RuntimeBlock {
        let php = self.block.php().filter(|layout| layout.has_registers != 0);
        php.map_or(self.block, |layout| {
            RuntimeBlock::of_php(&PhpLayout { has_registers: REGISTERS_IN_LOOP, ..*layout })
        })
    }

    /// Returns the name of the lock that contains this address.
    pub fn lock_at(&self, avma: u64) -> Option<&'static str> {
        self.language.lock_name().filter(|_| self.locks.iter().any(|lock| lock.contains(&avma)))
    }

    /// Returns whether the handlers can tell which thread holds the lock that it needs to run
    /// functions.
    pub fn tells_lock(&self) -> bool {
        self.block.python().is_some_and(PythonLayout::tells_lock)
    }

    /// Returns whether programs give their threads names in it.
    pub fn names_threads(&self) -> bool {
        matches!(self.names, Names::Python(..))
    }

    /// Returns whether the tasks that its threads run have names that can be read.
    pub fn has_tasks(&self) -> bool {
        self.block.python().is_some_and(|layout| layout.task.state_task != ABSENT)
    }

    /// Reads the functions of frames, each given by the address of its code object and the cookie
    /// at the capture.
    pub fn functions(
        &self,
        memory: &dyn TargetMemory,
        frames: &[(u64, u32)],
    ) -> Vec<Result<Function, Gone>> {
        let one_by_one = |function: &dyn Fn(u64, u32) -> Result<Function, Gone>| {
            frames.iter().map(|(object, cookie)| function(*object, *cookie)).collect()
        };
        match &self.names {
            Names::Python(names) => one_by_one(&|it, cookie| names.0.function(memory, it, cookie)),
            Names::Php(names) => names.functions(memory, frames),
            Names::Ruby(names) => one_by_one(&|it, cookie| names.function(memory, it, cookie)),
            Names::Perl(names) => one_by_one(&|it, cookie| names.function(memory, it, cookie)),
            Names::Lua(names) => one_by_one(&|it, cookie| names.function(memory, it, cookie)),
        }
    }
}

impl NamesThreads for Runtime {
    fn thread_names(
        &self,
        memo: &mut ThreadNameMemo,
        memory: &dyn TargetMemory,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)> {
        let Names::Python(names) = &self.names else { return Vec::new() };
        let mut keys: Box<ThreadNameKeys> = memo.take();
        let found = keys.read(&names.1, memory, wanted);
        memo.keep(keys);
        found
    }
}
