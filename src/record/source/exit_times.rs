//! The CPU time of each exiting thread, from the kernel's taskstats.
//!
//! The kernel sends a record for every thread that exits on the machine, and this module keeps
//! those of the processes of a recording. This needs CAP_NET_ADMIN and the machine's own pid, user
//! and network namespaces, and makes a thread's exit about 3 us longer. `PERF_RECORD_READ` would
//! need none of that but is not usable on current kernels (both measured on 6.18). Records of
//! threads that exit on two cores at once stop a ring for good, and threads that start threads get
//! each other's values.
//!
//! # Does not
//! - include what a thread used since its last switch or clock tick, if it ever slept
//!   ([`used_ns`]), nor the work of the exit itself (some 15 us).
//! - report when a thread exited: the records carry no time. `task_events` does.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};

use crate::record::source::task_record::{u32_at, u64_at};

const NETLINK_HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const NLMSG_ERROR: u16 = 2;
/// The family of generic netlink itself, and its request.
const FAMILY_CONTROL: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;
const STATS_GET: u8 = 1;
const STATS_REGISTER_CPUS: u16 = 3;
/// The attributes of a record.
const STATS_THREAD: u16 = 4;
const STATS_TID: u16 = 1;
const STATS_BODY: u16 = 3;
/// Offsets in `struct taskstats`: time spent waiting for a core, the scheduler's CPU time, the
/// elapsed time since the start in microseconds, the number of sleeps, and the process (from
/// version 12 on).
const WAITED: usize = 24;
const CPU_TIME: usize = 72;
const LIFE_US: usize = 144;
const SLEEPS: usize = 272;
const PROCESS: usize = 368;
/// The size of the receive buffer. At 600 bytes a record, it holds some ten thousand exits between
/// two drains.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The number of records of other processes that are kept.
const OTHERS_MAX: usize = 4096;
/// How long to wait for the first record, which reports a thread of our own.
const PATIENCE: Duration = Duration::from_millis(200);

/// CPU times in nanoseconds by thread id, oldest first: an id may be reused between two drains.
type Times = HashMap<i32, VecDeque<u64>>;

/// The taskstats records of the threads of some processes.
pub(crate) struct ExitTimes {
    socket: OwnedFd,
    /// The records that were not taken yet, by process.
    ended: HashMap<i32, Times>,
    /// The last records of other processes: process, thread, CPU time. A process may be added when
    /// it has exited already.
    others: VecDeque<(i32, i32, u64)>,
    buffer: Vec<u8>,
    /// The number of times that the kernel dropped records because they came too fast.
    pub(crate) overruns: u64,
}

