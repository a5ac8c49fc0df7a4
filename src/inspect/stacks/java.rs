//! The code and the threads of a Java machine in the inspected process.

use std::collections::HashMap;

use traceprof_abi::runtime::word::{FrameInPlace, FrameWord, JAVA, frames};
use traceprof_abi::unwind::lookup_avma;

use super::{NamedFrame, SleepingCall, ThreadStack};
use crate::proc::{ProcessMemory, may_wait_on_address};
use crate::record::batch::java::{JavaCode, resolved_method};
use crate::record::target::modules::AddressMap;
use crate::runtime::java::{JavaMethod, JavaThread};
use crate::symbol::Resolved;
use crate::trace::FrameKind;

/// What a Java machine says about the process. Empty if there is none.
#[derive(Debug, Default)]
pub(super) struct JavaView {
    /// By the kernel's ids in the process's own namespace.
    threads: HashMap<u32, JavaThread>,
    /// By addresses outside all modules.
    code: HashMap<u64, JavaCode>,
    /// The methods that are interpreted, by the addresses of their structures.
    methods: HashMap<u64, JavaMethod>,
}

impl JavaView {
    /// Reads the threads.
    pub(super) fn of(addresses: &AddressMap, pid: i32) -> Self {
        let Some(machine) = &addresses.java else { return Self::default() };
        let memory = ProcessMemory::of(pid);
        let threads = machine.now(&memory).threads().unwrap_or_default();
        let threads = threads.into_iter().map(|thread| (thread.inner_tid, thread)).collect();
        Self { threads, ..Self::default() }
    }

    /// Reads the code of the native frames of stacks.
    pub(super) fn read_code<'w>(
        &mut self,
        stacks: impl Iterator<Item = &'w [u64]>,
        addresses: &AddressMap,
        pid: i32,
    ) {
        let Some(machine) = &addresses.java else { return };
        let memory = ProcessMemory::of(pid);
        let reader = machine.now(&memory);
        for frame in stacks.flat_map(frames) {
            let avma = match frame {
                FrameWord::Pc(pc) | FrameWord::WithFunction(pc, _) => lookup_avma(pc),
                FrameWord::InPlace { runtime, frame } => {
                    if runtime == JAVA && !self.methods.contains_key(&frame.object) {
                        let read = reader.interpreted(frame.object);
                        let read = read.ok().map(|found| (frame.object, found.method));
                        self.methods.extend(read);
                    }
                    continue;
                }
            };
            if !machine.may_have(avma) || self.code.contains_key(&avma) {
                continue;
            }
            let Some(blob) = reader.blob_at(avma) else { continue };
            if let Ok(code) = JavaCode::read(&blob, &reader) {
                self.code.insert(avma, code);
            }
        }
    }

    /// Returns the methods at an address, and the kind of their frames.
    pub(super) fn at(&self, avma: u64) -> Option<(Resolved, FrameKind)> {
        let code = self.code.get(&avma)?;
        Some((code.resolved(avma), code.kind_at(avma)))
    }

    /// Returns the method of a frame of the interpreter.
    pub(super) fn interpreted(&self, frame: &FrameInPlace) -> NamedFrame {
        let resolved = resolved_method(self.methods.get(&frame.object), frame);
        NamedFrame {
            avma: None,
            function: resolved.function.map(|it| it.name).unwrap_or_default(),
            module: None,
            source: resolved.file.map(|file| (file, resolved.line)),
            kind: FrameKind::JavaInterpreted,
            inlined: false,
            late: false,
        }
    }

    /// Adds to a thread the virtual thread that it runs, what it waits for and what it compiles.
    /// `has_stayed` returns whether it is still where it was captured: the threads were read later.
    pub(super) fn describe(
        &self,
        inner_tid: Option<u32>,
        has_stayed: impl FnOnce() -> bool,
        thread: &mut ThreadStack,
    ) {
        let Some(java) = inner_tid.and_then(|tid| self.threads.get(&tid)) else { return };
        if let Some(name) = java.virtual_thread.as_ref().filter(|name| !name.is_empty()) {
            let carrier = thread.runtime_name.as_ref().unwrap_or(&thread.seen.name);
            thread.runtime_name = Some(format!("{name} (on {carrier})"));
        }
        thread.compiles.clone_from(&java.compiles);
        let may_wait = |call: &&mut SleepingCall| may_wait_on_address(call.number, &call.args);
        let call = thread.call.as_mut().filter(may_wait);
        if let (Some(call), Some(on)) = (call, java.activity.waits_on())
            && has_stayed()
        {
            call.described.insert(0, on);
        }
    }
}
