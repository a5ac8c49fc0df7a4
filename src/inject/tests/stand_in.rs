//! A stand-in for the agent, assembled by hand, and its segments.
//!
//! # Safety
//! Only this module creates, writes and detaches the segments. It accesses the test's own mapping
//! through raw pointers, within the lengths given at creation.
#![allow(unsafe_code, reason = "shared memory and perf events in tests")]

use std::mem::offset_of;

use traceprof_abi::layout::{
    self, ControlBlock, DATA_DISTANCE, INJECT_LEN, INJECT_OFFSET, SAMPLING, SIG_DATA_MARK,
    SignalAction, TABLES_DISTANCE,
};
use traceprof_abi::sync::Ordering;

use crate::inject::guardian::fork::SingleThreaded;
use crate::inject::{Access, AttachPlan, Guardian, SharedSegment, find_gap};
use crate::proc;

const PAGE: u64 = 4096;
const DATA_LEN: u64 = INJECT_OFFSET + INJECT_LEN;
const SIGNALS_TAKEN: u64 = PAGE;
const SA_FLAGS: u64 = 0x0400_0000 | 0x1000_0000 | 0x0800_0000 | 4;
pub(super) const SIGNAL: i32 = libc::SIGTRAP;

/// Forks a guardian from the test's process, which has other threads.
pub(super) fn start_guardian() -> Guardian {
    // SAFETY: no other test takes a lock that a guardian needs but the allocator's.
    let alone = unsafe { SingleThreaded::assume() };
    Guardian::fork(alone).unwrap()
}

/// A segment that the test has attached.
pub(super) struct OwnedSegment {
    pub(super) id: i32,
    pub(super) base: *mut u8,
}

impl OwnedSegment {
    pub(super) fn create(len: u64, owner: (u32, u32)) -> OwnedSegment {
        const SHM_NORESERVE: i32 = 0o10000;
        let mode = 0o700 | SHM_NORESERVE;
        // SAFETY: makes a new segment.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, len as usize, mode) };
        assert!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
        // SAFETY: the kernel chooses the address.
        let base = unsafe { libc::shmat(id, std::ptr::null(), 0) }.cast::<u8>();
        assert_ne!(base as isize, -1);
        // SAFETY: plain data.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        about.shm_perm.uid = owner.0;
        about.shm_perm.gid = owner.1;
        about.shm_perm.mode = 0o700;
        // SAFETY: reads the structure.
        assert_eq!(unsafe { libc::shmctl(id, libc::IPC_SET, &mut about) }, 0);
        // SAFETY: needs no structure.
        assert_eq!(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }, 0);
        OwnedSegment { id, base }
    }
}

impl Drop for OwnedSegment {
    fn drop(&mut self) {
        // SAFETY: attached in `create`.
        unsafe { libc::shmdt(self.base.cast()) };
    }
}

/// The three segments and the plan for one target.
pub(super) struct StandIn {
    pub(super) plan: AttachPlan,
    _code: OwnedSegment,
    _tables: OwnedSegment,
    data: OwnedSegment,
}

impl StandIn {
    pub(super) fn new(pid: i32) -> StandIn {
        Self::with_signal(pid, SIGNAL)
    }

    pub(super) fn with_signal(pid: i32, signal: i32) -> StandIn {
        let status = proc::status(pid).unwrap();
        let owner = (status.euid, status.egid);
        let own = [PAGE, PAGE, DATA_LEN].map(|len| OwnedSegment::create(len, owner));
        let start = find_gap(&proc::mappings(pid).unwrap(), layout::SPAN).unwrap();
        let [code, tables, data] = own;
        let segment = |own: &OwnedSegment, at: u64, len: u64, access: Access| SharedSegment {
            shm_id: own.id,
            avma: start + at,
            len,
            access,
        };
        let image = Image::assemble(start + DATA_DISTANCE, signal);
        let plan = AttachPlan {
            pid,
            start_time: proc::start_time(pid).unwrap(),
            code: segment(&code, 0, PAGE, Access::ReadExecute),
            tables: segment(&tables, TABLES_DISTANCE, PAGE, Access::Read),
            data: segment(&data, DATA_DISTANCE, DATA_LEN, Access::ReadWrite),
            entry_avma: start,
            restorer_avma: start + image.restorer,
            signals: [signal, 0, 0, 0],
            hold_fd: None,
        };
        // SAFETY: the segment is a page, the image less; nothing else uses it yet.
        unsafe { std::ptr::copy(image.bytes.as_ptr(), code.base, image.bytes.len()) };
        let stand_in = StandIn { plan, _code: code, _tables: tables, data };
        let control = stand_in.control();
        control.magic.store(layout::MAGIC, Ordering::Relaxed);
        control.version.store(traceprof_abi::ABI_VERSION, Ordering::Relaxed);
        control.pid.store(status.inner_tgid as u32, Ordering::Relaxed);
        control.signals[SAMPLING].signal.store(signal as u32, Ordering::Relaxed);
        let ours = [start + image.handler, SA_FLAGS, start + image.restorer, u64::MAX];
        for (word, value) in control.signals[SAMPLING].our_action.iter().zip(ours) {
            word.store(value, Ordering::Relaxed);
        }
        stand_in
    }

