//! Numbers as text: counts with their noun, percentages and seconds.

/// Returns `part` as a percentage of `whole`, 0 if `whole` is 0.
pub(in crate::view) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Returns a number with its noun: `1 call`, `2 calls`.
pub(in crate::view) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the time of some periods, with as many digits as this period length makes significant.
pub(in crate::view) fn seconds(periods: u64, period_ns: f64) -> String {
    let digits = match period_ns {
        ..1e5 => 5,
        1e5..1e6 => 4,
        _ => 3,
    };
    format!("{:.digits$}", periods as f64 * period_ns / 1e9)
}

/// Returns microseconds as seconds.
pub(in crate::view) fn wall_seconds(us: u64) -> String {
    // Integers instead of floats make times of equal precision add up.
    let ms = us.saturating_add(500) / 1000;
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn microseconds_are_rounded_to_milliseconds() {
        for (us, text) in
            [(0, "0.000"), (499, "0.000"), (500, "0.001"), (9_980_000_400, "9980.000")]
        {
            assert_eq!(wall_seconds(us), text);
        }
    }
}
