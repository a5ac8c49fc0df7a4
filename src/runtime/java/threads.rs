//! The threads of a machine: their names, and what they do as the machine knows it.

use super::class_name::class_name;
use super::layout::JavaThreadList;
use super::objects::JavaObjectReader;

/// Maximum number of threads.
const THREADS_MAX: u64 = 1 << 16;

/// A thread of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaThread {
    /// The kernel's id of it, in the process's own namespace.
    pub inner_tid: u32,
    /// The name. `None` for a thread that is not set up yet, or whose name could not be read.
    pub name: Option<String>,
    /// The name of the virtual thread that it runs; empty for one without a name.
    pub virtual_thread: Option<String>,
    /// What it waits for.
    pub state: Option<JavaState>,
    /// The class of the object whose monitor it waits to enter, or in which it waits to be
    /// notified.
    pub monitor: Option<String>,
}

/// What a thread waits for, in the terms of Java.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JavaState {
    /// It has not been started.
    New,
    /// It does not wait.
    Runnable,
    /// It waits to enter a monitor.
    Blocked,
    /// It waits in `Object.wait`.
    InObjectWait,
    /// It waits in `LockSupport.park`.
    Parked,
    /// It sleeps in `Thread.sleep`.
    Sleeping,
    /// It has ended.
    Terminated,
}

impl JavaState {
    /// Decodes the state in a thread's object: the bits of JVMTI.
    fn of(status: u32) -> Option<Self> {
        const ALIVE: u32 = 1;
        const TERMINATED: u32 = 2;
        const SLEEPING: u32 = 0x40;
        const IN_OBJECT_WAIT: u32 = 0x100;
        const PARKED: u32 = 0x200;
        const BLOCKED: u32 = 0x400;
        Some(match status {
            0 => Self::New,
            it if it & TERMINATED != 0 => Self::Terminated,
            it if it & ALIVE == 0 => return None,
            it if it & BLOCKED != 0 => Self::Blocked,
            it if it & IN_OBJECT_WAIT != 0 => Self::InObjectWait,
            it if it & PARKED != 0 => Self::Parked,
            it if it & SLEEPING != 0 => Self::Sleeping,
            _ => Self::Runnable,
        })
    }
}

const THREAD: &str = "java/lang/Thread";
const HOLDER: &str = "java/lang/Thread$FieldHolder";
const STRING: &str = "Ljava/lang/String;";
const STATUS: (&str, &str) = ("threadStatus", "I");

impl JavaObjectReader<'_> {
    /// Returns the addresses of the machine's structures for its threads.
    pub(super) fn thread_structures(&self) -> Option<Vec<u64>> {
        let pages = self.pages;
        match self.layout.thread.list {
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

    /// Reads the threads. `None` if the machine has no list of them yet.
    pub(super) fn threads(&self) -> Option<Vec<JavaThread>> {
        let all = self.thread_structures()?;
        Some(all.into_iter().filter_map(|thread| self.thread(thread)).collect())
    }

    /// Returns the kernel's id of a thread, given by the address of its structure.
    pub(super) fn tid(&self, thread: u64) -> Option<u32> {
        let (layout, pages) = (&self.layout.thread, self.pages);
        Some(layout.tid.read(pages, layout.os_thread.pointer(pages, thread)?)? as u32)
    }

    fn thread(&self, thread: u64) -> Option<JavaThread> {
        let (layout, pages) = (&self.layout.thread, self.pages);
        let inner_tid = self.tid(thread)?;
        let object = self.thread_object(layout.object.read(pages, thread)?);
        let mounted = layout.virtual_thread.and_then(|field| {
            self.thread_object(field.read(pages, thread)?).filter(|it| Some(*it) != object)
        });
        let monitor = [layout.pending_monitor, layout.waiting_monitor];
        let monitor = monitor.into_iter().find_map(|field| field.pointer(pages, thread));
        Some(JavaThread {
            inner_tid,
            name: object.and_then(|it| self.thread_name(it)),
            virtual_thread: mounted.and_then(|it| self.thread_name(it)),
            state: object.and_then(|it| JavaState::of(self.thread_status(it)?)),
            monitor: monitor.and_then(|it| self.monitor_class(it)),
        })
    }

    /// Returns the object of a thread by what its structure has of it.
    fn thread_object(&self, stored: u64) -> Option<u64> {
        if !self.layout.thread.has_handles {
            return self.shape.object(stored);
        }
        if stored == 0 || !stored.is_multiple_of(8) {
            return None;
        }
        self.shape.object(self.pages.word(stored)?)
    }

    fn thread_name(&self, object: u64) -> Option<String> {
        let field = self.field(self.class_of(object)?, THREAD, ("name", STRING))?;
        self.string(self.reference(object, field)?)
    }

    fn thread_status(&self, object: u64) -> Option<u32> {
        let class = self.class_of(object)?;
        let (object, field) = match self.field(class, THREAD, STATUS) {
            Some(field) => (object, field),
            None => {
                let holder =
                    self.field(class, THREAD, ("holder", "Ljava/lang/Thread$FieldHolder;"))?;
                let holder = self.reference(object, holder)?;
                (holder, self.field(self.class_of(holder)?, HOLDER, STATUS)?)
            }
        };
        self.pages.half(object.checked_add(field)?)
    }

    /// Returns the class of the object that a monitor belongs to.
    fn monitor_class(&self, monitor: u64) -> Option<String> {
        let object = self.layout.monitor_object.read(self.pages, monitor)?;
        class_name(&self.class_name_of(self.thread_object(object)?)?)
    }
}
