//! What a thread waits for, in the terms of Java.

use super::class_name::class_name;
use super::layout::RunningCodeNumbers;
use super::objects::JavaObjectReader;
use super::tables::Field;
use super::thread_fields::ThreadFields;

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

/// Which code a thread runs, as the machine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningCode {
    /// Native code of the program.
    Native,
    /// The machine's own code.
    Machine,
    /// The machine's own code, which waits.
    MachineWaits,
    /// Code in Java.
    Java,
}

impl RunningCode {
    fn of(number: u64, numbers: &RunningCodeNumbers) -> Option<Self> {
        [
            (numbers.native, Self::Native),
            (numbers.machine, Self::Machine),
            (numbers.waits, Self::MachineWaits),
            (numbers.java, Self::Java),
        ]
        .into_iter()
        .find_map(|(known, code)| (known == number).then_some(code))
    }
}

/// What a thread does as the machine knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JavaActivity {
    /// What it waits for.
    pub state: Option<JavaState>,
    /// Which code it runs.
    pub running: Option<RunningCode>,
    /// The class of the object whose monitor it waits to enter, in which it waits to be notified,
    /// or that it is parked for.
    pub object: Option<String>,
}

impl JavaActivity {
    /// Reads what a thread does, given by its structure and its object.
    pub(super) fn read(
        objects: &JavaObjectReader<'_>,
        (thread, object): (u64, u64),
        fields: ThreadFields,
    ) -> Self {
        let (layout, pages) = (&objects.layout.thread, objects.pages);
        let state = fields.status_of(objects, object).and_then(JavaState::of);
        let running = layout.running.read(pages, thread);
        let monitor = |field: Field| {
            let monitor = field.pointer(pages, thread)?;
            objects.referred(objects.layout.monitor_object.read(pages, monitor)?)
        };
        let awaited = match state {
            // A thread that was notified enters the monitor again in which it waited.
            Some(JavaState::Blocked) => {
                monitor(layout.pending_monitor).or_else(|| monitor(layout.waiting_monitor))
            }
            Some(JavaState::InObjectWait) => monitor(layout.waiting_monitor),
            Some(JavaState::Parked) => fields.blocker_of(objects, object),
            _ => None,
        };
        let class = |object| class_name(&objects.class_name_of(object)?);
        Self {
            state,
            running: running.and_then(|it| RunningCode::of(it, &layout.running_numbers)),
            object: awaited.and_then(class),
        }
    }

    /// Returns what a thread that sleeps waits on, for people. `None` if the machine does not know
    /// it: the thread waits in native code.
    pub fn waits_on(&self) -> Option<String> {
        let of = |what: &str, word: &str| match &self.object {
            Some(class) => format!("{what} {word} {class}"),
            None => what.to_owned(),
        };
        match self.state? {
            JavaState::Blocked => Some(of("a monitor", "of")),
            JavaState::InObjectWait => Some(of("Object.wait", "of")),
            JavaState::Parked => Some(of("LockSupport.park", "for")),
            JavaState::Sleeping => Some("Thread.sleep".to_owned()),
            JavaState::Runnable if self.running == Some(RunningCode::MachineWaits) => {
                Some("the Java machine".to_owned())
            }
            JavaState::New | JavaState::Runnable | JavaState::Terminated => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_has_the_words_of_java() {
        let check = |state, running, class: Option<&str>, expected: Option<&str>| {
            let (state, object) = (Some(state), class.map(str::to_owned));
            let activity = JavaActivity { state, running, object };
            assert_eq!(activity.waits_on().as_deref(), expected);
        };
        check(JavaState::Blocked, None, Some("a.Lock"), Some("a monitor of a.Lock"));
        check(JavaState::Blocked, None, None, Some("a monitor"));
        check(JavaState::InObjectWait, None, Some("a.Lock"), Some("Object.wait of a.Lock"));
        check(JavaState::Parked, None, Some("a.Sync"), Some("LockSupport.park for a.Sync"));
        check(JavaState::Parked, None, None, Some("LockSupport.park"));
        check(JavaState::Sleeping, None, None, Some("Thread.sleep"));
        let waits = Some(RunningCode::MachineWaits);
        check(JavaState::Runnable, waits, None, Some("the Java machine"));
        check(JavaState::Runnable, Some(RunningCode::Native), None, None);
        check(JavaState::Terminated, waits, None, None);
    }
}
