//! The name of each step of a stack: by function, source location, module or line.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::trace::{FrameKind, Location, LocationId, Method, MethodId, Module};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::waits::Waits;
use crate::view::select::groups::Groups;
use crate::view::text::escape::escaped;
use crate::view::text::module_name::module_name;

/// The placeholders for frames that are unknown.
pub(in crate::view) const MARKS: [&str; 4] =
    ["[truncated]", "[stack dropped]", "[no stack]", "[unknown]"];

/// The index of a name. Two locations with the same name are one line of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::view) struct NameId(u32);

/// A name, escaped for display.
#[derive(Debug)]
struct StepName {
    text: String,
    /// Distinguishes names with the same text.
    qualifier: String,
}

/// The start of a function, which distinguishes it from others with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum FunctionStart {
    Svma(u64),
    /// The line at which it begins. Compiled anew, such a function has another address.
    Line(u32),
}

impl FunctionStart {
    fn of(method: &Method) -> Option<Self> {
        match (method.start_svma, method.line) {
            (0, 0) => None,
            (svma, 0) => Some(Self::Svma(svma)),
            (_, line) => Some(Self::Line(line)),
        }
    }
}

/// The names of all locations of a profile.
#[derive(Debug)]
pub(in crate::view) struct StepNames {
    names: Vec<StepName>,
    by_location: Vec<NameId>,
    /// The waits with their names.
    waits: Waits,
    /// The groups of the samples, if they are grouped.
    groups: Option<Arc<Groups>>,
    /// The contexts, if they are shown.
    contexts: Option<Arc<Groups>>,
}

/// The name of a location that the trace does not define.
const UNKNOWN: NameId = NameId(0);

impl StepNames {
    /// Returns names by function.
    ///
    /// Functions with one name in one module are distinguished by their start addresses if several
    /// are known. An inlined copy has no start address and counts as the function itself. Functions
    /// of which the first line is known are distinguished by that.
    pub(in crate::view) fn of_functions(profile: &Profile) -> Self {
        let mut starts: HashMap<_, BTreeSet<FunctionStart>> = HashMap::new();
        for method in &profile.methods {
            if let Some(start) = FunctionStart::of(method) {
                starts.entry((method.module, &method.name)).or_default().insert(start);
            }
        }
        let mut names = Self::empty(profile);
        let mut ids = HashMap::new();
        let mut by_method = Vec::with_capacity(profile.methods.len());
        for method in &profile.methods {
            let known = starts.get(&(method.module, &method.name)).map_or(0, BTreeSet::len);
            let start = FunctionStart::of(method).filter(|_| known > 1);
            let id = ids.entry((method.module, &method.name, start)).or_insert_with(|| {
                let module = profile.module_name(method).unwrap_or("unknown module");
                let qualifier = match start {
                    None => module.to_owned(),
                    Some(FunctionStart::Svma(svma)) => format!("{module}+{svma:#x}"),
                    Some(FunctionStart::Line(line)) => format!("{module}:{line}"),
                };
                names.add(&method.name, &qualifier)
            });
            by_method.push(*id);
        }
        let of = |method: MethodId| by_method.get(method.0 as usize).copied().unwrap_or(UNKNOWN);
        names.by_location = profile.locations.iter().map(|location| of(location.method)).collect();
        names
    }

    /// Returns names by location: every name includes its location.
    pub(in crate::view) fn of_locations(profile: &Profile) -> Self {
        let mut names = Self::empty(profile);
        let mut ids = HashMap::new();
        for location in &profile.locations {
            let text = location_text(profile, location);
            let id = match ids.get(&text) {
                Some(id) => *id,
                None => {
                    let id = names.add(&text, "");
                    ids.insert(text, id);
                    id
                }
            };
            names.by_location.push(id);
        }
        names
    }

    /// Returns names by module: the last part of the module's path.
    pub(in crate::view) fn of_modules(profile: &Profile) -> Self {
        let mut names = Self::empty(profile);
        let mut ids = HashMap::new();
        let mut known = Vec::with_capacity(profile.modules.len());
        for Module { path, .. } in &profile.modules {
            let name = module_name(path);
            // A module that was mapped again is the same for a reader.
            known.push(*ids.entry(path).or_insert_with(|| names.add(name, path)));
        }
        // This is the name of code generated at run time, and of code outside known modules.
        let none = names.add("[no module]", "");
        let module = |location: &Location| profile.method(location.method).and_then(|it| it.module);
        let id = |location| module(location).and_then(|id| known.get(id.0 as usize)).copied();
        names.by_location =
            profile.locations.iter().map(|location| id(location).unwrap_or(none)).collect();
        names
    }

