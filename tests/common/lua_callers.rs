//! Programs in Lua that tell the callers of their functions: those whose names begin with `c_` have
//! one each, in a line with a comment `-- calls c_...`.

use std::collections::{BTreeMap, BTreeSet};

use traceprof::trace::FrameKind;

use super::Outcome;
use super::managed_frames::{Frame, for_each_stack};

/// The functions of a program.
pub(crate) struct LuaCallers {
    file: &'static str,
    /// The functions by the lines on which they start.
    functions: BTreeMap<u32, &'static str>,
    /// Where each of them is called: its callers, each with the line. The main chunk has no name.
    calls: BTreeMap<&'static str, Vec<(&'static str, u32)>>,
}

/// What a recording has of the functions of a program.
#[derive(Debug, Default)]
pub(crate) struct SeenCalls {
    /// Number of calls between functions of the program.
    pub(crate) calls: u64,
    /// Number of these without a line.
    pub(crate) without_line: u64,
    /// Number of innermost frames, and of those with a line.
    pub(crate) leaves: u64,
    pub(crate) with_line: u64,
    /// Number of frames without a name.
    pub(crate) gone: u64,
    pub(crate) functions: BTreeSet<&'static str>,
}

impl LuaCallers {
    /// Reads the text of a program, whose file has this name.
    pub(crate) fn of(file: &'static str, program: &'static str) -> Self {
        let lines = || (1..).zip(program.lines());
        let function = |(number, line): (u32, &'static str)| {
            let (_, rest) = line.split_once("function c_")?;
            Some((number, rest.split_once('(')?.0))
        };
        let functions: BTreeMap<u32, &str> = lines().filter_map(function).collect();
        let mut calls = BTreeMap::<_, Vec<_>>::new();
        for (number, line) in lines() {
            if let Some((_, called)) = line.split_once("-- calls c_") {
                let caller = functions.range(..=number).next_back().expect("a function").1;
                let caller = if line.starts_with(' ') { *caller } else { "" };
                calls.entry(called).or_default().push((caller, number));
            }
        }
        Self { file, functions, calls }
    }

    /// Returns the functions that a recording lacks.
    pub(crate) fn missing(&self, seen: &SeenCalls) -> Vec<&'static str> {
        self.calls.keys().filter(|name| !seen.functions.contains(**name)).copied().collect()
    }

    /// Returns the name of a function of the program without `c_`, which is empty for its main
    /// chunk.
    fn name(&self, frame: &Frame) -> Option<&'static str> {
        if !frame.file.ends_with(self.file) {
            return None;
        }
        if frame.name == "main chunk" {
            return Some("");
        }
        let place = frame.name.strip_prefix("function <")?.strip_suffix('>')?;
        self.functions.get(&place.rsplit_once(':')?.1.parse().ok()?).copied()
    }

    /// Returns what is wrong with a frame below its caller.
    fn call(&self, caller: (&str, u32), called: &str) -> Option<String> {
        let (by, line) = caller;
        let known = self.calls.get(called).map_or(&[][..], Vec::as_slice);
        let is_known = known.iter().any(|it| it.0 == by && (line == 0 || it.1 == line));
        (!is_known).then(|| format!("{by}:{line} calls {called}"))
    }

    /// Checks that each function has its caller, at the line of the call, in all samples.
    pub(crate) fn check(&self, label: &str, outcome: &Outcome) -> SeenCalls {
        let (mut seen, mut wrong) = (SeenCalls::default(), BTreeMap::<String, u64>::new());
        for_each_stack(outcome, FrameKind::Lua, |stack| {
            let mut caller: Option<(&str, u32)> = None;
            for it in stack {
                seen.gone += u64::from(it.is_gone());
                // Functions without a name in the comments are between others.
                let Some(name) = self.name(it) else {
                    caller = None;
                    continue;
                };
                if let Some(by) = caller {
                    seen.calls += 1;
                    seen.without_line += u64::from(by.1 == 0);
                    if let Some(what) = self.call(by, name) {
                        *wrong.entry(what).or_default() += 1;
                    }
                }
                caller = Some((name, it.line));
                seen.functions.insert(name);
            }
            if let Some(root) = stack.first().filter(|it| it.name != "main chunk" && !it.is_gone())
            {
                *wrong.entry(format!("nothing calls {}", root.name)).or_default() += 1;
            }
            let Some(leaf) = stack.last() else { return };
            seen.leaves += 1;
            seen.with_line += u64::from(leaf.line > 0);
            if leaf.line > 0
                && let Some(name) = self.name(leaf).filter(|it| !it.is_empty())
            {
                let at = self.functions.range(..=leaf.line).next_back().expect("a function").1;
                if *at != name {
                    *wrong.entry(format!("{name} at {}", leaf.line)).or_default() += 1;
                }
            }
        });
        assert!(wrong.is_empty(), "{label}: {wrong:#?}\n{seen:?}\n{}", outcome.text());
        seen
    }
}
