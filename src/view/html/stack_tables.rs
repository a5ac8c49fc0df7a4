//! The tree of stacks as tables: calls, which refer to frames, which refer to functions and files.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::assembly::Assembly;
use super::byte_columns::ByteColumns;
use super::page_samples::{ModeSamples, PageSamples};
use crate::trace::{Language, LocationId};
use crate::view::profile::call_tree::{CallTree, StackStep};
use crate::view::profile::step_names::{NameId, StepNames};
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::waits::Waits;
use crate::view::select::groups::Groups;
use crate::view::text::escape::escaped;

/// The kind of a function in the page. A wait is `WAIT` plus the number of its state.
const CODE: u64 = 0;
const MARK: u64 = 1;
const WAIT: u64 = 2;

/// The function of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PageFunction {
    Code(NameId),
    /// A placeholder.
    Other(StackStep<()>),
}

/// A position in a function: the number of the file, 0 for none, and the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct PageFrame {
    function: u32,
    file: u32,
    line: u32,
    /// The numbers of the listing and its row, from 1 on, with assembly.
    row: (u32, u32),
}

/// The tables of a tree.
#[derive(Debug, Default)]
pub(super) struct StackTables {
    /// The names, each with the text that distinguishes equal names.
    names: Vec<(String, String)>,
    kinds: Vec<u64>,
    /// The languages, as numbers of [`Language::ALL`].
    languages: Vec<u64>,
    files: Vec<String>,
    frames: Vec<PageFrame>,
    /// For each call, the distance back to its caller, and its frame.
    calls: Vec<(u64, u32)>,
    /// For each function, why its assembly is not shown. Only with assembly.
    whys: Option<Vec<u64>>,
}

/// Fills the tables.
struct StackTableBuilder<'a> {
    profile: &'a Profile,
    assembly: Option<&'a Assembly>,
    names: StepNames,
    waits: &'a Waits,
    tables: StackTables,
    functions: HashMap<PageFunction, u32>,
    files: HashMap<String, u32>,
    frames: HashMap<PageFrame, u32>,
    by_step: HashMap<StackStep<LocationId>, u32>,
}

impl StackTables {
    /// Builds the tables of all stacks.
    pub(super) fn new(
        gathered: &PageSamples<'_>,
        profile: Option<&Profile>,
        assembly: Option<&Assembly>,
    ) -> Self {
        let Some(profile) = profile else { return Self::default() };
        let mut names = StepNames::of_functions(profile);
        if !gathered.processes.is_empty() {
            let labels = gathered.processes.clone();
            names.group_by(Groups::named(["process", "processes"], labels).into());
        }
        let mut maker = StackTableBuilder {
            profile,
            assembly,
            names,
            waits: &gathered.waits,
            tables: Self { whys: assembly.map(|_| Vec::new()), ..Self::default() },
            functions: HashMap::new(),
            files: HashMap::new(),
            frames: HashMap::new(),
            by_step: HashMap::new(),
        };
        maker.fill(&gathered.tree);
        maker.tables
    }

    /// Adds the columns.
    pub(super) fn write(&self, columns: &mut ByteColumns) {
        columns.add("function.kind".to_owned(), self.kinds.iter().copied());
        columns.add("function.language".to_owned(), self.languages.iter().copied());
        let frames = || self.frames.iter();
        columns.add("frame.function".to_owned(), frames().map(|frame| frame.function.into()));
        columns.add("frame.file".to_owned(), frames().map(|frame| frame.file.into()));
        columns.add("frame.line".to_owned(), frames().map(|frame| frame.line.into()));
        if let Some(whys) = &self.whys {
            columns.add("function.why".to_owned(), whys.iter().copied());
            columns.add("frame.listing".to_owned(), frames().map(|frame| frame.row.0.into()));
            columns.add("frame.row".to_owned(), frames().map(|frame| frame.row.1.into()));
        }
        columns.add("call.caller".to_owned(), self.calls.iter().map(|(back, _)| *back));
        columns.add("call.frame".to_owned(), self.calls.iter().map(|(_, frame)| (*frame).into()));
    }

