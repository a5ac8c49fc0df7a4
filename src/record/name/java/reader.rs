//! Reads the code that samples are in from a Java machine, and the methods that it interprets.
//!
//! # What proves a name
//! Names are read after the samples, at addresses that the machine uses again. A name holds at the
//! time of a sample if one of these does:
//! - What it was read from was the same before the sample and after it. So what the samples of a
//!   batch use is compared with what was read there, all in one call.
//! - It was read after the sample, and between a time before the sample and a time after the
//!   reading the machine has unloaded no class ([`UnloadWatch`]). That is enough for a method of a
//!   machine whose classes are not redefined: its class was there while it ran. Redefined classes
//!   free the structures of their methods while the number stays. So where an agent may redefine
//!   classes, or a method was found replaced, a reading proves only what follows it, up to the next
//!   one that finds the same.
//! - It is code, and a scan for unwind tables saw the same blob before the sample ([`CodeScan`]).
//!   Machines free code at any time, with each collection since 20, and use its block again. But no
//!   two compilations have one number, so what was seen before the sample, and was read after it,
//!   was there at its time. Handlers have no table for code before a scan has seen it.
//!
//! [`CodeScan`]: crate::runtime::java::CodeScan
//!
//! Memory that was freed has what was there until something else takes it. So a reading without a
//! sample after the last unloading proves nothing of later samples.
//!
//! In between, it is unknown what was at an address, and frames there have no name. Two changes
//! within one batch that lead back to the same bytes would not be noticed: a class of the same name
//! at the same address.
//!
//! # Invariants
//! - Each piece of code is read once, and its names are kept: the machine replaces code while the
//!   program runs, and frees it.
//! - The memory for known code is bounded. When it is used up, all is forgotten, and what is still
//!   in use is read again.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use traceprof_abi::runtime::word::{FrameWord, JAVA, frames, split};
use traceprof_abi::unwind::{lookup_avma, trace_epoch};

use super::watch::UnloadWatch;
use crate::proc::ProcessMemory;
use crate::record::batch::Batch;
use crate::record::batch::java::{FoundJava, FoundMethod, JavaCode, NewJava};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::name::addresses::locate;
use crate::record::target::modules::AddressMap;
use crate::runtime::java::{CodeBlob, JavaMachine, JavaReader, may_redefine};
use crate::runtime::{Gone, TargetMemory};
use crate::runtime::{Witness, which_hold};

/// The largest number of addresses that are known at once.
const ADDRESSES_MAX: usize = 1 << 18;
/// The largest number of bytes of code that is known at once.
const BYTES_MAX: usize = 128 << 20;

/// Since when something is at an address, and until when that is known.
#[derive(Debug, Clone, Copy)]
struct Proven {
    since_ns: u64,
    seen_ns: u64,
    generation: u64,
}

impl UnloadWatch {
    /// Returns until when something was there that is not there any more.
    fn end_of(&self, proven: &Proven) -> u64 {
        // Without an unloading in between, it is not known when it was freed.
        let is_recent = proven.generation == self.generation;
        if is_recent { proven.seen_ns } else { proven.seen_ns.max(self.end_ns(proven.generation)) }
    }
}

#[derive(Debug)]
struct KnownBlob {
    code: Arc<JavaCode>,
    witness: Witness,
    proven: Proven,
    /// The addresses in it that have samples.
    avmas: Vec<u64>,
}

#[derive(Debug)]
struct KnownMethod {
    witness: Witness,
    proven: Proven,
}

/// Addresses that samples are in, of compiled code and stubs, and of interpreted methods; with the
/// times of their last samples.
#[derive(Debug, Default)]
struct Used {
    avmas: HashMap<u64, u64>,
    methods: HashMap<u64, u64>,
}

