//! What the kernel tells of the machine: its settings, its processor.

use std::fs;

/// A kernel setting by its name, `kernel.yama.ptrace_scope`; `None` where this kernel has none.
pub fn sysctl(name: &str) -> Option<i64> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether the kernel lists a flag of the processor.
pub fn has_processor_flag(flag: &str) -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        let mut lines = text.lines();
        lines
            .find_map(|line| line.strip_prefix("flags"))
            .is_some_and(|flags| flags.split_ascii_whitespace().any(|word| word == flag))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tells_its_settings_and_the_processor() {
        assert!(sysctl("vm.max_map_count").is_some_and(|count| count > 1000));
        assert_eq!(sysctl("kernel.no_such_setting"), None);
        assert!(has_processor_flag("fpu") && !has_processor_flag("no-such-flag"));
    }
}
