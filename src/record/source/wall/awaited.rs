//! What the system calls of sleeping threads wait on.

use std::sync::Arc;

use crate::proc::{self, DescriptorNames, ProcessMemory, TaskActivity};
use crate::runtime::Runtime;
use crate::runtime::java::{JavaMachine, JavaWaits};

/// The number of a system call, and the name of what it waits on.
pub(super) type Called = (Option<u32>, Option<Arc<str>>);

/// Names what the threads of one process wait on.
pub(super) struct AwaitedNames {
    memory: ProcessMemory,
    descriptors: DescriptorNames,
    /// The language runtimes, as far as they are known.
    pub(super) runtimes: Vec<Arc<Runtime>>,
    /// The Java machine, if it is known.
    pub(super) java: Option<Arc<JavaMachine>>,
    java_waits: JavaWaits,
}

impl AwaitedNames {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            memory: ProcessMemory::of(pid),
            descriptors: DescriptorNames::new(pid),
            runtimes: Vec::new(),
            java: None,
            java_waits: JavaWaits::default(),
        }
    }

    /// Returns the number of the call that a thread is in, and what it waits on.
    ///
    /// `inner_tid` returns the thread's id in its own namespace, if the thread still sleeps: Java's
    /// waits are read from its memory. If it ran meanwhile, the result is wrong.
    pub(super) fn of(
        &mut self,
        inner_tid: impl FnOnce() -> Option<u32>,
        activity: TaskActivity,
    ) -> Called {
        let TaskActivity::Syscall { number, args, .. } = activity else { return (None, None) };
        let descriptor = proc::waited_descriptor(number, &args);
        let waits_on = descriptor.and_then(|number| self.descriptors.name(number));
        let waits_on = waits_on.or_else(|| {
            let avma = proc::waited_address(number, &args);
            let lock = avma.and_then(|avma| self.lock(avma)).map(Arc::from);
            let may_be_java = proc::may_wait_on_address(number, &args);
            lock.or_else(|| may_be_java.then(|| self.java_wait(inner_tid)).flatten())
        });
        (u32::try_from(number).ok(), waits_on)
    }

    fn lock(&self, avma: u64) -> Option<&'static str> {
        self.runtimes.iter().find_map(|runtime| runtime.lock_at(avma))
    }

    fn java_wait(&mut self, inner_tid: impl FnOnce() -> Option<u32>) -> Option<Arc<str>> {
        let machine = self.java.as_ref()?;
        self.java_waits.of(machine, &self.memory, inner_tid()?).map(Arc::from)
    }
}
