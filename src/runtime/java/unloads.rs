//! How many classes a machine has unloaded: as long as the number is the same, no structure of a
//! class or method was freed, so that none has the address of another one.
//!
//! A machine keeps counters for its own tools. It counts a class before it frees anything of it.
//! All addresses are the target's words: what is read is bounded, and compared with what machines
//! have written there for twenty years.

use super::machine::JavaMachine;
use crate::runtime::memory::{TargetMemory, word};
use crate::runtime::pages::TargetPages;

/// The first bytes of the memory with the counters.
const MAGIC: u32 = u32::from_le_bytes([0xca, 0xfe, 0xc0, 0xc0]);
/// Where the header has the offset of the first counter, and the number of counters.
const FIRST: u64 = 24;
const COUNT: u64 = 28;
/// Maximum number of counters. Machines have 300.
const COUNT_MAX: u32 = 4096;
/// Maximum length of a counter with its name.
const LEN_MAX: u32 = 64 << 10;
/// Where a counter has its length, and the offsets of its name, its type and its value.
const LEN: u64 = 0;
const NAME: u64 = 4;
const KIND: u64 = 12;
const VALUE: u64 = 16;
/// The type of a number of 64 bits.
const LONG: u8 = b'J';
/// The counter.
const UNLOADED: &str = "java.cls.unloadedClasses";

/// The counter of the classes that a machine has unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnloadCount {
    avma: u64,
}

impl UnloadCount {
    /// Finds the counter. `None` if the machine has none, as with `-XX:-UsePerfData`, or not yet.
    pub fn of(machine: &JavaMachine, memory: &dyn TargetMemory) -> Option<Self> {
        let pages = TargetPages::of(memory);
        let start = pages.pointer(machine.counters?)?;
        if pages.half(start)? != MAGIC {
            return None;
        }
        let count = pages.half(start.checked_add(COUNT)?)?.min(COUNT_MAX);
        let mut at = start.checked_add(u64::from(pages.half(start.checked_add(FIRST)?)?))?;
        for _ in 0..count {
            let half = |offset: u64| pages.half(at.checked_add(offset)?);
            let len = half(LEN).filter(|len| (1..=LEN_MAX).contains(len))?;
            let name = at.checked_add(u64::from(half(NAME)?))?;
            if pages.text(name, UNLOADED.len() + 1).is_some_and(|name| name == UNLOADED) {
                let avma = at.checked_add(u64::from(half(VALUE)?))?;
                let is_long = pages.byte(at.checked_add(KIND)?)? == LONG;
                return (is_long && avma.is_multiple_of(8)).then_some(Self { avma });
            }
            at = at.checked_add(u64::from(len))?;
        }
        None
    }

    /// Returns the number of classes. `None` if it is not readable.
    pub fn read(self, memory: &dyn TargetMemory) -> Option<u64> {
        word(memory, self.avma)
    }
}

/// Returns whether methods may be replaced while their classes stay: an agent in the machine may do
/// that.
pub fn may_redefine(machine: &JavaMachine, memory: &dyn TargetMemory) -> bool {
    let mut byte = [0];
    machine.redefines.is_some_and(|at| memory.read(at, &mut byte) == 1 && byte != [0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::java::tests::machines::{JavaProgram, machines};

    #[test]
    fn the_number_is_that_of_the_machines_own_tool() {
        for (version, launcher) in machines() {
            let program = JavaProgram::run(&launcher, &["-Xmx64m"], &["Churn"]);
            let (machine, ..) = program.machine();
            let memory = program.memory();
            let count = UnloadCount::of(&machine, &memory).unwrap();
            let ours = || count.read(&memory).unwrap();
            // 25 says that methods may be replaced, without an agent.
            assert_eq!(may_redefine(&machine, &memory), version > 21, "Java {version}");
            let before = loop {
                match ours() {
                    0 => std::thread::sleep(std::time::Duration::from_millis(10)),
                    count => break count,
                }
            };
            let counters = program.asked("jcmd", &["PerfCounter.print"]);
            let after = ours();
            let named =
                counters.lines().find_map(|it| it.strip_prefix(UNLOADED)?.strip_prefix('='));
            let theirs: u64 = named.unwrap().trim().parse().unwrap();
            eprintln!("Java {version}: {before}, {theirs}, {after}");
            assert!((before..=after).contains(&theirs), "Java {version}");
            let none = JavaProgram::run(&launcher, &["-XX:-UsePerfData"], &["Churn"]);
            let (machine, ..) = none.machine();
            assert_eq!(UnloadCount::of(&machine, &none.memory()), None, "Java {version}");
        }
    }
}
