//! Names of code that a runtime generated, read from the files in which the runtime reports it.
//!
//! # Invariants
//! - The last report about an address applies: runtimes move code and reuse its memory.
//! - Files may be cut off anywhere and contain arbitrary bytes. Unreadable parts are skipped.
//!
//! # Does not
//! - open or watch files: the caller passes in the bytes.

mod dump;
mod perf_map;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::resolved::{Resolved, ResolvedFunction};
use crate::text::printable;

pub use dump::JitDump;
pub use perf_map::PerfMap;

/// Maximum bytes of all pieces with their names and lines, including former pieces.
///
/// The largest runtimes generate half a million pieces. Reports beyond the limit are dropped.
const BYTES_MAX: usize = 256 << 20;
/// Bytes that a piece uses besides its name and lines, including its node in the tree.
const PIECE_LEN: usize = 128;
/// Maximum number of former pieces. Samples are named within seconds, and no runtime generates more
/// pieces in one second.
const FORMER_MAX: usize = 1 << 16;
/// Maximum length in bytes of a piece of code. No runtime generates a larger one.
const LEN_MAX: u64 = 1 << 30;

/// A reader of one format. It keeps an incomplete record at the end until more bytes arrive.
pub trait CodeReader: Send {
    /// Reads the next bytes of the file.
    fn feed(&mut self, bytes: &[u8], code: &mut JitCode);
}

/// Lines of a piece of code.
#[derive(Debug, Default)]
struct Lines {
    /// The files that `positions` refers to by index.
    files: Vec<String>,
    /// Offset from the start of the piece, and the file and line from there on. Sorted.
    positions: Vec<(u32, u32, u32)>,
}

#[derive(Debug, Clone)]
struct CodePiece {
    end: u64,
    name: Arc<str>,
    /// The lines. `None` also for the remainder of a piece that was partly overwritten.
    lines: Option<Arc<Lines>>,
    /// When the code appeared, in CLOCK_MONOTONIC nanoseconds. 0 if the runtime did not report a
    /// time.
    since_ns: u64,
}

impl CodePiece {
    /// Returns the bytes of the piece. Bytes that pieces share count for each piece.
    fn bytes(&self) -> usize {
        PIECE_LEN + self.name.len() + self.lines.as_ref().map_or(0, |lines| lines.bytes())
    }

    /// Returns the remainder of the piece from a later address on, without lines: they count from
    /// the old start.
    fn rest(&self) -> Self {
        Self { lines: None, ..self.clone() }
    }

    fn resolved(&self, start: u64, avma: u64) -> Resolved {
        let function = ResolvedFunction { name: self.name.to_string(), start_svma: start };
        let lines = self.lines.as_deref();
        let position = lines.and_then(|lines| lines.find(u32::try_from(avma - start).ok()?));
        let (file, line) = position.map_or((None, 0), |(file, line)| (Some(file.to_owned()), line));
        Resolved { function: Some(function), file, line, inlined: Vec::new() }
    }
}

/// A piece that no longer exists.
#[derive(Debug)]
struct FormerPiece {
    start: u64,
    piece: CodePiece,
    /// When the code was removed, in CLOCK_MONOTONIC nanoseconds.
    until_ns: u64,
}

/// The key of a former piece: the power of two of its length, its start, and the number of the
/// report.
///
/// The power of two keeps the search for the pieces at an address short.
type FormerKey = (u32, u64, u64);

/// The code at an address and time.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundCode {
    /// The name, or `None` if no code is known there.
    pub resolved: Option<Resolved>,
    /// The CLOCK_MONOTONIC nanoseconds during which the name applies, as far as known now.
    pub times_ns: Range<u64>,
}

/// Pieces of generated code by address (AVMA).
#[derive(Debug)]
pub struct JitCode {
    pieces: BTreeMap<u64, CodePiece>,
    /// Pieces whose removal was reported with a time.
    former: BTreeMap<FormerKey, FormerPiece>,
    /// The keys of `former`, oldest report first.
    formers_by_age: VecDeque<FormerKey>,
    version: u64,
    /// Bytes that all pieces use, including former ones.
    bytes_used: usize,
    /// Bytes that all pieces may use.
    bytes_max: usize,
}

impl Default for JitCode {
    fn default() -> Self {
        let (pieces, former, formers_by_age) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { pieces, former, formers_by_age, version: 0, bytes_used: 0, bytes_max: BYTES_MAX }
    }
}

