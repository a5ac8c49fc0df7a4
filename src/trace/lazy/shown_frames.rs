//! Leaves the native frames of interpreters out of the stacks of a lazily read trace.
//!
//! # Invariants
//! - A stack is as if the frames were not there: what they did themselves belongs to their caller.
//! - A stack of nothing else keeps its innermost frame, so no stack becomes an empty one.

use std::sync::Mutex;

use super::fault::{LazyError, LazyResult};
use super::locked;
use super::objects::{StoredObjects, present};
use crate::trace::kind::Kind;
use crate::trace::object::Neutral;
use crate::trace::{FrameKind, LocationId, memory};

/// What is known of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LocationRole {
    #[default]
    Unknown,
    Shown,
    LeftOut,
}

/// What is known of the locations so far, by id. It is looked up once for each location that a
/// stack contains.
#[derive(Debug, Default)]
pub(super) struct LocationRoles(Mutex<Vec<LocationRole>>);

/// The stacks of one pass without the frames that are left out.
pub(super) struct ShownFrames<'a> {
    stored: StoredObjects<'a>,
    /// `None` if nothing is left out.
    shared: Option<&'a LocationRoles>,
    roles: Vec<LocationRole>,
    /// The stack that was shown last, if it differs from that of the trace.
    kept: Vec<LocationId>,
    failed: Option<LazyError>,
}

impl<'a> ShownFrames<'a> {
    /// Starts a pass. `roles` is `None` if nothing is left out.
    pub(super) fn of(stored: StoredObjects<'a>, roles: Option<&'a LocationRoles>) -> Self {
        let known = roles.map(|roles| std::mem::take(&mut *locked(&roles.0)));
        let (roles, shared) = (known.unwrap_or_default(), roles);
        Self { stored, shared, roles, kept: Vec::new(), failed: None }
    }

    /// Passes the shown frames of a stack on, unless a look-up has failed.
    pub(super) fn pass(&mut self, stack: &[LocationId], f: impl FnOnce(&[LocationId])) {
        if self.failed.is_none() {
            match self.of_stack(stack) {
                Ok(shown) => f(shown),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Ends the pass; returns the error if stacks were not passed on.
    pub(super) fn end(mut self) -> LazyResult<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Returns the frames of a stack that are shown.
    pub(super) fn of_stack<'b>(
        &'b mut self,
        stack: &'b [LocationId],
    ) -> LazyResult<&'b [LocationId]> {
        if self.shared.is_none() {
            return Ok(stack);
        }
        let mut shown = 0;
        while let Some(location) = stack.get(shown) {
            if self.is_left_out(*location)? {
                break;
            }
            shown += 1;
        }
        if shown == stack.len() {
            return Ok(stack);
        }
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        kept.extend_from_slice(&stack[..shown]);
        for location in &stack[shown..] {
            if !self.is_left_out(*location)? {
                kept.push(*location);
            }
        }
        if kept.is_empty() {
            kept.extend(stack.last());
        }
        self.kept = kept;
        Ok(&self.kept)
    }

    /// Returns whether the frames at a location are left out.
    pub(super) fn is_left_out(&mut self, location: LocationId) -> LazyResult<bool> {
        if self.shared.is_none() {
            return Ok(false);
        }
        let role = match self.roles.get(location.0 as usize) {
            None | Some(LocationRole::Unknown) => self.look_up(location)?,
            Some(known) => *known,
        };
        Ok(role == LocationRole::LeftOut)
    }

    fn look_up(&mut self, location: LocationId) -> LazyResult<LocationRole> {
        let mut id = location.0;
        let role = loop {
            // A lost location is shown as such.
            let Some(Neutral::Location { inline_parent, frame_kind, .. }) =
                self.stored.object(Kind::Location, id)?
            else {
                break LocationRole::Shown;
            };
            if FrameKind::from_number(frame_kind) == FrameKind::Interpreter {
                break LocationRole::LeftOut;
            }
            // What is inlined into a frame is a part of it. Parents have smaller ids.
            match present(inline_parent).filter(|parent| *parent < id) {
                Some(parent) => id = parent,
                None => break LocationRole::Shown,
            }
        };
        let place = location.0 as usize;
        if place >= self.roles.len() {
            let count = self.stored.count(Kind::Location)? as usize;
            if place >= count {
                return Ok(role);
            }
            memory::note((count - self.roles.len()) as u64)?;
            self.roles.resize(count, LocationRole::Unknown);
        }
        self.roles[place] = role;
        Ok(role)
    }
}

impl Drop for ShownFrames<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared {
            let mut known = locked(&shared.0);
            if known.len() <= self.roles.len() {
                *known = std::mem::take(&mut self.roles);
            }
        }
    }
}
