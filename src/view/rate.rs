//! The rate of a recording that had a budget: what became of it.

use super::recording::Recording;
use crate::trace::Value;

/// What is to be said beside the rate that was asked for; nothing if it was never changed.
pub(super) fn changes(recording: &Recording) -> Option<String> {
    let Value::List(changes) = recording.metadata.get("rate_changes")? else { return None };
    let divisor = |change: &Value| match change {
        Value::List(pair) => match pair.as_slice() {
            [_, Value::Unsigned(divisor)] => Some(*divisor),
            _ => None,
        },
        _ => None,
    };
    let slowest = changes.iter().filter_map(divisor).max().filter(|it| *it > 1)?;
    let hz = recording.number("freq_hz")? as f64 / slowest as f64;
    let digits = if hz < 10.0 { 1 } else { 0 };
    Some(format!("lowered to {hz:.digits$} Hz for --max-overhead"))
}
