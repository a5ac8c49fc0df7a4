//! Targets by where they run: namespaces, users, file systems, filters.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Proof;
use crate::common::{
    Recorder, Snapshot, Target, Trace, as_nobody, needs_recording, program, program_for_everyone,
    scratch_dir, skip, together, traceprof, variant,
};

const TRACEPROF: &str = env!("CARGO_BIN_EXE_traceprof");

/// Returns `unshare FLAGS`, if the host permits it.
fn unshare(flags: &[&str]) -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(flags);
    let mut attempt = Command::new("unshare");
    attempt.args(flags).arg("true");
    attempt.output().is_ok_and(|output| output.status.success()).then_some(command)
}

/// Skips the calling test where such namespaces are not permitted.
macro_rules! unshare {
    ($($flag:expr),*) => {
        match unshare(&[$($flag),*]) {
            Some(command) => command,
            None => skip!("unshare: namespaces are not permitted here"),
        }
    };
}

/// Adds the steady target, with threads of every kind.
fn steady(mut command: Command) -> Command {
    command.arg(program("steady")).arg("8");
    command
}

#[test]
fn other_mount_namespace() {
    needs_recording!();
    let command = unshare!("--mount");
    let _machine = together();
    Proof::of(Target::spawn(steady(command))).survives();
}

#[test]
fn other_user_namespace() {
    needs_recording!();
    let command = unshare!("--user", "--map-root-user");
    let _machine = together();
    Proof::of(Target::spawn(steady(command))).survives();
}

#[test]
fn other_network_namespace() {
    needs_recording!();
    let command = unshare!("--net");
    let _machine = together();
    Proof::of(Target::spawn(steady(command))).survives();
}

/// The target is the first process of its namespace, which gets no signal without a handler.
#[test]
fn other_pid_namespace() {
    needs_recording!();
    let command = unshare!("--pid", "--fork", "--kill-child");
    let _machine = together();
    Proof::of(Target::spawn_inside(steady(command))).survives();
}

#[test]
fn all_namespaces_but_that_of_our_segments() {
    needs_recording!();
    let flags = ["--user", "--map-root-user", "--mount", "--net", "--uts", "--cgroup", "--time"];
    let command = unshare!(
        "--pid",
        "--fork",
        "--kill-child",
        flags[0],
        flags[1],
        flags[2],
        flags[3],
        flags[4],
        flags[5],
        flags[6]
    );
    let _machine = together();
    Proof::of(Target::spawn_inside(steady(command))).survives();
}

/// As the refusal from outside suggests.
#[test]
fn other_ipc_namespace_is_entered() {
    needs_recording!();
    let command = unshare!("--ipc");
    let _machine = together();
    let target = Target::spawn(steady(command));
    let pid = target.pid().to_string();
    let entered = || {
        let mut command = Command::new("nsenter");
        command.args(["--ipc", "--target", &pid]).arg(TRACEPROF);
        command
    };
    Proof::of(target).recorded_by(entered).survives();
}

/// Its root contains nothing but the program and is read-only: no /proc, no /dev, no /tmp.
#[test]
fn read_only_root_with_nothing_in_it() {
    needs_recording!();
    let mut command = unshare!("--mount");
    let _machine = together();
    let dir = scratch_dir();
    let program = variant("steady-static", "steady.c", "cc", &["-pthread", "-static"]);
    program_for_everyone(&program, dir.path());
    command.args([
        "sh",
        "-c",
        "mount --bind -o ro \"$0\" \"$0\" && exec chroot \"$0\" /steady-static 8",
    ]);
    command.arg(dir.path());
    Proof::of(Target::spawn(command)).survives();
}

#[test]
fn executable_that_is_deleted() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let mut command = Command::new(program_for_everyone(&program("steady"), dir.path()));
    command.arg("8");
    let target = Target::spawn(command);
    dir.close().expect("the directory goes");
    Proof::of(target).survives();
}

#[test]
fn filter_that_permits_us() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("steady", &["8", "seccomp"]);
    Proof::of(target).with("--allow-seccomp").survives();
}

/// Copies the target and the recorder to where every user can execute them.
fn for_everyone(dir: &Path) -> [PathBuf; 2] {
    [program("steady"), TRACEPROF.into()].map(|path| program_for_everyone(&path, dir))
}

#[test]
fn same_user_without_privileges() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let [steady, traceprof] = for_everyone(dir.path());
    let Some(mut command) = as_nobody(&steady) else {
        skip!("root: needed to act as another user");
    };
    command.arg("8");
    let nobody = || as_nobody(&traceprof).expect("root, as before");
    Proof::of(Target::spawn(command)).recorded_by(nobody).survives();
}

#[test]
fn other_user_by_root() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let [steady, _] = for_everyone(dir.path());
    let Some(mut command) = as_nobody(&steady) else {
        skip!("root: needed to act as another user");
    };
    command.arg("8");
    Proof::of(Target::spawn(command)).recorded_by(|| traceprof(&[])).survives();
}

