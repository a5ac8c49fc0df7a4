//! The functions of V8's frames at random times, compared with the map of its code that Node.js
//! writes for `perf`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::runtime::v8::tests::frames::{LiveFrame, NamedPosition};
use crate::runtime::v8::tests::nodes::{LiveEngine, NodeProgram, node, target};
use crate::runtime::v8::{JsTier, V8Reader};

/// How many frames are compared at least.
const FRAMES_MIN: usize = 1500;
/// Longest time of a run on a computer with much other work.
const TIME_MAX: Duration = Duration::from_secs(240);
/// Longest wait until all threads of a program stand still.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A program that stands still until this is dropped.
struct Halt(Pid);

impl Halt {
    fn of(pid: i32) -> Self {
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        let halt = Self(Pid::from_raw(pid));
        let since = Instant::now();
        let is_still = |tid: &i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"));
            text.is_ok_and(|text| text.rsplit_once(") ").unwrap().1.starts_with('T'))
        };
        while !proc::tasks(pid).unwrap().iter().all(is_still) {
            assert!(since.elapsed() < STOP_MAX, "it does not stand still");
            std::thread::yield_now();
        }
        halt
    }
}

impl Drop for Halt {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Stops a program at random times.
struct WatchedNode<'p> {
    program: &'p NodeProgram,
    engine: LiveEngine,
    start_time: u64,
}

impl<'p> WatchedNode<'p> {
    fn of(program: &'p NodeProgram) -> Self {
        let start_time = proc::start_time(program.pid()).unwrap();
        Self { program, engine: program.engine(), start_time }
    }

    /// Stops it, and gives the frames of each of its threads that runs code of the engine. The
    /// first one is not complete in some places.
    fn stop(&mut self, mut each: impl FnMut(&LiveEngine, &[LiveFrame])) {
        let (pid, memory) = (self.program.pid(), self.program.memory());
        let _halt = Halt::of(pid);
        self.engine.refresh(pid);
        let engine = &self.engine;
        let captures = inject::capture(pid, self.start_time, &engine.mappings, |_| ()).unwrap();
        for Capture { outcome, .. } in captures.threads {
            let Ok(ThreadSnapshot { registers, .. }) = outcome else { continue };
            let (frames, _) = engine.frames_from(&memory, (registers.pc, false), registers.fp);
            if !frames.is_empty() {
                each(engine, &frames);
            }
        }
    }
}

/// The names of code, by its first address, from the map that the program has written so far.
struct NodePerfMap {
    file: BufReader<File>,
    /// What the last line has so far.
    line: String,
    names: BTreeMap<u64, (u64, String)>,
}

impl NodePerfMap {
    fn of(pid: i32) -> Self {
        let file = BufReader::new(File::open(format!("/tmp/perf-{pid}.map")).unwrap());
        Self { file, line: String::new(), names: BTreeMap::new() }
    }

    /// Reads what the program has written since the last call.
    fn read(&mut self) {
        while self.file.read_line(&mut self.line).unwrap() > 0 {
            if !self.line.ends_with('\n') {
                return;
            }
            let line = std::mem::take(&mut self.line);
            self.take(line.trim_end());
        }
    }

    fn take(&mut self, line: &str) {
        let mut fields = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (Some(start), Some(len)) = (number(), number()) else { return };
        let name = fields.next().unwrap_or_default().to_owned();
        // Of what is at the same place, the last one is there.
        let end = start + len;
        let before = self.names.range(..end).next_back().map(|(at, (end, _))| (*at, *end));
        if let Some((at, _)) = before.filter(|(_, before_end)| *before_end > start) {
            self.names.remove(&at);
        }
        self.names.insert(start, (end, name));
    }

    /// Returns the name, the file and the line of the function of an address, if the map has one.
    fn function(&self, avma: u64) -> Option<(String, String, u32)> {
        let (_, (end, name)) = self.names.range(..=avma).next_back()?;
        let name = name.split_once(':').filter(|_| avma < *end)?.1;
        let name = name.trim_start_matches(['~', '^', '+', '*', '\'']);
        let (name, place) = name.rsplit_once(' ')?;
        // Newer versions write the column, too.
        let (before, last) = place.rsplit_once(':')?;
        let with_column = before
            .rsplit_once(':')
            .and_then(|(file, line)| Some((file, line.parse::<u32>().ok()?)));
        let (file, line) = with_column.or_else(|| Some((before, last.parse().ok()?)))?;
        // Node.js 18 writes some code before it has a name.
        let is_named = !name.is_empty() || !file.is_empty();
        is_named.then(|| (name.to_owned(), file.to_owned(), line))
    }
}

