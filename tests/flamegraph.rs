//! Flame graphs as pictures, compared with the folded stacks that they show.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use traceprof::trace::{Sample, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, has_command, maker, skip, traceprof};

use maker::{BEGIN_NS, GAP};

/// Two threads, names that XML must escape, and a name that sorts between a function and its
/// callee.
fn demo() -> Trace {
    let mut maker = Maker::new();
    let command = ["/usr/bin/<demo>", "--all"].map(|word| Value::Text(word.to_owned()));
    maker.writer.set_metadata("command_line", Value::List(command.into())).unwrap();
    let front = maker.thread(100, "front & \"centre\"");
    for (ms, stack) in [
        (1, "_start main"),
        (2, "_start main vec<int>.at(int)&"),
        (3, "_start main"),
        (4, "_start main(int) serve"),
        (5, "_start main operator<<"),
        (6, "_start main a\u{ffff}\u{1b}]b"),
    ] {
        maker.sample(front, ms, stack);
    }
    let back = maker.thread(101, "back");
    maker.sample_ending(back, 3, "memcpy@libc", GAP);
    for ms in 10..20 {
        maker.sample(back, ms, "start_thread query");
    }
    maker.finish()
}

/// A frame of the picture.
#[derive(Debug)]
struct Frame {
    name: String,
    weight: u64,
    from: u64,
    /// Greater values are further from the root.
    depth: i64,
    color: String,
}