    pub(super) fn control(&self) -> &ControlBlock {
        // SAFETY: at the start of the segment, which lives while `self` lives; made of atomics.
        unsafe { &*self.data.base.cast::<ControlBlock>() }
    }

    /// Returns the number of signals that the handler took.
    pub(super) fn signals_taken(&self) -> u64 {
        // SAFETY: inside the segment.
        let word = unsafe { self.data.base.add(SIGNALS_TAKEN as usize) };
        // SAFETY: aligned; written atomically by the target.
        unsafe { &*word.cast::<traceprof_abi::sync::AtomicU64>() }.load(Ordering::Relaxed)
    }

    pub(super) fn ids(&self) -> [i32; 3] {
        [self.plan.code.shm_id, self.plan.tables.shm_id, self.plan.data.shm_id]
    }
}

struct Image {
    bytes: Vec<u8>,
    handler: u64,
    restorer: u64,
}

impl Image {
    /// Assembles the entry, the handler and the restorer, with the data's address in the
    /// instructions.
    fn assemble(data: u64, signal: i32) -> Image {
        let at = |offset: usize| (data + offset as u64).to_le_bytes();
        let mut report = Vec::new();
        // lock inc dword [entered]
        report.extend([0x48, 0xb9]);
        report.extend(at(offset_of!(ControlBlock, entered)));
        report.extend([0xf0, 0xff, 0x01]);
        let mut fail = Vec::new();
        // neg eax; mov [error_detail], eax; mov dword [error], 2; ret
        fail.extend([0xf7, 0xd8, 0x48, 0xb9]);
        fail.extend(at(offset_of!(ControlBlock, error_detail)));
        fail.extend([0x89, 0x01, 0x48, 0xb9]);
        fail.extend(at(offset_of!(ControlBlock, error)));
        fail.extend([0xc7, 0x01, 2, 0, 0, 0]);
        fail.extend(&report);
        fail.push(0xc3);
        let mut done = Vec::new();
        // mov dword [installed], 1; mov dword [state], 1; xor eax, eax; ret
        let installed = offset_of!(ControlBlock, signals) + offset_of!(SignalAction, installed);
        for word in [installed, offset_of!(ControlBlock, state)] {
            done.extend([0x48, 0xb9]);
            done.extend(at(word));
            done.extend([0xc7, 0x01, 1, 0, 0, 0]);
        }
        done.extend(&report);
        done.extend([0x31, 0xc0, 0xc3]);
        let mut bytes = Vec::new();
        // rt_sigaction(signal, our_action, old_action, 8)
        bytes.extend([0xb8, 13, 0, 0, 0, 0xbf, signal as u8, 0, 0, 0, 0x48, 0xbe]);
        bytes.extend(at(offset_of!(ControlBlock, signals) + offset_of!(SignalAction, our_action)));
        bytes.extend([0x48, 0xba]);
        bytes.extend(at(offset_of!(ControlBlock, signals) + offset_of!(SignalAction, old_action)));
        bytes.extend([0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0]);
        bytes.extend([0x75, done.len() as u8]);
        bytes.extend(done);
        bytes.extend(fail);
        let handler = bytes.len() as u64;
        // lock inc qword [signals_taken]; ret
        bytes.extend([0x48, 0xb8]);
        bytes.extend(at(SIGNALS_TAKEN as usize));
        bytes.extend([0xf0, 0x48, 0xff, 0x00, 0xc3]);
        let restorer = bytes.len() as u64;
        // As in the agent's restorer: jumps back to its start after the death of a tracer that had
        // replaced the call.
        bytes.extend([0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]);
        Image { bytes, handler, restorer }
    }
}

/// Opens a sigtrap event on a thread, for user code only if the kernel permits no more. Returns
/// `None` if the kernel permits none.
pub(super) fn sigtrap_event(tid: i32, period_ns: u64) -> Option<std::os::fd::OwnedFd> {
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    open_event(tid, period_ns, 0).or_else(|| open_event(tid, period_ns, EXCLUDE_KERNEL))
}

fn open_event(tid: i32, period_ns: u64, flags: u64) -> Option<std::os::fd::OwnedFd> {
    // The words are type and size, then the task clock; the flags are inherit, exclude_hv,
    // inherit_thread, remove_on_exec and sigtrap.
    const SOFTWARE: u64 = 1 | 128 << 32;
    const TASK_CLOCK: u64 = 1;
    const FLAGS: u64 = 1 << 1 | 1 << 6 | 1 << 35 | 1 << 36 | 1 << 37;
    let mut attr = [0u64; 16];
    attr[..3].copy_from_slice(&[SOFTWARE, TASK_CLOCK, period_ns]);
    attr[5] = FLAGS | flags;
    attr[15] = u64::from(SIG_DATA_MARK) << 48 | 42;
    // SAFETY: reads the attributes, which name their own length.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), tid, -1, -1, 8) };
    if fd < 0 {
        return None;
    }
    // SAFETY: opened above.
    Some(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd as i32) })
}
