//! Reads the functions of JavaScript frames, and the code that the frames run.
//!
//! # What proves a name
//! Handlers store what leads to a function, with a cookie. So a function that is read later is that
//! of the sample, or it is gone. It is compared in each batch all the same: workers have the same
//! numbers. Code is found by its address alone, and V8 frees code and uses its memory again. Code
//! is that of a sample if its function is the one that the sample's frame has. Other code counts
//! only if it was seen there before the sample and after it: what the samples of a batch use is
//! compared with what was read there, in each batch.
//!
//! An engine goes with its thread, and the next one may have other functions at the same addresses,
//! with the same numbers. So nothing is read for the stacks of threads that have ended, and what
//! was known before is read anew.
//!
//! # Invariants
//! - Each piece of code is read once, and its names are kept.
//! - The memory for what is known is bounded. When it is used up, all is forgotten, and what is
//!   still in use is read again.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::runtime::word::{FrameWord, frames, split, split_kernel};
use traceprof_abi::unwind::trace_epoch;

use crate::proc::ProcessMemory;
use crate::record::batch::javascript::{FoundJsCode, JsKey, NewJavaScript};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::name::addresses::locate;
use crate::record::target::modules::AddressMap;
use crate::runtime::v8::{JsCode, JsFunction, JsTier, V8Reader};
use crate::runtime::{Gone, TargetMemory, Witness, which_hold};

/// The largest number of addresses and functions that are known at once.
const KNOWN_MAX: usize = 1 << 18;
/// The largest number of bytes of functions and code that are known at once.
const BYTES_MAX: usize = 128 << 20;
/// How long code is searched for one batch, of frames with a function and of others: a search reads
/// much of the target. The next batch continues.
const SEARCH_MAX: Duration = Duration::from_millis(250);
const OTHER_SEARCH_MAX: Duration = Duration::from_millis(20);
/// The largest number of addresses that wait for the next batch.
const WAITING_MAX: usize = 1 << 14;
/// How long no code is searched again where there was none.
const AGAIN_NS: u64 = 5_000_000_000;
/// log2 of the length of a block, and the number of searches without a result in a block without
/// known code after which none is made there for a while. Code of WebAssembly is in such blocks.
const BLOCK_SHIFT: u32 = 16;
const FRUITLESS_MAX: u32 = 4;
/// How often baseline code is read again to learn whose it is.
const OWNER_TRIES: u32 = 8;

#[derive(Debug)]
struct KnownJsCode {
    code: Arc<JsCode>,
    /// Since when it is there, and when it was there last.
    since_ns: u64,
    seen_ns: u64,
    /// The number of the batch for which it was compared last.
    checked: u64,
    /// How often its function was looked for.
    tries: u32,
    /// The addresses in it that have samples.
    avmas: Vec<u64>,
}

/// A stack of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsStack<'w> {
    /// The frame words.
    pub(crate) words: &'w [u64],
    /// The flags of the trace.
    pub(crate) flags: u32,
    /// Whether a thread that has ended has it.
    pub(crate) is_dead: bool,
}

/// What stacks use: functions, and addresses of code with the functions of their frames.
#[derive(Debug, Default)]
struct UsedJs {
    functions: HashSet<JsKey>,
    avmas: HashMap<u64, Option<JsKey>>,
}

/// Reads functions and code, and remembers which it has read.
#[derive(Debug, Default)]
pub(crate) struct JsReader {
    functions: HashMap<JsKey, Option<Arc<JsFunction>>>,
    /// The start of the code at each address.
    seen: HashMap<u64, u64>,
    /// By the start of the code.
    codes: HashMap<u64, KnownJsCode>,
    /// Addresses at which code is searched for the next batch.
    waiting: HashMap<u64, Option<JsKey>>,
    /// Addresses without known code that had frames with a function, and the number of the batch
    /// that searched there last.
    failed_now: HashMap<u64, u64>,
    /// Other addresses without known code, and the time up to which none is searched there.
    failed: HashMap<u64, u64>,
    /// The number of searches without a result by block, and the time of the last one.
    fruitless: HashMap<u64, (u32, u64)>,
    bytes: usize,
    /// The number of the batch.
    batch: u64,
    /// Whether something was gone before it was read.
    has_lost: bool,
}

/// A reading of the target.
struct JsReading<'m> {
    reader: V8Reader<'m>,
    memory: &'m dyn TargetMemory,
    began_ns: u64,
}

impl JsReader {
    /// Begins a batch: what is known is compared again.
    pub(crate) fn begin(&mut self) {
        self.batch += 1;
    }

    /// Forgets everything: an engine of the process has ended.
    pub(crate) fn forget(&mut self, news: &mut NewJavaScript) {
        *self = Self { batch: self.batch, has_lost: self.has_lost, ..Self::default() };
        news.clear();
        news.is_fresh = true;
    }

