//! Compiled code, compared with the machine's own lists.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use super::machines::{JavaProgram, folded, machines};
use crate::runtime::Gone;
use crate::runtime::java::{BlobKind, CodeScan, CompiledCode, JavaReader, ScanBudget, ScanDepth};

/// A compilation, as the machine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    compile_id: u32,
    level: u8,
    /// Class, name and signature.
    method: String,
    /// Where the blob starts, where its code starts, and where that ends.
    addresses: [u64; 3],
}

fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Reads a line of `Compiler.codelist`.
fn listed(line: &str) -> Option<Listed> {
    let (before, addresses) = line.trim().strip_suffix(']')?.split_once(" [")?;
    let mut words = before.splitn(4, ' ');
    let (id, level, _state, method) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (start, code) = addresses.split_once(',')?;
    let (code_start, code_end) = code.split_once(" - ")?;
    Some(Listed {
        compile_id: id.parse().ok()?,
        level: level.parse().ok()?,
        method: folded(method),
        addresses: [address(start)?, address(code_start)?, address(code_end)?],
    })
}

fn found(reader: &JavaReader<'_>, avma: u64) -> Option<Result<CompiledCode, Gone>> {
    let blob = reader.blob_at(avma)?;
    assert!(blob.code.contains(&avma) || blob.start <= avma);
    matches!(blob.kind, BlobKind::Compiled | BlobKind::NativeWrapper)
        .then(|| reader.compiled(&blob))
}

fn own_method(code: &CompiledCode) -> String {
    let own = code.at(0);
    let method = own.last().unwrap().method.unwrap();
    format!("{}{}", method.full_name(), method.signature)
}

#[test]
fn compiled_methods_are_those_that_the_machine_lists() {
    // Java 8 has no such list.
    for (version, launcher) in machines().into_iter().filter(|(version, _)| *version > 8) {
        let program = JavaProgram::start(&launcher, &[], 1500);
        let (machine, ..) = program.machine();
        assert!(machine.label.starts_with(&format!("Java {version}.")), "{}", machine.label);
        let list = || program.asked("jcmd", &["Compiler.codelist"]);
        let before: Vec<Listed> = list().lines().filter_map(listed).collect();
        let memory = program.memory();
        let reader = machine.now(&memory);
        let ours: Vec<_> = before
            .iter()
            .map(|it| {
                let [start, code, end] = it.addresses;
                let at = [code, code + (end - code) / 2, end - 1];
                (start, at.map(|avma| found(&reader, avma)))
            })
            .collect();
        let after: Vec<Listed> = list().lines().filter_map(listed).collect();
        let mut compared = 0;
        let mut inlined = 0;
        for (listed, (start, ours)) in before.iter().zip(ours) {
            // The request itself makes the machine compile, and free what it replaces.
            if !after.contains(listed) {
                continue;
            }
            for code in ours {
                let code = code.unwrap().unwrap();
                let known = (code.identity.compile_id, code.identity.level, code.blob.start);
                assert_eq!(known, (listed.compile_id, listed.level, start), "{listed:?}");
                assert_eq!(own_method(&code), listed.method, "Java {version}");
                assert_eq!(code.blob.code.start, listed.addresses[1], "{listed:?}");
                let all = code.blob.code.clone();
                inlined += usize::from(all.step_by(8).any(|avma| code.at(avma).len() > 1));
            }
            compared += 1;
        }
        eprintln!("Java {version}: {compared} of {} compilations are equal", before.len());
        assert!(compared > 40 && compared * 10 > before.len() * 9 && inlined > 3, "{inlined}");
    }
}

/// Returns the value of an attribute.
fn attribute<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split_once(&format!(" {name}='"))?.1.split('\'').next()
}