/// Reads code, and remembers which it has read.
#[derive(Debug, Default)]
pub(crate) struct JavaCodeReader {
    watch: UnloadWatch,
    /// The start of the blob at each address.
    seen: HashMap<u64, u64>,
    /// By the start of the blob.
    blobs: HashMap<u64, KnownBlob>,
    /// The methods that are interpreted, by the addresses of their structures.
    methods: HashMap<u64, KnownMethod>,
    /// Methods that could not be read: in which generation, and why.
    failed: HashMap<u64, (u64, Gone)>,
    /// Addresses of structures that had another method once, and the last generation in which that
    /// was there.
    ended: HashMap<u64, u64>,
    /// Whether a method was replaced while its class stayed.
    has_redefined: bool,
    /// The starts of the blobs that this reading has added.
    added: Vec<u64>,
    /// The bytes of all code that was read.
    bytes: usize,
    /// Whether other code was found where code was known.
    has_replaced: bool,
}

/// A reading of a machine.
struct Reading<'m> {
    machine: &'m JavaMachine,
    memory: &'m dyn TargetMemory,
    reader: JavaReader<'m>,
    began_ns: u64,
    /// Whether an agent is loaded.
    has_agent: bool,
    /// Returns since when a blob is where it is, as far as its block was looked at.
    since_of: &'m dyn Fn(&CodeBlob) -> Option<u64>,
}

impl Reading<'_> {
    /// Whether methods may have been replaced that were not known.
    fn may_have_redefined(&self) -> bool {
        let may_redefine = may_redefine(self.machine, self.memory);
        may_redefine && (self.has_agent || !self.machine.always_may_redefine())
    }
}

impl JavaCodeReader {
    /// Looks at a machine before anything is sampled.
    pub(crate) fn start(&mut self, addresses: &AddressMap, pid: i32) {
        if let Some(machine) = &addresses.java {
            self.watch.look(machine, &ProcessMemory::of(pid));
        }
    }

    /// Reads the code that the samples of a sealed batch are in, as far as it is not known, and
    /// checks what is known, while the process runs the program of these addresses. `since_of`
    /// returns since when a blob is known to be where it is.
    pub(crate) fn read(
        &mut self,
        batch: &mut Batch,
        addresses: &AddressMap,
        pid: i32,
        since_of: &dyn Fn(&CodeBlob) -> Option<u64>,
    ) {
        let Some(machine) = &addresses.java else { return };
        let known = self.seen.len() + self.methods.len() + self.ended.len() + self.failed.len();
        if known > ADDRESSES_MAX || self.bytes > BYTES_MAX {
            let watch = mem::take(&mut self.watch);
            *self = Self { watch, has_redefined: self.has_redefined, ..Self::default() };
            batch.java.is_fresh = true;
        }
        let used = Used::of(batch, addresses, machine);
        if used.avmas.is_empty() && used.methods.is_empty() {
            return;
        }
        let memory = ProcessMemory::of(pid);
        let reading = Reading {
            machine,
            memory: &memory,
            reader: machine.now(&memory),
            began_ns: monotonic_now_ns(),
            has_agent: addresses.has_java_agent(),
            since_of,
        };
        self.examine(&used, &reading, &mut batch.java);
    }

    /// Notes whether the machine has unloaded classes. With frequent calls, the time is known well.
    pub(crate) fn glance(&mut self, pid: i32) {
        self.watch.glance(&ProcessMemory::of(pid));
    }

    /// Returns whether other code was found where code was known, since the last call.
    pub(crate) fn takes_replaced(&mut self) -> bool {
        mem::take(&mut self.has_replaced)
    }

    fn examine(&mut self, used: &Used, reading: &Reading<'_>, news: &mut NewJava) {
        if reading.reader.call_return().is_none() {
            // The process has ended. What was known stays, unless something was unloaded since.
            self.end_stale(used, news);
            return;
        }
        self.watch.look(reading.machine, reading.memory);
        self.check_known(used, reading, news);
        let before = (news.found.len(), news.methods.len());
        self.added.clear();
        self.read_methods(used, reading, news);
        self.read_code(used, reading, news);
        if !self.watch.still_holds(reading.memory) {
            // What was read may have been freed meanwhile. The next call reads it again.
            self.discard(before, news);
        }
    }

