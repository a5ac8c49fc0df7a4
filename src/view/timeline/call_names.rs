//! Calls, locations and durations as text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::trace::{LazyTrace, Location, LocationId, Method, TraceError};
use crate::view::text::{self, escape::escaped};

/// Maximum number of names in the cache.
const REMEMBERED: usize = 1 << 14;

/// The text for a function without a name.
const UNNAMED: &str = "[unnamed]";

/// The name of a call, and its location.
#[derive(Debug)]
pub(in crate::view) struct CallName {
    /// `module.function()`. A placeholder such as `[truncated]` stays as it is.
    pub(in crate::view) name: String,
    /// The name without the module.
    pub(in crate::view) bare: String,
    /// ` at file:line`, or ` at module+offset`.
    pub(in crate::view) location_text: String,
    /// The name of the function in the trace.
    pub(in crate::view) function: String,
    /// The last part of the path of the module.
    pub(in crate::view) module: Option<String>,
    /// The location in the function and the module.
    pub(in crate::view) location: Location,
}

/// The names of calls, with a cache of recent ones.
pub(in crate::view) struct CallNames<'a> {
    trace: &'a LazyTrace,
    known: RefCell<HashMap<LocationId, Rc<CallName>>>,
}

impl<'a> CallNames<'a> {
    pub(in crate::view) fn new(trace: &'a LazyTrace) -> Self {
        Self { trace, known: RefCell::default() }
    }

    /// Returns the name of a call at a location.
    pub(in crate::view) fn of(&self, id: LocationId) -> Result<Rc<CallName>, TraceError> {
        if let Some(known) = self.known.borrow().get(&id) {
            return Ok(Rc::clone(known));
        }
        let location = self.trace.location(id)?;
        let method = self.trace.method(location.method)?;
        let module = module_name(self.trace, &method)?;
        let [name, bare] = [module.as_deref(), None]
            .map(|module| escaped(&self::name(&method, module)).into_owned());
        let location_text = escaped(&describe_location(&location, module.as_deref())).into_owned();
        let function = if method.name.is_empty() { UNNAMED.to_owned() } else { method.name };
        let name = Rc::new(CallName { name, bare, location_text, function, module, location });
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

fn describe_location(location: &Location, module: Option<&str>) -> String {
    let inlined = if location.inline_parent.is_some() { " (inlined)" } else { "" };
    match (&location.file, module) {
        (Some(file), _) if location.line == 0 => format!(" at {file}{inlined}"),
        (Some(file), _) => format!(" at {file}:{}{inlined}", location.line),
        // Code without an address.
        (None, Some(module)) if location.svma == 0 && location.kind.language().is_managed() => {
            format!(" at {module}{inlined}")
        }
        (None, Some(module)) => format!(" at {module}+{:#x}{inlined}", location.svma),
        // Placeholders have no location.
        (None, None) if location.svma == 0 => String::new(),
        (None, None) => format!(" at {:#x}{inlined}", location.svma),
    }
}

fn module_name(trace: &LazyTrace, method: &Method) -> Result<Option<String>, TraceError> {
    let Some(id) = method.module else { return Ok(None) };
    let path = trace.module(id)?.path;
    Ok(Some(text::module_name::module_name(&path).to_owned()))
}

/// Returns a duration with three significant digits.
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
