//! Tests of recovery and verification, on files.

use std::fs;

use proptest::prelude::*;

use super::crash::{all, small_trace};
use super::roundtrip::{any_step, write};
use super::*;

fn options() -> WriterOptions {
    WriterOptions {
        force: true,
        durability: Durability::None,
        salt: Some(0x5a17),
        ..Default::default()
    }
}

/// Recovers the bytes of a data file. Returns the recovered trace and the outcome.
fn recover_bytes(dir: &Path, bytes: &[u8]) -> (LoadedTrace, Recovered) {
    let (input, output) = (dir.join("in.trace"), dir.join("out.trace"));
    fs::write(&input, bytes).unwrap();
    let recovered = recover(&input, &output, options()).unwrap();
    assert_eq!(fs::read(&input).unwrap(), bytes);
    let verification = verify(&output).unwrap();
    assert_eq!(verification.state(), FileState::Clean);
    assert_eq!(verification.index, IndexState::Sound);
    assert_eq!(verification.samples, recovered.samples);
    (load(&output).unwrap(), recovered)
}

/// Prints a thread's forest, with gaps and losses printed alike and without ends.
fn without_ends(thread: &ThreadTrace) -> String {
    fn print(node: Node<'_>, out: &mut String) {
        match node {
            Node::Call(call) => {
                // A call whose samples are lost has no times.
                let known = call.samples() > 0;
                let times = known.then_some((call.first_ns(), call.last_ns()));
                *out += &format!("{:?}{times:?}x{}(", call.location(), call.samples());
                call.children().for_each(|child| print(child, out));
                out.push(')');
            }
            Node::Gap { .. } | Node::Lost { .. } => out.push('~'),
            other => *out += &format!("{other:?}"),
        }
    }
    let mut out = String::new();
    thread.roots().for_each(|root| print(root, &mut out));
    out
}

/// Checks that the recovered trace has everything that an eager load of the damaged one has.
fn check(dir: &Path, damaged: &[u8], what: &str) {
    let expected = load_bytes(damaged).unwrap();
    let (trace, recovered) = recover_bytes(dir, damaged);
    assert!(trace.closed && trace.losses.is_empty() && trace.notices.is_empty(), "{what}");
    assert_eq!(recovered.losses, expected.losses, "{what}");
    let lossy = !expected.losses.is_empty();
    if lossy {
        // Ids may differ where names are lost.
        let counts = |trace: &LoadedTrace| {
            trace.threads.iter().map(ThreadTrace::sample_count).collect::<Vec<_>>()
        };
        assert_eq!(counts(&trace), counts(&expected), "{what}");
    } else {
        assert_eq!(all(&trace), all(&expected), "{what}");
    }
    let objects_lost = expected.losses.iter().any(|loss| loss.thread.is_none());
    if !objects_lost {
        for (thread, expected) in trace.threads.iter().zip(&expected.threads) {
            assert_eq!(thread.thread(), expected.thread(), "{what}");
            assert_eq!(without_ends(thread), without_ends(expected), "{what}");
        }
        assert_eq!(trace.locations, expected.locations, "{what}");
    }
    let origin = trace.metadata.get("recovered_from");
    assert_eq!(origin.is_some(), recovered.was != FileState::Clean, "{what}");
    let lost: u64 = expected.losses.iter().filter_map(|loss| loss.samples).sum();
    if recovered.was != FileState::Clean {
        let said = trace.metadata.get("recovered_lost_samples");
        assert_eq!(said, Some(&Value::Unsigned(lost)), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn a_complete_trace_is_recovered_unchanged(
        steps in prop::collection::vec(any_step(), 0..100),
        frame_bytes in prop_oneof![Just(1usize), 20usize..400, Just(256 << 10)],
        plain in any::<bool>(),
        collect in any::<bool>(),
        with_ids in prop::collection::vec((2u64..9, 0u32..3), 0..4),
    ) {
        let compress = if plain { Compression::None } else { Compression::Zstd(1) };
        let mode = if collect { WriteMode::Collect } else { WriteMode::Streaming };
        let options = WriterOptions {
            frame_bytes, compress, mode, buffer_bytes: 3000, ..WriterOptions::default()
        };
        let (mut writer, data, _) = memory_writer(options);
        writer.set_metadata("period_ns", Value::Unsigned(1000)).unwrap();
        write(&mut writer, &steps);
        for (trace_id, root) in with_ids {
            let trace = CallTrace { trace_id, stack: vec![LocationId(root)], end_reason: 0 };
            writer.call_trace(&trace).unwrap();
        }
        writer.finish().unwrap();
        let whole = load_bytes(&data.bytes()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (trace, recovered) = recover_bytes(dir.path(), &data.bytes());
        prop_assert_eq!(recovered.was, FileState::Clean);
        prop_assert_eq!(outline(&trace), outline(&whole));
        prop_assert_eq!(trace.call_traces.len(), whole.call_traces.len());
    }

    #[test]
    fn a_damaged_trace_is_recovered_as_far_as_it_is_readable(
        steps in prop::collection::vec(any_step(), 20..120),
        frame_bytes in prop_oneof![Just(1usize), 20usize..400],
        holes in prop::collection::vec((any::<prop::sample::Index>(), 1usize..300), 1..4),
    ) {
        let options = WriterOptions {
            frame_bytes, compress: Compression::None, buffer_bytes: 3000, ..WriterOptions::default()
        };
        let (mut writer, data, _) = memory_writer(options);
        writer.set_metadata("period_ns", Value::Unsigned(1000)).unwrap();
        write(&mut writer, &steps);
        writer.finish().unwrap();
        let mut bytes = data.bytes();
        let last = bytes.len();
        for (place, length) in &holes {
            let start = HEADER_BYTES + place.index(last - HEADER_BYTES);
            bytes[start..last.min(start + length)].fill(0);
        }
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), &bytes, "with holes");
    }
}

#[test]
fn any_truncation_is_recovered() {
    let (data, _, ends) = small_trace(Compression::Zstd(3));
    let dir = tempfile::tempdir().unwrap();
    let mut places: Vec<_> = (HEADER_BYTES..data.len()).step_by(37).collect();
    places.extend(ends.iter().flat_map(|(end, _)| [end - 1, *end, end + 1]));
    for len in places {
        check(dir.path(), &data[..len], &format!("{len} bytes"));
    }
}

#[test]
fn a_trace_without_any_of_its_frames_is_recovered() {
    let (data, _, ends) = small_trace(Compression::None);
    let dir = tempfile::tempdir().unwrap();
    let begins = std::iter::once(HEADER_BYTES).chain(ends.iter().map(|(end, _)| *end));
    for begin in begins {
        let mut damaged = data.clone();
        damaged[begin + 40] ^= 0xff;
        check(dir.path(), &damaged, &format!("without the frame at {begin}"));
    }
}

#[test]
fn the_input_is_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (data, _, _) = small_trace(Compression::Zstd(3));
    let input = dir.path().join("in.trace");
    fs::write(&input, &data).unwrap();
    let (hard, soft) = (dir.path().join("hard"), dir.path().join("soft"));
    fs::hard_link(&input, &hard).unwrap();
    std::os::unix::fs::symlink(&input, &soft).unwrap();
    let mut index_of_other = dir.path().join("other").into_os_string();
    index_of_other.push(".idx");
    fs::hard_link(&input, &index_of_other).unwrap();
    for output in [&input, &hard, &soft, &dir.path().join("other")] {
        let error = recover(&input, output, options()).unwrap_err();
        assert!(matches!(error, TraceError::SameFile { .. }), "{error}");
        assert!(error.is_output_error());
        assert_eq!(fs::read(&input).unwrap(), data);
    }
    let existing = dir.path().join("existing");
    fs::write(&existing, "precious").unwrap();
    let keep = WriterOptions { force: false, ..options() };
    assert!(matches!(recover(&input, &existing, keep), Err(TraceError::Exists { .. })));
    assert!(recover(&dir.path().join("none"), &existing, options()).is_err());
    assert_eq!(fs::read(&existing).unwrap(), b"precious");
}

