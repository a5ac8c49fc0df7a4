//! Comparisons of hand-made builds.

use super::estimate::BLOCKS;
use super::*;
use crate::trace::{Location, LocationId, Method, MethodId, Module, ModuleId};
use crate::view::profile::call_tree::{CallTreeBuilder, Count, StackStep};
use crate::view::profile::thread_profile::Profile;

/// A build of a program. Functions are created when they are first named.
struct Build {
    side: DiffSide,
    growing: CallTreeBuilder<LocationId>,
}

impl Build {
    fn new(path: &str, build_id: u8) -> Self {
        let modules = vec![Module { path: path.to_owned(), build_id: vec![build_id; 20] }];
        let side = DiffSide {
            name: path.to_owned(),
            profile: Profile { modules, ..Profile::default() },
            threads: 1,
            processes: Vec::new(),
            length_ns: 20_000_000_000,
            whole: Default::default(),
            tree: CallTreeBuilder::default().finish(),
            own: Default::default(),
        };
        Self { side, growing: CallTreeBuilder::default() }
    }

    fn location(&mut self, name: &str) -> LocationId {
        let Profile { methods, locations, .. } = &mut self.side.profile;
        let known = methods.iter().position(|method| method.name == name);
        let at = known.unwrap_or(methods.len());
        if at == methods.len() {
            let (module, start_svma) = (Some(ModuleId(0)), at as u64 * 16);
            methods.push(Method { module, name: name.to_owned(), start_svma, ..Method::default() });
            let method = MethodId(at as u32);
            locations.push(Location::at(method, 0));
        }
        LocationId(at as u32)
    }

    /// Adds this number of samples to each block.
    fn runs(mut self, stack: &str, samples: u64) -> Self {
        let steps: Vec<_> =
            stack.split(' ').map(|name| StackStep::Frame(self.location(name))).collect();
        let call = self.growing.add(steps.into_iter(), Count::default());
        let own = self.side.own.entry(call).or_default();
        for block in 0..BLOCKS {
            (0..samples).for_each(|_| self.side.whole.add(block, 1));
            own.0[block] += samples;
        }
        self
    }

    fn done(self) -> DiffSide {
        DiffSide { tree: self.growing.finish(), ..self.side }
    }
}

/// Returns two sides: in the second, `parse`, which calls itself, is slower, and the build has
/// another path and id.
fn two() -> [DiffSide; 2] {
    let before = Build::new("/v1/app", 1)
        .runs("main parse", 20)
        .runs("main parse lex parse", 10)
        .runs("main render", 70);
    let after = Build::new("/v2/bin/app", 2)
        .runs("main render", 60)
        .runs("main parse lex parse", 10)
        .runs("main parse", 30);
    [before.done(), after.done()]
}

fn written(sides: &[DiffSide; 2], format: DiffFormat) -> String {
    let options = DiffOptions { format, paths: true, top: 40 };
    let mut out = Vec::new();
    write(&sides[0], &sides[1], &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn shares<'a>(comparison: &'a Comparison<'_>, name: &str) -> (&'a DiffRow, [f64; 4]) {
    let is_it = |row: &&DiffRow| comparison.names.functions[row.of].name == name;
    let row = comparison.functions.rows.iter().find(is_it).unwrap();
    (row, [row.total.before, row.total.after, row.own.before, row.own.after])
}

#[test]
fn functions_of_two_builds_are_matched_by_name_and_recursion_counts_once() {
    let sides = two();
    let paths = Paths::new(&sides[0], &sides[1]);
    let comparison = Comparison::new(&sides[0], &sides[1], &paths, false);
    let rows = &comparison.functions.rows;
    assert_eq!(rows.len(), 4);
    assert_eq!(shares(&comparison, "parse").1, [0.3, 0.4, 0.3, 0.4]);
    assert_eq!(shares(&comparison, "render").1, [0.7, 0.6, 0.7, 0.6]);
    assert_eq!(shares(&comparison, "main").1, [1.0, 1.0, 0.0, 0.0]);
    let (lex, numbers) = shares(&comparison, "lex");
    assert_eq!(numbers, [0.1, 0.1, 0.0, 0.0]);
    assert!(lex.is_noise() && shares(&comparison, "main").0.is_noise());
    assert!(!rows[0].is_noise() && !rows[1].is_noise());
}

#[test]
fn paths_that_only_lead_to_a_change_have_no_line() {
    let deep = |heavy| {
        Build::new("/app", 1).runs("a b c d", heavy).runs("a b e", 100 - heavy).runs("x y", 100)
    };
    let sides = [deep(20).done(), deep(60).done()];
    let text = written(&sides, DiffFormat::Table);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(';')).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines.iter().any(|line| line.ends_with("  a;b;c;d")), "{text}");
    assert!(lines.iter().any(|line| line.ends_with("  a;b;e")), "{text}");
    assert!(text.contains("... 1 path changed only through a callee\n"), "{text}");
}

