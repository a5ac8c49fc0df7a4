//! The modules of a trace: build id, share, source of names, and how to get more names.

mod name_advice;

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::elf::build_id_text;
use crate::trace::{Language, Method, ModuleId, SYMBOLS, Value};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::escape::escaped;
use crate::view::text::number::percent;
use name_advice::{UNKNOWN, missing, of_runtime};

/// The source of names of code that is outside all files and that no runtime reported.
const NO_FILE: &str = "nowhere: this code is in no file";

/// The share of a module.
#[derive(Debug, Default)]
struct ModuleShare {
    /// The weight in the module itself.
    own: u64,
    /// The part of the weight in functions without a name.
    nameless: u64,
    /// The language, if the module is a file of source without native code.
    language: Option<Language>,
}

/// Writes a block for each module, the modules with the most samples first.
pub fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let total = profile.count().weight;
    let mut shares: Vec<(ModuleId, ModuleShare)> = shares(profile).into_iter().collect();
    shares.sort_by_key(|(id, share)| (std::cmp::Reverse(share.own), id.0));
    for (position, (id, share)) in shares.iter().enumerate() {
        if position > 0 {
            writeln!(out)?;
        }
        write_module(profile, *id, share, total, out)?;
    }
    Ok(())
}

fn shares(profile: &Profile) -> BTreeMap<ModuleId, ModuleShare> {
    let mut shares: BTreeMap<ModuleId, ModuleShare> = BTreeMap::new();
    for method in &profile.methods {
        // A module that only calls others has no samples of its own, but is shown.
        method.module.map(|module| shares.entry(module).or_default());
    }
    for location in profile.locations.iter().filter(|it| it.svma == 0) {
        let language = location.kind.language();
        let module = profile.method(location.method).and_then(|method| method.module);
        if let (true, Some(module)) = (language.is_managed(), module) {
            shares.entry(module).or_default().language = Some(language);
        }
    }
    let calls = profile.threads.iter().flat_map(|thread| {
        let all = thread.tree.calls();
        all.iter().map(move |call| (call, all.get(call.caller())))
    });
    for (call, caller) in calls {
        // The waiting time of a thread belongs to the function that it waits in.
        let step = match (call.step, caller) {
            (StackStep::Wait(_), Some(caller)) => caller.step,
            (step, _) => step,
        };
        let StackStep::Frame(location) = step else { continue };
        let method = profile.method_of(location).and_then(|id| profile.method(id));
        if let Some((method, module)) = method.and_then(|it| Some((it, it.module?))) {
            let share = shares.entry(module).or_default();
            share.own += call.own.weight;
            share.nameless += if is_nameless(method) { call.own.weight } else { 0 };
        }
    }
    shares
}

/// Returns whether a method has no name. The recorder writes an unnamed address in brackets, and so
/// what stands for a function of a runtime that is gone.
fn is_nameless(method: &Method) -> bool {
    let text = method.name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    method.name == UNKNOWN
        || text.is_some_and(|text| text.contains("+0x") || text.ends_with(" gone"))
}

fn write_module(
    profile: &Profile,
    id: ModuleId,
    share: &ModuleShare,
    total: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    // An id without a module comes from a corrupt trace.
    let Some(module) = profile.modules.get(id.0 as usize) else { return Ok(()) };
    let source = match profile.recording.metadata.get(&format!("{SYMBOLS}{}", id.0)) {
        Some(Value::Text(source)) => Some(source.as_str()),
        _ => None,
    };
    writeln!(out, "{}", escaped(&module.path))?;
    let mut line = |label: &str, text: &str| writeln!(out, "  {label:9} {}", escaped(text));
    let build_id = build_id_text(&module.build_id);
    let own = percent(share.own, total);
    let samples = match percent(share.nameless, share.own) {
        0.0 => format!("{own:.1} %"),
        nameless => format!("{own:.1} %, {nameless:.1} % of them without a name"),
    };
    if let Some(language) = share.language {
        line("language", language.name())?;
        line("samples", &samples)?;
        return source.map_or(Ok(()), |source| line("names", source));
    }
    line("build id", if build_id.is_empty() { "none" } else { &build_id })?;
    line("samples", &samples)?;
    if module.path == UNKNOWN {
        line("names", source.unwrap_or(NO_FILE))?;
        let runtimes = profile.modules.iter().map(|module| module.path.as_str());
        return if share.nameless > 0 { line("for more", &of_runtime(runtimes)) } else { Ok(()) };
    }
    line("names", source.unwrap_or("not reported"))?;
    match missing(&module.path, &build_id, source) {
        Some(remedy) => line("for more", &remedy),
        None => Ok(()),
    }
}
