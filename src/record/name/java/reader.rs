//! Reads the code that new samples are in from a Java machine, and the methods that it interprets.
//!
//! # Invariants
//! - Each piece of code is read once, and its names are kept: the machine replaces code while the
//!   program runs, and frees it.
//! - The memory for known code is bounded. When it is used up, all is forgotten, and what is still
//!   in use is read again.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use traceprof_abi::runtime::word::{FrameWord, JAVA, frames, split};
use traceprof_abi::unwind::trace_epoch;

use crate::proc::ProcessMemory;
use crate::record::batch::Batch;
use crate::record::batch::java::{FoundJava, JavaCode, MethodKey};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::name::addresses::locate;
use crate::record::target::modules::AddressMap;
use crate::runtime::java::{JavaMethod, JavaReader};

/// The largest number of addresses that are known at once.
const ADDRESSES_MAX: usize = 1 << 18;
/// The largest number of bytes of code that is known at once.
const BYTES_MAX: usize = 128 << 20;

/// Code at an address, and when it was last seen there.
#[derive(Debug)]
struct SeenCode {
    code: Arc<JavaCode>,
    seen_ns: u64,
}

/// Reads code, and remembers which it has read.
#[derive(Debug, Default)]
pub(crate) struct JavaCodeReader {
    /// By address.
    seen: HashMap<u64, SeenCode>,
    /// By the start of its blob.
    known: HashMap<u64, Arc<JavaCode>>,
    /// The methods that are interpreted.
    methods: HashSet<MethodKey>,
    /// The bytes of all code that was read.
    bytes: usize,
    /// Whether other code was found where code was known.
    has_replaced: bool,
}

impl JavaCodeReader {
    /// Reads the code that the new traces of a batch are in, while the process runs the program of
    /// these addresses.
    pub(crate) fn read(&mut self, batch: &mut Batch, addresses: &AddressMap, pid: i32) {
        let Some(machine) = &addresses.java else { return };
        let known = self.seen.len() + self.methods.len();
        if known > ADDRESSES_MAX || self.bytes > BYTES_MAX {
            *self = Self::default();
            batch.java.is_fresh = true;
        }
        let mut wanted: Vec<u64> = Vec::new();
        let mut methods: Vec<MethodKey> = Vec::new();
        for entry in batch.traces.entries().iter().filter(|entry| !entry.preserved) {
            for frame in frames(split(batch.traces.frames_of(entry)).0) {
                match frame {
                    FrameWord::Pc(word) => {
                        let (module, (_, avma)) = locate(addresses, word, trace_epoch(entry.flags));
                        if module.is_none() && machine.may_have(avma) {
                            wanted.push(avma);
                        }
                    }
                    FrameWord::InPlace { runtime: JAVA, frame } => {
                        let key = MethodKey::of(&frame);
                        if self.methods.insert(key) {
                            methods.push(key);
                        }
                    }
                    FrameWord::InPlace { .. } => {}
                }
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        let memory = ProcessMemory::of(pid);
        let (reader, now_ns) = (machine.now(&memory), monotonic_now_ns());
        for key in methods {
            let read = reader.interpreted(key.object, key.cookie);
            if read.as_ref().is_err_and(|gone| gone.is_transient()) {
                // The next batch with the method reads it again.
                self.methods.remove(&key);
            }
            self.bytes += read.as_ref().map_or(0, JavaMethod::bytes);
            batch.java.methods.push((key, read.map(Arc::new)));
        }
        for avma in wanted {
            let Some(code) = self.code_at(avma, &reader) else { continue };
            let before =
                self.seen.insert(avma, SeenCode { code: Arc::clone(&code), seen_ns: now_ns });
            let is_known = before.as_ref().is_some_and(|before| Arc::ptr_eq(&before.code, &code));
            if !is_known {
                let since_ns = before.map_or(0, |before| before.seen_ns);
                batch.java.found.push(FoundJava { avma, since_ns, code });
            }
        }
    }

    /// Returns whether other code was found where code was known, since the last call.
    pub(crate) fn takes_replaced(&mut self) -> bool {
        mem::take(&mut self.has_replaced)
    }

    /// Returns the code at an address. `None` if there is none any more.
    fn code_at(&mut self, avma: u64, reader: &JavaReader<'_>) -> Option<Arc<JavaCode>> {
        let blob = reader.blob_at(avma)?;
        if let Some(known) = self.known.get(&blob.start).filter(|it| it.blob() == &blob) {
            return Some(Arc::clone(known));
        }
        let code = Arc::new(JavaCode::read(&blob, reader).ok()?);
        self.bytes += code.bytes();
        self.has_replaced |= self.known.insert(blob.start, Arc::clone(&code)).is_some();
        Some(code)
    }
}
