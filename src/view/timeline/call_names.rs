//! Calls, places and lengths of time in words.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::trace::{LazyTrace, Location, LocationId, Method, TraceError};
use crate::view::text::escape::escaped;

/// Names in the cache.
const REMEMBERED: usize = 1 << 14;

/// A function without a name.
const UNNAMED: &str = "[unnamed]";

/// The name of a call, and its place.
#[derive(Debug)]
pub(super) struct CallName {
    /// `module.function()`; a placeholder such as `[truncated]` stays as it is.
    pub(super) name: String,
    /// The name without the module.
    pub(super) bare: String,
    /// ` at file:line`, or ` at module+offset`.
    pub(super) place: String,
    /// The function as the trace has it.
    pub(super) function: String,
    /// The last part of the path of its module.
    pub(super) module: Option<String>,
    /// The place in the function and the module.
    pub(super) location: Location,
}

/// The names of calls; the last ones are cached.
pub(super) struct CallNames<'a> {
    trace: &'a LazyTrace,
    known: RefCell<HashMap<LocationId, Rc<CallName>>>,
}

impl<'a> CallNames<'a> {
    pub(super) fn new(trace: &'a LazyTrace) -> Self {
        Self { trace, known: RefCell::default() }
    }

    /// The name of a call at a location.
    pub(super) fn of(&self, id: LocationId) -> Result<Rc<CallName>, TraceError> {
        if let Some(known) = self.known.borrow().get(&id) {
            return Ok(Rc::clone(known));
        }
        let location = self.trace.location(id)?;
        let method = self.trace.method(location.method)?;
        let module = module_name(self.trace, &method)?;
        let [name, bare] = [module.as_deref(), None]
            .map(|module| escaped(&self::name(&method, module)).into_owned());
        let place = escaped(&place(&location, module.as_deref())).into_owned();
        let function = if method.name.is_empty() { UNNAMED.to_owned() } else { method.name };
        let name = Rc::new(CallName { name, bare, place, function, module, location });
        let mut known = self.known.borrow_mut();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(id, Rc::clone(&name));
        Ok(name)
    }
}

fn name(method: &Method, module: Option<&str>) -> String {
    let name = match method.name.as_str() {
        "" => UNNAMED,
        name => name,
    };
    if name.starts_with('[') {
        return name.to_owned();
    }
    let module = module.map(|module| format!("{module}.")).unwrap_or_default();
    let ended = name.ends_with(')') || name.ends_with(") const");
    format!("{module}{name}{}", if ended { "" } else { "()" })
}

fn place(location: &Location, module: Option<&str>) -> String {
    let inlined = if location.inline_parent.is_some() { " (inlined)" } else { "" };
    match (&location.file, module) {
        (Some(file), _) if location.line == 0 => format!(" at {file}{inlined}"),
        (Some(file), _) => format!(" at {file}:{}{inlined}", location.line),
        (None, Some(module)) => format!(" at {module}+{:#x}{inlined}", location.svma),
        // The calls that stand for something have no place.
        (None, None) if location.svma == 0 => String::new(),
        (None, None) => format!(" at {:#x}{inlined}", location.svma),
    }
}

fn module_name(trace: &LazyTrace, method: &Method) -> Result<Option<String>, TraceError> {
    let Some(id) = method.module else { return Ok(None) };
    let path = trace.module(id)?.path;
    Ok(Some(path.rsplit('/').next().unwrap_or(&path).to_owned()))
}

/// A length of time with three digits that count.
pub fn duration(ns: u64) -> String {
    let (number, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match number {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (41_240_000, "41.2 ms"),
            (120_000_000, "120 ms"),
            (1_400_000_000, "1.40 s"),
            (7_200_000_000_000, "7200 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
