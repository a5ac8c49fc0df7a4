//! Annotated assembly: the machine code of the heaviest functions, from the files of the trace that
//! are still on this system.
//!
//! # Invariants
//! - At most [`LISTINGS_MAX`] functions and [`TEXTS_MAX`] bytes of instructions.
//! - Code without a listing has a text that says why. A note names the files with much of the time.

mod code_file;
mod code_files;
mod listing;
#[cfg(test)]
mod tests;
mod unshown;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde_json::{Value, json};

use super::page_samples::PageSamples;
use crate::trace::{Language, Location, LocationId, Method, MethodId, ModuleId};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::escape::escaped;
use code_files::CodeFiles;
use listing::CodeRows;

/// Maximum number of functions.
const LISTINGS_MAX: usize = 200;
/// Maximum number of bytes of all instructions together.
const TEXTS_MAX: usize = 2 << 20;
/// Maximum number of calls that are inlined into each other. In a corrupt trace, they may be
/// inlined into themselves.
const INLINED_MAX: usize = 1 << 10;

/// The assembly of a page.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    listings: Vec<Listing>,
    files: Vec<String>,
    /// Why there is no listing, each text once.
    whys: Vec<String>,
    places: BTreeMap<LocationId, CodePlace>,
    /// What to tell the user.
    notes: Vec<String>,
}

/// The code of a function, or of a part of it.
#[derive(Debug)]
struct Listing {
    /// The name of the function.
    name: String,
    module: String,
    range: Range<u64>,
    code: CodeRows,
}

/// Where the code of a location is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodePlace {
    Listing(usize),
    Why(usize),
}

/// The weight of a function in itself and with all that it calls, as a share of all.
#[derive(Debug, Clone, Copy, Default)]
struct CodeWeight {
    own: f64,
    total: f64,
}

/// A location whose code is native.
#[derive(Debug, Clone, Copy)]
struct NativePlace {
    id: LocationId,
    svma: u64,
    weight: CodeWeight,
}

/// Collects listings.
struct AssemblyBuilder<'a> {
    profile: &'a Profile,
    files: CodeFiles,
    /// The names that the trace has for the starts of functions.
    known: HashMap<(ModuleId, u64), &'a str>,
    /// The listings of each module by the start of their code.
    by_start: HashMap<ModuleId, BTreeMap<u64, usize>>,
    /// The weights of all addresses with samples.
    weights: HashMap<ModuleId, BTreeMap<u64, f64>>,
    /// The numbers of the texts that say why there is no listing.
    whys: HashMap<String, usize>,
    room: usize,
    all: Assembly,
}

impl Assembly {
    /// Disassembles the heaviest functions.
    pub(super) fn gather(gathered: &PageSamples<'_>, profile: &Profile) -> Self {
        let mut maker = AssemblyBuilder {
            profile,
            files: CodeFiles::default(),
            known: known_names(profile),
            by_start: HashMap::new(),
            weights: HashMap::new(),
            whys: HashMap::new(),
            room: TEXTS_MAX,
            all: Self::default(),
        };
        let mut functions: BTreeMap<MethodId, Vec<NativePlace>> = BTreeMap::new();
        let mut others = Vec::new();
        let weights = weights(gathered);
        for (id, weight) in &weights {
            let (id, weight) = (*id, *weight);
            let Some(location) = physical(profile, id) else { continue };
            if let Some(why) = why_not_native(location) {
                others.push((id, why));
                continue;
            }
            let svma = location.svma;
            functions.entry(location.method).or_default().push(NativePlace { id, svma, weight });
            let module = profile.method(location.method).and_then(|method| method.module);
            if let Some(module) = module {
                let of_module = maker.weights.entry(module).or_default();
                *of_module.entry(svma).or_default() += weight.own + weight.total / 1e6;
            }
        }
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by(|(_, one), (_, other)| heavier_first(one, other));
        for (method, places) in functions {
            maker.add(method, &places);
        }
        for (id, why) in others {
            maker.put_why(id, why);
        }
        let shares = unshown::shares(gathered, |id| native_module(profile, id));
        let notes = unshown::notes(maker.files.unshown(), &shares);
        let mut all = maker.finish();
        all.notes = notes;
        all.notes.extend(all.none_found(profile, &weights).filter(|_| all.notes.is_empty()));
        all.add_lines(profile);
        all
    }

    /// Returns the number of the listing with a location's instruction, from 1 on, and that of its
    /// row; 0 for none.
    pub(super) fn row(&self, profile: &Profile, id: LocationId) -> (u32, u32) {
        let Some(CodePlace::Listing(listing)) = self.places.get(&id) else { return (0, 0) };
        let row = physical(profile, id)
            .and_then(|location| self.listings.get(*listing)?.code.row_of(location.svma));
        let number = |index: usize| u32::try_from(index + 1).unwrap_or(0);
        (number(*listing), row.map_or(0, number))
    }

    /// Returns the number of the text that says why there is no listing, from 1 on; 0 for none.
    pub(super) fn why(&self, id: LocationId) -> u64 {
        match self.places.get(&id) {
            Some(CodePlace::Why(why)) => *why as u64 + 1,
            _ => 0,
        }
    }