    /// Forgets what was read behind these places.
    fn discard(&mut self, (found, methods): (usize, usize), news: &mut NewJava) {
        for FoundMethod { object, .. } in news.methods.drain(methods..) {
            self.methods.remove(&object);
            self.failed.remove(&object);
        }
        // That other code has ended stays true.
        let read = news.found.extract_if(found.., |it| it.code.is_some());
        for FoundJava { avma, .. } in read {
            let start = self.seen.remove(&avma);
            if let Some(known) = start.and_then(|start| self.blobs.get_mut(&start)) {
                known.avmas.retain(|it| *it != avma);
            }
        }
        for start in self.added.drain(..) {
            self.blobs.remove(&start);
        }
    }

    /// Compares what is known with what it was read from.
    fn check_known(&mut self, used: &Used, reading: &Reading<'_>, news: &mut NewJava) {
        let generation = self.watch.generation;
        let is_suspect = may_redefine(reading.machine, reading.memory);
        let starts: BTreeSet<u64> =
            used.avmas.keys().filter_map(|avma| self.seen.get(avma).copied()).collect();
        let blobs: Vec<u64> =
            starts.into_iter().filter(|start| self.blobs.contains_key(start)).collect();
        let is_open = |known: &KnownMethod| is_suspect || known.proven.generation != generation;
        let methods: Vec<u64> = used
            .methods
            .keys()
            .filter(|method| self.methods.get(method).is_some_and(is_open))
            .copied()
            .collect();
        let witnesses: Vec<&Witness> = blobs
            .iter()
            .filter_map(|start| self.blobs.get(start).map(|known| &known.witness))
            .chain(methods.iter().filter_map(|it| self.methods.get(it).map(|it| &it.witness)))
            .collect();
        let mut hold = which_hold(&witnesses, reading.memory).into_iter();
        for (start, holds) in blobs.iter().zip(hold.by_ref()) {
            match self.blobs.get_mut(start) {
                Some(known) if holds => {
                    (known.proven.seen_ns, known.proven.generation) =
                        (reading.began_ns, generation);
                }
                _ => self.end_blob(*start, news),
            }
        }
        for (object, holds) in methods.iter().zip(hold) {
            match self.methods.get_mut(object) {
                Some(known) if holds => {
                    known.proven.seen_ns = reading.began_ns;
                    if self.watch.is_alive(used.methods.get(object).copied()) {
                        known.proven.generation = generation;
                    }
                }
                _ => self.end_method(*object, news),
            }
        }
        // The others are the same, since nothing was unloaded.
        for object in used.methods.keys() {
            if let Some(known) = self.methods.get_mut(object) {
                known.proven.seen_ns = reading.began_ns;
            }
        }
    }

    /// Forgets the methods that may have been unloaded.
    fn end_stale(&mut self, used: &Used, news: &mut NewJava) {
        let generation = self.watch.generation;
        for object in used.methods.keys() {
            if self.methods.get(object).is_some_and(|it| it.proven.generation != generation) {
                self.end_method(*object, news);
            }
        }
    }

    /// Forgets a blob whose block has something else.
    fn end_blob(&mut self, start: u64, news: &mut NewJava) {
        let Some(KnownBlob { proven, avmas, .. }) = self.blobs.remove(&start) else { return };
        let since_ns = self.watch.end_of(&proven).saturating_add(1);
        self.has_replaced = true;
        for avma in avmas {
            self.seen.remove(&avma);
            news.found.push(FoundJava { avma, since_ns, code: None });
        }
    }

    /// Forgets a method whose structure has another one.
    fn end_method(&mut self, object: u64, news: &mut NewJava) {
        let Some(KnownMethod { proven, .. }) = self.methods.remove(&object) else { return };
        let since_ns = self.watch.end_of(&proven).saturating_add(1);
        self.ended.insert(object, proven.generation);
        self.has_redefined |= proven.generation == self.watch.generation;
        news.methods.push(FoundMethod { object, since_ns, read: Err(Gone::Unproven) });
    }