#[derive(Debug, Default)]
struct ComparedFrames {
    stops: usize,
    compared: usize,
    equal: usize,
    tiers: BTreeMap<String, usize>,
    unnamed: BTreeMap<String, usize>,
    differences: Vec<String>,
}

/// A function: its name, file, and the line on which it starts.
type Placed = (String, String, u32);

/// Returns the function of a frame and where it starts, without what is inlined: by the code at its
/// pc, as far as that tells it.
fn own_function(
    reader: &V8Reader<'_>,
    frame: &LiveFrame,
) -> Result<Option<(Placed, JsTier)>, String> {
    let reason = |gone: crate::runtime::Gone| gone.name().to_owned();
    let code = reader.code_at(frame.avma(), frame.function).map_err(reason)?;
    if code.tier == JsTier::Interpreted {
        let Some((shared, cookie)) = frame.function.filter(|_| frame.is_return) else {
            return Ok(None);
        };
        let it = reader.function(shared, cookie).map_err(reason)?;
        return Ok(Some(((it.name.clone(), it.file.clone(), it.line), code.tier)));
    }
    let Some(it) = &code.function else {
        // At the top, the frame may be that of the caller.
        return if frame.is_return { Err("no function".to_owned()) } else { Ok(None) };
    };
    let positions = code.positions(frame.avma());
    assert_eq!(positions[0].function, Ok(it), "{frame:x?}");
    Ok(Some(((it.name.clone(), it.file.clone(), it.line), code.tier)))
}

impl ComparedFrames {
    fn compare(
        &mut self,
        engine: &LiveEngine,
        map: &NodePerfMap,
        program: &NodeProgram,
        frames: &[LiveFrame],
    ) {
        let memory = program.memory();
        let reader = engine.machine.reader(&memory);
        for frame in frames.iter().filter(|it| engine.is_generated(it.pc)) {
            let Some((name, file, line)) = map.function(frame.avma()) else { continue };
            let found = match own_function(&reader, frame) {
                Ok(None) => continue,
                Ok(Some(found)) => found,
                Err(reason) => {
                    self.compared += 1;
                    *self.unnamed.entry(reason).or_default() += 1;
                    continue;
                }
            };
            self.compared += 1;
            let ((own_name, own_file, own_line), tier) = found;
            *self.tiers.entry(format!("{tier:?}")).or_default() += 1;
            let own_name = match &*own_name {
                "(anonymous)" | "(top level)" | "(eval)" => "",
                name => name,
            };
            // The map has no name for what is evaluated.
            let is_file = file == own_file || own_file.starts_with("eval at");
            if own_name == name && is_file && line == own_line {
                self.equal += 1;
            } else if self.differences.len() < 20 {
                let own = format!("{own_name} {own_file}:{own_line} {tier:?}");
                self.differences.push(format!("{own} | {name} {file}:{line}"));
            }
        }
    }
}

/// Compares frames in generated code of a program with these options, and returns their number by
/// what runs them. Interpreted functions have code of their own, too.
fn compared_with_map(version: u8, node: &Path, options: &[&str]) -> BTreeMap<String, usize> {
    let common = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    let program = NodeProgram::start(node, &[&common[..], options].concat(), &["v8_mix.js"]);
    let (mut watched, mut map) = (WatchedNode::of(&program), NodePerfMap::of(program.pid()));
    let (since, mut counts) = (Instant::now(), ComparedFrames::default());
    while counts.compared < FRAMES_MIN / 3 && since.elapsed() < TIME_MAX {
        watched.stop(|engine, frames| {
            counts.stops += 1;
            map.read();
            counts.compare(engine, &map, &program, frames);
        });
        std::thread::sleep(Duration::from_millis(3));
    }
    std::fs::remove_file(format!("/tmp/perf-{}.map", program.pid())).unwrap();
    eprintln!("Node.js {version} {options:?}: {counts:#?}");
    assert!(counts.compared > FRAMES_MIN / 12, "Node.js {version}");
    // The map keeps what is gone, so one in a hundred may differ.
    assert!(counts.equal * 100 >= counts.compared * 99, "Node.js {version}");
    counts.tiers
}

