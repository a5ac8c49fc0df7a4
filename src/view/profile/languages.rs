//! The languages of a profile: whose code used the time.

use std::collections::BTreeMap;

use crate::trace::{FrameKind, Language, LocationId, Method};
use crate::view::profile::call_tree::{CallNode, Count, StackStep};
use crate::view::profile::thread_profile::Profile;

/// The samples by the language of their innermost function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::view) struct Languages {
    counts: BTreeMap<Language, Count>,
    /// The number of samples whose innermost function is an interpreter's own.
    pub(in crate::view) of_interpreters: u64,
    /// The number of samples by the language of their innermost managed function, and the number of
    /// those in which that function has a name.
    named: BTreeMap<Language, (u64, u64)>,
    /// Whether the trace has frames of more than native code.
    are_known: bool,
}

impl Languages {
    /// Returns the languages of a profile. Samples without any function have none.
    pub(in crate::view) fn of(profile: &Profile) -> Self {
        let kind = |id: LocationId| profile.locations.get(id.0 as usize).map(|it| it.kind);
        let mut languages = Self {
            are_known: profile.locations.iter().any(|it| it.kind != FrameKind::Native),
            ..Self::default()
        };
        if !languages.are_known {
            return languages;
        }
        for thread in &profile.threads {
            let calls = thread.tree.calls();
            languages.count_named(profile, calls);
            for call in calls.iter().filter(|call| call.own != Count::default()) {
                let mut innermost = call;
                while let StackStep::Wait(_) | StackStep::ContextText(_) = innermost.step {
                    innermost = &calls[innermost.caller()];
                }
                let StackStep::Frame(location) = innermost.step else { continue };
                let Some(kind) = kind(location) else { continue };
                *languages.counts.entry(kind.language()).or_default() += call.own;
                let is_own = kind == FrameKind::Interpreter;
                languages.of_interpreters += if is_own { call.own.samples } else { 0 };
            }
        }
        languages
    }

    /// Counts the samples of a thread by their innermost managed function.
    fn count_named(&mut self, profile: &Profile, calls: &[CallNode<LocationId>]) {
        let managed = |step: &StackStep<LocationId>| {
            let StackStep::Frame(id) = step else { return None };
            let location = profile.locations.get(id.0 as usize)?;
            let language = location.kind.language();
            let is_named = || profile.method(location.method).is_some_and(Method::is_named);
            language.is_managed().then(|| (language, is_named()))
        };
        // A caller is before its callees.
        let mut innermost: Vec<Option<(Language, bool)>> = Vec::with_capacity(calls.len());
        for call in calls {
            let of_caller = innermost.get(call.caller()).copied().flatten();
            let found = managed(&call.step).or(of_caller);
            innermost.push(found);
            if let Some((language, is_named)) = found.filter(|_| call.own.samples > 0) {
                let (samples, named) = self.named.entry(language).or_default();
                *samples += call.own.samples;
                *named += if is_named { call.own.samples } else { 0 };
            }
        }
    }

    /// Returns the languages of the innermost managed functions, with the number of samples and the
    /// number of those in which that function has a name.
    pub(in crate::view) fn named(&self) -> impl Iterator<Item = (Language, u64, u64)> {
        self.named.iter().map(|(language, (samples, named))| (*language, *samples, *named))
    }

    /// Returns the languages with their samples, heaviest first; `None` if the trace has native
    /// code only.
    pub(in crate::view) fn heaviest_first(&self) -> Option<Vec<(Language, Count)>> {
        let mut all: Vec<_> = self.counts.iter().map(|(language, it)| (*language, *it)).collect();
        all.sort_by_key(|(language, count)| (std::cmp::Reverse(count.weight), *language));
        self.are_known.then_some(all)
    }
}
