//! The names of the descriptors that a process waits for.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::descriptor;
use super::sockets::{Sockets, sockets};

/// Longest name, in bytes: a path may have thousands, and the recording keeps every name.
const NAME_MAX: usize = 256;
/// The mark of a shortened name.
const CUT: &str = "\u{2026}";
/// Shortest pause between two reads of the socket tables.
const PAUSE: Duration = Duration::from_secs(1);
/// Shortest pause in multiples of the time that the read took: tables may be long.
const PAUSE_BY_COST: u32 = 100;
/// The age after which a socket may have got a name, or a peer.
const OLD: Duration = Duration::from_secs(30);

/// Returns the descriptor that a system call with these arguments waits for. `None` if the call
/// waits for several descriptors, or for something else.
pub fn waited_descriptor(number: u64, args: &[u64; 6]) -> Option<i32> {
    let is_first = matches!(
        number as i64,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_pread64
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_ioctl
            | libc::SYS_fcntl
            | libc::SYS_flock
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_syncfs
            | libc::SYS_fallocate
            | libc::SYS_ftruncate
            | libc::SYS_getdents64
            | libc::SYS_mq_timedsend
            | libc::SYS_mq_timedreceive
            | libc::SYS_io_uring_enter
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
    );
    let [first, ..] = *args;
    is_first.then_some(first as i32)
}

/// The names of a process's descriptors. Descriptor numbers are reused, so each request reads the
/// name again, with one system call. Only the sockets are cached.
#[derive(Debug)]
pub struct DescriptorNames {
    pid: i32,
    sockets: Sockets,
    /// The time when the sockets were read, and the duration of that read.
    read: Option<(Instant, Duration)>,
}

impl DescriptorNames {
    /// Creates the value without reading anything.
    pub fn new(pid: i32) -> Self {
        Self { pid, sockets: Sockets::new(), read: None }
    }

    /// Returns the name of an open descriptor: a path, or its kind. The name has at most 256 bytes,
    /// and may contain any characters.
    pub fn name(&mut self, number: i32) -> Option<Arc<str>> {
        let target = descriptor(self.pid, number).ok()?;
        let target = String::from_utf8_lossy(target.as_bytes());
        let socket = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        Some(match socket.and_then(|inode| inode.parse().ok()) {
            Some(inode) => self.socket(inode).unwrap_or_else(|| Arc::from("socket")),
            None => bounded(kind(&target)),
        })
    }

    fn socket(&mut self, inode: u64) -> Option<Arc<str>> {
        let now = Instant::now();
        let is_due = self.read.is_none_or(|(read, cost)| {
            let pause = if self.sockets.contains_key(&inode) { OLD } else { PAUSE };
            now.duration_since(read) >= pause.max(cost * PAUSE_BY_COST)
        });
        if is_due {
            self.sockets = sockets(self.pid);
            let text_of = |text: &mut Arc<str>| *text = bounded(text);
            self.sockets.values_mut().filter(|text| text.len() > NAME_MAX).for_each(text_of);
            self.read = Some((Instant::now(), now.elapsed()));
        }
        self.sockets.get(&inode).map(Arc::clone)
    }
}

/// Returns the kind in `pipe:[17]` or `anon_inode:[eventpoll]`, without the number of the single
/// object.
fn kind(target: &str) -> &str {
    if let Some(name) = target.strip_prefix("anon_inode:") {
        return name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    }
    match target.split_once(":[") {
        Some((kind, rest)) if !kind.starts_with('/') && rest.ends_with(']') => kind,
        _ => target,
    }
}

