//! Measures the cost of one sample inside the handler. The program lays out the real agent image in
//! its own process. It calls the image's handler with a real signal frame at the bottom of stacks
//! of known depth.
//!
//! Prints one line for each given depth (by default 8, 32 and 128): `DEPTH NS`, the median of many
//! warm batches in nanoseconds. The kernel's share (timer, signal delivery, sigreturn) is not
//! included. `scripts/bench` reads this.
//!
//! # Safety
//! This is a benchmark: it maps memory at an address that it chooses, and jumps into it.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::arch::naked_asm;
use std::cell::Cell;
use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use traceprof::elf::Elf;
use traceprof::inject::image;
use traceprof::proc;
use traceprof::unwind::{self, ExecRange, TableWriter};
use traceprof_abi::layout::{self, AgentState, ClockMode, Counter, MAGIC};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::rotation::Rotation;
use traceprof_abi::storage::table;
use traceprof_abi::sync::{AtomicU64, Ordering};

const BASE: u64 = 0x1000_0000_0000;
/// `jmp rbx`.
const JUMP_TO_RBX: [u8; 2] = [0xff, 0xe3];
const BATCH: u32 = 2000;
const BATCHES: usize = 101;
/// Words of stack below a signal frame.
const ROOM: usize = 8193;

/// Calls the handler as the kernel does: on a signal frame, from which it returns to the agent's
/// restorer. [`install`] replaces the restorer with a jump back to here.
///
/// # Safety
/// The arguments are parts of one frame, whose return slot holds the restorer's address, and the
/// image's handler. The memory below the frame is a stack for it.
#[unsafe(naked)]
unsafe extern "C" fn call_handler(
    signo: i32,
    info: *const Info,
    context: *const Context,
    frame: *const SignalFrame,
    handler: u64,
) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "mov rbp, rsp",
        "lea rbx, [rip + 2f]",
        "mov rsp, rcx",
        "jmp r8",
        "2:",
        "mov rsp, rbp",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// The start of the kernel's signal frame.
#[repr(C)]
struct SignalFrame {
    return_slot: u64,
    context: Context,
    info: Info,
}

/// The part of the kernel's `ucontext` that its frame contains.
type Context = [u64; 38];

/// Room for the handler's stack, with the frame at its end. As in the kernel's frames, the return
/// slot is 8 bytes below a multiple of 16.
#[repr(C, align(16))]
struct Stack {
    room: [u64; ROOM],
    frame: SignalFrame,
}

#[repr(C)]
struct Info {
    signo: i32,
    errno: i32,
    code: i32,
    padding: i32,
    addr: u64,
    data: u64,
    kind: u32,
    flags: u32,
    rest: [u64; 11],
}

thread_local! {
    /// The image's handler and its restorer.
    static HANDLER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static RESULT: Cell<f64> = const { Cell::new(0.0) };
}

/// A measuring thread, which exists before the mappings are published.
struct Bench {
    depths: Sender<u32>,
    results: Receiver<(u32, f64)>,
}

/// The addresses of the image's handler and restorer, and the data segment, for the measuring
/// thread.
type Setup = ((u64, u64), DataSegment);

impl Bench {
    fn start() -> (Sender<Setup>, Self) {
        let (setup_sender, setups) = channel::<Setup>();
        let (depths, asked) = channel();
        let (found, results) = channel();
        std::thread::spawn(move || {
            let Ok((handler, data)) = setups.recv() else { return };
            HANDLER.set(handler);
            // The frames that are not `down`'s: those between it and the root, and the signal's.
            let others = measured(data, 1).0 - 1;
            for depth in asked {
                let frames = measured(data, u32::saturating_sub(depth, others));
                assert!(frames.0 == depth.max(others), "{} frames, not {depth}", frames.0);
                if found.send(frames).is_err() {
                    return;
                }
            }
        });
        (setup_sender, Self { depths, results })
    }

    fn measure(&self, depth: u32) -> (u32, f64) {
        self.depths.send(depth).expect("the thread runs");
        self.results.recv().expect("the thread runs")
    }
}

/// Returns the number of frames of a stack with this many calls, and the nanoseconds of a sample.
fn measured(data: DataSegment, calls: u32) -> (u32, f64) {
    let table = data.table(0).expect("there is a first table");
    table.reset(1);
    down(calls, libc::SIGUSR1);
    let frames = table.traces().map(|trace| trace.frames.len()).max().unwrap_or(0) as u32;
    (frames, RESULT.get())
}

fn main() {
    let here: extern "C" fn(i32, *const libc::siginfo_t, *const libc::c_void) = measure;
    // SAFETY: zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = here as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler has the kernel's signature.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    let (setup_sender, bench) = Bench::start();
    let (handler, data) = install();
    setup_sender.send((handler, data)).expect("the thread runs");
    bench.measure(1);
    let depths: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    for depth in if depths.is_empty() { vec![8, 32, 128] } else { depths } {
        let (frames, ns) = bench.measure(depth);
        println!("{frames} {ns:.0}");
    }
    let lost = data.control().counters[Counter::LostLog as usize].load(Ordering::Relaxed);
    eprintln!("{lost} samples found the log full (their cost is included)");
}