impl JitCode {
    /// Returns the latest name of an address.
    pub fn find(&self, avma: u64) -> Option<Resolved> {
        let (start, piece) = self.piece(avma)?;
        Some(piece.resolved(start, avma))
    }

    /// Returns the name of an address at a time.
    pub fn find_at(&self, avma: u64, time_ns: u64) -> FoundCode {
        let now = self.piece(avma);
        let since_ns = now.map_or(u64::MAX, |(_, piece)| piece.since_ns);
        if let Some((start, piece)) = now
            && since_ns <= time_ns
        {
            let resolved = Some(piece.resolved(start, avma));
            return FoundCode { resolved, times_ns: since_ns..u64::MAX };
        }
        // The most recent former piece at the time, and the gap between the others that contains
        // the time.
        let mut was: Option<(&FormerKey, &FormerPiece)> = None;
        let mut gap = 0..since_ns;
        for (key, former) in self.formers(avma) {
            let times_ns = former.piece.since_ns..former.until_ns;
            if times_ns.contains(&time_ns) {
                was = was.filter(|was| was.0.2 > key.2).or(Some((key, former)));
            } else if times_ns.end <= time_ns {
                gap.start = gap.start.max(times_ns.end);
            } else {
                gap.end = gap.end.min(times_ns.start);
            }
        }
        if let Some((_, FormerPiece { start, piece, until_ns })) = was {
            let resolved = Some(piece.resolved(*start, avma));
            return FoundCode { resolved, times_ns: piece.since_ns..*until_ns };
        }
        // The later code is a guess. A runtime that reports code late is more likely than a runtime
        // that never reports it.
        let resolved = now.map(|(start, piece)| piece.resolved(start, avma));
        FoundCode { resolved, times_ns: gap }
    }

    /// Returns the former pieces that contain an address.
    fn formers(&self, avma: u64) -> impl Iterator<Item = (&FormerKey, &FormerPiece)> {
        let of_class = move |class| {
            let first = avma.saturating_sub((2_u64 << class) - 1);
            self.former.range((class, first, 0)..=(class, avma, u64::MAX))
        };
        let all = (0..=LEN_MAX.ilog2()).flat_map(of_class);
        all.filter(move |(_, former)| avma < former.piece.end)
    }

    /// Returns the number of known pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the start addresses of the pieces, ascending.
    #[cfg(any(test, fuzzing))]
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> {
        self.pieces.keys().copied()
    }

