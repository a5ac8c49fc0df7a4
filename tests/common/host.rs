//! What this host permits.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::ClockId;

const ALLOWED_SKIPS: &str = include_str!("../allowed-skips.txt");

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

/// Whether `scripts/test --long` runs the tests. Tests that search for rare races then make many
/// more attempts.
pub(crate) fn is_long_run() -> bool {
    std::env::var_os("TRACEPROF_TEST_LONG").is_some()
}

/// Returns the length of the kernel's tick: 1, 4 or 10 ms.
pub(crate) fn tick() -> Duration {
    ClockId::CLOCK_MONOTONIC_COARSE.res().expect("a clock").into()
}

/// Returns the seed of the tests' random choices: `TRACEPROF_TEST_SEED`, which `scripts/check.sh`
/// draws and prints, or else the time.
pub(crate) fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| {
        let given = std::env::var("TRACEPROF_TEST_SEED").ok();
        given.map(|text| text.parse().expect("TRACEPROF_TEST_SEED: a number")).unwrap_or_else(
            || {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
                now.as_nanos() as u64
            },
        )
    });
    *SEED
}

/// A pseudo-random generator. The same seed and salt give the same numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(salt: u64) -> Self {
        // Seeds that differ by little start far from each other.
        Self((seed() ^ salt << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Returns two of these for this run, which the seed and the number choose, and all in a long run.
pub(crate) fn some_of<T>(mut all: Vec<T>, stream: u64) -> Vec<T> {
    let mut random = Random::new(stream);
    while !is_long_run() && all.len() > 2 {
        let left_out = random.below(all.len() as u64);
        all.swap_remove(left_out as usize);
    }
    all
}

/// Whether `TRACEPROF_TEST_REQUIRE=all` turns a skip for this reason into a failure. Reasons in the
/// list of allowed skips never do.
pub(crate) fn no_skip_allowed(reason: &str) -> bool {
    let required = std::env::var("TRACEPROF_TEST_REQUIRE").is_ok_and(|value| value == "all");
    let mut allowed = ALLOWED_SKIPS.lines().filter(|line| !line.trim().is_empty());
    required && !allowed.any(|line| !line.starts_with('#') && reason.starts_with(line.trim()))
}

/// Returns the reason why nothing can be recorded on this host, if there is one.
pub(crate) fn recording_obstacle() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some(format!("architecture: {}", std::env::consts::ARCH));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if kernel_version(&release) < (6, 1) {
        return Some(format!("kernel below 6.1: {}", release.trim()));
    }
    if is_root() { perf_obstacle() } else { unprivileged_obstacle().or_else(perf_obstacle) }
}

/// Returns the reason why an unprivileged user cannot record the C targets on this host, if there
/// is one. The targets permit any tracer, which is enough for yama's ptrace_scope 1.
pub(crate) fn unprivileged_obstacle() -> Option<String> {
    let scope = number_in("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0);
    if scope > 1 {
        return Some(format!("ptrace_scope {scope}: only root may attach"));
    }
    let paranoid = number_in("/proc/sys/kernel/perf_event_paranoid").unwrap_or(2);
    (paranoid > 2).then(|| format!("perf_event_paranoid {paranoid}: only root may sample"))
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse());
    let mut next = || parts.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

fn number_in(path: impl AsRef<Path>) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Opens a task clock of this thread, the least that a profiler can ask for.
fn perf_obstacle() -> Option<String> {
    /// The first fields of `struct perf_event_attr`, up to PERF_ATTR_SIZE_VER0.
    #[repr(C)]
    struct Attr {
        kind: u32,
        size: u32,
        config: u64,
        period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        rest: [u64; 2],
    }
    const SOFTWARE: u32 = 1;
    const TASK_CLOCK: u64 = 1;
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    let attr = Attr {
        kind: SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: TASK_CLOCK,
        period: 1_000_000,
        sample_type: 0,
        read_format: 0,
        flags: DISABLED | EXCLUDE_KERNEL,
        rest: [0; 2],
    };
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives across the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, 0) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Some(format!("perf_event_open: {error}"));
    }
    // SAFETY: `fd` was opened above and nothing else uses it.
    unsafe { libc::close(fd as i32) };
    None
}

/// Returns the number of POSIX timers of a process.
pub(crate) fn timers(pid: i32) -> usize {
    let list = fs::read_to_string(format!("/proc/{pid}/timers")).expect("list of timers");
    list.lines().filter(|line| line.starts_with("ID:")).count()
}

/// Returns the CPU time of a process, exited threads included.
pub(crate) fn cpu_clock(pid: i32) -> Duration {
    let clock = nix::time::ClockId::pid_cpu_clock_id(nix::unistd::Pid::from_raw(pid));
    clock.and_then(|clock| clock.now()).map(Duration::from).expect("CPU clock of the target")
}

/// Returns the child process of this parent that has this name.
pub(crate) fn child_named(parent: i32, name: &str) -> Option<i32> {
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (start, rest) = stat.rsplit_once(") ")?;
        let (_, found) = start.split_once(" (")?;
        let found_parent = rest.split(' ').nth(1)?.parse();
        (found == name && found_parent == Ok(parent)).then_some(pid)
    });
    pids.min()
}
