//! Keeps stacks by their functions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use regex_lite::Regex;

use crate::trace::{LazyTrace, LocationId, Objects, TraceError};
use crate::view::text::escape::escaped;

/// A regular expression that matches a part of a function's name.
#[derive(Debug, Clone)]
pub struct FunctionPattern(Regex);

impl PartialEq for FunctionPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl FromStr for FunctionPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a part of a function's name".to_owned());
        }
        let error = |error| {
            format!(
                "invalid regular expression: {error} (a literal special character needs a \
                 \\ before \
                 it)"
            )
        };
        Regex::new(text).map(Self).map_err(error)
    }
}

impl fmt::Display for FunctionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", escaped(self.0.as_str()))
    }
}

/// The functions that a stack must have and must not have. The default keeps every stack.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StackFilter {
    include: Vec<FunctionPattern>,
    exclude: Vec<FunctionPattern>,
    /// Bits by location: [`WANTED`] and [`UNWANTED`].
    found: Arc<[u8]>,
}

const WANTED: u8 = 1;
const UNWANTED: u8 = 2;

impl StackFilter {
    /// Creates a filter that keeps stacks with a function of `include`, if that is not empty, and
    /// without any function of `exclude`.
    ///
    /// # Errors
    /// Errors of reading the names.
    pub(in crate::view) fn new(
        include: &[FunctionPattern],
        exclude: &[FunctionPattern],
        trace: &LazyTrace,
    ) -> Result<Self, TraceError> {
        if include.is_empty() && exclude.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self::of(include, exclude, &trace.load_objects()?))
    }

    fn of(include: &[FunctionPattern], exclude: &[FunctionPattern], objects: &Objects) -> Self {
        let is_any = |patterns: &[FunctionPattern], name: &str| {
            patterns.iter().any(|it| it.0.is_match(name))
        };
        let found_in = |name: &str| {
            let wanted = if is_any(include, name) { WANTED } else { 0 };
            wanted | if is_any(exclude, name) { UNWANTED } else { 0 }
        };
        let by_method: Vec<u8> = objects.methods.iter().map(|it| found_in(&it.name)).collect();
        let of = |method: usize| by_method.get(method).copied().unwrap_or(0);
        let found =
            objects.locations.iter().map(|location| of(location.method.0 as usize)).collect();
        Self { include: include.to_vec(), exclude: exclude.to_vec(), found }
    }

    /// Returns whether the filter keeps every stack.
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns whether the filter keeps a stack.
    pub(in crate::view) fn has(&self, stack: &[LocationId]) -> bool {
        if self.is_empty() {
            return true;
        }
        let found =
            |location: &LocationId| self.found.get(location.0 as usize).copied().unwrap_or(0);
        let all = stack.iter().fold(0, |all, location| all | found(location));
        all & UNWANTED == 0 && (self.include.is_empty() || all & WANTED != 0)
    }

    /// Returns the filter as text.
    pub(in crate::view) fn texts(&self) -> impl Iterator<Item = String> {
        let list = |patterns: &[FunctionPattern], word: &str| {
            let all: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            (!all.is_empty()).then(|| format!("stacks {word} {}", all.join(" or ")))
        };
        [list(&self.include, "with"), list(&self.exclude, "without")].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Location, Method, MethodId};

    fn patterns(texts: &[&str]) -> Vec<FunctionPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn filter(include: &[&str], exclude: &[&str]) -> StackFilter {
        let names = ["main", "serve", "std::vec::Vec<T>::push", "[lost]"];
        let method = |name: &&str| Method::named(name);
        let location = |number| Location::at(MethodId(number), 0);
        let methods = names.iter().map(method).collect();
        let locations = (0..4).map(location).collect();
        let objects = Objects { modules: Vec::new(), methods, locations };
        StackFilter::of(&patterns(include), &patterns(exclude), &objects)
    }

    #[test]
    fn a_stack_needs_an_included_function_and_no_excluded_one() {
        let kept = |include: &[&str], exclude: &[&str]| {
            let filter = filter(include, exclude);
            let stacks: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 2], &[], &[9]];
            stacks.map(|stack| {
                let stack: Vec<_> = stack.iter().copied().map(LocationId).collect();
                u8::from(filter.has(&stack))
            })
        };
        assert_eq!(kept(&[], &[]), [1; 5]);
        assert_eq!(kept(&["main"], &[]), [1, 1, 1, 0, 0]);
        assert_eq!(kept(&["^erve", "Vec<.*>::push$"], &[]), [0, 0, 1, 0, 0]);
        assert_eq!(kept(&[], &["serve"]), [1, 0, 0, 1, 1]);
        assert_eq!(kept(&["(?i)MAIN"], &["push"]), [1, 1, 0, 0, 0]);
    }

    #[test]
    fn the_filter_is_described_and_escaped() {
        let texts: Vec<_> = filter(&["a", "b\u{1b}"], &["c"]).texts().collect();
        assert_eq!(texts, ["stacks with /a/ or /b\\u{1b}/", "stacks without /c/"]);
    }

    #[test]
    fn a_bad_expression_is_explained_in_one_line() {
        let error = "operator(".parse::<FunctionPattern>().unwrap_err();
        assert!(error.contains("closing ')'") && !error.contains('\n'), "{error}");
        assert!("".parse::<FunctionPattern>().is_err());
    }
}
