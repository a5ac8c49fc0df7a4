//! The functions that were read, by their cookies.
//!
//! A closure, also that of a method or of a function such as `strlen(...)`, has a copy of its
//! function. The copy goes with the closure, often before it is read. Another one with the cookie
//! has the same names, file and lines, because the cookie is made of them.
//!
//! # Invariants
//! - Two different functions with one cookie are both unknown, if both were read. A cookie has 32
//!   bits: of a million functions that are gone and were never read, one may have the name of
//!   another for each 4,300 that are known.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::runtime::Function;

/// The largest number of bytes of functions that are known at once.
const BYTES_MAX: usize = 16 << 20;
/// The largest number of classes, and of functions with closures that were not read.
const CLASSES_MAX: usize = 1 << 16;
const PLACES_MAX: usize = 1 << 16;

/// A function, and the one whose class it has: itself, or the function in which a closure is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FunctionInClass {
    pub(super) function: u64,
    pub(super) owner: u64,
}

/// The functions of one interpreter that are known.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownFunctions(Arc<Mutex<FunctionMap>>);

#[derive(Debug, Default)]
struct FunctionMap {
    /// `None` for a cookie of two functions.
    functions: HashMap<u32, Option<Function>>,
    bytes: usize,
    /// The number of declared functions that were read.
    declared: u32,
    /// Functions with closures that were not read.
    places: Vec<FunctionInClass>,
    /// The addresses of the classes of known functions, and those with methods that were not read,
    /// from this one on.
    classes: HashSet<u64>,
    unread: Vec<(u64, u32)>,
}

impl KnownFunctions {
    fn lock(&self) -> MutexGuard<'_, FunctionMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the function with a cookie.
    pub(super) fn get(&self, cookie: u32) -> Option<Function> {
        self.lock().functions.get(&cookie).cloned()?
    }

    /// Notes that the closures of a known function were not read.
    pub(super) fn add_place(&self, place: FunctionInClass) {
        let mut map = self.lock();
        if map.places.len() < PLACES_MAX {
            map.places.push(place);
        }
    }

    /// Takes a function with closures that were not read.
    pub(super) fn take_place(&self) -> Option<FunctionInClass> {
        self.lock().places.pop()
    }

    /// Notes the class of a known function.
    pub(super) fn add_class(&self, class: u64) {
        let mut map = self.lock();
        if map.classes.len() < CLASSES_MAX && map.classes.insert(class) {
            map.unread.push((class, 0));
        }
    }

    /// Takes a class with methods that were not read, and the number of the first of them.
    pub(super) fn take_class(&self) -> Option<(u64, u32)> {
        self.lock().unread.pop()
    }

    /// Gives back a class of which there are methods from this one on.
    pub(super) fn return_class(&self, class: u64, from: u32) {
        self.lock().unread.push((class, from));
    }

    /// Sets the number of declared functions that were read.
    pub(super) fn set_declared(&self, count: u32) {
        self.lock().declared = count;
    }

    /// Returns the number of declared functions that were read.
    pub(super) fn declared(&self) -> u32 {
        self.lock().declared
    }

    /// Adds a function, and returns whether it is new.
    pub(super) fn add(&self, cookie: u32, function: &Function) -> bool {
        let mut map = self.lock();
        if let Some(known) = map.functions.get_mut(&cookie) {
            if known.as_ref().is_some_and(|known| known != function) {
                *known = None;
            }
            return false;
        }
        if map.bytes > BYTES_MAX {
            map.functions.clear();
            map.bytes = 0;
        }
        map.bytes += function.bytes();
        map.functions.insert(cookie, Some(function.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::function::PositionKind;

    fn function(name: &str) -> Function {
        let (name, file, lines) = (name.to_owned(), "/a.php".to_owned(), PositionKind::Positions);
        Function { name, file, line: 3, is_pseudo: false, lines }
    }

    #[test]
    fn functions_have_the_names_of_their_cookies() {
        let known = KnownFunctions::default();
        assert_eq!(known.get(7), None);
        assert!(known.add(7, &function("a")));
        assert!(!known.add(7, &function("a")));
        assert_eq!(known.clone().get(7), Some(function("a")));
        assert_eq!(known.get(8), None);
    }

    #[test]
    fn a_cookie_of_two_functions_names_none() {
        let known = KnownFunctions::default();
        known.add(7, &function("a"));
        known.add(7, &function("b"));
        assert_eq!(known.get(7), None);
        known.add(7, &function("a"));
        assert_eq!(known.get(7), None);
    }

    #[test]
    fn each_class_is_taken_once() {
        let known = KnownFunctions::default();
        [8, 16, 8].iter().for_each(|class| known.add_class(*class));
        assert_eq!(known.take_class(), Some((16, 0)));
        known.return_class(16, 5);
        assert_eq!(known.take_class(), Some((16, 5)));
        assert_eq!(known.take_class(), Some((8, 0)));
        known.add_class(16);
        assert_eq!(known.take_class(), None);
    }

    #[test]
    fn the_memory_is_bounded() {
        let known = KnownFunctions::default();
        let long = function(&"x".repeat(4000));
        for cookie in 0..20_000 {
            known.add(cookie, &long);
        }
        assert!(known.lock().bytes <= BYTES_MAX + long.bytes());
        assert_eq!(known.get(19_999), Some(long));
    }
}