#[test]
fn light_functions_are_counted_with_the_noise() {
    let with_light = |samples| {
        let build = Build::new("/app", 1).runs("main", 100);
        (0..samples).fold(build, |mut build, number| {
            let step = StackStep::Frame(build.location(&format!("light {number}")));
            let call = build.growing.add(std::iter::once(step), Count::default());
            build.side.whole.add(number % BLOCKS, 1);
            build.side.own.entry(call).or_default().add(number % BLOCKS, 1);
            build
        })
    };
    let sides = [with_light(222).done(), with_light(500).done()];
    let text = written(&sides, DiffFormat::Table);
    let light = "... 500 functions within noise, with self 9.99 % before and 20.00 % after";
    assert!(text.contains(light), "{text}");
    let json: serde_json::Value = serde_json::from_str(&written(&sides, DiffFormat::Json)).unwrap();
    assert_eq!(json["functions"].as_array().unwrap().len(), 1);
    assert_eq!(json["light_functions"]["count"], 500);
    for (side, percent) in [("self_before", 22_200.0 / 2_222.0), ("self_after", 20.0)] {
        let own = json["light_paths"][side].as_f64().unwrap();
        assert!((own - percent).abs() < 1e-9, "{side}: {own}");
    }
}

#[test]
fn a_rebuilt_module_is_listed_and_the_same_build_is_not() {
    let text = written(&two(), DiffFormat::Table);
    assert!(text.contains("\nrebuilt   app (010101010101 -> 020202020202)\n"), "{text}");
    let one = || Build::new("/app", 1).runs("main", 10).done();
    let text = written(&[one(), one()], DiffFormat::Table);
    assert!(!text.contains("rebuilt") && !text.contains("total %"), "{text}");
    assert!(text.contains("\nno change beyond noise: 1 function within noise, "), "{text}");
}

#[test]
fn depth_is_bounded_by_memory_only() {
    let stack = vec!["a"; 50_000].join(" ");
    let one = || Build::new("/app", 1).runs(&stack, 1).done();
    let sides = [one(), one()];
    let paths = Paths::new(&sides[0], &sides[1]);
    let sums = paths.by_function(&paths.totals());
    assert_eq!(sums[1][1].map(|series| series.sum()), [20, 20]);
}

#[test]
fn columns_of_other_periods_are_microseconds() {
    let mut sides = two();
    assert!(written(&sides, DiffFormat::Folded).contains("main;render 1400 1200\n"));
    for (side, period_ns) in sides.iter_mut().zip([1_000_000, 5_000_000]) {
        let period = crate::trace::Value::Unsigned(period_ns);
        side.profile.recording.metadata.insert("period_ns".to_owned(), period);
    }
    assert!(written(&sides, DiffFormat::Folded).contains("main;render 1400000 6000000\n"));
}

/// Half of the caller's increase is in each of its two callees.
#[test]
fn a_caller_of_several_changes_has_a_line_of_its_own() {
    let two = |one, other| Build::new("/app", 1).runs("a b", one).runs("a c", other);
    let sides = [two(20, 20).runs("x", 160).done(), two(40, 35).runs("x", 125).done()];
    let text = written(&sides, DiffFormat::Table);
    for path in ["  a", "  a;b", "  a;c", "  x"] {
        assert!(text.lines().any(|line| line.ends_with(path)), "{path}: {text}");
    }
    assert!(!text.contains("through a callee"), "{text}");
}

#[test]
fn the_largest_hidden_change_is_reported() {
    let three = |x, y, z| Build::new("/app", 1).runs("x", x).runs("y", y).runs("z", z).done();
    let sides = [three(20, 40, 140), three(40, 50, 110)];
    let options = DiffOptions { format: DiffFormat::Table, paths: false, top: 0 };
    let mut out = Vec::new();
    write(&sides[0], &sides[1], &options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let reported = "... 3 functions also changed, by up to 15.00 points";
    assert!(text.contains(reported), "{text}");
}

#[test]
fn a_truncated_stack_is_marked_and_too_little_time_is_reported() {
    let one = || {
        let mut build = Build::new("/app", 1);
        let steps = [StackStep::Truncated, StackStep::Frame(build.location("leaf"))];
        let call = build.growing.add(steps.into_iter(), Count::default());
        (0..100).for_each(|_| build.side.whole.add(3, 1));
        build.side.own.entry(call).or_default().add(3, 100);
        build.done()
    };
    let sides = [one(), Build::new("/app", 1).runs("leaf", 100).done()];
    let text = written(&sides, DiffFormat::Table);
    assert!(text.contains(" [truncated]\n") && text.contains("  [truncated];leaf\n"), "{text}");
    assert!(text.contains("note      before: too short to see"), "{text}");
    assert!(!text.contains("after: too short to see"), "{text}");
}

#[test]
fn of_many_rebuilt_modules_the_others_are_counted() {
    let many = |build_id| {
        let mut side = Build::new("/app", build_id).runs("main", 10).done();
        let libraries = (1..10).map(|number| Module {
            path: format!("/lib/{number}.so"),
            build_id: vec![build_id; 20],
        });
        side.profile.modules.extend(libraries);
        side
    };
    let text = written(&[many(1), many(2)], DiffFormat::Table);
    let rebuilt = text.lines().find(|line| line.starts_with("rebuilt ")).expect("a line");
    assert_eq!(rebuilt.matches(" -> ").count(), 8, "{rebuilt}");
    assert!(rebuilt.ends_with(" and 2 others"), "{rebuilt}");
}

/// The recording before is twice as long as the one after, so a doubled share keeps its weight.
#[test]
fn a_flame_graph_compares_shares_and_counts_missing_paths() {
    let before = Build::new("/app", 1).runs("main a", 40).runs("main b", 150).runs("main old", 10);
    let sides = [before.done(), Build::new("/app", 1).runs("main a", 40).runs("main b", 60).done()];
    let svg = written(&sides, DiffFormat::Flamegraph);
    assert!(svg.contains("<title>a (800 periods, 40.00%; +20.00%)</title>"), "{svg}");
    assert!(svg.contains("; 1 path gone, not drawn"), "{svg}");
}
