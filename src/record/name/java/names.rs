//! The code of a Java machine at the addresses of samples.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use traceprof_abi::runtime::word::ManagedFrame;

use crate::record::batch::java::{JavaCode, MethodKey, NewJava, ReadMethod};
use crate::runtime::Gone;
use crate::runtime::java::JavaMethod;

/// The code at addresses, over one program.
#[derive(Debug, Default)]
pub(crate) struct JavaNames {
    /// By address: the code, and since when it may have been there. In the order of its times.
    found: HashMap<u64, Vec<(u64, Arc<JavaCode>)>>,
    /// The methods that are interpreted.
    methods: HashMap<MethodKey, ReadMethod>,
    version: u64,
}

impl JavaNames {
    /// Takes over the code that a batch is the first to use.
    pub(crate) fn learn(&mut self, new: &NewJava) {
        if new.is_fresh {
            self.start_program();
        }
        self.version += u64::from(!new.found.is_empty());
        self.methods.extend(new.methods.iter().cloned());
        for found in &new.found {
            let code = (found.since_ns, Arc::clone(&found.code));
            self.found.entry(found.avma).or_default().push(code);
        }
    }

    /// Forgets everything: the process runs another program.
    pub(crate) fn start_program(&mut self) {
        self.found.clear();
        self.methods.clear();
        self.version += 1;
    }

    /// Returns a number that changes whenever the known code does.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the method of a frame of the interpreter.
    pub(crate) fn method(&self, frame: &ManagedFrame) -> Result<&JavaMethod, Gone> {
        let read = self.methods.get(&MethodKey::of(frame)).ok_or(Gone::Unreadable)?;
        read.as_deref().map_err(|gone| *gone)
    }

    /// Returns the code at an address at a time, and the times at which it was there.
    pub(crate) fn find(&self, avma: u64, time_ns: u64) -> Option<(&Arc<JavaCode>, Range<u64>)> {
        let known = self.found.get(&avma)?;
        let after = known.partition_point(|(since_ns, _)| *since_ns <= time_ns);
        // A sample from before the first reading is of the first code.
        let index = after.saturating_sub(1);
        let (since_ns, code) = known.get(index)?;
        let start_ns = if index == 0 { 0 } else { *since_ns };
        let end_ns = known.get(index + 1).map_or(u64::MAX, |(next_ns, _)| *next_ns);
        Some((code, start_ns..end_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::java::{FoundJava, MachineCode};
    use crate::runtime::java::{BlobKind, CodeBlob};

    fn code(name: &str) -> Arc<JavaCode> {
        let blob = CodeBlob {
            start: 0,
            code: 0..10,
            kind: BlobKind::Stub,
            name: name.to_owned(),
            frame_words: 0,
            frame_complete: None,
            compiled: None,
        };
        Arc::new(JavaCode::Machine(MachineCode { blob, call_return: None }))
    }

    #[test]
    fn an_address_has_the_code_of_its_time() {
        let mut names = JavaNames::default();
        assert!(names.find(5, 1).is_none());
        let found = |since_ns, name| FoundJava { avma: 5, since_ns, code: code(name) };
        let found = vec![found(0, "a"), found(100, "b"), found(200, "c")];
        names.learn(&NewJava { found, ..NewJava::default() });
        let at = |names: &JavaNames, time_ns| {
            let (code, times_ns) = names.find(5, time_ns)?;
            Some((code.blob().name.clone(), times_ns))
        };
        assert_eq!(at(&names, 0), Some(("a".to_owned(), 0..100)));
        assert_eq!(at(&names, 99), Some(("a".to_owned(), 0..100)));
        assert_eq!(at(&names, 100), Some(("b".to_owned(), 100..200)));
        assert_eq!(at(&names, 1 << 40), Some(("c".to_owned(), 200..u64::MAX)));
        let version = names.version();
        names.learn(&NewJava::default());
        assert_eq!(names.version(), version);
        names.learn(&NewJava { is_fresh: true, ..NewJava::default() });
        assert!(names.find(5, 1).is_none() && names.version() != version);
    }
}