#[test]
fn verification_tells_the_states_of_data_and_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let index_path = dir.path().join("a.trace.idx");
    let (data, journal, ends) = small_trace(Compression::Zstd(3));
    let check = |data: &[u8], index: Option<&[u8]>| {
        fs::write(&path, data).unwrap();
        match index {
            Some(index) => fs::write(&index_path, index).unwrap(),
            None => drop(fs::remove_file(&index_path)),
        }
        let verification = verify(&path).unwrap();
        assert_eq!(verification.bytes, data.len() as u64);
        (verification.state(), verification.index)
    };
    assert_eq!(check(&data, Some(&journal)), (FileState::Clean, IndexState::Sound));
    assert_eq!(check(&data, None), (FileState::Clean, IndexState::Missing));
    let last = ends[3].0;
    assert_eq!(check(&data[..last], None), (FileState::Unfinished, IndexState::Missing));
    let (state, index) = check(&data[..last], Some(&journal[..journal.len() - 100]));
    assert_eq!(state, FileState::Unfinished);
    assert!(matches!(index, IndexState::Journal | IndexState::Broken(_)), "{index:?}");
    let mut damaged = data.clone();
    damaged[ends[0].0 + 200] ^= 1;
    let (state, index) = check(&damaged, Some(&journal));
    assert_eq!(state, FileState::Lossy);
    assert!(matches!(index, IndexState::Broken(_)), "{index:?}");
    // An index that matches the data.
    reindex(&path, false).unwrap();
    let repaired = fs::read(&index_path).unwrap();
    assert_eq!(check(&damaged, Some(&repaired)), (FileState::Lossy, IndexState::Sound));
    assert!(matches!(check(&data, Some(&repaired)).1, IndexState::Broken(_)));
    let (state, index) = check(&data, Some(b"garbage"));
    assert_eq!(state, FileState::Clean);
    assert!(matches!(index, IndexState::Broken(_)), "{index:?}");
    fs::write(&path, b"nothing").unwrap();
    assert!(matches!(verify(&path), Err(TraceError::NotATrace { .. })));
}
