//! The categories of frames: the language of their code, or what a thread did instead.
//!
//! The format has no field for the implementation of a frame any more; its subcategories say how a
//! function ran.

use serde_json::{Value, json};

use crate::trace::{FrameKind, Language};

/// The index of a category, and that of its subcategory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Category(pub(super) u32, pub(super) u32);

/// Markers.
pub(super) const OTHER: Category = Category(0, 0);
/// Native code, and placeholders.
const USER: Category = Category(1, 0);
/// Time in which a thread did not run.
pub(super) const IDLE: Category = Category(2, 0);

/// The categories in their order, with their colours and the subcategories after the first, which
/// is always `Other`.
const CATEGORIES: [(&str, &str, &[&str]); 11] = [
    ("Other", "grey", &[]),
    ("User", "yellow", &[]),
    ("Idle", "transparent", &[]),
    ("Kernel", "orange", &[]),
    ("Python", "blue", &[]),
    ("Java", "green", &["Interpreted", "C1", "C2"]),
    ("JavaScript", "purple", &["Interpreted", "Baseline", "Middle tier", "Optimized"]),
    ("PHP", "lightblue", &[]),
    ("Ruby", "red", &[]),
    ("Perl", "magenta", &[]),
    ("Lua", "blue", &[]),
];

impl Category {
    /// Returns the category of a kind of frames.
    pub(super) fn of(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Native | FrameKind::Interpreter => USER,
            FrameKind::Kernel => Self(3, 0),
            FrameKind::Python => Self(4, 0),
            FrameKind::JavaCompiled => Self(5, 0),
            FrameKind::JavaInterpreted => Self(5, 1),
            FrameKind::JavaC1 => Self(5, 2),
            FrameKind::JavaC2 => Self(5, 3),
            FrameKind::JavaScript => Self(6, 0),
            FrameKind::JavaScriptInterpreted => Self(6, 1),
            FrameKind::JavaScriptBaseline => Self(6, 2),
            FrameKind::JavaScriptMiddle => Self(6, 3),
            FrameKind::JavaScriptOptimized => Self(6, 4),
            FrameKind::Php => Self(7, 0),
            FrameKind::Ruby => Self(8, 0),
            FrameKind::Perl => Self(9, 0),
            FrameKind::Lua => Self(10, 0),
            FrameKind::Other => OTHER,
        }
    }

    /// Returns the category of a step that is not a function.
    pub(super) fn of_mark(is_wait: bool) -> Self {
        if is_wait { IDLE } else { USER }
    }
}

/// Returns whether frames of this kind run JavaScript, which the profiler can show alone.
pub(super) fn is_javascript(kind: FrameKind) -> bool {
    kind.language() == Language::JavaScript
}

/// Returns the list of all categories.
pub(super) fn list() -> Value {
    let category = |(name, color, more): &(&str, &str, &[&str])| -> Value {
        let all: Vec<&str> = std::iter::once("Other").chain(more.iter().copied()).collect();
        json!({ "name": name, "color": color, "subcategories": all })
    };
    CATEGORIES.iter().map(category).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_category_with_the_name_of_its_language() {
        for kind in FrameKind::ALL {
            let Category(at, inside) = Category::of(*kind);
            let (name, _, more) = CATEGORIES[at as usize];
            assert!((inside as usize) <= more.len(), "{kind:?}");
            match kind.language() {
                Language::Native => assert_eq!(name, "User"),
                language => assert_eq!(name.to_lowercase(), language.name()),
            }
        }
    }
}
