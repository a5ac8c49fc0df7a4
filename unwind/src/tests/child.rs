//! A child process under ptrace: its registers, memory and mappings, and a stack to unwind.
//!
//! # Safety
//! The one unsafe operation is the hook between fork and exec: a single system call.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use traceprof_abi::unwind::{Memory, Registers, Snapshot};

use crate::{ExecRange, ModuleRef, TableWriter, compile, compile_image};
use traceprof_elf::Elf;

const PAGE: u64 = 4096;
/// Number of stack bytes per read: most of a walk is near the stack pointer.
const STACK_PART: u64 = 512;

/// A module's bytes, and an address in it.
type Place<'a> = (&'a [u8], u64);

/// A child that is stopped whenever test code runs.
pub(super) struct Stepped {
    process: Child,
    pub(super) pid: Pid,
    modules: HashMap<String, (ModuleRef, Vec<u8>)>,
    /// The executable mappings that were published last, with the paths of their files.
    mapped: Vec<(ExecRange, String)>,
    code: HashMap<u64, [u8; PAGE as usize]>,
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Stepped {
    /// Starts a program and stops it at its first instruction.
    pub(super) fn start(mut command: Command) -> Self {
        // SAFETY: one system call, which is safe between fork and exec.
        unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
        let process = command.spawn().unwrap();
        let pid = Pid::from_raw(process.id() as i32);
        let stopped = waitpid(pid, None).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGTRAP));
        Self { process, pid, modules: HashMap::new(), mapped: Vec::new(), code: HashMap::new() }
    }

    /// Steps one instruction, delivering a signal. Returns the next signal, or `None` when the
    /// child exits.
    pub(super) fn step(&self, signal: Option<Signal>) -> Option<Signal> {
        ptrace::step(self.pid, signal).unwrap();
        self.wait()
    }

    /// Continues to the next mark.
    pub(super) fn run(&self) -> Option<Signal> {
        ptrace::cont(self.pid, None).unwrap();
        self.wait()
    }

    fn wait(&self) -> Option<Signal> {
        match waitpid(self.pid, None).unwrap() {
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::Exited(_, code) => {
                assert_eq!(code, 0, "the program's own checks passed");
                None
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn registers(&self) -> Registers {
        let r = ptrace::getregs(self.pid).unwrap();
        Registers {
            pc: r.rip,
            sp: r.rsp,
            fp: r.rbp,
            gpr: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15,
            ],
        }
    }

    pub(super) fn read(&self, avma: u64, buffer: &mut [u8]) -> bool {
        let (len, base) = (buffer.len(), avma as usize);
        let remote = [RemoteIoVec { base, len }];
        process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &remote) == Ok(len)
    }

    pub(super) fn word(&self, avma: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(avma, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// The first bytes of the instruction at an address.
    pub(super) fn instruction(&mut self, avma: u64) -> [u8; 8] {
        std::array::from_fn(|i| {
            let at = avma + i as u64;
            let start = at - at % PAGE;
            let page = match self.code.get(&start) {
                Some(page) => page,
                None => {
                    let mut page = [0; PAGE as usize];
                    let _ = self.read(start, &mut page);
                    self.code.entry(start).or_insert(page)
                }
            };
            page[(at % PAGE) as usize]
        })
    }

    /// Publishes the child's present mappings, with tables for all its modules.
    pub(super) fn publish(&mut self, writer: &mut TableWriter<'_>) {
        self.code.clear();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let mut writable = Vec::new();
        self.mapped.clear();
        for line in maps.lines() {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            let access = fields.next().unwrap();
            let offset = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
            let path = fields.nth(2).unwrap_or("");
            if access.starts_with("rw") {
                writable.push((start, end));
            }
            if access.contains('x') && path != "[vsyscall]" {
                let module = self.module(path, (start, end), writer);
                let bias = module.map_or(0, |_| self.bias(path, start, offset));
                self.mapped.push((ExecRange { start, end, bias, module }, path.to_owned()));
            }
        }
        writer.recycle();
        let ranges: Vec<ExecRange> = self.mapped.iter().map(|mapped| mapped.0).collect();
        writer.publish(&ranges, &writable).unwrap();
    }

    fn module(
        &mut self,
        path: &str,
        (start, end): (u64, u64),
        writer: &mut TableWriter<'_>,
    ) -> Option<ModuleRef> {
        if path.is_empty() {
            return None;
        }
        if !self.modules.contains_key(path) {
            let (table, bytes) = if path == "[vdso]" {
                let mut image = vec![0; (end - start) as usize];
                assert!(self.read(start, &mut image));
                (compile_image(&image).unwrap(), image)
            } else {
                let bytes = std::fs::read(path).unwrap();
                (compile(&bytes).unwrap(), bytes)
            };
            self.modules.insert(path.to_owned(), (writer.add_module(&table).unwrap(), bytes));
        }
        Some(self.modules[path].0)
    }

    /// Returns what is mapped at an address: the name of the mapping, and if it is a module, its
    /// bytes and the SVMA.
    pub(super) fn place(&self, avma: u64) -> Option<(&str, Option<Place<'_>>)> {
        let inside = |(range, _): &&(ExecRange, String)| (range.start..range.end).contains(&avma);
        let (range, path) = self.mapped.iter().find(inside)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        let bytes = self.modules.get(path).map(|module| &module.1[..]);
        Some((name, bytes.map(|bytes| (bytes, avma.wrapping_sub(range.bias)))))
    }

    fn bias(&self, path: &str, start: u64, file_offset: u64) -> u64 {
        Elf::parse(&self.modules[path].1).unwrap().bias(start, file_offset, true).unwrap()
    }
}

/// The child's stack, read part by part.
pub(super) struct ChildStack<'c> {
    pub(super) child: &'c Stepped,
    pub(super) snapshot: Snapshot<'c>,
    bounds: (u64, u64),
    parts: Vec<(u64, [u8; STACK_PART as usize])>,
}

impl<'c> ChildStack<'c> {
    pub(super) fn new(child: &'c Stepped, snapshot: Snapshot<'c>, sp: u64) -> Self {
        let mut stack = Self { child, snapshot, bounds: (0, 0), parts: Vec::new() };
        stack.rebound(sp);
        stack
    }
}

impl Memory for ChildStack<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let (lo, hi) = self.bounds;
        assert!(
            avma.is_multiple_of(8) && lo <= avma && avma + 8 <= hi,
            "{avma:#x} not in {lo:#x}..{hi:#x}"
        );
        let (start, at) = (avma - avma % STACK_PART, (avma % STACK_PART) as usize);
        if !self.parts.iter().any(|part| part.0 == start) {
            let mut part = [0; STACK_PART as usize];
            self.child.read(start, &mut part).then_some(())?;
            self.parts.push((start, part));
        }
        let part = &self.parts.iter().rev().find(|part| part.0 == start)?.1;
        Some(u64::from_le_bytes(part[at..at + 8].try_into().ok()?))
    }

    fn rebound(&mut self, sp: u64) -> bool {
        match self.snapshot.writable(sp) {
            Some(bounds) => {
                self.bounds = bounds;
                true
            }
            None => false,
        }
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        self.child.word(avma)
    }
}
