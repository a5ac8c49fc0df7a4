//! A stack as lines of text and as JSON, innermost function first.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use traceprof_abi::unwind::EndReason;

use super::StackOptions;
use crate::trace::{LazyTrace, LocationId, TraceError};
use crate::view::select::error::ViewError;
use crate::view::text::escape::{escaped, json_escaped};
use crate::view::text::text_style::Ink;
use crate::view::timeline::CallNames;

/// Width of the numbers before functions.
const NUMBER: usize = 7;

/// Writes stacks of a trace.
pub(super) struct StackWriter<'a> {
    names: CallNames<'a>,
    options: &'a StackOptions,
}

impl<'a> StackWriter<'a> {
    pub(super) fn new(trace: &'a LazyTrace, options: &'a StackOptions) -> Self {
        Self { names: CallNames::new(trace), options }
    }

    /// Writes a title, below an empty line if something is above it.
    pub(super) fn title(&self, title: &str, is_first: bool, out: &mut dyn Write) -> io::Result<()> {
        let style = &self.options.style;
        if !is_first {
            writeln!(out)?;
        }
        for line in style.wrapped(&escaped(title), 0) {
            writeln!(out, "{}", style.paint(Some(Ink::Heading), &line))?;
        }
        Ok(())
    }

    /// Writes the functions of a stack, which is root first, and why it ends.
    pub(super) fn frames(
        &self,
        (stack, end_reason): (&[LocationId], u16),
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let style = &self.options.style;
        for (number, id) in stack.iter().rev().enumerate() {
            let known = self.names.of(*id)?;
            let text = match (self.options.verbose, &known.module) {
                (true, _) => format!("{}{}", known.bare, known.location_text),
                (false, Some(module)) if !known.function.starts_with('[') => {
                    format!("{} ({})", escaped(&known.function), escaped(module))
                }
                (false, _) => escaped(&known.function).into_owned(),
            };
            let number = format!("#{number}");
            writeln!(out, "{number:>5}  {}", style.fit(&text, NUMBER))?;
        }
        if stack.is_empty() {
            writeln!(out, "{:NUMBER$}no stack", "")?;
        } else if let Some(why) = cut(end_reason) {
            writeln!(out, "{:NUMBER$}the rest of the stack cannot be unwound: {why}", "")?;
        }
        Ok(())
    }

    /// Returns the functions of a stack as objects.
    pub(super) fn objects(&self, stack: &[LocationId]) -> Result<Json, TraceError> {
        let object = |id: &LocationId| -> Result<Json, TraceError> {
            let known = self.names.of(*id)?;
            let location = &known.location;
            Ok(json!({
                "name": known.function,
                "module": known.module,
                "file": location.file,
                "line": (location.line > 0).then_some(location.line),
                "inlined": location.inline_parent.is_some(),
            }))
        };
        stack.iter().rev().map(object).collect()
    }
}

/// Returns why the unwinding ended, if it did not reach the root.
pub(super) fn cut(end_reason: u16) -> Option<&'static str> {
    match EndReason::from_number(end_reason) {
        Some(EndReason::Root) => None,
        Some(reason) => Some(reason.name()),
        None => Some("unknown reason"),
    }
}

/// Writes an object in one line.
pub(super) fn write_object(object: &Json, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", json_escaped(&object.to_string()))
}
