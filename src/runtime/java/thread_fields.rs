//! The fields of Java's thread objects.
//!
//! The class of threads is never unloaded, so its fields are looked up once for each machine.

use std::sync::OnceLock;

use super::objects::JavaObjectReader;

const THREAD: &str = "java/lang/Thread";
const NAME: (&str, &str) = ("name", "Ljava/lang/String;");
const STATUS: (&str, &str) = ("threadStatus", "I");
const HOLDER: (&str, &str) = ("holder", "Ljava/lang/Thread$FieldHolder;");
const STRUCTURE: (&str, &str) = ("eetop", "J");
const BLOCKER: (&str, &str) = ("parkBlocker", "Ljava/lang/Object;");

/// The class of threads, and the offsets of its fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadFields {
    pub(super) class: u64,
    pub(super) name: u64,
    status: StatusPlace,
    /// The address of the machine's structure of the thread.
    pub(super) structure: Option<u64>,
    /// What the thread is parked for.
    blocker: Option<u64>,
}

/// Where the status of a thread is.
#[derive(Debug, Clone, Copy)]
enum StatusPlace {
    /// In the object, at this offset.
    Own(u64),
    /// In an object of another class (the offset of the reference to it), at the last offset.
    Held { holder: u64, class: u64, status: u64 },
}

/// The fields, once they were looked up.
pub(super) type KnownThreadFields = OnceLock<ThreadFields>;

impl ThreadFields {
    /// Returns the fields of a thread's object. `None` if it is not one.
    pub(super) fn of(
        objects: &JavaObjectReader<'_>,
        known: &KnownThreadFields,
        object: u64,
    ) -> Option<Self> {
        let class = objects.class_of(object)?;
        if let Some(known) = known.get() {
            return objects.extends(class, known.class).then_some(*known);
        }
        let found = Self::look_up(objects, object, objects.parent_named(class, THREAD)?)?;
        Some(*known.get_or_init(|| found))
    }

    fn look_up(objects: &JavaObjectReader<'_>, object: u64, class: u64) -> Option<Self> {
        let status = match objects.own_field(class, STATUS) {
            Some(status) => StatusPlace::Own(status),
            None => {
                let holder = objects.own_field(class, HOLDER)?;
                let class = objects.class_of(objects.reference(object, holder)?)?;
                StatusPlace::Held { holder, class, status: objects.own_field(class, STATUS)? }
            }
        };
        let (name, blocker) = (objects.own_field(class, NAME)?, objects.own_field(class, BLOCKER));
        let structure = objects.own_field(class, STRUCTURE);
        Some(Self { class, name, status, structure, blocker })
    }

    /// Returns the name of a thread, given by its object.
    pub(super) fn name_of(&self, objects: &JavaObjectReader<'_>, object: u64) -> Option<String> {
        objects.string(objects.reference(object, self.name)?)
    }

    /// Returns the status of a thread, given by its object: the bits of JVMTI.
    pub(super) fn status_of(&self, objects: &JavaObjectReader<'_>, object: u64) -> Option<u32> {
        let (object, status) = match self.status {
            StatusPlace::Own(status) => (object, status),
            StatusPlace::Held { holder, class, status } => {
                let holder = objects.reference(object, holder)?;
                (objects.class_of(holder)? == class).then_some((holder, status))?
            }
        };
        objects.pages.half(object.checked_add(status)?)
    }

    /// Returns the object that a thread is parked for.
    pub(super) fn blocker_of(&self, objects: &JavaObjectReader<'_>, object: u64) -> Option<u64> {
        objects.reference(object, self.blocker?)
    }
}
