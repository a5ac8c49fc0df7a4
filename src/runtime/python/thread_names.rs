//! The names that a program gives its threads: those of the module `threading`.
//!
//! The module has a dictionary of the objects of live threads, by the threads' thread pointers. An
//! object has the thread's name, and the kernel's id of the thread.
//!
//! # Invariants
//! - A name is returned only if its object says that it is of that thread: an object of a thread
//!   that has exited may still be in the dictionary, and another thread may have taken its thread
//!   pointer.
//! - The object, its attributes and the name are read twice, and must be the same.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::HashSet;
use std::mem;

use traceprof_abi::context::possible_tids;

use super::objects::{Entry, ObjectReader, PythonObjects};
use super::offsets::ThreadOffsets;
use crate::runtime::WantedNames;
use crate::runtime::memory::TargetMemory;

const INTERPRETERS_MAX: usize = 64;
/// Maximum number of threads of an interpreter whose objects are looked at.
const THREADS_MAX: usize = 1 << 14;
/// Maximum number of reads for one call. A thread takes about twenty.
const READS_MAX: u32 = 1 << 17;
/// Maximum number of keys that are looked at for one.
const KEYS_MAX: usize = 8192;

/// The names by which attributes and modules are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyName {
    Threading,
    Active,
    Name,
    NativeId,
}

impl KeyName {
    fn text(self) -> &'static str {
        match self {
            Self::Threading => "threading",
            Self::Active => "_active",
            Self::Name => "_name",
            Self::NativeId => "_native_id",
        }
    }
}

/// Where the threads of a process's interpreters are.
#[derive(Debug, Clone, Copy)]
pub(in crate::runtime) struct ThreadDirectory {
    pub(super) offsets: ThreadOffsets,
    /// The address of the runtime's state.
    pub(super) runtime: u64,
    pub(super) objects: PythonObjects,
}

/// Reads the names of threads, and remembers where keys were found.
#[derive(Debug, Default)]
pub(in crate::runtime) struct ThreadNameKeys {
    /// The address at which each key was last found.
    keys: [u64; 4],
}

impl ThreadNameKeys {
    /// Returns the names of wanted threads, each with the thread's id.
    pub(in crate::runtime) fn read(
        &mut self,
        directory: &ThreadDirectory,
        memory: &dyn TargetMemory,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)> {
        let ThreadDirectory { offsets, runtime, objects } = directory;
        let reader = ObjectReader { objects, memory, reads_left: &Cell::new(READS_MAX) };
        let mut found = Vec::new();
        let mut interpreter = reader.word(*runtime, offsets.interpreters).unwrap_or(0);
        for _ in 0..INTERPRETERS_MAX {
            if interpreter == 0 {
                break;
            }
            found.extend(self.of_interpreter((reader, offsets.modules), interpreter, wanted));
            interpreter = reader.word(interpreter, offsets.interpreter_next).unwrap_or(0);
        }
        found
    }

    /// Returns the names of threads that an interpreter knows.
    fn of_interpreter(
        &mut self,
        (reader, modules): (ObjectReader<'_>, u64),
        interpreter: u64,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)> {
        let Some(active) = self.active(reader, (interpreter, modules)) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in active.iter().take(THREADS_MAX) {
            let tids = possible_tids(entry.hash, |avma| reader.word(avma, 0));
            let mut tids = tids.filter(|tid| *tid != 0);
            if let Some(tid) = tids.find(|tid| wanted.tids.contains(tid))
                && let Some(name) = self.name(reader, entry.value, (tid, wanted.first))
            {
                found.push((entry, tid, name));
            }
        }
        // An object that is no longer there may have been another one meanwhile.
        let after = match found.is_empty() {
            false => self.active(reader, (interpreter, modules)).unwrap_or_default(),
            true => Vec::new(),
        };
        let after: HashSet<(u64, u64)> = after.iter().map(|it| (it.hash, it.value)).collect();
        let is_same = |entry: &Entry| after.contains(&(entry.hash, entry.value));
        found.retain(|(entry, ..)| is_same(entry));
        found.into_iter().map(|(_, tid, name)| (tid, name)).collect()
    }

    /// Returns the entries of the threads that an interpreter knows. `modules` is the offset of its
    /// dictionary of modules.
    fn active(
        &mut self,
        reader: ObjectReader<'_>,
        (interpreter, modules): (u64, u64),
    ) -> Option<Vec<Entry>> {
        let modules = reader.word(interpreter, modules).filter(|_| modules != 0)?;
        let threading = self.find(reader, &reader.entries(modules)?, KeyName::Threading)?;
        let active = self.find(reader, &reader.module_entries(threading)?, KeyName::Active)?;
        reader.entries(active)
    }

    /// Returns the name of a thread from its object.
    fn name(
        &mut self,
        reader: ObjectReader<'_>,
        object: u64,
        (tid, first): (u32, u32),
    ) -> Option<String> {
        let mut attributes = || {
            let attributes = reader.attributes(object)?;
            let id = self.find(reader, &attributes, KeyName::NativeId)?;
            Some((id, self.find(reader, &attributes, KeyName::Name)?))
        };
        let (id, named) = attributes()?;
        // After a fork, the object of the only thread may have the id of the thread that forked.
        if reader.number(id) != Some(tid) && tid != first {
            return None;
        }
        let name = reader.text(named).filter(|name| !name.is_empty())?;
        (attributes()? == (id, named)).then_some(name)
    }

    /// Returns the value of a key.
    fn find(&mut self, reader: ObjectReader<'_>, entries: &[Entry], key: KeyName) -> Option<u64> {
        let is_it = |entry: &&Entry| reader.text(entry.key).is_some_and(|it| it == key.text());
        let known = &mut self.keys[key as usize];
        let last = mem::take(known);
        let again = entries.iter().find(|entry| entry.key == last).filter(is_it);
        let found = again.or_else(|| entries.iter().take(KEYS_MAX).find(is_it))?;
        *known = found.key;
        Some(found.value)
    }
}