    fn read_methods(&mut self, used: &Used, reading: &Reading<'_>, news: &mut NewJava) {
        let generation = self.watch.generation;
        let is_suspect = self.has_redefined || reading.may_have_redefined();
        for (object, last_ns) in &used.methods {
            if self.methods.contains_key(object) || !self.watch.is_alive(Some(*last_ns)) {
                continue;
            }
            // Structures are freed while the number stays: another method may be there each time.
            let is_reusable = is_suspect || self.ended.get(object) == Some(&generation);
            let before = self.failed.get(object).copied();
            let is_same = |(at, gone): (u64, Gone)| at == generation && !gone.is_transient();
            if !is_reusable && before.is_some_and(is_same) {
                continue;
            }
            let read = reading.reader.interpreted(*object);
            let since_ns = if is_reusable { monotonic_now_ns() } else { self.watch.since_ns };
            let proven = Proven { since_ns, seen_ns: reading.began_ns, generation };
            match read {
                Ok(found) => {
                    self.bytes += found.method.bytes() + found.witness.bytes();
                    let known = KnownMethod { witness: found.witness, proven };
                    self.methods.insert(*object, known);
                    self.failed.remove(object);
                    let read = Ok(Arc::new(found.method));
                    news.methods.push(FoundMethod { object: *object, since_ns, read });
                }
                Err(gone) => {
                    self.failed.insert(*object, (generation, gone));
                    if before.is_none_or(|(_, before)| before != gone) {
                        let read = Err(gone);
                        news.methods.push(FoundMethod { object: *object, since_ns, read });
                    }
                }
            }
        }
    }

    fn read_code(&mut self, used: &Used, reading: &Reading<'_>, news: &mut NewJava) {
        for (avma, last_ns) in &used.avmas {
            if self.seen.contains_key(avma) || !self.watch.is_alive(Some(*last_ns)) {
                continue;
            }
            let Some(start) = self.read_blob(*avma, reading, news) else { continue };
            let Some(known) = self.blobs.get_mut(&start) else { continue };
            known.avmas.push(*avma);
            self.seen.insert(*avma, start);
            let code = Some(Arc::clone(&known.code));
            news.found.push(FoundJava { avma: *avma, since_ns: known.proven.since_ns, code });
        }
    }

    /// Reads the blob at an address, if it is not known. Returns its start, or `None` if there is
    /// none any more.
    fn read_blob(&mut self, avma: u64, reading: &Reading<'_>, news: &mut NewJava) -> Option<u64> {
        let blob = reading.reader.blob_at(avma)?;
        let start = blob.start;
        if self.blobs.get(&start).is_some_and(|known| known.code.blob() == &blob) {
            return Some(start);
        }
        let witness = reading.reader.blob_witness(&blob)?;
        let code = Arc::new(JavaCode::read(&blob, &reading.reader).ok()?);
        self.end_blob(start, news);
        let generation = self.watch.generation;
        let since_ns = (reading.since_of)(&blob).unwrap_or_else(monotonic_now_ns);
        let proven = Proven { since_ns, seen_ns: reading.began_ns, generation };
        self.bytes += code.bytes() + witness.bytes();
        let known = KnownBlob { code, witness, proven, avmas: Vec::new() };
        self.blobs.insert(start, known);
        self.added.push(start);
        Some(start)
    }
}

impl Used {
    fn of(batch: &Batch, addresses: &AddressMap, machine: &JavaMachine) -> Self {
        let mut last: HashMap<u64, u64> = HashMap::new();
        for sample in &batch.samples {
            let last_ns = last.entry(sample.trace_id).or_default();
            *last_ns = sample.time.max(*last_ns);
        }
        let mut used = Self::default();
        let entries = last.iter().filter_map(|(id, ns)| Some((batch.traces.get(*id)?, *ns)));
        for (entry, last_ns) in entries {
            for frame in frames(split(batch.traces.frames_of(entry)).0) {
                let used_ns = match frame {
                    FrameWord::Pc(word) | FrameWord::WithFunction(word, _)
                        if machine.may_have(lookup_avma(word)) =>
                    {
                        let (module, (_, avma)) = locate(addresses, word, trace_epoch(entry.flags));
                        module.is_none().then(|| used.avmas.entry(avma).or_default())
                    }
                    FrameWord::InPlace { runtime: JAVA, frame } => {
                        Some(used.methods.entry(frame.object).or_default())
                    }
                    FrameWord::Pc(_) | FrameWord::WithFunction(..) | FrameWord::InPlace { .. } => {
                        None
                    }
                };
                if let Some(used_ns) = used_ns {
                    *used_ns = last_ns.max(*used_ns);
                }
            }
        }
        used
    }
}
