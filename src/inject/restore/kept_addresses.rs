//! The search for addresses of the agent in a program that has replaced the agent's handler.
//!
//! A program that replaces an action gets the old one, and may keep it: to call the handler, to
//! install it again later, or to install another handler with the same restorer. The agent may be
//! unmapped only if the program has kept neither address. So the registers of all threads are
//! searched, and all memory that the program can have written since it was started. Below the stack
//! pointers, stacks hold only what earlier calls have left, and a call that replaces an action
//! leaves the old one there.
//!
//! # Invariants
//! - All threads are held, so no address moves from one place to another during the search.
//! - What cannot be read, and what takes too long, counts as a place that holds an address.
//!
//! # Does not
//! - tell an address that the program still uses from an old copy that it has not overwritten;
//! - find an address that a program keeps in another form, such as encrypted.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::held_threads::HeldThreads;
use crate::inject::arch;
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace::watchdog;
use crate::inject::stop::Stopped;
use crate::inject::worker::stack::stack_top;
use crate::proc::{self, Mapping};

/// The longest search, for all threads of the target are held. A gigabyte takes about as long.
const SEARCH_MAX: Duration = Duration::from_millis(500);
const PAGE: u64 = 4096;
/// The size of an entry of `/proc/PID/pagemap`, one for each page.
const ENTRY: u64 = 8;
/// The number of pages that are looked up at once.
const PAGES_AT_ONCE: u64 = 1 << 15;
/// The number of bytes that are searched at once.
const BYTES_AT_ONCE: u64 = 1 << 20;
/// Flags of such an entry: the page is in memory, in swap space, or that of a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// The search in one stopped process.
pub(super) struct KeptAddresses<'a> {
    plan: &'a AttachPlan,
    /// The addresses that are searched for.
    addresses: Vec<[u8; size_of::<u64>()]>,
    mappings: Vec<Mapping>,
    deadline: Instant,
}

impl<'a> KeptAddresses<'a> {
    /// Whether the program may have kept one of these addresses.
    pub(super) fn may_exist(
        plan: &'a AttachPlan,
        addresses: &BTreeSet<u64>,
        worker: &Stopped,
        held: &HeldThreads,
    ) -> bool {
        let Ok(mappings) = proc::mappings(plan.pid) else { return true };
        let deadline = Instant::now() + SEARCH_MAX;
        let bytes = addresses.iter().map(|it| it.to_ne_bytes());
        let search = Self { plan, addresses: bytes.collect(), mappings, deadline };
        // The registers of a thread that does not stop cannot be read.
        let Some(threads) = held.all_stopped() else { return true };
        let threads: Vec<&Stopped> = threads.chain([worker]).collect();
        let is_in = |thread: &&Stopped| addresses.iter().any(|it| thread.registers_hold(*it));
        addresses.is_empty()
            || threads.iter().any(is_in)
            || search.is_in_memory(&threads).unwrap_or(true)
    }

    /// Whether an address is in memory. `None` if a part could not be searched.
    fn is_in_memory(&self, threads: &[&Stopped]) -> Option<bool> {
        let open = |name: &str| File::open(format!("/proc/{}/{name}", self.plan.pid)).ok();
        let (memory, pages) = (open("mem")?, open("pagemap")?);
        let is_own =
            |it: &Mapping| self.plan.segments().iter().any(|(_, own)| own.contains(it.start));
        let others = self.mappings.iter().filter(|it| !is_own(it) && !is_kernels(it));
        for mapping in others {
            let start = self.live_start(mapping, threads);
            if self.is_in_mapping(start, mapping, (&memory, &pages))? {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Returns where the used part of a mapping starts. A stack is unused below the lowest stack
    /// pointer in it.
    fn live_start(&self, mapping: &Mapping, threads: &[&Stopped]) -> u64 {
        let sp = |thread: &Stopped| thread.saved().registers.rsp;
        let on_it = threads.iter().filter(|it| (mapping.start..mapping.end).contains(&sp(it)));
        match on_it.min_by_key(|thread| sp(thread)) {
            Some(lowest)
                if mapping.path == "[stack]" || stack_top(lowest, &self.mappings).is_some() =>
            {
                sp(lowest).saturating_sub(arch::RED_ZONE).max(mapping.start)
            }
            _ => mapping.start,
        }
    }

    /// Whether an address is in a mapping, from an address on.
    fn is_in_mapping(
        &self,
        start: u64,
        mapping: &Mapping,
        (memory, pages): (&File, &File),
    ) -> Option<bool> {
        let mut entries = vec![0; (PAGES_AT_ONCE * ENTRY) as usize];
        let mut page = start & !(PAGE - 1);
        // Bytes of consecutive pages that are not searched yet.
        let mut unsearched = start..start;
        while page < mapping.end {
            watchdog::feed();
            // Reserved address space alone may take minutes.
            if Instant::now() >= self.deadline {
                return None;
            }
            let count = ((mapping.end - page) / PAGE).min(PAGES_AT_ONCE);
            let entries = &mut entries[..(count * ENTRY) as usize];
            pages.read_exact_at(entries, page / PAGE * ENTRY).ok()?;
            for entry in entries.as_chunks().0 {
                let is_written = is_written(u64::from_ne_bytes(*entry), mapping);
                if is_written && unsearched.is_empty() {
                    unsearched.start = page.max(start);
                }
                page += PAGE;
                if is_written {
                    unsearched.end = page;
                }
                if is_written && unsearched.end - unsearched.start < BYTES_AT_ONCE {
                    continue;
                }
                if self.is_in_range(&unsearched, memory)? {
                    return Some(true);
                }
                // Part of an address may be in the next page.
                unsearched.start = unsearched.end - if is_written { ENTRY - 1 } else { 0 };
            }
        }
        self.is_in_range(&unsearched, memory)
    }

    fn is_in_range(&self, range: &Range<u64>, memory: &File) -> Option<bool> {
        if range.is_empty() {
            return Some(false);
        }
        watchdog::feed();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        memory.read_exact_at(&mut bytes, range.start).ok()?;
        let is_one = |window: &[u8]| self.addresses.iter().any(|address| window == address);
        let is_there = bytes.windows(ENTRY as usize).any(is_one);
        (is_there || Instant::now() < self.deadline).then_some(is_there)
    }
}

/// Whether the program may have written a page since it was started. Other pages are not read: they
/// would come from a file or a server.
fn is_written(entry: u64, mapping: &Mapping) -> bool {
    let is_of_file = entry & OF_FILE != 0 && !mapping.shared;
    entry & SWAPPED != 0 || (entry & PRESENT != 0 && !is_of_file)
}

/// Whether a mapping belongs to the kernel or to a device, which store no addresses of handlers.
fn is_kernels(mapping: &Mapping) -> bool {
    let path = mapping.path.to_string_lossy();
    let is_device = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
    is_device || path.starts_with("[vvar") || path == "[vsyscall]" || path == "[vdso]"
}
