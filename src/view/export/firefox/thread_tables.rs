//! The tables that the stacks of a thread refer to. They contain each text, function and frame
//! once.

use std::collections::HashMap;

use super::model::FirefoxThread;
use super::{IDLE, USER};
use crate::trace::{LocationId, MethodId, ModuleId};
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
    /// A method, and the index of its file name.
    Method(MethodId, Option<u32>),
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
                FrameTableRow { func, address: -1, line: None, inline_depth: 0 }
            }
        };
        let table = &mut self.thread.frame_table;
        table.address.push(row.address);
        table.inline_depth.push(row.inline_depth);
        table.category.push(if matches!(step, StackStep::Wait(_)) { IDLE } else { USER });
        table.subcategory.push(0);
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
            return FrameTableRow {
                func: self.mark(UNKNOWN),
                address: -1,
                line: None,
                inline_depth: 0,
            };
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
        let file = location.file.as_deref().map(|file| self.string(&escaped(file)));
        let func = self.function(location.method, file, module);
        let address = match module {
            Some(_) => i64::try_from(physical.svma).unwrap_or(-1),
            None => -1,
        };
        FrameTableRow {
            func,
            address,
            line: (location.line > 0).then_some(location.line),
            inline_depth,
        }
    }

    /// Returns the index of a method in a module. An inlined method belongs to the module that it
    /// is inlined into.
    fn function(&mut self, id: MethodId, file: Option<u32>, module: Option<ModuleId>) -> u32 {
        let key = FuncKey::Method(id, file);
        if let Some(index) = self.functions.get(&key) {
            return *index;
        }
        let name = self.profile.method(id).map_or(UNKNOWN, |method| &method.name);
        let name = self.string(&escaped(name));
        let resource = module.map_or(-1, |module| self.resource(module));
        self.add_function(key, name, (resource, file))
    }

    fn mark(&mut self, name: &str) -> u32 {
        let name = self.string(name);
        let key = FuncKey::Mark(name);
        match self.functions.get(&key) {
            Some(index) => *index,
            None => self.add_function(key, name, (-1, None)),
        }
    }

    fn add_function(
        &mut self,
        key: FuncKey,
        name: u32,
        (resource, file): (i64, Option<u32>),
    ) -> u32 {
        let table = &mut self.thread.func_table;
        table.name.push(name);
        table.is_js.push(false);
        table.relevant_for_js.push(false);
        table.resource.push(resource);
        table.file_name.push(file);
        table.line_number.push(None);
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
}

/// Returns the last index of a column. Memory cannot hold more than four billion rows.
fn last(length: usize) -> u32 {
    u32::try_from(length.saturating_sub(1)).unwrap_or(u32::MAX)
}