/// Compares a program that uses all compilers, one that uses none, and one that uses the simplest.
fn functions_are_those_of_the_map(version: u8) {
    let Some(node) = node(version) else { return };
    let tiers = compared_with_map(version, &node, &[]);
    assert!(tiers.contains_key("Optimized"), "Node.js {version}: {tiers:?}");
    let mut simple = vec!["--no-opt"];
    // Earlier versions are built without this compiler.
    simple.extend((version >= 22).then_some("--no-maglev"));
    for (option, tier) in [("--no-sparkplug", "Interpreted"), ("--always-sparkplug", "Baseline")] {
        let tiers = compared_with_map(version, &node, &[&simple[..], &[option]].concat());
        assert!(tiers.contains_key(tier), "Node.js {version} {option}: {tiers:?}");
    }
}

/// Returns the callers of each function of the program, by their names.
fn callers() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("leaf", &["parent", "area", "get area", "later"][..]),
        ("parent", &["longLoop"]),
        ("recursive", &["recursive", "round"]),
        ("closures", &["round"]),
        ("builtins", &["round"]),
        ("generators", &["round"]),
        ("corners", &["generators"]),
        ("proxied", &["round"]),
        ("thrown", &["round"]),
        ("longLoop", &["round"]),
        ("churned", &["round"]),
        ("compare", &["builtins"]),
        ("of", &["round", "generators"]),
        ("Shape", &["of"]),
        ("round", &["loop"]),
    ])
}

/// Names the frames of a program without any option: its functions call each other as its source
/// says, whatever is inlined.
fn callers_are_those_of_the_source(version: u8) {
    let Some(node) = node(version) else { return };
    let program = NodeProgram::start(&node, &[], &["v8_mix.js"]);
    let (mut watched, callers) = (WatchedNode::of(&program), callers());
    let (since, mut frames_seen, mut unnamed, mut wrong) = (Instant::now(), 0, 0, Vec::new());
    let mut tiers: BTreeMap<String, usize> = BTreeMap::new();
    let (mut with_line, mut inlined, mut leaves) = (0, 0, 0);
    let mut stacks = 0;
    while frames_seen < FRAMES_MIN && since.elapsed() < TIME_MAX {
        watched.stop(|engine, frames| {
            let memory = program.memory();
            let reader = engine.machine.reader(&memory);
            let mut names: Vec<NamedPosition> = Vec::new();
            for frame in frames {
                let Some(found) = engine.names(&reader, frame) else { continue };
                frames_seen += 1;
                match found {
                    Ok(found) => {
                        inlined += found.len() - 1;
                        leaves += usize::from(!frame.is_return);
                        names.extend(found);
                    }
                    // The frame pointer is the caller's where a frame begins and ends.
                    Err(_) if !frame.is_return => {}
                    Err(_) => {
                        unnamed += 1;
                        names.clear();
                    }
                }
            }
            names.retain(|it| it.file.ends_with("v8_mix.js"));
            for it in &names {
                *tiers.entry(format!("{:?}", it.tier)).or_default() += 1;
                with_line += usize::from(it.line != 0);
            }
            stacks += 1;
            for pair in names.windows(2) {
                let is_right = |known: &&[&str]| known.contains(&&*pair[1].name);
                if callers.get(&*pair[0].name).is_some_and(|it| !is_right(it)) {
                    wrong.push(format!("{:?} of {:?}", pair[0], pair[1]));
                }
            }
        });
        std::thread::sleep(Duration::from_millis(3));
    }
    let all: usize = tiers.values().sum();
    eprintln!(
        "Node.js {version}: {stacks} stacks, {leaves} with the first frame, {frames_seen} frames, \
         {unnamed} without a name, {tiers:?}, {inlined} inlined, lines of {with_line} of {all}"
    );
    assert!(wrong.is_empty(), "Node.js {version}: {wrong:#?}");
    assert!(unnamed * 100 <= frames_seen && leaves * 2 > stacks, "Node.js {version}");
    assert!(frames_seen > FRAMES_MIN / 4, "Node.js {version}");
}

