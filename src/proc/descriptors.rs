//! The open descriptors of a process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Returns the descriptors of a process, with the name that the kernel prints for each.
pub fn descriptors(pid: i32) -> io::Result<BTreeMap<i32, PathBuf>> {
    let all = fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(Result::ok);
    // A descriptor that is closed meanwhile is left out.
    let named = all.filter_map(|entry| {
        Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
    });
    Ok(named.collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_open_file_is_among_them() {
        let file = fs::File::open("/dev/null").unwrap();
        let all = descriptors(std::process::id() as i32).unwrap();
        assert_eq!(all.get(&file.as_raw_fd()), Some(&PathBuf::from("/dev/null")));
    }
}