    /// Returns what to tell the user.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns what to tell the user if there is no listing.
    fn none_found(
        &self,
        profile: &Profile,
        weights: &BTreeMap<LocationId, CodeWeight>,
    ) -> Option<String> {
        if !self.listings.is_empty() {
            return None;
        }
        let heaviest = weights.iter().max_by(|(_, one), (_, other)| {
            one.own.total_cmp(&other.own).then(one.total.total_cmp(&other.total))
        });
        let of = |id: LocationId| {
            let CodePlace::Why(why) = self.places.get(&id)? else { return None };
            let method = profile.method(physical(profile, id)?.method)?;
            Some((escaped(&method.name), self.whys.get(*why)?))
        };
        let Some((name, why)) = heaviest.and_then(|(id, _)| of(*id)) else {
            return Some("the page has no assembly: no function has samples".to_owned());
        };
        Some(format!("the page has no assembly, not even of its heaviest function, {name}: {why}"))
    }

    /// Returns the listings for the page's header.
    pub(super) fn json(&self) -> Value {
        let listings: Vec<Value> = self.listings.iter().map(Listing::json).collect();
        json!({ "listings": listings, "files": self.files, "whys": self.whys })
    }

    /// Gives the instructions with samples the files and lines of these.
    fn add_lines(&mut self, profile: &Profile) {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut depths: HashMap<(usize, usize), usize> = HashMap::new();
        for (id, place) in &self.places {
            let CodePlace::Listing(listing) = *place else { continue };
            let chain = inline_chain(profile, *id);
            let (Some(innermost), Some(outermost)) = (chain.first(), chain.last()) else {
                continue;
            };
            let (Some(file), Some(code)) =
                (innermost.file.as_deref(), self.listings.get_mut(listing))
            else {
                continue;
            };
            let Some(row) = code.code.row_of(outermost.svma).filter(|_| innermost.line > 0) else {
                continue;
            };
            // Of an inlined call the innermost function is at work.
            let depth = depths.entry((listing, row)).or_default();
            if *depth >= chain.len() {
                continue;
            }
            *depth = chain.len();
            let files = &mut self.files;
            let number = *numbers.entry(file).or_insert_with(|| {
                files.push(escaped(file).into_owned());
                u32::try_from(files.len() - 1).unwrap_or(u32::MAX)
            });
            code.code.rows[row].place = Some((number, innermost.line));
        }
    }
}

impl AssemblyBuilder<'_> {
    /// Adds the listings of a function, or why there are none.
    fn add(&mut self, method: MethodId, places: &[NativePlace]) {
        for place in places {
            match self.listing_of(method, place.svma) {
                Ok(listing) => {
                    self.all.places.insert(place.id, CodePlace::Listing(listing));
                }
                Err(why) => self.put_why(place.id, why),
            }
        }
    }

    fn put_why(&mut self, id: LocationId, why: String) {
        let next = self.whys.len();
        let number = *self.whys.entry(why).or_insert(next);
        self.all.places.insert(id, CodePlace::Why(number));
    }

    fn finish(self) -> Assembly {
        let mut whys: Vec<_> = self.whys.into_iter().collect();
        whys.sort_by_key(|(_, number)| *number);
        Assembly { whys: whys.into_iter().map(|(why, _)| why).collect(), ..self.all }
    }

    /// Returns the listing with an address, which is made if it is new.
    fn listing_of(&mut self, id: MethodId, svma: u64) -> Result<usize, String> {
        let method = self.profile.method(id);
        let known = method.and_then(|method| Some((method, method.module?)));
        let known =
            known.and_then(|(it, id)| Some((it, id, self.profile.modules.get(id.0 as usize)?)));
        let Some((method, module_id, module)) = known else {
            return Err("its code is in no file that is known".to_owned());
        };
        let before = self.by_start.get(&module_id);
        if let Some((_, index)) = before.and_then(|it| it.range(..=svma).next_back())
            && self.all.listings[*index].range.contains(&svma)
        {
            return Ok(*index);
        }
        let is_full = self.all.listings.len() >= LISTINGS_MAX || self.room == 0;
        let file = match self.files.known(module_id) {
            Some(Err(why)) => return Err(why),
            // The file is not even opened.
            _ if is_full => {
                return Err(format!(
                    "the page has the {} functions with the most time, and this is none of them",
                    self.all.listings.len()
                ));
            }
            Some(Ok(file)) => file,
            None => self.files.get(module_id, module)?,
        };
        let range = file.range(method.start_svma, svma)?;
        let weights = self.weights.get(&module_id).map(|weights| weights.range(range.clone()));
        let weights = weights.into_iter().flatten().map(|(svma, weight)| (*svma, *weight));
        let weights: BTreeMap<u64, f64> = weights.collect();
        let names = |svmas: &[u64]| {
            let mut names = file.names(svmas);
            for svma in svmas {
                if let Some(name) = self.known.get(&(module_id, *svma)) {
                    names.entry(*svma).or_insert_with(|| (*name).to_owned());
                }
            }
            names.into_iter().map(|(svma, name)| (svma, escaped(&name).into_owned())).collect()
        };
        let code = CodeRows::of(file.code(&range), &range, &weights, names);
        if code.rows.is_empty() {
            return Err(format!("{} has no code at {svma:#x}", file.shown()));
        }
        let bytes = code.rows.iter().map(|row| row.text.len()).sum();
        self.room = self.room.saturating_sub(bytes);
        let name = escaped(&method.name).into_owned();
        let index = self.all.listings.len();
        self.by_start.entry(module_id).or_default().insert(range.start, index);
        self.all.listings.push(Listing { name, module: file.shown().to_owned(), range, code });
        Ok(index)
    }
}

