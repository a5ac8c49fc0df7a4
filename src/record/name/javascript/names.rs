//! The functions of JavaScript, and the code at the addresses of samples, over one program.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use traceprof_abi::runtime::word::FrameFunction;

use crate::record::batch::javascript::{JsKey, NewJavaScript, ReadJsFunction};
use crate::record::name::timeline::Timeline;
use crate::runtime::Gone;
use crate::runtime::v8::JsCode;

/// The functions and the code of one program.
#[derive(Debug, Default)]
pub(crate) struct JsNames {
    functions: HashMap<JsKey, ReadJsFunction>,
    found: HashMap<u64, Timeline<Option<Arc<JsCode>>>>,
    /// Why the last search for code failed at an address.
    lost: HashMap<u64, Gone>,
    version: u64,
}

impl JsNames {
    /// Takes over what a batch is the first to use.
    pub(crate) fn learn(&mut self, new: &NewJavaScript) {
        if new.is_fresh {
            self.start_program();
        }
        self.version += u64::from(!new.found.is_empty() || !new.functions.is_empty());
        self.functions.extend(new.functions.iter().cloned());
        self.lost.extend(new.lost.iter().copied());
        for found in &new.found {
            let codes = self.found.entry(found.avma).or_default();
            codes.push(found.since_ns, found.code.clone());
        }
    }

    /// Forgets everything: the process runs another program.
    pub(crate) fn start_program(&mut self) {
        self.functions.clear();
        self.found.clear();
        self.lost.clear();
        self.version += 1;
    }

    /// Returns a number that changes whenever something else is known.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the function of a frame.
    pub(crate) fn function(&self, of: FrameFunction) -> ReadJsFunction {
        // The collector may have moved it when the sample was taken.
        let key = JsKey::of(of).ok_or(Gone::OtherType)?;
        // Otherwise the program has ended before it was read.
        self.functions.get(&key).cloned().unwrap_or(Err(Gone::Unreadable))
    }

    /// Returns why there is no code of a frame at an address.
    pub(crate) fn why_lost(&self, avma: u64) -> Gone {
        match (self.any(avma), self.lost.get(&avma)) {
            (Some(_), _) => Gone::Unproven,
            (None, Some(gone)) => *gone,
            // The program has ended before it was read.
            (None, None) => Gone::Unreadable,
        }
    }

    /// Returns any code that was read at an address.
    pub(crate) fn any(&self, avma: u64) -> Option<&Arc<JsCode>> {
        self.found.get(&avma)?.all().iter().find_map(|(_, code)| code.as_ref())
    }

    /// Returns the code that was at an address at a time, if that is known, and the times for which
    /// the answer holds.
    pub(crate) fn proven(&self, avma: u64, time_ns: u64) -> (Option<&Arc<JsCode>>, Range<u64>) {
        let Some(found) = self.found.get(&avma) else { return (None, 0..u64::MAX) };
        let (code, times_ns) = found.at(time_ns);
        (code.and_then(Option::as_ref), times_ns)
    }

    /// Returns the code of a function at an address at a time. Most of it was read afterwards: the
    /// first code that was seen there since is the one that was there, if it is this function's.
    pub(crate) fn of_function(&self, avma: u64, key: JsKey, time_ns: u64) -> Option<&Arc<JsCode>> {
        let has_number = |code: &&Arc<JsCode>| code.is_of(key.cookie);
        let (proven, _) = self.proven(avma, time_ns);
        let Some(Ok(function)) = self.functions.get(&key) else {
            return proven.filter(has_number);
        };
        // Engines of several threads have the same numbers.
        let has_source = |code: &&Arc<JsCode>| {
            code.function.as_ref().is_some_and(|compiled| compiled.has_source_of(function))
        };
        let is_of = |code: &&Arc<JsCode>| has_number(code) && has_source(code);
        let all = self.found.get(&avma).map_or(&[][..], Timeline::all);
        let after = all.partition_point(|(since_ns, _)| *since_ns <= time_ns);
        let next = all[after..].iter().find_map(|(_, code)| code.as_ref());
        proven.filter(is_of).or_else(|| next.filter(is_of))
    }
}
