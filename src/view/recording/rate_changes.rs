//! The sampling rate of a recording with a budget for overhead.

use crate::trace::{Metadata, Value};

/// Returns a text about a changed rate, or `None` if the rate never changed.
pub(in crate::view) fn changes(metadata: &Metadata) -> Option<String> {
    let divisors = divisors(metadata).into_iter().map(|(_, divisor)| divisor);
    let slowest = divisors.max().filter(|it| *it > 1)?;
    let Value::Unsigned(asked_hz) = metadata.get("freq_hz")? else { return None };
    let hz = *asked_hz as f64 / slowest as f64;
    let digits = if hz < 10.0 { 1 } else { 0 };
    Some(format!("lowered to {hz:.digits$} Hz for --max-overhead"))
}

/// Returns the times of the changes in nanoseconds on the clock of the samples, each with the
/// divisor of the requested rate from then on.
pub(in crate::view) fn divisors(metadata: &Metadata) -> Vec<(u64, u64)> {
    let Some(Value::List(changes)) = metadata.get("rate_changes") else { return Vec::new() };
    let pair = |change: &Value| match change {
        Value::List(pair) => match pair[..] {
            [Value::Unsigned(time_ns), Value::Unsigned(divisor)] => Some((time_ns, divisor)),
            _ => None,
        },
        _ => None,
    };
    changes.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(freq_hz: Value, changes: Value, expected: Option<&str>) {
        let keys = [("freq_hz", freq_hz), ("rate_changes", changes)];
        let metadata = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(super::changes(&metadata).as_deref(), expected);
    }

    #[test]
    fn only_the_slowest_rate_is_reported() {
        let number = Value::Unsigned;
        let list = |divisors: &[u64]| {
            let pair = |divisor: &u64| Value::List(vec![number(7), number(*divisor)]);
            Value::List(divisors.iter().map(pair).collect())
        };
        let expected = |hz: &str| format!("lowered to {hz} Hz for --max-overhead");
        check(number(9999), list(&[32, 64, 2]), Some(&expected("156")));
        check(number(199), list(&[64]), Some(&expected("3.1")));
        check(number(199), list(&[]), None);
        check(number(199), list(&[1]), None);
        check(number(199), number(64), None);
        check(Value::Text("fast".to_owned()), list(&[64]), None);
        check(number(199), Value::List(vec![number(64), Value::List(vec![number(64)])]), None);
    }
}
