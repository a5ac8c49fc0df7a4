//! Formatting of numbers for the closing report.

/// Formats a share in percent with one decimal.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// Formats nanoseconds as seconds with three decimals.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}
