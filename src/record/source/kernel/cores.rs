//! The list of online cores.

/// Returns the numbers of the online cores.
///
/// If the list cannot be read, the numbers count up from 0 to the available parallelism.
pub(crate) fn cpus() -> Vec<i32> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let parsed = parse_cpus(online.trim());
    let count = std::thread::available_parallelism().map_or(1, usize::from) as i32;
    parsed.unwrap_or_else(|| (0..count).collect())
}

/// Parses a list like `0-3,8`.
pub(super) fn parse_cpus(text: &str) -> Option<Vec<i32>> {
    const CPUS_MAX: i32 = 8192;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
        if !(0..CPUS_MAX).contains(&first) || !(first..CPUS_MAX).contains(&last) {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
