//! The tables that the stacks of a thread refer to. They contain each text, function and frame
//! once.

use std::collections::HashMap;

use super::categories::{self, Category};
use super::model::FirefoxThread;
use crate::trace::{Location, LocationId, MethodId, ModuleId};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::step_names::StepNames;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::escape::escaped;

/// The name of functions that the trace does not define.
const UNKNOWN: &str = "[unknown]";
/// The type of a resource that is a library.
const LIBRARY: u32 = 1;

/// The source of a row of the function table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FuncKey {
    /// A method, the index of its file name, and whether it is JavaScript.
    Method(MethodId, Option<u32>, bool),
    /// A placeholder, and the index of its name.
    Mark(u32),
}

/// Fills the tables of a thread.
pub(super) struct ThreadTables<'a> {
    profile: &'a Profile,
    names: &'a StepNames,
    pub(super) thread: FirefoxThread,
    strings: HashMap<String, u32>,
    functions: HashMap<FuncKey, u32>,
    frames: HashMap<StackStep<LocationId>, u32>,
    stacks: HashMap<(Option<u32>, u32), u32>,
    resources: HashMap<ModuleId, i64>,
}

impl<'a> ThreadTables<'a> {
    pub(super) fn new(profile: &'a Profile, names: &'a StepNames) -> Self {
        Self {
            profile,
            names,
            thread: FirefoxThread::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            resources: HashMap::new(),
        }
    }

    /// Returns the index of a text.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        self.thread.string_array.push(text.to_owned());
        let index = last(self.thread.string_array.len());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// Returns the index of a stack, given root first, or `None` for an empty stack.
    pub(super) fn stack(
        &mut self,
        steps: impl Iterator<Item = StackStep<LocationId>>,
    ) -> Option<u32> {
        let mut prefix = None;
        for step in steps {
            let frame = self.frame(step);
            let table = &mut self.thread.stack_table;
            let index = *self.stacks.entry((prefix, frame)).or_insert_with(|| {
                table.prefix.push(prefix);
                table.frame.push(frame);
                table.length = table.frame.len();
                last(table.length)
            });
            prefix = Some(index);
        }
        prefix
    }

    fn frame(&mut self, step: StackStep<LocationId>) -> u32 {
        if let Some(index) = self.frames.get(&step) {
            return *index;
        }
        let row = match step {
            StackStep::Frame(id) => self.frame_row(id),
            _ => {
                let name = self.names.text(step.map(|location| self.names.id(location)));
                let func = self.mark(name);
                FrameTableRow::of_mark(func, matches!(step, StackStep::Wait(_)))
            }
        };
        let table = &mut self.thread.frame_table;
        table.address.push(row.address);
        table.inline_depth.push(row.inline_depth);
        table.category.push(row.category.0);
        table.subcategory.push(row.category.1);
        table.func.push(row.func);
        table.native_symbol.push(None);
        table.inner_window_id.push(0);
        table.line.push(row.line);
        table.column.push(None);
        table.length = table.func.len();
        let index = last(table.length);
        self.frames.insert(step, index);
        index
    }

    fn frame_row(&mut self, id: LocationId) -> FrameTableRow {
        let profile = self.profile;
        let Some(location) = profile.locations.get(id.0 as usize) else {
            return FrameTableRow::of_mark(self.mark(UNKNOWN), false);
        };
        let (mut physical, mut inline_depth) = (location, 0);
        // A parent has a smaller id, so this loop terminates.
        while let Some(parent) = physical.inline_parent
            && let Some(outer) = profile.locations.get(parent.0 as usize)
        {
            physical = outer;
            inline_depth += 1;
        }
        let module = profile.method(physical.method).and_then(|method| method.module);
        // A module of managed code is a file of source: it has no addresses and is no library.
        let has_address = physical.svma != 0 || !physical.kind.language().is_managed();
        let module = module.filter(|_| has_address);
        let file = location.file.as_deref().map(|file| self.string(&escaped(file)));
        let func = self.function(location, file, module);
        let address = match module {
            Some(_) => i64::try_from(physical.svma).unwrap_or(-1),
            None => -1,
        };
        FrameTableRow {
            func,
            address,
            line: (location.line > 0).then_some(location.line),
            inline_depth,
            category: Category::of(location.kind),
        }
    }

    /// Returns the index of a location's method in a module. An inlined method belongs to the
    /// module that it is inlined into.
    fn function(
        &mut self,
        location: &Location,
        file: Option<u32>,
        module: Option<ModuleId>,
    ) -> u32 {
        let is_js = categories::is_javascript(location.kind);
        let key = FuncKey::Method(location.method, file, is_js);
        if let Some(index) = self.functions.get(&key) {
            return *index;
        }
        let method = self.profile.method(location.method);
        let name = method.map_or(UNKNOWN, |method| &method.name);
        let line = method.map(|method| method.line).filter(|line| *line > 0);
        let name = self.string(&escaped(name));
        let resource = module.map_or(-1, |module| self.resource(module));
        self.add_function(key, name, FuncPlace { resource, file, line, is_js })
    }

    fn mark(&mut self, name: &str) -> u32 {
        let name = self.string(name);
        let key = FuncKey::Mark(name);
        match self.functions.get(&key) {
            Some(index) => *index,
            None => self.add_function(key, name, FuncPlace::default()),
        }
    }

    fn add_function(&mut self, key: FuncKey, name: u32, place: FuncPlace) -> u32 {
        let FuncPlace { resource, file, line, is_js } = place;
        let table = &mut self.thread.func_table;
        table.name.push(name);
        table.is_js.push(is_js);
        table.relevant_for_js.push(false);
        table.resource.push(resource);
        table.file_name.push(file);
        table.line_number.push(line);
        table.column_number.push(None);
        table.length = table.name.len();
        let index = last(table.length);
        self.functions.insert(key, index);
        index
    }

    fn resource(&mut self, module: ModuleId) -> i64 {
        if let Some(index) = self.resources.get(&module) {
            return *index;
        }
        let Some(known) = self.profile.modules.get(module.0 as usize) else { return -1 };
        let name = known.path.rsplit('/').next().unwrap_or(&known.path);
        let name = self.string(&escaped(name));
        let table = &mut self.thread.resource_table;
        table.lib.push(module.0);
        table.name.push(name);
        table.host.push(None);
        table.kind.push(LIBRARY);
        table.length = table.lib.len();
        let index = i64::from(last(table.length));
        self.resources.insert(module, index);
        index
    }
}

/// A row of the frame table.
struct FrameTableRow {
    func: u32,
    address: i64,
    line: Option<u32>,
    inline_depth: u32,
    category: Category,
}

impl FrameTableRow {
    /// Returns the row of a step that is not a function.
    fn of_mark(func: u32, is_wait: bool) -> Self {
        let (address, line, inline_depth) = (-1, None, 0);
        Self { func, address, line, inline_depth, category: Category::of_mark(is_wait) }
    }
}

/// The source of a function.
struct FuncPlace {
    /// The index of the resource, -1 for none.
    resource: i64,
    file: Option<u32>,
    /// The line at which it begins.
    line: Option<u32>,
    is_js: bool,
}

impl Default for FuncPlace {
    fn default() -> Self {
        Self { resource: -1, file: None, line: None, is_js: false }
    }
}

/// Returns the last index of a column. Memory cannot hold more than four billion rows.
fn last(length: usize) -> u32 {
    u32::try_from(length.saturating_sub(1)).unwrap_or(u32::MAX)
}
