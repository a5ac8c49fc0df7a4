//! The threads of a machine that is made by hand, their objects, and its counters.

use super::JavaImage;

/// How far below its thread pointer a thread has the address of its structure.
pub(super) const THREAD_OFFSET: u64 = 16;
/// The threads' ids.
pub(in crate::runtime::java) const TIDS: [u64; 2] = [4321, 4322];

/// A thread that carries a virtual one.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::runtime::java) struct Carrier {
    pub(in crate::runtime::java) structure: u64,
    pub(in crate::runtime::java) pointer: u64,
    /// The object of the virtual thread. 0 before 21.
    pub(in crate::runtime::java) carried: u64,
}

impl JavaImage {
    fn object(&mut self, class: u64) -> u64 {
        let object = self.room(48);
        self.word(object, 1);
        self.half(object + 8, self.narrow(class));
        object
    }

    fn string(&mut self, (string, array): (u64, u64), text: &str) -> u64 {
        let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let (object, characters) = (self.object(string), self.room(16 + units.len() as u64));
        self.half(characters + 8, self.narrow(array));
        let len = if self.version == 8 { units.len() / 2 } else { units.len() };
        self.half(characters + 12, len as u64);
        self.put(characters + 16, &units);
        self.half(object + 16, self.narrow(characters));
        self.put(object + 20, &[1]);
        object
    }

    /// Writes a thread of the program and one of a compiler.
    pub(super) fn threads(&mut self) {
        let array = if self.version == 8 { "[C" } else { "[B" };
        let string = [("value", array, 16), ("coder", "B", 20)];
        let string = &string[..if self.version == 8 { 1 } else { 2 }];
        let string = self.class("java/lang/String", string, &[]);
        let array = self.class(array, &[], &[]);
        let holder = "Ljava/lang/Thread$FieldHolder;";
        let state =
            if self.version > 17 { ("holder", holder, 20) } else { ("threadStatus", "I", 20) };
        let blocker = ("parkBlocker", "Ljava/lang/Object;", 24);
        let fields = [
            ("name", "Ljava/lang/String;", 16),
            state,
            blocker,
            ("tid", "J", 32),
            ("eetop", "J", 40),
        ];
        let class = self.class("java/lang/Thread", &fields, &[]);
        let holder = self.class("java/lang/Thread$FieldHolder", &[("threadStatus", "I", 16)], &[]);
        let mut threads = Vec::new();
        for (tid, name) in TIDS.iter().zip(["a worker of größe", "C2 CompilerThread0"]) {
            let name = self.string((string, array), name);
            let (object, held) = (self.object(class), self.object(holder));
            self.half(object + 16, self.narrow(name));
            // Parked for its own name.
            self.half(held + 16, 0x201);
            self.half(object + 20, if self.version > 17 { self.narrow(held) } else { 0x201 });
            self.half(object + 24, self.narrow(name));
            let thread = self.thread(*tid, object);
            self.word(object + 40, thread);
            threads.push(thread);
        }
        self.carry(threads[0], class, (string, array));
        self.set(threads[0], "JavaThread::_next", threads[1]);
        self.set_static("Threads::_thread_list", threads[0]);
        let (list, threads) = (self.room(64), self.words(&threads));
        self.set(list, "ThreadsList::_length", 2);
        self.set(list, "ThreadsList::_threads", threads);
        self.set_static("ThreadsSMRSupport::_java_thread_list", list);
    }

    /// Makes a thread carry a virtual one, where there are such threads.
    fn carry(&mut self, structure: u64, parent: u64, strings: (u64, u64)) {
        self.carrier.structure = structure;
        if self.version < 21 {
            return;
        }
        let class = self.class("java/lang/VirtualThread", &[], &[]);
        self.set(class, "Klass::_super", parent);
        let (object, name) = (self.object(class), self.string(strings, "carried 😀"));
        self.half(object + 16, self.narrow(name));
        self.word(object + 32, 31);
        let handle = self.words(&[object]);
        self.set(structure, "JavaThread::_vthread", handle);
        self.set_state(8);
        self.carrier.carried = object;
    }

    /// Sets the state of the first thread.
    pub(in crate::runtime::java) fn set_state(&mut self, state: u64) {
        self.set(self.carrier.structure, "JavaThread::_thread_state", state);
    }

    /// Takes the name of the virtual thread away.
    pub(in crate::runtime::java) fn unname(&mut self) {
        self.half(self.carrier.carried + 16, 0);
    }

    fn thread(&mut self, tid: u64, object: u64) -> u64 {
        let (thread, os_thread, block) = (self.room(128), self.room(16), self.room(64));
        let pointer = block + THREAD_OFFSET;
        self.word(block, thread);
        if tid == TIDS[0] {
            self.carrier.pointer = pointer;
        }
        self.set(os_thread, "OSThread::_thread_id", tid);
        self.set(os_thread, "OSThread::_pthread_id", pointer);
        self.set(thread, "JavaThread::_osthread", os_thread);
        self.set(thread, "Thread::_osthread", os_thread);
        let reference = if self.version < 17 { object } else { self.words(&[object]) };
        self.set(thread, "JavaThread::_threadObj", reference);
        self.set(thread, "JavaThread::_vthread", reference);
        self.set(thread, "JavaThread::_thread_state", 10);
        let (compilation, task) = (self.room(16), self.room(16));
        self.set(task, "CompileTask::_method", self.method);
        self.set(compilation, "ciEnv::_task", task);
        self.set(thread, "CompilerThread::_env", compilation);
        thread
    }

    /// Writes the counters of the machine: of unloaded classes alone.
    pub(super) fn counters(&mut self) {
        let counters = self.room(128);
        self.put(counters, &[0xca, 0xfe, 0xc0, 0xc0]);
        self.half(counters + 24, 32);
        self.half(counters + 28, 1);
        let counter = counters + 32;
        for (at, value) in [(0, 64), (4, 20), (16, 48)] {
            self.half(counter + at, value);
        }
        self.put(counter + 12, b"J");
        self.put(counter + 20, b"java.cls.unloadedClasses");
        self.word(counter + 48, 3);
        self.set_static("PerfMemory::_start", counters);
    }
}