fn bounded(name: &str) -> Arc<str> {
    if name.len() <= NAME_MAX {
        return Arc::from(name);
    }
    let is_room =
        |&(at, character): &(usize, char)| at + character.len_utf8() + CUT.len() <= NAME_MAX;
    let kept = name.char_indices().take_while(is_room).map(|(_, character)| character);
    Arc::from(kept.chain(CUT.chars()).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use inotify::Inotify;
    use nix::unistd::pipe;

    use super::*;

    fn own_names() -> DescriptorNames {
        DescriptorNames::new(std::process::id() as i32)
    }

    fn name(descriptor: &impl AsRawFd) -> String {
        own_names().name(descriptor.as_raw_fd()).unwrap().to_string()
    }

    #[test]
    fn files_and_kinds_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a [b]:[c]");
        let file = File::create(&path).unwrap();
        assert_eq!(name(&file), path.to_str().unwrap());
        assert_eq!(name(&File::open("/dev/null").unwrap()), "/dev/null");
        assert_eq!(name(&pipe().unwrap().0), "pipe");
        let events = Inotify::init().unwrap();
        assert_eq!(name(&events), "inotify");
        assert_eq!(own_names().name(-1), None);
        for (target, expected) in [
            ("anon_inode:[eventpoll]", "eventpoll"),
            ("anon_inode:[timerfd]", "timerfd"),
            ("anon_inode:inotify", "inotify"),
            ("anon_inode:[", "["),
            ("net:[4026531840]", "net"),
            ("/dev/pts/0", "/dev/pts/0"),
            ("/x/y:[1]", "/x/y:[1]"),
            ("", ""),
        ] {
            assert_eq!(kind(target), expected);
        }
    }

    #[test]
    fn sockets_are_named_by_their_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let caller = TcpStream::connect(server).unwrap();
        let (called, client) = listener.accept().unwrap();
        assert_eq!(name(&listener), format!("socket tcp {server} (listening)"));
        assert_eq!(name(&caller), format!("socket tcp {client} -> {server}"));
        assert_eq!(name(&called), format!("socket tcp {server} <- {client}"));
        let datagrams =
            UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
        assert_eq!(name(&datagrams), format!("socket udp {}", datagrams.local_addr().unwrap()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local");
        let local = UnixListener::bind(&path).unwrap();
        assert_eq!(name(&local), format!("socket unix {}", path.display()));
        assert_eq!(name(&UnixStream::pair().unwrap().0), "socket unix");
    }

    #[test]
    fn tables_are_not_read_for_every_unknown_socket() {
        let mut names = own_names();
        let (one, other) = UnixStream::pair().unwrap();
        assert!(names.name(one.as_raw_fd()).is_some());
        let first = names.read;
        let kept = names.sockets.len();
        assert_eq!(names.name(other.as_raw_fd()).as_deref(), Some("socket unix"));
        assert_eq!(
            (names.read, names.sockets.len()),
            (first, kept),
            "the first read already covered it"
        );
        // Simulates an expensive read a moment ago, so that none is due for long.
        names.read = Some((Instant::now(), Duration::from_secs(3600)));
        let late = UnixStream::pair().unwrap();
        assert_eq!(names.name(late.0.as_raw_fd()).as_deref(), Some("socket"));
        names.read = Some((Instant::now() - 2 * PAUSE, Duration::ZERO));
        assert_eq!(names.name(late.0.as_raw_fd()).as_deref(), Some("socket unix"));
    }

    #[test]
    fn number_that_is_used_again_has_its_new_name() {
        let mut names = own_names();
        let (end, _other) = pipe().unwrap();
        let number = end.as_raw_fd();
        assert_eq!(names.name(number).as_deref(), Some("pipe"));
        let file = File::open("/dev/null").unwrap();
        let mut end = end;
        nix::unistd::dup2(&file, &mut end).unwrap();
        assert_eq!(names.name(number).as_deref(), Some("/dev/null"));
    }

    #[test]
    fn names_are_short() {
        let long = "\u{e9}".repeat(200);
        let name = bounded(&long);
        assert!(name.len() <= NAME_MAX && name.ends_with(CUT) && long.starts_with(&name[..250]));
        assert_eq!(&*bounded("x"), "x");
        assert_eq!(bounded(&"x".repeat(NAME_MAX)).len(), NAME_MAX);
    }

    #[test]
    fn the_descriptor_of_a_call_is_found() {
        let args = [7, 8, 9, 0, 0, 0];
        let of = |number: i64| waited_descriptor(number as u64, &args);
        assert_eq!(of(libc::SYS_read), Some(7));
        assert_eq!(of(libc::SYS_epoll_wait), Some(7));
        assert_eq!(of(libc::SYS_poll), None);
        assert_eq!(of(libc::SYS_futex), None);
    }
}