    /// Returns the files with lines, each with its index, the one with most weight first.
    pub(super) fn files_by_weight(&self, gathered: &PageSamples<'_>) -> Vec<(usize, &str)> {
        let mut totals = vec![0u64; self.calls.len()];
        for entry in gathered.modes.iter().flat_map(ModeSamples::all) {
            if let Some(total) = totals.get_mut(entry.call as usize) {
                *total = total.saturating_add(entry.weight);
            }
        }
        let mut weights = vec![0u64; self.files.len()];
        for (call, (back, frame)) in self.calls.iter().enumerate().rev() {
            let total = totals.get(call).copied().unwrap_or(0);
            let caller = call.saturating_sub(usize::try_from(*back).unwrap_or(0));
            if let Some(sum) = totals.get_mut(caller).filter(|_| caller < call) {
                *sum = sum.saturating_add(total);
            }
            let file = self.frames.get(*frame as usize).filter(|frame| frame.line > 0);
            let file = file.and_then(|frame| frame.file.checked_sub(1));
            if let Some(weight) = file.and_then(|file| weights.get_mut(file as usize)) {
                *weight = weight.saturating_add(total);
            }
        }
        let mut files: Vec<_> =
            self.files.iter().map(String::as_str).enumerate().zip(weights).collect();
        files.retain(|(_, weight)| *weight > 0);
        files.sort_by_key(|((index, _), weight)| (Reverse(*weight), *index));
        files.into_iter().map(|(file, _)| file).collect()
    }

    /// Returns the texts that the columns refer to.
    pub(super) fn texts(&self) -> Value {
        let (names, modules): (Vec<_>, Vec<_>) =
            self.names.iter().map(|(name, module)| (name, module)).unzip();
        json!({ "functions": names, "modules": modules, "files": self.files })
    }
}

impl StackTableBuilder<'_> {
    fn fill(&mut self, tree: &CallTree<LocationId>) {
        for (index, call) in tree.calls().iter().enumerate() {
            let frame = match self.by_step.get(&call.step) {
                Some(frame) => *frame,
                None => {
                    let frame = self.frame(call.step);
                    self.by_step.insert(call.step, frame);
                    frame
                }
            };
            self.tables.calls.push(((index - call.caller()) as u64, frame));
        }
    }

    fn frame(&mut self, step: StackStep<LocationId>) -> u32 {
        let frame = match step {
            StackStep::Frame(location) => {
                let known = self.profile.locations.get(location.0 as usize);
                let language = known.map_or(Language::Native, |it| it.kind.language());
                let function = PageFunction::Code(self.names.id(location));
                let function = self.function(function, language);
                let line = known.map_or(0, |location| location.line);
                let file = known.and_then(|location| location.file.as_deref());
                let row = self.assembly.map_or((0, 0), |it| it.row(self.profile, location));
                self.add_why(function, location);
                PageFrame { function, file: file.map_or(0, |file| self.file(file)), line, row }
            }
            other => {
                let function = PageFunction::Other(other.map(|_| ()));
                let function = self.function(function, Language::Native);
                PageFrame { function, ..PageFrame::default() }
            }
        };
        let all = &mut self.tables.frames;
        *self.frames.entry(frame).or_insert_with(|| {
            all.push(frame);
            last(all.len())
        })
    }

    /// Notes why a function has code without a listing.
    fn add_why(&mut self, function: u32, location: LocationId) {
        let (Some(assembly), Some(whys)) = (self.assembly, &mut self.tables.whys) else { return };
        if let Some(why) = whys.get_mut(function as usize) {
            *why = assembly.why(location).max(*why);
        }
    }

    fn function(&mut self, function: PageFunction, language: Language) -> u32 {
        if let Some(known) = self.functions.get(&function) {
            return *known;
        }
        let (name, module, kind) = match function {
            PageFunction::Code(id) => {
                let step = StackStep::Frame(id);
                let of = |text: &str| text.to_owned();
                (of(self.names.text(step)), of(self.names.qualifier(step)), CODE)
            }
            PageFunction::Other(StackStep::Wait(id)) => {
                let state = self.waits.get(id).map_or(0, |wait| wait.state);
                (self.waits.name(id).to_owned(), String::new(), WAIT + u64::from(state))
            }
            PageFunction::Other(step) => {
                // This step contains no frame, so the id is never used.
                let step = step.map(|()| self.names.id(LocationId(u32::MAX)));
                (self.names.text(step).to_owned(), String::new(), MARK)
            }
        };
        self.tables.names.push((name, module));
        self.tables.kinds.push(kind);
        self.tables.whys.iter_mut().for_each(|whys| whys.push(0));
        let number = Language::ALL.iter().position(|it| *it == language).unwrap_or(0);
        self.tables.languages.push(number as u64);
        let id = last(self.tables.names.len());
        self.functions.insert(function, id);
        id
    }

    /// Returns the number of a file, from 1 on.
    fn file(&mut self, file: &str) -> u32 {
        let all = &mut self.tables.files;
        let file = escaped(file);
        if let Some(known) = self.files.get(&*file) {
            return *known;
        }
        all.push(file.clone().into_owned());
        let number = last(all.len()) + 1;
        self.files.insert(file.into_owned(), number);
        number
    }
}

/// Returns the index of the last row. Memory cannot hold more than four billion rows.
fn last(length: usize) -> u32 {
    u32::try_from(length.saturating_sub(1)).unwrap_or(u32::MAX - 1)
}