    /// Reads what stacks use, as far as it is not known, and checks what is known. The process runs
    /// the program of these addresses.
    pub(crate) fn read<'w>(
        &mut self,
        stacks: impl Iterator<Item = JsStack<'w>>,
        addresses: &AddressMap,
        pid: i32,
        news: &mut NewJavaScript,
    ) {
        let Some(machine) = &addresses.v8 else { return };
        let [mut used, dead] = UsedJs::of(stacks, addresses);
        for key in dead.functions {
            used.functions.remove(&key);
            if !self.functions.contains_key(&key) {
                news.functions.push((key, Err(Gone::Unproven)));
            }
        }
        for avma in dead.avmas.into_keys() {
            used.avmas.remove(&avma);
            news.lost.push((avma, Gone::Unproven));
        }
        if used.functions.is_empty() && used.avmas.is_empty() {
            return;
        }
        let failed = self.failed.len() + self.failed_now.len() + self.fruitless.len();
        let known = self.functions.len() + self.seen.len() + failed;
        if known > KNOWN_MAX || self.bytes > BYTES_MAX {
            self.forget(news);
        }
        let memory = ProcessMemory::of(pid);
        let began_ns = monotonic_now_ns();
        let reading = JsReading { reader: machine.reader(&memory), memory: &memory, began_ns };
        self.check_functions(&used, &reading, news);
        self.read_functions(&used, &reading, news);
        self.check_codes(&used, &reading, news);
        self.read_codes(&used, &reading, news);
    }

    /// Returns whether something was gone before it was read, since the last call.
    pub(crate) fn takes_lost(&mut self) -> bool {
        mem::take(&mut self.has_lost)
    }

    /// Compares the known functions with what they were read from. Engines of several threads have
    /// the same numbers, so an address may have another function with the same cookie.
    fn check_functions(
        &mut self,
        used: &UsedJs,
        reading: &JsReading<'_>,
        news: &mut NewJavaScript,
    ) {
        let known = used.functions.iter().filter_map(|key| {
            let function = self.functions.get(key)?.as_ref()?;
            Some((*key, Arc::clone(function)))
        });
        let known: Vec<(JsKey, Arc<JsFunction>)> = known.collect();
        let witnesses: Vec<&Witness> = known.iter().map(|(_, it)| it.witness()).collect();
        let hold = which_hold(&witnesses, reading.memory);
        for ((key, before), _) in known.iter().zip(hold).filter(|(_, holds)| !holds) {
            // Otherwise the object has moved, or is gone: it is the one that had the samples.
            let Ok(now) = reading.reader.function(key.object, key.cookie) else { continue };
            if before.has_source_of(&now) {
                self.functions.insert(*key, Some(now));
            } else {
                // The next batch reads it again.
                self.functions.remove(key);
                news.functions.push((*key, Err(Gone::Unproven)));
            }
        }
    }

    fn read_functions(&mut self, used: &UsedJs, reading: &JsReading<'_>, news: &mut NewJavaScript) {
        for key in &used.functions {
            if self.functions.contains_key(key) {
                continue;
            }
            let read = reading.reader.function(key.object, key.cookie);
            self.bytes += read.as_ref().map_or(0, |function| function.bytes());
            self.has_lost |= read.is_err();
            // The next batch with the function reads it again, if that may help.
            if !read.as_ref().is_err_and(|gone| gone.is_transient()) {
                self.functions.insert(*key, read.as_ref().ok().cloned());
            }
            news.functions.push((*key, read));
        }
    }

    /// Compares the known code with what it was read from.
    fn check_codes(&mut self, used: &UsedJs, reading: &JsReading<'_>, news: &mut NewJavaScript) {
        let starts = used.avmas.keys().filter_map(|avma| self.seen.get(avma).copied());
        let mut starts: Vec<u64> = starts.collect();
        starts.sort_unstable();
        starts.dedup();
        let batch = self.batch;
        starts.retain(|start| self.codes.get(start).is_some_and(|known| known.checked != batch));
        let witnesses: Vec<&Witness> = starts
            .iter()
            .filter_map(|start| self.codes.get(start).map(|known| known.code.witness()))
            .collect();
        let hold = which_hold(&witnesses, reading.memory);
        for (start, holds) in starts.into_iter().zip(hold) {
            if holds || self.is_moved(start, reading, news) {
                if let Some(known) = self.codes.get_mut(&start) {
                    (known.seen_ns, known.checked) = (reading.began_ns, batch);
                }
            } else {
                self.end(start, news);
            }
        }
    }

    /// Whether only the objects have moved that describe a piece of code. Then their new places are
    /// known from now on.
    fn is_moved(&mut self, start: u64, reading: &JsReading<'_>, news: &mut NewJavaScript) -> bool {
        let Some(known) = self.codes.get_mut(&start) else { return false };
        let of = known.code.function.as_ref().map(|it| (it.shared, it.cookie));
        let Ok(now) = reading.reader.code_at(start, of) else { return false };
        if !known.code.is_same_code(&now) {
            return false;
        }
        known.code = Arc::new(now);
        let found = |avma: &u64| FoundJsCode {
            avma: *avma,
            since_ns: known.since_ns,
            code: Some(Arc::clone(&known.code)),
        };
        news.found.extend(known.avmas.iter().map(found));
        true
    }

    /// Forgets code that is not there any more.
    fn end(&mut self, start: u64, news: &mut NewJavaScript) {
        let Some(KnownJsCode { seen_ns, avmas, .. }) = self.codes.remove(&start) else { return };
        for avma in avmas {
            self.seen.remove(&avma);
            news.found.push(FoundJsCode { avma, since_ns: seen_ns.saturating_add(1), code: None });
        }
    }

    fn read_codes(&mut self, used: &UsedJs, reading: &JsReading<'_>, news: &mut NewJavaScript) {
        let began = Instant::now();
        let waiting = mem::take(&mut self.waiting);
        let used = used.avmas.iter().chain(&waiting);
        for (avma, of) in used {
            if !self.is_wanted(*avma, *of, reading.began_ns) {
                continue;
            }
            let longest = if of.is_some() { SEARCH_MAX } else { OTHER_SEARCH_MAX };
            if began.elapsed() >= longest {
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.insert(*avma, *of);
                }
                continue;
            }
            let since_ns = monotonic_now_ns();
            match reading.reader.code_at(*avma, of.map(|key| (key.object, key.cookie))) {
                Ok(code) => self.learn(*avma, code, since_ns, news),
                Err(gone) => {
                    news.lost.push((*avma, gone));
                    self.note_failure(*avma, (*of, gone), since_ns);
                }
            }
        }
    }

    /// Whether the code at an address must be read. Baseline code does not say whose it is: it is
    /// read again with the function of a frame.
    fn is_wanted(&self, avma: u64, of: Option<JsKey>, now_ns: u64) -> bool {
        if let Some(known) = self.seen.get(&avma).and_then(|start| self.codes.get(start)) {
            let is_ownerless = known.code.tier == JsTier::Baseline && known.code.function.is_none();
            return is_ownerless && of.is_some() && known.tries < OWNER_TRIES;
        }
        if of.is_some() {
            return self.failed_now.get(&avma) != Some(&self.batch);
        }
        // What runs there is most likely no JavaScript.
        let is_failed = self.failed.get(&avma).is_some_and(|until_ns| now_ns < *until_ns);
        let block = self.fruitless.get(&(avma >> BLOCK_SHIFT));
        let is_fruitless = block.is_some_and(|(count, last_ns)| {
            *count >= FRUITLESS_MAX && now_ns < last_ns.saturating_add(AGAIN_NS)
        });
        !is_failed && !is_fruitless
    }

    /// Notes that no code was found for a frame at an address.
    fn note_failure(&mut self, avma: u64, (of, gone): (Option<JsKey>, Gone), now_ns: u64) {
        if of.is_some() {
            self.failed_now.insert(avma, self.batch);
            self.has_lost = true;
            return;
        }
        if gone.is_transient() {
            return;
        }
        self.failed.insert(avma, now_ns.saturating_add(AGAIN_NS));
        let (count, last_ns) = self.fruitless.entry(avma >> BLOCK_SHIFT).or_default();
        (*count, *last_ns) = (count.saturating_add(1), now_ns);
    }

    fn learn(&mut self, avma: u64, code: JsCode, since_ns: u64, news: &mut NewJavaScript) {
        self.failed.remove(&avma);
        self.failed_now.remove(&avma);
        self.fruitless.remove(&(avma >> BLOCK_SHIFT));
        let start = code.code.start;
        let before = self.codes.get(&start);
        if before.is_some_and(|known| !known.code.is_same_code(&code)) {
            self.end(start, news);
        }
        let code = Arc::new(code);
        let known = self.codes.entry(start).or_insert_with(|| {
            self.bytes += code.bytes();
            let (code, checked) = (Arc::clone(&code), self.batch);
            let (seen_ns, avmas) = (since_ns, Vec::new());
            KnownJsCode { code, since_ns, seen_ns, checked, tries: 0, avmas }
        });
        if known.code.function.is_none() {
            (known.code, known.tries) = (code, known.tries + 1);
        }
        if self.seen.insert(avma, start).is_none() {
            known.avmas.push(avma);
        }
        let code = Some(Arc::clone(&known.code));
        news.found.push(FoundJsCode { avma, since_ns: known.since_ns, code });
    }
}

impl UsedJs {
    /// Collects what stacks of living threads use, and what those of others use.
    fn of<'w>(stacks: impl Iterator<Item = JsStack<'w>>, addresses: &AddressMap) -> [Self; 2] {
        let [mut used, mut dead] = [Self::default(), Self::default()];
        for stack in stacks {
            if stack.is_dead { &mut dead } else { &mut used }.add(stack, addresses);
        }
        [used, dead]
    }

    fn add(&mut self, stack: JsStack<'_>, addresses: &AddressMap) {
        for frame in frames(split(split_kernel(stack.words).1).0) {
            let (word, function) = match frame {
                FrameWord::Pc(word) => (word, None),
                FrameWord::WithFunction(word, function) => (word, JsKey::of(function)),
                FrameWord::InPlace { .. } => continue,
            };
            self.functions.extend(function);
            let (module, (_, avma)) = locate(addresses, word, trace_epoch(stack.flags));
            if module.is_none() {
                let of = self.avmas.entry(avma).or_default();
                *of = of.or(function);
            }
        }
    }
}
