//! The machine as the kernel describes it: settings, processor, memory.

use std::fs;
use std::path::Path;

use nix::unistd::{SysconfVar, sysconf};

/// Returns a kernel setting by its name, such as `kernel.yama.ptrace_scope`; `None` if this kernel
/// does not have it.
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

/// Returns the bytes of memory that this process may have: the machine's memory, or the limit of
/// its control group.
pub fn memory_len() -> Option<u64> {
    let read = |variable| sysconf(variable).ok().flatten().and_then(|it| u64::try_from(it).ok());
    let pages = read(SysconfVar::_PHYS_PAGES)?;
    let machine = pages.saturating_mul(read(SysconfVar::PAGE_SIZE)?);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(group_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |it| it.min(machine)))
}

/// Returns the tightest limit of a process's control groups. `groups` is the text of
/// /proc/PID/cgroup.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let Some((controllers, path)) = line.split_once(':').and_then(|it| it.1.split_once(':'))
        else {
            return Vec::new();
        };
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|it| it == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let own = folder.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|it| it.starts_with(&folder));
        folders.filter_map(|it| fs::read_to_string(it.join(file)).ok()).collect()
    });
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_processor_flags_are_read() {
        assert!(sysctl("vm.max_map_count").is_some_and(|count| count > 1000));
        assert_eq!(sysctl("kernel.no_such_setting"), None);
        assert!(has_processor_flag("fpu") && !has_processor_flag("no-such-flag"));
        assert!(memory_len().is_some_and(|len| len > 64 << 20));
    }

    #[test]
    fn the_tightest_limit_of_memory_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = |folder: &str, file: &str, text: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        };
        let check = |groups: &str, expected| {
            assert_eq!(group_limit(groups, root.path()), expected, "{groups}");
        };
        check("0::/a/b\n", None);
        limit("a/b", "memory.max", "max\n");
        check("0::/a/b\n", None);
        limit("a", "memory.max", "5000\n");
        limit("", "memory.max", "7000\n");
        check("0::/a/b\n", Some(5000));
        check("0::/\n", Some(7000));
        check("0::/../other\n", Some(7000));
        limit("memory/docker", "memory.limit_in_bytes", "300\n");
        check("3:cpu:/docker\n2:freezer,memory:/docker\n", Some(300));
        check("nonsense\n\n:", None);
    }
}