#[inline(never)]
fn down(depth: u32, signal: i32) -> u32 {
    if depth == 0 {
        // SAFETY: sends this thread a signal that has a handler.
        unsafe { libc::raise(signal) };
        return 0;
    }
    std::hint::black_box(down(depth - 1, signal)) + 1
}

extern "C" fn measure(_: i32, _: *const libc::siginfo_t, context: *const libc::c_void) {
    let (handler, return_slot) = HANDLER.get();
    let data = u64::from(layout::SIG_DATA_MARK) << 48;
    let info = Info {
        signo: libc::SIGTRAP,
        errno: 0,
        code: 6,
        padding: 0,
        addr: 0,
        data,
        kind: 1,
        flags: 0,
        rest: [0; 11],
    };
    // SAFETY: the kernel put this much of a context there.
    let context = unsafe { context.cast::<Context>().read() };
    let stack =
        Box::new(Stack { room: [0; ROOM], frame: SignalFrame { return_slot, context, info } });
    let frame = std::hint::black_box(&raw const stack.frame);
    let SignalFrame { info, context, .. } = &stack.frame;
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                // SAFETY: it is a real context of this thread, and the room below it is unused.
                unsafe { call_handler(5, info, context, frame, handler) };
            }
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    RESULT.set(times[BATCHES / 2]);
}

/// Maps the three segments, lays out image and tables, and turns sampling on.
fn install() -> ((u64, u64), DataSegment) {
    let map = |at: u64, len: u64| {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_FIXED_NOREPLACE
            | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: fresh memory at a free address, or the call fails.
        let got = unsafe { libc::mmap(at as *mut _, len as usize, access, flags, -1, 0) };
        assert_eq!(got as u64, at, "{}", std::io::Error::last_os_error());
        got.cast::<u8>()
    };
    let code = map(BASE, layout::CODE_LEN);
    let tables = map(BASE + layout::TABLES_DISTANCE, layout::TABLES_LEN);
    let data = map(BASE + layout::DATA_DISTANCE, layout::DATA_LEN);
    // SAFETY: the mapping above, which nothing else knows yet.
    let room = unsafe { std::slice::from_raw_parts_mut(code, layout::CODE_LEN as usize) };
    let entries = image::lay_out(room, BASE).expect("the image can be laid out");
    room[(entries.restorer - BASE) as usize..][..2].copy_from_slice(&JUMP_TO_RBX);
    // SAFETY: whole pages of the mapping above.
    unsafe { libc::mprotect(code.cast(), room.len(), libc::PROT_READ | libc::PROT_EXEC) };
    // SAFETY: zeroed, aligned memory that stays mapped.
    let words = unsafe {
        std::slice::from_raw_parts(tables.cast::<AtomicU64>(), layout::TABLES_LEN as usize / 8)
    };
    publish(words);
    // SAFETY: a zeroed mapping of the segment's length that stays mapped.
    let data = unsafe { DataSegment::new(data) };
    let control = data.control();
    control.magic.store(MAGIC, Ordering::Relaxed);
    control.version.store(traceprof_abi::ABI_VERSION, Ordering::Relaxed);
    control.pid.store(std::process::id(), Ordering::Relaxed);
    control.signals[layout::SAMPLING].signal.store(libc::SIGTRAP as u32, Ordering::Relaxed);
    control.clock_mode.store(ClockMode::Tsc as u32, Ordering::Relaxed);
    control.period_ns.store(1_000_000, Ordering::Relaxed);
    control.slots_limit.store(layout::THREAD_SLOTS as u32, Ordering::Relaxed);
    control.window_epoch.store(1, Ordering::Relaxed);
    let all: Vec<_> = (0..layout::TRACE_TABLES).filter_map(|index| data.table(index)).collect();
    for table in &all {
        table.header.arena_limit.store(table::ARENA_WORDS as u64, Ordering::Relaxed);
        table.header.log_limit.store(table::LOG_RECORDS as u64, Ordering::Relaxed);
    }
    Rotation::start(&all, &control.active);
    control.state.store(AgentState::Sampling as u32, Ordering::Release);
    ((entries.handler, entries.restorer), data)
}

fn publish(words: &'static [AtomicU64]) {
    let mut writer = TableWriter::new(words);
    let mappings = proc::mappings(std::process::id() as i32).expect("own mappings");
    let mut ranges = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.exec && mapping.inode != 0) {
        let bytes = fs::read(&mapping.path).expect("own files can be read");
        let elf = Elf::parse(&bytes).expect("own files are ELF");
        let bias = elf.bias(mapping.start, mapping.file_offset, true).unwrap_or(0);
        let module = unwind::compile(&bytes).ok().and_then(|table| writer.add_module(&table).ok());
        ranges.push(ExecRange { start: mapping.start, end: mapping.end, bias, module });
    }
    let writable = mappings.iter().filter(|m| m.read && m.write).map(|m| (m.start, m.end));
    let writable: Vec<_> = writable.collect();
    writer.publish(&ranges, &writable).expect("the tables segment has room");
}