    /// Returns whether no piece is known.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns a number that changes with every change of the code.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn piece(&self, avma: u64) -> Option<(u64, &CodePiece)> {
        let (&start, piece) = self.pieces.range(..=avma).next_back()?;
        (avma < piece.end).then_some((start, piece))
    }

    fn add(&mut self, start: u64, len: u64, name: &str, lines: Option<Arc<Lines>>) {
        self.add_since(0, (start, len), name, lines);
    }

    fn add_since(
        &mut self,
        since_ns: u64,
        (start, len): (u64, u64),
        name: &str,
        lines: Option<Arc<Lines>>,
    ) {
        let Some(end) = start.checked_add(len).filter(|_| len > 0 && len <= LEN_MAX) else {
            return;
        };
        let name = printable(name);
        let is_same = |piece: &CodePiece| {
            piece.end == end && *piece.name == *name && piece.lines.is_none() && lines.is_none()
        };
        if self.pieces.get(&start).is_some_and(is_same) {
            // The runtime reported the same piece again.
            return;
        }
        self.version += 1;
        self.clear(start, end, since_ns);
        self.insert(start, CodePiece { end, name: name.into(), lines, since_ns });
    }

    /// Inserts a piece, and drops former pieces if memory is needed.
    fn insert(&mut self, start: u64, piece: CodePiece) {
        let bytes = piece.bytes();
        while self.bytes_used + bytes > self.bytes_max && self.drop_former() {}
        if self.bytes_used + bytes <= self.bytes_max {
            self.bytes_used += bytes;
            self.pieces.insert(start, piece);
        }
    }

    fn remove(&mut self, start: u64) -> Option<CodePiece> {
        let piece = self.pieces.remove(&start)?;
        self.bytes_used -= piece.bytes();
        Some(piece)
    }

    /// Drops the oldest former piece. Returns whether there was one.
    fn drop_former(&mut self) -> bool {
        let oldest = self.formers_by_age.pop_front().and_then(|key| self.former.remove(&key));
        self.bytes_used -= oldest.as_ref().map_or(0, |former| former.piece.bytes());
        oldest.is_some()
    }

    /// Moves the piece at `from` to `to`. The piece may be the remainder of an overwritten one.
    fn relocate(&mut self, since_ns: u64, from: u64, (to, len): (u64, u64)) {
        let whole = self.pieces.get(&from).map_or(0, |piece| piece.end - from);
        let len = len.min(whole);
        if len > 0
            && to.checked_add(len).is_some()
            && let Some(piece) = self.remove(from)
        {
            self.version += 1;
            self.add_since(since_ns, (to, len), &piece.name.clone(), piece.lines.clone());
            self.keep_former(from, piece, since_ns);
        }
    }

    /// Removes the code in a range.
    fn clear(&mut self, start: u64, end: u64, until_ns: u64) {
        let before = self.pieces.range_mut(..start).next_back();
        if let Some((&at, piece)) = before
            && piece.end > start
        {
            let whole = piece.clone();
            piece.end = start;
            if whole.end > end {
                self.insert(end, whole.rest());
            }
            self.keep_former(at, whole, until_ns);
        }
        while let Some((&at, _)) = self.pieces.range(start..end).next()
            && let Some(piece) = self.remove(at)
        {
            if piece.end > end {
                self.insert(end, piece.rest());
            }
            self.keep_former(at, piece, until_ns);
        }
    }

    /// Keeps a removed piece: a later query may ask for a time before the removal.
    fn keep_former(&mut self, start: u64, piece: CodePiece, until_ns: u64) {
        let bytes = piece.bytes();
        if until_ns > piece.since_ns && self.bytes_used + bytes <= self.bytes_max {
            self.bytes_used += bytes;
            // Each change has its own number, and moves or ends a piece at a given start only once.
            let key = ((piece.end - start).ilog2(), start, self.version);
            self.former.insert(key, FormerPiece { start, piece, until_ns });
            self.formers_by_age.push_back(key);
            while self.former.len() > FORMER_MAX && self.drop_former() {}
        }
    }
}

impl Lines {
    fn bytes(&self) -> usize {
        let names: usize = self.files.iter().map(|file| file.len() + size_of::<String>()).sum();
        names + self.positions.len() * size_of::<(u32, u32, u32)>()
    }

