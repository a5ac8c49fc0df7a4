//! Parser of folded stacks as `export --format folded` writes them.

use std::collections::BTreeSet;

/// Call stacks, root first, with their counts of sampling periods.
pub(crate) struct Folded {
    stacks: Vec<(Vec<String>, u64)>,
}

impl Folded {
    /// Parses lines, each of which must have the form `root;caller;leaf COUNT`.
    pub(crate) fn parse(text: &str) -> Self {
        let stacks = text.lines().map(|line| {
            let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("line: {line}"));
            let count = count.parse().unwrap_or_else(|_| panic!("no count: {line}"));
            (stack.split(';').map(str::to_owned).collect(), count)
        });
        Self { stacks: stacks.collect() }
    }

    /// Returns the stacks, root first, with their counts.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (&[String], u64)> {
        self.stacks.iter().map(|(stack, count)| (stack.as_slice(), *count))
    }

    /// Returns the stacks that contain a frame with exactly this name.
    pub(crate) fn only_with(&self, function: &str) -> Self {
        let with = self.stacks.iter().filter(|(stack, _)| stack.iter().any(|it| it == function));
        Self { stacks: with.cloned().collect() }
    }

    pub(crate) fn total(&self) -> u64 {
        self.stacks.iter().map(|(_, count)| count).sum()
    }

    /// Returns the count of stacks that contain a frame with exactly this name.
    pub(crate) fn count_of(&self, function: &str) -> u64 {
        self.count_where(|frame| frame == function)
    }

    /// Returns the count of stacks that contain a frame whose name contains `part`.
    pub(crate) fn count_containing(&self, part: &str) -> u64 {
        self.count_where(|frame| frame.contains(part))
    }

    /// Returns the count of stacks in which every frame whose name contains `function` is called by
    /// a frame whose name contains `caller`.
    pub(crate) fn count_of_call(&self, function: &str, caller: &str) -> u64 {
        let right = |stack: &[String]| {
            let mut places = (0..stack.len()).filter(|&at| stack[at].contains(function)).peekable();
            places.peek().is_some() && places.all(|at| at > 0 && stack[at - 1].contains(caller))
        };
        self.stacks.iter().filter(|(stack, _)| right(stack)).map(|(_, count)| count).sum()
    }

    /// Returns two counts of the stacks in which `function` has a caller and calls another
    /// function: those with the expected neighbours, and all.
    pub(crate) fn count_around(
        &self,
        function: &str,
        are_right: impl Fn(&str, &str) -> Option<bool>,
    ) -> (u64, u64) {
        let (mut right, mut all) = (0, 0);
        for (stack, count) in &self.stacks {
            let around = stack.windows(3).filter(|frames| frames[1] == function);
            for are_right in around.filter_map(|frames| are_right(&frames[0], &frames[2])) {
                (right, all) = (right + u64::from(are_right) * count, all + count);
            }
        }
        (right, all)
    }

    fn count_where(&self, matches: impl Fn(&str) -> bool) -> u64 {
        let holds = |stack: &[String]| stack.iter().any(|frame| matches(frame));
        self.stacks.iter().filter(|(stack, _)| holds(stack)).map(|(_, count)| count).sum()
    }

    /// Returns the share of a function in all counts, in percent.
    pub(crate) fn percent_of(&self, function: &str) -> f64 {
        100.0 * self.count_of(function) as f64 / self.total().max(1) as f64
    }

    /// Returns the count of stacks that contain both functions.
    pub(crate) fn count_of_both(&self, one: &str, other: &str) -> u64 {
        let holds = |stack: &[String], name: &str| stack.iter().any(|frame| frame == name);
        let both = |stack: &[String]| holds(stack, one) && holds(stack, other);
        self.stacks.iter().filter(|(stack, _)| both(stack)).map(|(_, count)| count).sum()
    }

    /// Returns the outermost functions of the stacks that reach a root.
    pub(crate) fn roots(&self) -> BTreeSet<&str> {
        let outermost = self.stacks.iter().filter_map(|(stack, _)| stack.first());
        let marks = ["[truncated]", "[stack dropped]", "[no stack]"];
        outermost.map(String::as_str).filter(|name| !marks.contains(name)).collect()
    }

    /// Returns the count of stacks in which the direct caller of this function is not `caller`.
    pub(crate) fn count_with_other_caller(&self, function: &str, caller: &str) -> u64 {
        let wrong = |stack: &[String]| {
            let position = stack.iter().position(|frame| frame == function);
            position.is_some_and(|at| at == 0 || stack[at - 1] != caller)
        };
        self.stacks.iter().filter(|(stack, _)| wrong(stack)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_callers() {
        let folded = Folded::parse("main;a b;leaf 3\nmain;c;leaf 2\nleaf 1\nmain 4\n");
        assert_eq!(folded.total(), 10);
        assert_eq!(folded.count_of("leaf"), 6);
        assert_eq!(folded.count_containing("a "), 3);
        assert_eq!((folded.only_with("c").total(), folded.only_with("a").total()), (2, 0));
        assert_eq!(folded.count_with_other_caller("leaf", "a b"), 3);
        assert_eq!(folded.count_of_call("le", "a"), 3);
        let of_c = |caller: &str, called: &str| (called == "leaf").then_some(caller == "c");
        assert_eq!(folded.count_around("a b", of_c), (0, 3));
        assert_eq!(folded.count_around("c", |caller, _| Some(caller == "main")), (2, 2));
        assert!((folded.percent_of("main") - 90.0).abs() < 1e-9);
    }

    #[test]
    #[should_panic(expected = "no count")]
    fn line_without_a_count() {
        Folded::parse("main;leaf x\n");
    }
}
