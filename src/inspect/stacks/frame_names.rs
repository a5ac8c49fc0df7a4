//! The names of the frames of stacks that were unwound from outside.

use std::collections::HashMap;
use std::io;

use traceprof_abi::runtime::word::{JAVA, pcs};
use traceprof_abi::unwind::{EndReason, RETURN_ADDRESS};

use super::java::JavaView;
use super::javascript::JsView;
use super::managed::ManagedNames;
use super::named_frame::NamedFrame;
use crate::record::name::addresses::{ModuleAddress, by_module, fallback, locate};
use crate::record::name::managed::mixed::{CarrierRole, MixedFrame, NativeFrame, mixed_frames};
use crate::record::name::symbolizers;
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::Resolved;
use crate::trace::FrameKind;
use crate::unwind::RemoteStack;

/// The names of addresses, each looked up once.
pub(super) struct FrameNaming<'a> {
    addresses: &'a AddressMap,
    resolved: HashMap<ModuleAddress, Resolved>,
    java: &'a JavaView,
    javascript: &'a JsView,
}

impl<'a> FrameNaming<'a> {
    /// Looks up all these program counters.
    pub(super) fn of(
        pcs: impl Iterator<Item = u64>,
        addresses: &'a AddressMap,
        (java, javascript): (&'a JavaView, &'a JsView),
    ) -> io::Result<Self> {
        let mut resolved = HashMap::new();
        let words = pcs.map(|pc| (pc, addresses.epoch()));
        for answer in symbolizers::resolve(by_module(words, addresses, |_| true))? {
            let number = answer.module.as_ref().map(|module| module.index);
            let places = answer.svmas.into_iter().map(|svma| (number, svma));
            resolved.extend(places.zip(answer.resolved));
        }
        Ok(Self { addresses, resolved, java, javascript })
    }

    /// Returns the functions of a stack, innermost first. `managed` are the frame words of its
    /// managed frames.
    pub(super) fn stack(
        &self,
        stack: &RemoteStack,
        managed: &[u64],
        names: &ManagedNames,
    ) -> Vec<NamedFrame> {
        let words = [&stack.frames, managed].concat();
        let is_complete = stack.end == EndReason::Root;
        let late = stack.late.unwrap_or(usize::MAX);
        // Root first.
        let places: Vec<usize> = pcs(&stack.frames).map(|(index, _)| index).collect();
        let mut places = places.into_iter().rev();
        let frames = mixed_frames(&words, is_complete, self.addresses);
        let mut named: Vec<NamedFrame> = Vec::with_capacity(words.len());
        for frame in frames {
            match frame {
                MixedFrame::Native(frame, role) => {
                    let is_late = places.next().is_some_and(|index| index >= late);
                    named.extend(self.functions(&frame, is_late, role).into_iter().rev());
                }
                MixedFrame::InPlace(JAVA, frame) => named.push(self.java.interpreted(&frame)),
                MixedFrame::InPlace(..) => {}
                MixedFrame::Managed(number, frame) => {
                    named.extend(names.frame(self.addresses, number, &frame));
                }
            }
        }
        named.reverse();
        named
    }

    /// Returns the functions of a native frame, innermost first.
    fn functions(&self, native: &NativeFrame, late: bool, role: CarrierRole) -> Vec<NamedFrame> {
        let word = native.word;
        let (module, place) = locate(self.addresses, word, self.addresses.epoch());
        let module = module.map(|module| &**module);
        if module.is_none()
            && let Some(functions) = self.javascript.in_generated(self.addresses, (native, place.1))
        {
            let late = |frame| NamedFrame { late, ..frame };
            return functions.into_iter().rev().map(late).collect();
        }
        let java = if module.is_none() { self.java.at(place.1) } else { None };
        let code_kind = java.as_ref().map_or(FrameKind::Native, |(_, kind)| *kind);
        let resolved = java.as_ref().map(|(resolved, _)| resolved);
        let resolved = resolved.or_else(|| self.resolved.get(&place));
        let kind = |function: Option<&str>| {
            let is_carrier = role.is_carrier(module, function);
            if is_carrier { FrameKind::Interpreter } else { code_kind }
        };
        let frame = |function: String, source: Option<(String, u32)>, kind, inlined| NamedFrame {
            avma: Some(word & !RETURN_ADDRESS),
            function,
            module: module.map(|module| (module.path.clone(), place.1)),
            source,
            kind,
            inlined,
            late,
        };
        let inlined = resolved.map_or(&[][..], |resolved| &resolved.inlined).iter().rev();
        let mut functions: Vec<NamedFrame> = inlined
            .map(|it| {
                let source = it.file.clone().map(|file| (file, it.line));
                frame(it.name.clone(), source, kind(Some(&it.name)), true)
            })
            .collect();
        let source = resolved.and_then(|it| Some((it.file.clone()?, it.line)));
        let known = resolved.and_then(|it| it.function.as_ref()).map(|it| it.name.as_str());
        let name = physical(resolved, module, place.1);
        functions.push(frame(name, source, kind(known), false));
        if let Some(builtin) = module.and_then(|module| module.builtin_at(place.1)) {
            self.javascript.add_to_builtin(self.addresses, (builtin, native), &mut functions);
        }
        functions
    }
}

fn physical(resolved: Option<&Resolved>, module: Option<&LoadedModule>, svma: u64) -> String {
    match resolved.and_then(|resolved| resolved.function.as_ref()) {
        Some(function) => function.name.clone(),
        None => fallback(module, svma).0,
    }
}