/// Exports the trace. The file is removed with the trace.
fn exported(made: &Trace, options: &[&str]) -> (PathBuf, String) {
    let path = made.path().with_extension("svg");
    let mut command = traceprof(&["export", "--force", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
    (path, text)
}

fn unescaped(text: &str) -> String {
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    entities.iter().fold(text.to_owned(), |text, (entity, is)| text.replace(entity, is))
}

/// Returns all frames with the weights of their titles, and checks that the rectangles have the
/// same widths.
fn frames(svg: &str) -> Vec<Frame> {
    let of = |part: &str| {
        let title = unescaped(part.split_once("</title>").unwrap().0);
        let (name, numbers) = title.rsplit_once(" (").unwrap();
        let number = numbers.split(' ').next().unwrap().replace(',', "");
        let attribute = |name: &str| {
            let value = part.split_once(&format!(" {name}=\"")).expect(name).1;
            value.split_once('"').unwrap().0.to_owned()
        };
        let weight = number.parse().expect(&title);
        assert_eq!(attribute("fg:w").parse(), Ok(weight), "{title}");
        Frame {
            name: name.to_owned(),
            weight,
            from: attribute("fg:x").parse().unwrap(),
            depth: -attribute("y").parse::<i64>().unwrap(),
            color: attribute("fill"),
        }
    };
    svg.split("<title>").skip(1).map(of).collect()
}

/// Returns the folded stacks that the frames show: each stack with its weight beyond its callees.
fn refolded(frames: &[Frame]) -> BTreeMap<String, u64> {
    let holds = |outer: &Frame, inner: &Frame| {
        outer.from <= inner.from && inner.from + inner.weight <= outer.from + outer.weight
    };
    let step = 16;
    let mut lines = BTreeMap::new();
    for frame in frames {
        let callees = frames.iter().filter(|it| it.depth == frame.depth + step && holds(frame, it));
        let own = frame.weight - callees.map(|callee| callee.weight).sum::<u64>();
        let mut callers: Vec<_> =
            frames.iter().filter(|it| it.depth <= frame.depth && holds(it, frame)).collect();
        callers.sort_by_key(|caller| caller.depth);
        let names: Vec<_> = callers.iter().skip(1).map(|caller| caller.name.as_str()).collect();
        if own > 0 {
            *lines.entry(names.join(";")).or_default() += own;
        }
    }
    lines
}

fn folded(made: &Trace, options: &[&str]) -> BTreeMap<String, u64> {
    let mut command = traceprof(&["export", "--format", "folded"]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    let text = String::from_utf8(output.stdout).unwrap().replace('\u{ffff}', "\u{fffd}");
    let line = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), weight.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn it_shows_the_folded_stacks_and_their_totals() {
    let made = demo();
    for options in [&[][..], &["--threads"], &["--thread", "back"], &["--from", "3ms"]] {
        let (_, svg) = exported(&made, options);
        let (frames, folded) = (frames(&svg), folded(&made, options));
        assert_eq!(refolded(&frames), folded, "{options:?}");
        let all = frames.iter().find(|frame| frame.name == "all").unwrap();
        assert_eq!(all.weight, folded.values().sum::<u64>());
    }
    let (_, svg) = exported(&made, &[]);
    let frames = frames(&svg);
    let named = |name: &str| frames.iter().filter(|frame| frame.name == name).count();
    assert_eq!((named("main"), named("main(int)")), (1, 1), "each once: {frames:?}");
    assert!(svg.contains(">CPU time of &lt;demo&gt;</text>"), "{svg}");
    assert!(svg.contains(">17 samples, 0.017 s, 2 threads</text>"), "{svg}");
}

#[test]
fn it_is_well_formed_whatever_names_hold() {
    if !has_command("xmllint") {
        skip!("xmllint, which reads the pictures");
    }
    let made = demo();
    for options in [&[][..], &["--threads"], &["--thread", "back", "--to", "1ms"]] {
        let (path, svg) = exported(&made, options);
        let output = Command::new("xmllint").args(["--noout", "--nonet"]).arg(&path).output();
        let output = output.expect("xmllint");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && message.is_empty(), "{options:?}: {message}");
        assert_eq!(svg.contains("no samples"), options.contains(&"1ms"));
    }
}

/// Returns the weights of the frames, by name, that Brendan Gregg's own script makes of folded
/// stacks. The script comes from Debian's profiler for Perl. It sorts lines and not frames, so it
/// draws a function twice if another name sorts between it and its callees.
fn drawn_by_the_script(script: &str, folded: &[u8]) -> BTreeMap<String, u64> {
    let mut command = Command::new("perl");
    command.args([script, "--minwidth", "0"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("perl");
    child.stdin.take().unwrap().write_all(folded).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let title = |part: &str| {
        let title = unescaped(part.split_once("</title>").unwrap().0);
        let (name, numbers) = title.rsplit_once(" (").unwrap();
        let number = numbers.split(' ').next().unwrap().replace(',', "");
        (name.to_owned(), number.parse().expect(&title))
    };
    added_up(text.split("<title>").skip(1).map(title))
}

fn added_up(frames: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    frames.fold(BTreeMap::new(), |mut sums, (name, weight)| {
        *sums.entry(name).or_default() += weight;
        sums
    })
}

#[test]
fn it_has_the_frames_and_totals_that_flamegraph_pl_makes_of_the_folded_stacks() {
    let script = "/usr/share/perl5/Devel/NYTProf/flamegraph.pl";
    if !Path::new(script).exists() {
        skip!("flamegraph.pl, which draws the folded stacks");
    }
    let made = demo();
    for options in [&[][..], &["--threads"], &["--thread", "back"], &["--from", "3ms"]] {
        let mut command = traceprof(&["export", "--format", "folded"]);
        let folded = command.arg(made.path()).args(options).output().expect("traceprof").stdout;
        let theirs = drawn_by_the_script(script, &folded);
        assert!(theirs.len() > 3, "{theirs:?}");
        // The script replaces these characters with ones that every viewer of its time could show.
        let shown = |name: &str| name.replace('<', "(").replace('>', ")");
        let (_, svg) = exported(&made, options);
        let frames = frames(&svg);
        let ours = added_up(frames.iter().map(|frame| (shown(&frame.name), frame.weight)));
        let theirs =
            theirs.into_iter().map(|(name, it)| (name.replace('\u{ffff}', "\u{fffd}"), it));
        let theirs: BTreeMap<_, _> = theirs.collect();
        assert_eq!(ours, theirs, "{options:?}");
    }
}

#[test]
fn equal_traces_make_equal_pictures() {
    let made = demo();
    assert_eq!(exported(&made, &["--threads"]).1, exported(&made, &["--threads"]).1);
}

#[test]
fn states_have_colours_of_their_own() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    let thread = maker.thread(1, "worker");
    for (ms, state) in [(10, 0), (20, 1), (30, 2), (40, 3), (50, 4), (60, 9)] {
        let syscall = (state == 2).then_some(202);
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let weight = 10_000;
        let sample = Sample { time_ns, flags: WALL, weight, state, syscall, ..Sample::default() };
        maker.full_sample(thread, &sample, "main work");
    }
    let made = maker.finish();
    let (_, svg) = exported(&made, &[]);
    let frames = frames(&svg);
    assert_eq!(refolded(&frames), folded(&made, &[]));
    let colors: BTreeMap<_, _> =
        frames.iter().map(|frame| (frame.name.as_str(), frame.color.as_str())).collect();
    assert_eq!(colors["[sleeping in futex]"], "rgb(130,175,230)");
    assert_eq!(colors["[runnable]"], "rgb(237,160,28)");
    assert_eq!(colors["[disk]"], "rgb(225,80,55)");
    // No running function has a colour of a state.
    for name in ["main", "work"] {
        let parts: Vec<u32> = colors[name][4..colors[name].len() - 1]
            .split(',')
            .map(|part| part.parse().unwrap())
            .collect();
        assert!(parts[0] >= 244 && parts[1] >= 206 && parts[2] >= 168, "{name}: {parts:?}");
    }
    let distinct: std::collections::BTreeSet<_> = frames
        .iter()
        .filter(|frame| frame.name.starts_with('['))
        .map(|frame| &frame.color)
        .collect();
    assert_eq!(distinct.len(), 5, "{colors:?}");
    assert!(svg.contains("(60,000 µs, 100%)"), "{svg}");
    assert!(svg.contains("(orange runnable, blue sleeping, red disk, grey stopped)"), "{svg}");
}