/// Returns the lines of a program that say which function they call, by its name.
fn lines_of_calls(script: &str) -> BTreeMap<String, Vec<u32>> {
    let text = std::fs::read_to_string(target(script)).unwrap();
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((_, called)) = line.split_once("// calls ") {
            found.entry(called.to_owned()).or_default().push(index as u32 + 1);
        }
    }
    found
}

/// Each call of the program is on a line of its own, which the frame of the caller must have.
fn lines_are_those_of_calls(version: u8) {
    let Some(node) = node(version) else { return };
    let program = NodeProgram::start(&node, &[], &["v8_lines.js"]);
    let (mut watched, lines) = (WatchedNode::of(&program), lines_of_calls("v8_lines.js"));
    let (since, mut wrong) = (Instant::now(), BTreeMap::<String, usize>::new());
    let mut tiers: BTreeMap<String, usize> = BTreeMap::new();
    let (mut compared, mut unknown) = (0, 0);
    // The compilers follow each other, and the program starts anew.
    while compared < 4 * FRAMES_MIN && since.elapsed() < TIME_MAX {
        watched.stop(|engine, frames| {
            let memory = program.memory();
            let reader = engine.machine.reader(&memory);
            let mut names: Vec<NamedPosition> = Vec::new();
            for frame in frames {
                match engine.names(&reader, frame) {
                    Some(Ok(found)) => names.extend(found),
                    Some(Err(_)) => names.clear(),
                    None => {}
                }
            }
            names.retain(|it| it.file.ends_with("v8_lines.js"));
            for pair in names.windows(2) {
                let [called, caller] = pair else { continue };
                let Some(known) = lines.get(&called.name) else { continue };
                compared += 1;
                *tiers.entry(format!("{:?}", caller.tier)).or_default() += 1;
                // That compiler does not know where it is in a loop that it repeats.
                unknown += usize::from(caller.line == 0 && caller.tier != JsTier::Mid);
                if caller.line != 0 && !known.contains(&caller.line) {
                    *wrong.entry(format!("{called:?} of {caller:?}")).or_default() += 1;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    eprintln!("Node.js {version}: {compared} calls, {tiers:?}, {unknown} more without a line");
    assert!(wrong.is_empty(), "Node.js {version}: {wrong:#?}");
    assert!(compared > FRAMES_MIN && unknown == 0, "Node.js {version}");
    assert!(version < 24 || tiers.contains_key("Mid"), "Node.js {version}: {tiers:?}");
}

#[test]
fn lines_in_node_18_are_those_of_calls() {
    lines_are_those_of_calls(18);
}

#[test]
fn lines_in_node_20_are_those_of_calls() {
    lines_are_those_of_calls(20);
}

#[test]
fn lines_in_node_22_are_those_of_calls() {
    lines_are_those_of_calls(22);
}

#[test]
fn lines_in_node_24_are_those_of_calls() {
    lines_are_those_of_calls(24);
}

#[test]
fn functions_of_node_18_are_those_of_the_map() {
    functions_are_those_of_the_map(18);
}

#[test]
fn functions_of_node_20_are_those_of_the_map() {
    functions_are_those_of_the_map(20);
}

#[test]
fn functions_of_node_22_are_those_of_the_map() {
    functions_are_those_of_the_map(22);
}

#[test]
fn functions_of_node_24_are_those_of_the_map() {
    functions_are_those_of_the_map(24);
}

#[test]
fn callers_in_node_18_are_those_of_the_source() {
    callers_are_those_of_the_source(18);
}

#[test]
fn callers_in_node_20_are_those_of_the_source() {
    callers_are_those_of_the_source(20);
}

#[test]
fn callers_in_node_22_are_those_of_the_source() {
    callers_are_those_of_the_source(22);
}

#[test]
fn callers_in_node_24_are_those_of_the_source() {
    callers_are_those_of_the_source(24);
}
