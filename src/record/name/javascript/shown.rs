//! What is shown of a frame in the code of V8.

use std::ops::Range;
use std::sync::Arc;

use traceprof_abi::runtime::word::FrameFunction;

use super::names::JsNames;
use crate::record::batch::javascript::JsKey;
use crate::record::name::managed::mixed::NativeFrame;
use crate::runtime::Gone;
use crate::runtime::v8::{
    BuiltinRole, JsCode, JsFunction, JsPosition, JsTier, SourcePlace, V8Machine,
};
use crate::trace::FrameKind;

/// A place that is not known.
const NOWHERE: SourcePlace = SourcePlace { line: 0, column: 0 };

/// A function of JavaScript in a stack.
#[derive(Debug, Clone)]
pub(crate) struct ShownJs {
    /// The function, or why it could not be read.
    pub(crate) function: Result<Arc<JsFunction>, Gone>,
    /// Where it runs, or calls.
    pub(crate) place: SourcePlace,
    /// How it runs.
    pub(crate) kind: FrameKind,
    /// Whether it is inlined into the one before.
    pub(crate) is_inlined: bool,
}

impl ShownJs {
    /// Returns the name, or what stands for it.
    pub(crate) fn name(&self, machine: &V8Machine) -> String {
        match &self.function {
            Ok(function) => function.name.clone(),
            // What runs is not known, not even whether there is another function.
            Err(_) if self.is_inlined && self.kind == FrameKind::JavaScript => {
                format!("[{}: code gone]", machine.label)
            }
            Err(_) => format!("[{}: function gone]", machine.label),
        }
    }
}

/// The functions of a frame, and the times in CLOCK_MONOTONIC nanoseconds for which they hold.
#[derive(Debug, Clone)]
pub(crate) struct ShownFrame {
    /// The functions, outermost first.
    pub(crate) functions: Vec<ShownJs>,
    /// The times.
    pub(crate) times_ns: Range<u64>,
}

/// What is shown of a frame in a builtin.
#[derive(Debug, Clone)]
pub(crate) struct ShownBuiltin {
    /// The function that has the frame, if it is not the builtin itself.
    pub(crate) function: Option<ShownJs>,
    /// Whether the builtin only carries the function.
    pub(crate) is_carrier: bool,
    /// Whether the builtin runs in the function's frame, and is the inner of both.
    pub(crate) is_inner: bool,
}

/// Returns the functions of a frame in code that V8 has generated. `avma` is its address. `None` if
/// it is not known that it is one of JavaScript.
pub(crate) fn in_generated(
    names: &JsNames,
    (frame, avma): (&NativeFrame, u64),
    time_ns: u64,
) -> Option<ShownFrame> {
    let (proven, times_ns) = names.proven(avma, time_ns);
    let positions = |code: &JsCode| positions(code, avma);
    let by_code = proven.filter(|code| code.function.is_some());
    let Some(of) = frame.function else {
        let functions = match (by_code, names.any(avma)) {
            (Some(code), _) => positions(code),
            // Code of a function, but not for certain at that time, or not known of which one.
            (None, Some(code)) if is_of_a_function(code) => vec![unknown(Gone::Unproven)],
            _ => return None,
        };
        return Some(ShownFrame { functions, times_ns });
    };
    if let Some(code) = by_code.filter(|_| of == FrameFunction::UNREADABLE) {
        return Some(ShownFrame { functions: positions(code), times_ns });
    }
    let own = JsKey::of(of).and_then(|key| names.of_function(avma, key, time_ns));
    if let Some(code) = own.filter(|code| code.tier != JsTier::Interpreted) {
        return Some(ShownFrame { functions: positions(code), times_ns });
    }
    let function = names.function(of);
    let is_copy = |code: &&Arc<JsCode>| code.tier == JsTier::Interpreted;
    if own.or(proven).filter(is_copy).is_some() {
        return Some(ShownFrame { functions: vec![interpreted(function, of)], times_ns });
    }
    let outer =
        ShownJs { function, place: NOWHERE, kind: FrameKind::JavaScript, is_inlined: false };
    if of == FrameFunction::UNREADABLE {
        // It stands for all that is missing.
        return Some(ShownFrame { functions: vec![outer], times_ns });
    }
    let mut functions = vec![outer];
    // Baseline code, and what enters WebAssembly.
    let is_simple = |code: &Arc<JsCode>| {
        code.tier == JsTier::Baseline || code.tier == JsTier::Unknown && code.function.is_none()
    };
    if !frame.is_young && proven.is_some_and(is_simple) {
        // Nothing is inlined into it.
        return Some(ShownFrame { functions, times_ns });
    }
    match by_code.filter(|_| frame.is_young) {
        // The slot is the caller's: the code has no frame yet, or no longer.
        Some(code) => functions.extend(positions(code)),
        // Whatever is inlined there is missing, and at the leaf it may be another function's.
        None => functions.push(ShownJs { is_inlined: true, ..unknown(names.why_lost(avma)) }),
    }
    Some(ShownFrame { functions, times_ns })
}