impl ExitTimes {
    /// Opens the records, of no process yet.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkGeneric;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // Without the privilege for this, the default size suffices for fewer threads.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        let mut times = Self {
            socket,
            ended: HashMap::new(),
            others: VecDeque::new(),
            buffer: vec![0; 64 << 10],
            overruns: 0,
        };
        let family = times.family()?;
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let mut mask = cpus.trim().as_bytes().to_vec();
        mask.push(0);
        times.ask(family, STATS_GET, STATS_REGISTER_CPUS, &mask)?;
        let own = std::process::id() as i32;
        times.add(own);
        times.prove_arrival(own)?;
        times.remove(own);
        Ok(times)
    }

    /// Adds a process.
    pub(crate) fn add(&mut self, pid: i32) {
        if self.ended.contains_key(&pid) {
            return;
        }
        let mut times = Times::new();
        self.others.retain(|&(process, tid, ns)| {
            if process == pid {
                times.entry(tid).or_default().push_front(ns);
            }
            process != pid
        });
        self.ended.insert(pid, times);
    }

    /// Removes a process.
    pub(crate) fn remove(&mut self, pid: i32) {
        self.ended.remove(&pid);
    }

    /// Takes the records that have arrived.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => {
                    // The kernel reports a refused registration only here.
                    if let Some(error) = messages(&buffer[..len]).find_map(|m| m.error()) {
                        break Err(error);
                    }
                    messages(&buffer[..len]).for_each(|message| self.record(&message));
                }
                Err(Errno::EAGAIN) => break Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => {
                    // The socket does not say which records it dropped, so the remaining ones may
                    // be matched wrongly.
                    self.ended.values_mut().for_each(Times::clear);
                    self.others.clear();
                    self.overruns += 1;
                }
                Err(error) => break Err(error.into()),
            }
        };
        self.buffer = buffer;
        result
    }

    /// Takes the CPU time of a thread of a process that has exited, in nanoseconds; a second call
    /// returns `None`.
    pub(crate) fn take(&mut self, pid: i32, tid: i32) -> Option<u64> {
        let ended = self.ended.get_mut(&pid)?;
        let times = ended.get_mut(&tid)?;
        let first = times.pop_front();
        if times.is_empty() {
            ended.remove(&tid);
        }
        first
    }

    /// Takes all remaining times of a process, by thread id.
    pub(crate) fn take_all(&mut self, pid: i32) -> Vec<(i32, u64)> {
        let ended = self.ended.get_mut(&pid).map(std::mem::take).unwrap_or_default();
        ended
            .into_iter()
            .flat_map(|(tid, times)| times.into_iter().map(move |ns| (tid, ns)))
            .collect()
    }

    fn record(&mut self, message: &NetlinkMessage<'_>) {
        let Some(thread) = message.attributes().find(|(kind, _)| *kind == STATS_THREAD) else {
            return;
        };
        let attributes = || NetlinkAttributes(thread.1);
        let tid = attributes().find(|(kind, _)| *kind == STATS_TID);
        let body = attributes().find(|(kind, _)| *kind == STATS_BODY);
        let (Some((_, tid)), Some((_, body))) = (tid, body) else { return };
        let (Some(tid), Some(process)) = (u32_at(tid, 0), u32_at(body, PROCESS)) else { return };
        let Some(ns) = used_ns(body) else { return };
        let (process, tid) = (process as i32, tid as i32);
        if let Some(ended) = self.ended.get_mut(&process) {
            ended.entry(tid).or_default().push_back(ns);
            return;
        }
        self.others.truncate(OTHERS_MAX - 1);
        self.others.push_front((process, tid, ns));
    }

    /// Returns the number of the taskstats family.
    fn family(&mut self) -> io::Result<u16> {
        self.ask(FAMILY_CONTROL, CONTROL_GET_FAMILY, CONTROL_FAMILY_NAME, b"TASKSTATS\0")?;
        let len = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
        let message = messages(&self.buffer[..len]).next();
        let message = message.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(error) = message.error() {
            return Err(error);
        }
        let family = message.attributes().find(|(kind, _)| *kind == CONTROL_FAMILY_ID);
        let family = family.and_then(|(_, value)| value.first_chunk()).copied();
        family.map(u16::from_ne_bytes).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn ask(&self, family: u16, command: u8, attribute: u16, value: &[u8]) -> io::Result<()> {
        const REQUEST: u16 = 1;
        const VERSION: u8 = 1;
        let attribute_len = 4 + value.len();
        let len = NETLINK_HEADER + GENERIC_HEADER + attribute_len.next_multiple_of(4);
        let mut message = Vec::with_capacity(len);
        message.extend((len as u32).to_ne_bytes());
        message.extend(family.to_ne_bytes());
        message.extend(REQUEST.to_ne_bytes());
        // Sequence number and port: the kernel answers the socket that asked.
        message.extend([0; 8]);
        message.extend([command, VERSION, 0, 0]);
        message.extend((attribute_len as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(value);
        message.resize(len, 0);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    /// Proves that records arrive, by the exit of a thread of our own.
    ///
    /// In another network namespace every call succeeds but no record ever arrives. Old kernels do
    /// not report the process id and fail here too.
    fn prove_arrival(&mut self, own: i32) -> io::Result<()> {
        let thread = std::thread::Builder::new().spawn(|| nix::unistd::gettid().as_raw())?;
        let tid = thread.join().map_err(|_| io::ErrorKind::Other)?;
        let until = Instant::now() + PATIENCE;
        loop {
            self.drain()?;
            if self.take(own, tid).is_some() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(io::Error::other("no record arrives in this network namespace"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the CPU time in a record.
///
/// The scheduler updates its own count at ticks, at switches and on request, but not for the
/// record. For most threads that exit within their first tick it is far too low (measured: 20 % of
/// the CPU time of threads that ran for 0.6 ms). A thread that never slept ran whenever it did not
/// wait for a core.
fn used_ns(body: &[u8]) -> Option<u64> {
    let counted_ns = u64_at(body, CPU_TIME)?;
    if u64_at(body, SLEEPS)? > 0 {
        return Some(counted_ns);
    }
    let life_ns = u64_at(body, LIFE_US)?.saturating_mul(1000);
    Some(counted_ns.max(life_ns.saturating_sub(u64_at(body, WAITED)?)))
}

/// One netlink message.
struct NetlinkMessage<'m> {
    kind: u16,
    body: &'m [u8],
}

impl<'m> NetlinkMessage<'m> {
    fn error(&self) -> Option<io::Error> {
        let code = u32_at(self.body, 0)? as i32;
        (self.kind == NLMSG_ERROR && code != 0).then(|| io::Error::from_raw_os_error(-code))
    }

    fn attributes(&self) -> NetlinkAttributes<'m> {
        NetlinkAttributes(self.body.get(GENERIC_HEADER..).unwrap_or_default())
    }
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let kind = u32_at(bytes, 4)? as u16;
        let body = bytes.get(NETLINK_HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage { kind, body })
    })
}

/// Consecutive attributes: kind and value.
struct NetlinkAttributes<'m>(&'m [u8]);

impl<'m> Iterator for NetlinkAttributes<'m> {
    type Item = (u16, &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        /// The two upper bits are flags.
        const KIND: u32 = 0x3fff;
        let word = u32_at(self.0, 0)?;
        let len = (word & 0xffff) as usize;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(((word >> 16 & KIND) as u16, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// Opens the records of this process.
    fn open() -> io::Result<ExitTimes> {
        let mut times = ExitTimes::open()?;
        times.add(own());
        Ok(times)
    }

    /// Burns CPU time, and returns the thread's id and its own clock at the end.
    fn burn(ms: u64) -> (i32, u64) {
        let clock = || {
            let time = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap();
            time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
        };
        while clock() < ms * 1_000_000 {
            std::hint::black_box(ms);
        }
        (nix::unistd::gettid().as_raw(), clock())
    }

    #[test]
    fn the_cpu_time_of_exited_threads_is_exact() {
        let mut times = match open() {
            Ok(times) => times,
            // Not privileged; other tests cover that case.
            Err(_) if !nix::unistd::geteuid().is_root() => return,
            Err(error) => panic!("{error}"),
        };
        let threads: Vec<_> = [3, 7].map(|ms| std::thread::spawn(move || burn(ms))).into();
        for thread in threads {
            let (tid, own_ns) = thread.join().unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            let reported = loop {
                times.drain().unwrap();
                match times.take(own(), tid) {
                    Some(reported) => break reported,
                    None => assert!(Instant::now() < until, "no record of {tid}"),
                }
            };
            assert!(reported >= own_ns && reported < own_ns + 5_000_000, "{reported} {own_ns}");
            assert_eq!(times.take(own(), tid), None, "reported once");
        }
    }

    /// Uses some time without reading a clock.
    fn spin() -> i32 {
        let mut word = 1u64;
        for _ in 0..SPINS {
            word = std::hint::black_box(word.wrapping_mul(6_364_136_223_846_793_005));
        }
        nix::unistd::gettid().as_raw()
    }

    /// A fraction of a clock tick.
    const SPINS: u32 = 100_000;

    /// Reading the scheduler's count updates it.
    #[test]
    fn the_cpu_time_of_threads_that_never_read_their_clock_is_reported() {
        const THREADS: u64 = 40;
        let Ok(mut times) = open() else { return };
        let own_ns = || {
            let time = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap();
            time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
        };
        let (mut reported, mut asked) = (0, 0);
        for _ in 0..THREADS {
            let tid = std::thread::spawn(spin).join().unwrap();
            asked += std::thread::spawn(move || (spin(), own_ns()).1).join().unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            reported += loop {
                times.drain().unwrap();
                match times.take(own(), tid) {
                    Some(ns) => break ns,
                    None => assert!(Instant::now() < until, "no record of {tid}"),
                }
            };
        }
        assert!(
            reported > asked / 2 && reported < asked * 2,
            "{reported} ns reported, {asked} ns asked for"
        );
    }

    #[test]
    fn garbage_is_skipped() {
        for len in [0usize, 3, 4, 16, 40] {
            for fill in [0, 1, 0x7f, 0xff] {
                let bytes = vec![fill; len];
                assert!(messages(&bytes).count() <= len);
                assert!(NetlinkAttributes(&bytes).count() <= len);
            }
        }
        let mut looping = vec![0u8; 64];
        looping[0] = 4;
        assert!(NetlinkAttributes(&looping).count() <= 16);
        assert_eq!(messages(&[0; 64]).count(), 0, "a length of 0 ends the list");
    }
}