/// Started by nobody, the program runs with the rights of its owner. Only root may record it.
#[test]
fn setuid_program() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let [steady, ours] = for_everyone(dir.path());
    let Some(mut command) = as_nobody(&steady) else {
        skip!("root: needed to act as another user");
    };
    std::fs::set_permissions(&steady, std::fs::Permissions::from_mode(0o4755)).expect("its mode");
    command.arg("4");
    let target = Target::spawn(command);
    let before = Snapshot::take(target.pid());
    let mut refused = as_nobody(&ours).expect("root, as before");
    refused.args(["record", "--duration", "1", "--pid", &target.pid().to_string()]);
    let outcome = Recorder::spawn(refused, Trace::new()).finish().expect_code(3);
    assert!(outcome.text().contains("run as root"), "{}", outcome.text());
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    Proof::of(target).recorded_by(|| traceprof(&[])).survives();
}

/// The kernel shows other devices and inodes of mapped files than `stat` does.
#[test]
fn overlay_mount() {
    needs_recording!();
    let mut command = unshare!("--mount");
    let _machine = together();
    let dir = scratch_dir();
    let lower = dir.path().join("lower");
    std::fs::create_dir(&lower).expect("the lower directory");
    program_for_everyone(&program("steady"), &lower);
    let script = "mount -t tmpfs none \"$0\"/upper && mkdir \"$0\"/upper/files \"$0\"/upper/work \
        && mount -t overlay overlay \
           -o lowerdir=\"$0\"/lower,upperdir=\"$0\"/upper/files,workdir=\"$0\"/upper/work \
           \"$0\"/merged || exit 99; exec \"$0\"/merged/steady 8";
    for name in ["upper", "merged"] {
        std::fs::create_dir(dir.path().join(name)).expect("a directory");
    }
    let mut attempt = unshare!("--mount");
    attempt.args(["sh", "-c", &script.replace("exec", "exit 0; exec")]).arg(dir.path());
    if !attempt.output().is_ok_and(|output| output.status.success()) {
        skip!("unshare: no overlay mounts");
    }
    command.args(["sh", "-c", script]).arg(dir.path());
    Proof::of(Target::spawn(command)).survives();
}

/// A control group whose memory is nearly used up, until it is dropped.
struct FullGroup(PathBuf);

impl FullGroup {
    const LIMIT: &str = "33554432";

    /// Creates the group below that of this process, if the host permits it.
    fn create() -> Option<FullGroup> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path =
            |kind: &str| groups.lines().find_map(|line| line.split_once(kind).map(|it| it.1));
        let (root, own, file) = match path(":memory:") {
            Some(own) => ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes"),
            None => ("/sys/fs/cgroup", path("0::")?, "memory.max"),
        };
        let name = format!("traceprof-test-{}", std::process::id());
        let group = FullGroup(PathBuf::from(format!("{root}{own}")).join(name));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join(file), Self::LIMIT).ok()?;
        Some(group)
    }
}

impl Drop for FullGroup {
    fn drop(&mut self) {
        // A process that has just exited may still be listed.
        crate::common::wait_until(std::time::Duration::from_secs(5), || {
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// Neither the agent's memory nor its handlers may need memory of the group.
#[test]
fn control_group_at_its_memory_limit() {
    needs_recording!();
    let _machine = together();
    let Some(group) = FullGroup::create() else {
        skip!("control groups: none can be created here");
    };
    let mut command = Command::new("sh");
    // The page cache of the file fills the group up to its limit.
    let fill = "echo $$ > \"$0\"/cgroup.procs && head -c 64M /dev/zero > \"$1\" && exec \"$2\" 8";
    let dir = scratch_dir();
    command.args(["-c", fill]).arg(&group.0).arg(dir.path().join("cache")).arg(program("steady"));
    Proof::of(Target::spawn(command)).survives();
}

/// The recorder is in the namespace, too, as in a container without privileges.
#[test]
fn inside_an_unprivileged_user_namespace() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let [steady, traceprof] = for_everyone(dir.path());
    let Some(mut attempt) = as_nobody(Path::new("unshare")) else {
        skip!("root: needed to act as another user");
    };
    let flags = ["--user", "--map-root-user"];
    if !attempt.args(flags).arg("true").output().is_ok_and(|output| output.status.success()) {
        skip!("unshare: only root may make user namespaces here");
    }
    let mut command = as_nobody(Path::new("unshare")).expect("root, as before");
    command.args(flags).arg(&steady).arg("8");
    let target = Target::spawn(command);
    let pid = target.pid().to_string();
    let inside = || {
        let mut command = as_nobody(Path::new("nsenter")).expect("root, as before");
        command.args(["--user", "--preserve-credentials", "--target", &pid]).arg(&traceprof);
        command
    };
    Proof::of(target).recorded_by(inside).survives();
}