impl Listing {
    fn json(&self) -> Value {
        let Self { name, module, range, code } = self;
        let offset = |svma: u64| svma.saturating_sub(range.start);
        let rows = || code.rows.iter().enumerate();
        let jumps =
            rows().filter_map(|(at, row)| Some((at.to_string(), json!(offset(row.target?)))));
        let lines = rows().filter_map(|(at, row)| Some((at.to_string(), json!(row.place?))));
        let gaps = rows().filter(|(_, row)| row.skipped > 0);
        let gaps = gaps.map(|(at, row)| (at.to_string(), json!(row.skipped)));
        let end = (code.skipped > 0).then(|| (code.rows.len().to_string(), json!(code.skipped)));
        json!({
            "name": name,
            "module": module,
            "start": format!("{:#x}", range.start),
            "count": code.count,
            "offsets": code.rows.iter().map(|row| offset(row.svma)).collect::<Vec<_>>(),
            "texts": code.rows.iter().map(|row| &row.text).collect::<Vec<_>>(),
            "jumps": jumps.collect::<serde_json::Map<_, _>>(),
            "lines": lines.collect::<serde_json::Map<_, _>>(),
            "gaps": gaps.chain(end).collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Returns the names that the trace has for the starts of functions. Of a stripped file, they may
/// come from a debug file.
fn known_names(profile: &Profile) -> HashMap<(ModuleId, u64), &str> {
    let methods = profile.methods.iter();
    let named = methods.filter(|method| method.start_svma > 0 && !method.name.starts_with('['));
    let of = |method: &Method| Some((method.module?, method.start_svma));
    named.filter_map(|method| Some((of(method)?, method.name.as_str()))).collect()
}

/// Returns the weights of all locations with samples.
fn weights(gathered: &PageSamples<'_>) -> BTreeMap<LocationId, CodeWeight> {
    let calls = gathered.tree.calls();
    let mut by_call = vec![CodeWeight::default(); calls.len()];
    for mode in &gathered.modes {
        // The units of the modes differ, so their shares are added.
        let all = mode.all().map(|entry| entry.weight as f64).sum::<f64>().max(1.0);
        for entry in mode.all() {
            if let Some(weight) = by_call.get_mut(entry.call as usize) {
                weight.own += entry.weight as f64 / all;
                weight.total += entry.weight as f64 / all;
            }
        }
    }
    let mut weights: BTreeMap<LocationId, CodeWeight> = BTreeMap::new();
    for (index, call) in calls.iter().enumerate().rev() {
        let weight = by_call[index];
        if call.caller() < index {
            by_call[call.caller()].total += weight.total;
        }
        if let StackStep::Frame(id) = call.step {
            let sum = weights.entry(id).or_default();
            sum.own += weight.own;
            sum.total += weight.total;
        }
    }
    weights
}

fn heavier_first(one: &[NativePlace], other: &[NativePlace]) -> Ordering {
    let own = |all: &[NativePlace]| all.iter().map(|place| place.weight.own).sum::<f64>();
    let total = |all: &[NativePlace]| all.iter().map(|place| place.weight.total).sum::<f64>();
    own(other).total_cmp(&own(one)).then(total(other).total_cmp(&total(one)))
}

/// Returns a location, the one that it is inlined into, and so on.
fn inline_chain(profile: &Profile, id: LocationId) -> Vec<&Location> {
    let mut chain = Vec::new();
    let mut next = profile.locations.get(id.0 as usize);
    while let Some(location) = next {
        chain.push(location);
        let parent = location.inline_parent.filter(|_| chain.len() < INLINED_MAX);
        next = parent.and_then(|parent| profile.locations.get(parent.0 as usize));
    }
    chain
}

/// Returns the location whose code a location is inlined into.
fn physical(profile: &Profile, id: LocationId) -> Option<&Location> {
    inline_chain(profile, id).pop()
}

/// Returns the module of a location whose code is native.
fn native_module(profile: &Profile, id: LocationId) -> Option<ModuleId> {
    let location = physical(profile, id).filter(|it| why_not_native(it).is_none())?;
    profile.method(location.method)?.module
}

/// Returns why a location is in no file of machine code, if it is so.
fn why_not_native(location: &Location) -> Option<String> {
    match location.kind.language() {
        Language::Native => None,
        Language::Kernel => {
            Some("the code of the kernel is in no file that can be read".to_owned())
        }
        _ => Some(
            "a runtime runs it or compiles it while it runs, so no file has its machine code"
                .to_owned(),
        ),
    }
}
