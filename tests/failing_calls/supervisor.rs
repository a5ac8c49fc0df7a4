//! Supervision of a command's system calls, in all processes that it starts.
//!
//! A seccomp filter notifies the supervisor of each call of some kinds. The supervisor counts the
//! call, and then lets the kernel make it or makes it fail. The command itself is unchanged.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType};
use nix::sys::socket::{recvmsg, socketpair};

const RECEIVE: libc::c_ulong = 0xc050_2100;
const ANSWER: libc::c_ulong = 0xc018_2101;
/// The kernel makes the call.
const CONTINUE: u32 = 1;
const NOTIFY: u32 = 0x7fc0_0000;
const PERMIT: u32 = 0x7fff_0000;
const NEW_LISTENER: libc::c_ulong = 1 << 3;

/// One instruction of a classic BPF program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction(u16, u8, u8, u32);

#[repr(C)]
struct Filter(u16, *const Instruction);

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    tid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction_pointer: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// A system call that waits for an answer.
#[derive(Debug)]
pub(super) struct Call {
    id: u64,
    pub(super) tid: i32,
    pub(super) number: libc::c_long,
    arguments: [u64; 6],
}

impl Call {
    /// Describes who makes the call, and with which arguments.
    pub(super) fn text(&self, name: &str) -> String {
        let read = |file| std::fs::read_to_string(format!("/proc/{}/{file}", self.tid));
        let thread = read("comm").unwrap_or_default();
        let [first, second, third, ..] = self.arguments;
        let subject = match self.number {
            libc::SYS_openat | libc::SYS_openat2 => self.string_at(second),
            libc::SYS_write
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_ftruncate => {
                let path = std::fs::read_link(format!("/proc/{}/fd/{first}", self.tid));
                format!("{}, {third}", path.unwrap_or_default().display())
            }
            _ => format!("{first:#x}, {second:#x}, {third:#x}"),
        };
        format!("{name}({subject}) by {}", thread.trim_end())
    }

    /// Whether the call sets an alternate stack, rather than to read which one is set.
    pub(super) fn sets_alternate_stack(&self) -> bool {
        self.number == libc::SYS_sigaltstack && self.arguments[0] != 0
    }

    fn string_at(&self, address: u64) -> String {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 120];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.tid));
        let got = memory.and_then(|memory| memory.read_at(&mut bytes, address)).unwrap_or(0);
        let text = bytes[..got].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// What a supervised command does next.
pub(super) enum Next {
    Call(Call),
    /// Nothing within the time limit.
    Nothing,
    /// The command and all processes that it started have exited.
    Ended,
}

/// The supervisor of a command and its children. Calls fail once it is dropped.
pub(super) struct Supervisor(OwnedFd);

impl Supervisor {
    /// Starts the command under supervision of these calls. It must not wait for an answer before
    /// its exec.
    pub(super) fn start(mut command: Command, calls: &[libc::c_long]) -> (Child, Supervisor) {
        let kind = SockType::SeqPacket;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).expect("sockets");
        let program = program(calls);
        let socket = theirs.as_raw_fd();
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(move || send(socket, install(&program)?)) };
        let child = command.spawn().expect("the command under supervision");
        drop(theirs);
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut byte = [0];
        let mut parts = [io::IoSliceMut::new(&mut byte)];
        let message = recvmsg::<()>(
            ours.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        );
        let message = message.expect("the listener");
        let listener = message.cmsgs().expect("the listener").find_map(|part| match part {
            ControlMessageOwned::ScmRights(numbers) => numbers.first().copied(),
            _ => None,
        });
        // SAFETY: the kernel has just created it for this message, and nothing else knows it.
        let listener = unsafe { OwnedFd::from_raw_fd(listener.expect("a descriptor")) };
        (child, Supervisor(listener))
    }

    /// Returns the next call, which waits for [`Self::answer`].
    pub(super) fn next(&self, limit: Duration) -> Next {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(limit).expect("a short limit");
        let ready = poll(&mut fds, limit);
        let events = fds[0].revents().unwrap_or(PollFlags::empty());
        match ready {
            Ok(1..) if events.contains(PollFlags::POLLIN) => {}
            Ok(1..) => return Next::Ended,
            _ => return Next::Nothing,
        }
        let mut call = Notification::default();
        // SAFETY: the kernel fills the structure, which must be zeroed before.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut call) };
        if result != 0 {
            // The caller was killed.
            return Next::Nothing;
        }
        Next::Call(Call {
            id: call.id,
            tid: call.tid as i32,
            number: call.number.into(),
            arguments: call.arguments,
        })
    }

    /// Lets the kernel make the call, or makes it fail with this error.
    pub(super) fn answer(&self, call: &Call, errno: Option<i32>) {
        let (error, flags) = errno.map_or((0, CONTINUE), |errno| (-errno, 0));
        let response = Response { id: call.id, value: 0, error, flags };
        // SAFETY: the kernel reads the structure. If the caller was killed, this is an error that
        // concerns nobody.
        unsafe { libc::ioctl(self.0.as_raw_fd(), ANSWER, &raw const response) };
    }
}

/// Returns a program that notifies the supervisor of these calls.
fn program(calls: &[libc::c_long]) -> Vec<Instruction> {
    let count = calls.len() as u8;
    let mut program = vec![Instruction(0x20, 0, 0, 0)]; // the system call's number
    program.extend((0..count).zip(calls).map(|(index, number)| {
        Instruction(0x15, count - index, 0, *number as u32) // to the last instruction
    }));
    program.push(Instruction(0x06, 0, 0, PERMIT));
    program.push(Instruction(0x06, 0, 0, NOTIFY));
    program
}

fn install(program: &[Instruction]) -> io::Result<RawFd> {
    const SET_FILTER: libc::c_long = 1;
    let filter = Filter(program.len() as u16, program.as_ptr());
    // SAFETY: the call takes only numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel reads the program, which lives across the call.
    let listener =
        unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, NEW_LISTENER, &raw const filter) };
    if listener < 0 { Err(io::Error::last_os_error()) } else { Ok(listener as RawFd) }
}

/// Sends a descriptor, with memory on the stack only.
fn send(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    /// A control message with one descriptor.
    #[repr(C, align(8))]
    struct Control {
        length: usize,
        level: i32,
        kind: i32,
        descriptor: i32,
        padding: i32,
    }
    let mut control = Control {
        length: 20,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptor,
        padding: 0,
    };
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeros are valid: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the kernel reads the message and what it points to, which live across the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, 0) };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
