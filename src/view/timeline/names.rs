//! Calls, places and lengths of time in words.

use crate::trace::{LazyTrace, LocationId, Method, TraceError};
use crate::view::escape::escaped;

/// `module.function()`; as it is for what stands for a function, such as `[truncated]`.
pub(super) fn call_name(trace: &LazyTrace, id: LocationId) -> Result<String, TraceError> {
    let method = trace.method(trace.location(id)?.method)?;
    let name = match method.name.as_str() {
        "" => "[unnamed]",
        name => name,
    };
    if name.starts_with('[') {
        return Ok(escaped(name).into_owned());
    }
    let module = module_name(trace, &method)?.map(|module| module + ".").unwrap_or_default();
    let ended = name.ends_with(')') || name.ends_with(") const");
    let brackets = if ended { "" } else { "()" };
    Ok(escaped(&format!("{module}{name}{brackets}")).into_owned())
}

/// ` at file:line`, or ` at module+offset`.
pub(super) fn place(trace: &LazyTrace, id: LocationId) -> Result<String, TraceError> {
    let location = trace.location(id)?;
    let method = trace.method(location.method)?;
    let inlined = if location.inline_parent.is_some() { " (inlined)" } else { "" };
    let text = match (&location.file, module_name(trace, &method)?) {
        (Some(file), _) if location.line == 0 => format!(" at {file}{inlined}"),
        (Some(file), _) => format!(" at {file}:{}{inlined}", location.line),
        (None, Some(module)) => format!(" at {module}+{:#x}{inlined}", location.svma),
        // The calls that stand for something have no place.
        (None, None) if location.svma == 0 => String::new(),
        (None, None) => format!(" at {:#x}{inlined}", location.svma),
    };
    Ok(escaped(&text).into_owned())
}

fn module_name(trace: &LazyTrace, method: &Method) -> Result<Option<String>, TraceError> {
    let Some(id) = method.module else { return Ok(None) };
    let path = trace.module(id)?.path;
    Ok(Some(path.rsplit('/').next().unwrap_or(&path).to_owned()))
}

/// A length of time with three digits that count.
pub(super) fn duration(ns: u64) -> String {
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
