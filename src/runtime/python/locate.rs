//! Finds the interpreter in a live process.

use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::python::{PythonLayout, TaskLayout};

use super::code::CodeReader;
use super::exports::PythonExports;
use super::objects::PythonObjects;
use super::offsets::{Structures, structures};
use super::published::{NotPublished, published};
use super::text::Texts;
use super::thread_names::ThreadDirectory;
use super::threads::{NotFound, PythonThreads};
use crate::runtime::interpreter_file::biased;
use crate::runtime::memory::{self, TargetMemory};
use crate::runtime::{Names, Runtime, Unsupported};

/// Offsets in a type: of the pointer to its name, and of the size of its objects.
const TYPE_NAME: u64 = 24;
const TYPE_SIZE: u64 = 32;

impl PythonExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
        vector: RecordKind,
    ) -> Result<Option<Runtime>, Unsupported> {
        let known = structures(self.version.minor).filter(|_| self.version.is_supported());
        let Some(known) = known else {
            return Err(self.file.refused("is not supported (releases of 3.8 to 3.14 are)"));
        };
        let here = |svma: u64| svma.wrapping_add(bias);
        let runtime = here(self.runtime);
        let version = (self.version.minor, self.number);
        let found = match published(known, version, runtime, memory) {
            Ok(found) => found,
            Err(NotPublished::Unreadable) => return Ok(None),
            Err(NotPublished::FreeThreaded) => {
                return Err(self
                    .file
                    .refused("without a global lock (free-threaded) is not supported"));
            }
            Err(NotPublished::OtherVersion) => {
                return Err(self
                    .file
                    .refused("publishes no structures, or those of another version"));
            }
            Err(NotPublished::OtherStructures) => {
                return Err(self.file.refused("publishes other structures than its release has"));
            }
        };
        let threads = match PythonThreads::read(&found.threads, runtime, memory) {
            Ok(threads) => threads,
            Err(NotFound::NotYet) => return Ok(None),
            Err(NotFound::Other) => {
                return Err(self.file.refused("has other states of threads than its release"));
            }
        };
        if !is_code_type(here(self.code_type), found.code.len, memory) {
            return Err(self.file.refused("has other objects than its release"));
        }
        let layout = PythonLayout {
            code_type: here(self.code_type),
            current_state: found.current_state.map_or(0, |at| runtime.wrapping_add(at)),
            // Within the structure, whose size was checked.
            state_pointer: found.threads.state_pointer as u16,
            ..found.layout
        };
        // Without the offsets, only one list of a thread's frames is found.
        let mut layout = found.threads.in_layout(runtime, layout).unwrap_or(layout);
        layout.task = self.task_layout(bias, layout.task);
        let keys = [found.key].into_iter().chain(self.keys.iter().copied());
        let is_there = threads.find_key((runtime, keys), vector, memory, &mut layout);
        threads.find_variable((&self.state, bias), vector, memory, &mut layout);
        match (layout.key, layout.state_kind) {
            // The interpreter creates the key and stores the first state before it runs code.
            (0, 0) if !is_there || !threads.has_frames(&layout, memory) => return Ok(None),
            (0, 0) => {
                return Err(self
                    .file
                    .refused("keeps the states of its threads at an unknown place"));
            }
            _ => {}
        }
        let locks = found.threads.lock.locks(runtime, &threads.interpreters, memory);
        match threads.has_foreign_frames(&layout, memory) {
            Some(false) => Ok(Some(Runtime { locks, ..self.runtime(bias, layout, &found) })),
            Some(true) => Err(self.file.refused("has other frames than its release")),
            None => Ok(None),
        }
    }

    /// Returns where tasks are in a process, with the types of their names.
    fn task_layout(&self, bias: u64, known: TaskLayout) -> TaskLayout {
        let types = self.number_type.zip(self.text_type);
        types.map_or(TaskLayout::NONE, |(number, text)| TaskLayout {
            number_type: number.wrapping_add(bias),
            text_type: text.wrapping_add(bias),
            ..known
        })
    }

    /// Makes the interpreter without looking at a process.
    #[cfg(any(test, fuzzing))]
    pub(in crate::runtime) fn without_process(&self, bias: u64) -> Option<Runtime> {
        let known = structures(self.version.minor)?;
        let code_type = self.code_type.wrapping_add(bias);
        Some(self.runtime(bias, PythonLayout { code_type, ..known.layout }, &known))
    }

    fn runtime(&self, bias: u64, layout: PythonLayout, found: &Structures) -> Runtime {
        let here = |svma: Option<u64>| svma.map_or(0, |svma| svma.wrapping_add(bias));
        let Structures { code, text, references, lines, .. } = *found;
        let texts = Texts { offsets: text, references, kind: here(self.text_type) };
        let objects = PythonObjects {
            offsets: found.objects,
            texts,
            dict_type: here(self.dict_type),
            number_type: here(self.number_type),
        };
        let runtime = self.runtime.wrapping_add(bias);
        let threads = ThreadDirectory { offsets: found.threads, runtime, objects };
        let names = CodeReader {
            layout,
            offsets: code,
            texts,
            references,
            format: lines,
            bytes_type: here(self.bytes_type),
            own_data: biased(&self.data, bias),
        };
        let block = RuntimeBlock::of_python(&layout);
        self.file.runtime(bias, block, Names::Python(Box::new((names, threads))))
    }
}

/// Whether the type of code objects is as in the known build: objects of this length.
fn is_code_type(avma: u64, len: usize, memory: &dyn TargetMemory) -> bool {
    let field = |at: u64| memory::word(memory, avma.wrapping_add(at));
    let name = field(TYPE_NAME).and_then(|name| memory::array(memory, name));
    name == Some(*b"code\0") && field(TYPE_SIZE) == Some(len as u64)
}
