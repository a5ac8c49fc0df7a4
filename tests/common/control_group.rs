//! Control groups that tests put processes into.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::wait_until;

/// The mounts of control groups of version 2.
const UNIFIED: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A control group. Dropping it thaws it, moves its processes to its parent and removes it.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group that has this file below one of these mounts, if the host permits it.
    fn new(mounts: &[&str], file: &str) -> Option<Self> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        // Relaxed: only for different names.
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("traceprof-test-{}-{number}", std::process::id());
        mounts.iter().find_map(|mount| {
            // Only a mount of control groups has this file.
            Path::new(mount).join("cgroup.procs").exists().then_some(())?;
            let group = ControlGroup(Path::new(mount).join(&name));
            fs::create_dir(&group.0).ok()?;
            group.0.join(file).exists().then_some(group)
        })
    }

    /// Makes a group that can be frozen, of version 1 or 2.
    pub(crate) fn to_freeze(version: u32) -> Option<Self> {
        match version {
            1 => Self::new(&["/sys/fs/cgroup/freezer"], "freezer.state"),
            _ => Self::new(&UNIFIED, "cgroup.freeze"),
        }
    }

    /// Makes a group whose processes get a processor for a millisecond each second.
    pub(crate) fn starving() -> Option<Self> {
        let group = Self::new(&["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"], "cpu.stat");
        if let Some(group) = group {
            let set = group.write("cpu.cfs_period_us", "1000000")
                && group.write("cpu.cfs_quota_us", "1000");
            return set.then_some(group);
        }
        let group = Self::new(&UNIFIED[..1], "cpu.max")?;
        group.write("cpu.max", "1000 1000000").then_some(group)
    }

    pub(crate) fn add(&self, pid: i32) -> bool {
        self.write("cgroup.procs", &pid.to_string())
    }

    pub(crate) fn freeze(&self) -> bool {
        self.write("cgroup.freeze", "1") || self.write("freezer.state", "FROZEN")
    }

    pub(crate) fn thaw(&self) -> bool {
        self.write("cgroup.freeze", "0") || self.write("freezer.state", "THAWED")
    }

    /// Writes to one of its files, none of which is created.
    fn write(&self, file: &str, text: &str) -> bool {
        let opened = fs::OpenOptions::new().write(true).open(self.0.join(file));
        opened.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())).is_ok()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.thaw();
        let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write(self.0.with_file_name("cgroup.procs"), pid);
        }
        // A process that has just exited may still be listed.
        wait_until(Duration::from_secs(5), || fs::remove_dir(&self.0).is_ok());
    }
}