/// The log of compilations is the only list of Java 8.
#[test]
fn compiled_methods_are_those_that_the_machine_logs() {
    for (version, launcher) in machines() {
        let options =
            ["-XX:+UnlockDiagnosticVMOptions", "-XX:+LogCompilation", "-XX:LogFile=log.xml"];
        let program = JavaProgram::start(&launcher, &options, 1500);
        let (machine, ..) = program.machine();
        let log = std::fs::read(program.folder().join("log.xml")).unwrap();
        let log = String::from_utf8_lossy(&log).into_owned();
        let mut latest: HashMap<u64, (u32, String)> = HashMap::new();
        // The machine may be in the middle of the last line.
        let is_whole = |line: &&str| line.starts_with("<nmethod ") && line.ends_with("/>");
        for line in log.lines().filter(is_whole) {
            let value = |name| attribute(line, name);
            let [Some(id), Some(at), Some(method)] = ["compile_id", "address", "method"].map(value)
            else {
                continue;
            };
            let method = method.replace("&lt;", "<").replace("&gt;", ">");
            let mut words = method.split(' ');
            let [class, name] = [words.next().unwrap(), words.next().unwrap()];
            let method = folded(&format!("{class}.{name}")).replace('/', ".");
            latest.insert(address(at).unwrap(), (id.parse().unwrap(), method));
        }
        let (memory, mut compared) = (program.memory(), 0);
        let reader = machine.now(&memory);
        for (at, (id, method)) in &latest {
            // The log has the start of the blob, before its code.
            let Some(code) = found(&reader, *at) else { continue };
            let code = code.unwrap();
            if code.blob.start == *at && code.identity.compile_id == *id {
                let own = code.at(0).last().unwrap().method.unwrap().full_name();
                assert_eq!(own, *method, "Java {version}");
                compared += 1;
            }
        }
        eprintln!("Java {version}: {compared} of {} logged compilations are equal", latest.len());
        assert!(compared > 40 && compared * 10 > latest.len() * 7);
    }
}

#[test]
fn other_blobs_have_their_kinds() {
    for (version, launcher) in machines() {
        let one_heap = &["-XX:-SegmentedCodeCache"][..usize::from(version > 8)];
        let program = JavaProgram::start(&launcher, one_heap, 500);
        let (machine, ..) = program.machine();
        assert_eq!(machine.code.len(), 1, "one heap");
        let memory = program.memory();
        let reader = machine.now(&memory);
        let mut kinds: HashMap<BlobKind, HashSet<u64>> = HashMap::new();
        let heap = machine.code[0].clone();
        for at in (heap.start..heap.end.min(heap.start + (4 << 20))).step_by(256) {
            let Some(blob) = reader.blob_at(at) else { continue };
            assert!(blob.start <= blob.code.start && blob.code.end > blob.start, "{blob:?}");
            assert!(blob.frame_words < 1 << 12, "{blob:?}");
            kinds.entry(blob.kind).or_default().insert(blob.start);
        }
        let kinds: HashMap<BlobKind, usize> =
            kinds.into_iter().map(|(kind, blobs)| (kind, blobs.len())).collect();
        eprintln!("Java {version}: {kinds:?}");
        for kind in [BlobKind::Interpreter, BlobKind::Compiled, BlobKind::NativeWrapper] {
            assert!(kinds.contains_key(&kind), "{kind:?}");
        }
        assert_eq!(kinds[&BlobKind::Interpreter], 1);
        assert!(kinds[&BlobKind::Stub] > 20 && kinds[&BlobKind::Adapter] > 20);
        assert_eq!(reader.blob_at(machine.code[0].end), None);
        assert_eq!(reader.blob_at(0), None);
    }
}

/// A machine makes few functions for polls, and threads are in them for moments only.
#[test]
fn functions_of_polls_lead_to_the_polls() {
    for (version, launcher) in machines() {
        let program = JavaProgram::start(&launcher, &[], 0);
        let ((machine, ..), memory) = (program.machine(), program.memory());
        let (mut scan, mut polls) = (CodeScan::default(), HashSet::new());
        let time = Duration::from_secs(1);
        let budget = ScanBudget { blocks: 1 << 16, instructions: 1 << 22, time, ahead: time };
        // The machine may go on to generate code meanwhile.
        for _ in 0..200 {
            let changes = scan.scan(&machine, &memory, ScanDepth::Maps, budget);
            // Functions of C1 that go on at a handler were called, and so begin with another rule.
            let is_poll = |rows: &[(u32, Rule)]| {
                let mut ops = rows.iter().map(|(_, rule)| rule.op);
                let is_called = ops.next().is_some_and(|it| it != op::BAD && it != op::SP_INJECTED);
                !is_called && ops.any(|it| it == op::SP_INJECTED)
            };
            let found = changes.added.iter().filter(|code| is_poll(&code.rows));
            polls.extend(found.map(|code| code.start));
            if !changes.has_news {
                break;
            }
        }
        // One of them keeps wide registers, if there are any.
        assert!((1..=2).contains(&polls.len()), "Java {version}: {polls:x?}");
    }
}
