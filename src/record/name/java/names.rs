//! The code and the methods of a Java machine at the addresses of samples.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::record::batch::java::{JavaCode, NewJava, ReadMethod};
use crate::record::name::timeline::{Presence, Timeline};
use crate::runtime::Gone;

impl Presence for ReadMethod {
    fn is_unproven(&self) -> bool {
        matches!(self, Err(Gone::Unproven))
    }
}

/// The code and the methods at addresses, over one program.
#[derive(Debug, Default)]
pub(crate) struct JavaNames {
    found: HashMap<u64, Timeline<Option<Arc<JavaCode>>>>,
    /// The methods that are interpreted.
    methods: HashMap<u64, Timeline<ReadMethod>>,
    version: u64,
}

impl JavaNames {
    /// Takes over the code that a batch is the first to use.
    pub(crate) fn learn(&mut self, new: &NewJava) {
        if new.is_fresh {
            self.start_program();
        }
        self.version += u64::from(!new.found.is_empty() || !new.methods.is_empty());
        for found in &new.methods {
            let methods = self.methods.entry(found.object).or_default();
            methods.push(found.since_ns, found.read.clone());
        }
        for found in &new.found {
            let codes = self.found.entry(found.avma).or_default();
            codes.push(found.since_ns, found.code.clone());
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

    /// Returns the method at an address at a time, and the times at which it is there. It is `None`
    /// if no method was read for that time.
    pub(crate) fn method(&self, object: u64, time_ns: u64) -> (Option<ReadMethod>, Range<u64>) {
        let Some(known) = self.methods.get(&object) else { return (None, 0..u64::MAX) };
        let (read, times_ns) = known.at(time_ns);
        (read.cloned(), times_ns)
    }

    /// Returns the code at an address at a time, and the times at which it is there. `None` if no
    /// code was ever read there. The code is `None` if it is not known what was there.
    pub(crate) fn find(
        &self,
        avma: u64,
        time_ns: u64,
    ) -> Option<(Option<&Arc<JavaCode>>, Range<u64>)> {
        let (code, times_ns) = self.found.get(&avma)?.at(time_ns);
        Some((code.and_then(Option::as_ref), times_ns))
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
        let found = |since_ns, name| FoundJava { avma: 5, since_ns, code: Some(code(name)) };
        let unknown = FoundJava { avma: 5, since_ns: 150, code: None };
        let found = vec![found(10, "a"), found(100, "b"), unknown, found(200, "c")];
        names.learn(&NewJava { found, ..NewJava::default() });
        let at = |names: &JavaNames, time_ns| {
            let (code, times_ns) = names.find(5, time_ns)?;
            Some((code.map(|code| code.blob().name.clone()), times_ns))
        };
        let named = |name: &str, times_ns| Some((Some(name.to_owned()), times_ns));
        assert_eq!(at(&names, 9), Some((None, 0..10)));
        assert_eq!(at(&names, 10), named("a", 10..100));
        assert_eq!(at(&names, 99), named("a", 10..100));
        assert_eq!(at(&names, 100), named("b", 100..150));
        assert_eq!(at(&names, 150), Some((None, 150..200)));
        assert_eq!(at(&names, 1 << 40), named("c", 200..u64::MAX));
        let version = names.version();
        names.learn(&NewJava::default());
        assert_eq!(names.version(), version);
        names.learn(&NewJava { is_fresh: true, ..NewJava::default() });
        assert!(names.find(5, 1).is_none() && names.version() != version);
    }

    #[test]
    fn what_has_ended_stays_ended() {
        let mut names = JavaNames::default();
        let mut learn = |since_ns, code| {
            let found = vec![FoundJava { avma: 5, since_ns, code }];
            names.learn(&NewJava { found, ..NewJava::default() });
            [5, 50, 99, 100, 150].map(|time_ns| {
                let (found, _) = names.find(5, time_ns).unwrap();
                found.map_or_else(|| "-".to_owned(), |it| it.blob().name.clone())
            })
        };
        assert_eq!(learn(10, Some(code("a"))), ["-", "a", "a", "a", "a"]);
        assert_eq!(learn(100, None), ["-", "a", "a", "-", "-"]);
        // What is read now was there before the other code, if at all.
        assert_eq!(learn(0, Some(code("b"))), ["b", "b", "b", "-", "-"]);
        assert_eq!(learn(100, Some(code("b"))), ["b", "b", "b", "-", "-"]);
        assert_eq!(learn(120, Some(code("c"))), ["b", "b", "b", "-", "c"]);
        // It was not there at the time of its reading any more.
        assert_eq!(learn(90, None), ["b", "b", "-", "-", "-"]);
    }
}
