//! The JavaScript functions of the inspected process.

use super::NamedFrame;
use crate::record::batch::javascript::NewJavaScript;
use crate::record::name::javascript::names::JsNames;
use crate::record::name::javascript::reader::{JsReader, JsStack};
use crate::record::name::javascript::shown::{ShownJs, in_builtin, in_generated};
use crate::record::name::managed::mixed::NativeFrame;
use crate::record::target::modules::AddressMap;
use crate::runtime::v8::{BuiltinRole, V8Machine};
use crate::trace::FrameKind;
use crate::unwind::RemoteStack;
use traceprof_abi::unwind::trace_flags;

/// The time at which the stacks were read: before anything that was read later.
const AT_STOP_NS: u64 = 0;

/// What V8 says about the frames of the process. Empty if there is none.
#[derive(Debug, Default)]
pub(super) struct JsView {
    names: JsNames,
}

impl JsView {
    /// Reads the functions and the code of stacks.
    pub(super) fn of<'s>(
        stacks: impl Iterator<Item = &'s RemoteStack>,
        addresses: &AddressMap,
        pid: i32,
    ) -> Self {
        let mut view = Self::default();
        let mut news = NewJavaScript::default();
        let stacks = stacks.map(|it| {
            let flags = trace_flags(it.end, addresses.epoch());
            JsStack { words: &it.frames, flags, is_dead: false }
        });
        JsReader::default().read(stacks, addresses, pid, &mut news);
        view.names.learn(&news);
        view
    }

    /// Returns the functions of a frame in generated code at an address, outermost first. `None` if
    /// it has none.
    pub(super) fn in_generated(
        &self,
        addresses: &AddressMap,
        (frame, avma): (&NativeFrame, u64),
    ) -> Option<Vec<NamedFrame>> {
        let machine = addresses.v8.as_ref()?;
        let shown = in_generated(&self.names, (frame, avma), AT_STOP_NS)?;
        Some(shown.functions.iter().map(|it| named(machine, it)).collect())
    }

    /// Adds to the functions of a builtin, innermost first, the function that has its frame.
    pub(super) fn add_to_builtin(
        &self,
        addresses: &AddressMap,
        (role, frame): (BuiltinRole, &NativeFrame),
        functions: &mut Vec<NamedFrame>,
    ) {
        let Some(machine) = &addresses.v8 else { return };
        let shown = in_builtin(&self.names, role, frame.function);
        if shown.is_carrier {
            functions.iter_mut().for_each(|it| it.kind = FrameKind::Interpreter);
        }
        let at = if shown.is_inner { functions.len() } else { 0 };
        functions.splice(at..at, shown.function.iter().map(|it| named(machine, it)));
    }
}

fn named(machine: &V8Machine, shown: &ShownJs) -> NamedFrame {
    let function = shown.function.as_deref().ok();
    let file = function.map(|it| it.file.clone()).filter(|file| !file.is_empty());
    NamedFrame {
        avma: None,
        function: shown.name(machine),
        module: None,
        source: file.map(|file| (file, shown.place.line)),
        kind: shown.kind,
        inlined: shown.is_inlined,
        late: false,
    }
}