/// Returns what is shown of a frame in a builtin.
pub(crate) fn in_builtin(
    names: &JsNames,
    role: BuiltinRole,
    function: Option<FrameFunction>,
) -> ShownBuiltin {
    let is_handler = role == BuiltinRole::Handler;
    let alone = ShownBuiltin { function: None, is_carrier: is_handler, is_inner: false };
    let Some(of) = function else { return alone };
    let read = names.function(of);
    let has_offset = of.position != FrameFunction::NOWHERE;
    let is_interpreted = match role {
        BuiltinRole::Trampoline | BuiltinRole::Handler => true,
        BuiltinRole::Other => false,
        BuiltinRole::Unknown => has_offset,
    };
    if is_interpreted {
        let function = Some(interpreted(read, of));
        return ShownBuiltin { function, is_carrier: true, is_inner: is_handler };
    }
    match read {
        Ok(function) if !function.is_builtin => {
            let kind = FrameKind::JavaScript;
            let function =
                ShownJs { function: Ok(function), place: NOWHERE, kind, is_inlined: false };
            ShownBuiltin { function: Some(function), is_carrier: false, is_inner: true }
        }
        // The builtin's own symbol says more.
        _ => alone,
    }
}

/// Whether code runs a function of JavaScript.
fn is_of_a_function(code: &JsCode) -> bool {
    !matches!(code.tier, JsTier::Unknown)
}

/// Returns what stands for a function that is not known.
fn unknown(gone: Gone) -> ShownJs {
    ShownJs { function: Err(gone), place: NOWHERE, kind: FrameKind::JavaScript, is_inlined: false }
}

fn interpreted(function: Result<Arc<JsFunction>, Gone>, of: FrameFunction) -> ShownJs {
    let has_offset = of.position != FrameFunction::NOWHERE;
    let known = function.as_ref().ok().filter(|_| has_offset);
    let place = known.map_or(NOWHERE, |function| function.place_at(of.position));
    ShownJs { function, place, kind: FrameKind::JavaScriptInterpreted, is_inlined: false }
}

fn positions(code: &JsCode, avma: u64) -> Vec<ShownJs> {
    let kind = match code.tier {
        JsTier::Interpreted => FrameKind::JavaScriptInterpreted,
        JsTier::Baseline => FrameKind::JavaScriptBaseline,
        JsTier::Mid => FrameKind::JavaScriptMiddle,
        JsTier::Optimized => FrameKind::JavaScriptOptimized,
        JsTier::Unknown => FrameKind::JavaScript,
    };
    let positions = code.positions(avma).into_iter().enumerate();
    let shown = |(at, position): (usize, JsPosition<'_>)| ShownJs {
        function: position.function.cloned(),
        place: position.place,
        kind,
        is_inlined: at > 0,
    };
    positions.map(shown).collect()
}