    /// Returns names by language.
    pub(in crate::view) fn of_languages(profile: &Profile) -> Self {
        let mut names = Self::empty(profile);
        let mut ids = HashMap::new();
        for location in &profile.locations {
            let language = location.kind.language();
            let id = *ids.entry(language).or_insert_with(|| names.add(language.name(), ""));
            names.by_location.push(id);
        }
        names
    }

    /// Returns names by source line, with the function. If the line is unknown, the name is that of
    /// the function.
    pub(in crate::view) fn of_lines(profile: &Profile) -> Self {
        let mut names = Self::of_functions(profile);
        let mut ids = HashMap::new();
        for (at, location) in profile.locations.iter().enumerate() {
            let (Some(file), 1.., Some(method)) =
                (&location.file, location.line, profile.method(location.method))
            else {
                continue;
            };
            let key = (names.by_location[at], file, location.line);
            let id = match ids.get(&key) {
                Some(id) => *id,
                None => {
                    let name = if method.name.is_empty() { "[unnamed]" } else { &method.name };
                    let text = format!("{name} at {file}:{}", location.line);
                    let qualifier = names.names[key.0.0 as usize].qualifier.clone();
                    let id = names.add(&text, &qualifier);
                    ids.insert(key, id);
                    id
                }
            };
            names.by_location[at] = id;
        }
        names
    }

    /// Returns the name of a location.
    pub(in crate::view) fn id(&self, location: LocationId) -> NameId {
        self.by_location.get(location.0 as usize).copied().unwrap_or(UNKNOWN)
    }

    /// Returns the text of a step.
    pub(in crate::view) fn text(&self, step: StackStep<NameId>) -> &str {
        match step {
            StackStep::Thread => "[thread]",
            StackStep::Group(id) => self.groups().map_or("(other)", |groups| groups.label(id)),
            StackStep::Truncated => "[truncated]",
            StackStep::Dropped => "[stack dropped]",
            StackStep::Empty => "[no stack]",
            StackStep::Frame(id) => &self.names[id.0 as usize].text,
            StackStep::ContextText(id) => {
                self.contexts.as_ref().map_or("[span]", |them| them.label(id))
            }
            StackStep::Wait(wait) => self.waits.name(wait),
        }
    }

    /// Returns the text that distinguishes steps with the same text. May be empty.
    pub(in crate::view) fn qualifier(&self, step: StackStep<NameId>) -> &str {
        match step {
            StackStep::Frame(id) => &self.names[id.0 as usize].qualifier,
            _ => "",
        }
    }

    /// Returns the groups of the samples.
    pub(in crate::view) fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }

    /// Sets groups of threads, if the samples have no groups.
    pub(in crate::view) fn group_by(&mut self, groups: Arc<Groups>) {
        self.groups = Some(groups);
    }

    fn empty(profile: &Profile) -> Self {
        let unknown = StepName { text: "[unknown]".to_owned(), qualifier: String::new() };
        let (waits, by_location) = (profile.waits.clone(), Vec::new());
        let (groups, contexts) = (profile.groups.clone(), profile.contexts.clone());
        Self { names: vec![unknown], by_location, waits, groups, contexts }
    }

    fn add(&mut self, text: &str, qualifier: &str) -> NameId {
        let text =
            if text.is_empty() { "[unnamed]".to_owned() } else { escaped(text).into_owned() };
        self.names.push(StepName { text, qualifier: escaped(qualifier).into_owned() });
        // There are at most as many names as locations or methods, whose ids have 32 bits, plus
        // `[unknown]`.
        NameId(u32::try_from(self.names.len() - 1).unwrap_or(0))
    }
}

fn location_text(profile: &Profile, location: &Location) -> String {
    let Some(method) = profile.method(location.method) else {
        return format!("[unknown] at {:#x}", location.svma);
    };
    let name = if method.name.is_empty() { "[unnamed]" } else { &method.name };
    let inlined = if location.inline_parent.is_some() { " (inlined)" } else { "" };
    match (&location.file, profile.module_name(method)) {
        (Some(file), _) if location.line == 0 => format!("{name} at {file}{inlined}"),
        (Some(file), _) => format!("{name} at {file}:{}{inlined}", location.line),
        // Code without an address.
        (None, Some(module))
            if location.svma == 0
                && (location.kind == FrameKind::Kernel
                    || location.kind.language().is_managed()) =>
        {
            format!("{name} at {module}{inlined}")
        }
        (None, Some(module)) => format!("{name} at {module}+{:#x}{inlined}", location.svma),
        (None, None) => format!("{name} at {:#x}{inlined}", location.svma),
    }
}