    fn find(&self, offset: u32) -> Option<(&str, u32)> {
        let after = self.positions.partition_point(|(at, ..)| *at <= offset);
        let (_, file, line) = self.positions.get(after.checked_sub(1)?)?;
        Some((self.files.get(*file as usize)?, *line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &JitCode, avmas: &[u64]) -> Vec<Option<String>> {
        let name = |avma| Some(code.find(avma)?.function?.name);
        avmas.iter().map(|&avma| name(avma)).collect()
    }

    #[test]
    fn the_last_report_about_an_address_applies() {
        let mut code = JitCode::default();
        code.add(100, 100, "old", None);
        code.add(120, 10, "inside", None);
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            names(&code, &[99, 100, 119, 120, 129, 130, 199, 200]),
            [
                None,
                some("old"),
                some("old"),
                some("inside"),
                some("inside"),
                some("old"),
                some("old"),
                None
            ]
        );
        code.add(90, 200, "over", None);
        assert_eq!((code.len(), names(&code, &[90, 125, 289])), (1, vec![some("over"); 3]));
        code.relocate(0, 90, (1000, 10));
        assert_eq!(names(&code, &[90, 1000, 1009, 1010]), [None, some("over"), some("over"), None]);
        code.relocate(0, 1000, (u64::MAX, 10));
        code.relocate(0, 1000, (2000, 0));
        code.relocate(0, 1000, (1004, u64::MAX));
        let at = names(&code, &[1000, 1004, 1013, 1014]);
        assert_eq!(at, [None, some("over"), some("over"), None]);
        code.add(u64::MAX, 2, "nonsense", None);
        code.add(0, 0, "empty", None);
        code.add(0, u64::MAX, "everything", None);
        assert_eq!(code.len(), 1);
    }

    #[test]
    fn each_time_has_its_name() {
        let mut code = JitCode::default();
        let at = |code: &JitCode, avma, time_ns| {
            let found = code.find_at(avma, time_ns);
            assert!(found.times_ns.contains(&time_ns), "{found:?}");
            let name = found.resolved.and_then(|found| found.function).map(|it| it.name);
            (name.unwrap_or_default(), found.times_ns)
        };
        let expected = |name: &str, times: Range<u64>| (name.to_owned(), times);
        assert_eq!(at(&code, 100, 5), expected("", 0..u64::MAX));
        code.add_since(1000, (100, 10), "first", None);
        assert_eq!(at(&code, 100, 999), expected("first", 0..1000), "nothing better is known");
        code.add_since(2000, (105, 10), "second", None);
        code.add_since(3000, (100, 10), "third", None);
        assert_eq!(at(&code, 104, 2999), expected("first", 1000..3000));
        assert_eq!(at(&code, 105, 1999), expected("first", 1000..2000));
        assert_eq!(at(&code, 105, 2000), expected("second", 2000..3000));
        assert_eq!(at(&code, 105, 3000), expected("third", 3000..u64::MAX));
        assert_eq!(at(&code, 112, 3000), expected("second", 2000..u64::MAX));
        code.relocate(4000, 100, (200, 10));
        assert_eq!(at(&code, 100, 3999), expected("third", 3000..4000));
        assert_eq!(at(&code, 100, 4000), expected("", 4000..u64::MAX), "until more is reported");
        assert_eq!(at(&code, 100, 0), expected("", 0..1000));
        assert_eq!(at(&code, 300, 0), expected("", 0..u64::MAX), "other addresses are kept");
        assert_eq!(at(&code, 200, 4000), expected("third", 4000..u64::MAX));
        let version = code.version();
        code.add_since(5000, (200, 10), "third", None);
        assert_eq!(code.version(), version, "nothing new");
        // A map reports no times: its last line applies.
        code.add(200, 10, "fourth", None);
        assert_eq!(at(&code, 200, 4500), expected("fourth", 0..u64::MAX));
        for number in 0..2 * FORMER_MAX as u64 {
            code.add_since(5000 + number, (100, 10), &format!("f{number}"), None);
        }
        assert!(code.former.len() <= FORMER_MAX);
    }

    /// However pieces overlap, the tree finds the same ones as a linear search.
    #[test]
    fn former_pieces_are_found_by_their_addresses() {
        let (mut code, mut random) = (JitCode::default(), 1_u64);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for time_ns in 1..3000 {
            let most = 1 << next(9);
            let len = 1 + next(most);
            code.add_since(time_ns, (next(500), len), &format!("f{time_ns}"), None);
            if next(4) == 0 {
                code.relocate(time_ns, next(500), (next(500), 1 + next(20)));
            }
        }
        assert!(code.former.len() > 2000 && code.former.len() == code.formers_by_age.len());
        for avma in 0..520 {
            let all = code.former.values();
            let all = all.filter(|it| (it.start..it.piece.end).contains(&avma)).count();
            assert_eq!(code.formers(avma).count(), all);
        }
    }

    /// A stack with an unknown address is resolved once, not for each of its samples.
    #[test]
    fn an_unknown_name_applies_until_code_is_reported() {
        let mut code = JitCode::default();
        for (since_ns, name) in [(1000, "a"), (3000, "b")] {
            code.add_since(since_ns, (100, 10), name, None);
            code.relocate(since_ns + 1000, 100, (500, 10));
        }
        for (time_ns, times_ns) in
            [(999, 0..1000), (2000, 2000..3000), (2999, 2000..3000), (4000, 4000..u64::MAX)]
        {
            let found = code.find_at(105, time_ns);
            assert_eq!(found, FoundCode { resolved: None, times_ns }, "{time_ns}");
        }
    }

    #[test]
    fn names_use_bounded_memory() {
        let (mut code, name) =
            (JitCode { bytes_max: 1 << 20, ..JitCode::default() }, "n".repeat(4000));
        for number in 0..400_u64 {
            code.add_since(number, (number * 16, 16), &name, None);
        }
        let before = code.len();
        assert!(code.bytes_used <= code.bytes_max && before > 200, "{} {before}", code.bytes_used);
        // Splits the present pieces and keeps the former ones.
        for number in 0..before as u64 {
            code.add_since(1000 + number, (number * 16 + 4, 4), &name, None);
        }
        assert!(code.bytes_used <= code.bytes_max);
        code.add_since(5000, (0, 400 * 16), "all", None);
        while code.drop_former() {}
        assert_eq!((code.len(), code.bytes_used), (1, PIECE_LEN + 3));
    }
}
