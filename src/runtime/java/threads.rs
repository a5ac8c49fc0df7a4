//! The threads of a machine.

use super::layout::JavaThreadList;
use super::objects::JavaObjectReader;
use super::thread_fields::{KnownThreadFields, ThreadFields};
use super::waits::JavaActivity;

/// Maximum number of threads.
pub(super) const THREADS_MAX: u64 = 1 << 16;

/// A thread of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaThread {
    /// The kernel's id of it, in the process's own namespace.
    pub inner_tid: u32,
    /// The name. `None` for a thread that is not set up yet, or whose name could not be read.
    pub name: Option<String>,
    /// The name of the virtual thread that it runs; empty for one without a name.
    pub virtual_thread: Option<String>,
    /// What it does.
    pub activity: JavaActivity,
    /// The method that it compiles.
    pub compiles: Option<String>,
}

/// Reads the threads of one machine.
#[derive(Clone, Copy)]
pub(super) struct ThreadReader<'a> {
    pub(super) objects: JavaObjectReader<'a>,
    pub(super) known_fields: &'a KnownThreadFields,
}

impl ThreadReader<'_> {
    /// Returns the addresses of the machine's structures for its threads.
    pub(super) fn thread_structures(&self) -> Option<Vec<u64>> {
        let pages = self.objects.pages;
        match self.objects.layout.thread.list {
            JavaThreadList::Array { list, len, threads } => {
                let list = pages.pointer(list)?;
                let len = len.count(pages, list).filter(|len| *len <= THREADS_MAX)?;
                let threads = threads.pointer(pages, list)?;
                Some(
                    (0..len).filter_map(|at| pages.pointer(threads.checked_add(at * 8)?)).collect(),
                )
            }
            JavaThreadList::Linked { first, next } => {
                let mut found = Vec::new();
                let mut thread = Some(pages.word(first)?).filter(|it| *it != 0);
                while let Some(at) = thread.filter(|_| (found.len() as u64) < THREADS_MAX) {
                    found.push(at);
                    thread = next.pointer(pages, at);
                }
                Some(found)
            }
        }
    }

    /// Returns the kernel's id of a thread, given by the address of its structure.
    pub(super) fn tid(&self, thread: u64) -> Option<u32> {
        let (layout, pages) = (&self.objects.layout.thread, self.objects.pages);
        Some(layout.tid.read(pages, layout.os_thread.pointer(pages, thread)?)? as u32)
    }

    /// Returns the thread pointer of a thread, given by the address of its structure: its id in the
    /// C library, which is that in all of them.
    pub(super) fn pointer(&self, thread: u64) -> Option<u64> {
        let (layout, pages) = (&self.objects.layout.thread, self.objects.pages);
        layout.pointer?.pointer(pages, layout.os_thread.pointer(pages, thread)?)
    }

    /// Reads a thread, given by the address of its structure.
    pub(super) fn thread(&self, thread: u64) -> Option<JavaThread> {
        let (layout, pages) = (&self.objects.layout.thread, self.objects.pages);
        let inner_tid = self.tid(thread)?;
        let object = self.object_of(thread);
        let mounted = layout.virtual_thread.and_then(|field| {
            self.objects.referred(field.read(pages, thread)?).filter(|it| Some(*it) != object)
        });
        Some(JavaThread {
            inner_tid,
            name: object.and_then(|it| self.object_name(it)),
            virtual_thread: mounted.and_then(|it| self.object_name(it)),
            activity: self.activity(thread).unwrap_or_default(),
            compiles: None,
        })
    }

    /// Returns the name of a thread, given by the address of its structure.
    pub(super) fn name(&self, thread: u64) -> Option<String> {
        self.object_name(self.object_of(thread)?)
    }

    /// Returns what a thread does, given by the address of its structure.
    pub(super) fn activity(&self, thread: u64) -> Option<JavaActivity> {
        let object = self.object_of(thread)?;
        let fields = ThreadFields::of(&self.objects, self.known_fields, object)?;
        Some(JavaActivity::read(&self.objects, (thread, object), fields))
    }

    fn object_name(&self, object: u64) -> Option<String> {
        let fields = ThreadFields::of(&self.objects, self.known_fields, object)?;
        fields.name_of(&self.objects, object)
    }

    /// Returns the object of a thread. A virtual thread that it runs has another one.
    pub(super) fn object_of(&self, thread: u64) -> Option<u64> {
        let objects = &self.objects;
        objects.referred(objects.layout.thread.object.read(objects.pages, thread)?)
    }
}
