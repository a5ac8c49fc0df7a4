//! Tests of objects in columns and back: any objects, hostile columns, real columns, and the speed.

use std::path::Path;

use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, clock_gettime};
use proptest::prelude::*;

use super::super::bytes::{put_u32, put_varint};
use super::super::codec::{Codec, SectionKind};
use super::super::frames::Frames;
use super::super::kind::Kind;
use super::super::object::{SampleFields, TracePoint};
use super::super::options::Compression;
use super::super::pack::{self, Packer};
use super::super::{
    Location, LocationId, Method, Sample, Thread, TraceWriter, WriterOptions, load,
};
use super::{COLUMNS, Columns, GROWTH, SLACK, join};

/// A number whose varint may have any length.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
}

fn number32() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0u32..32).prop_map(|(value, shift)| value >> shift)
}

fn sample() -> impl Strategy<Value = TracePoint> {
    let option = || prop::option::weighted(0.3, number());
    let tags = prop::option::weighted(0.1, any::<[Option<u32>; 10]>());
    (number(), prop::array::uniform10(option()), tags).prop_map(|(time, some, tags)| {
        let narrow = |place: usize| some[place].map(|value| value as u32);
        TracePoint::Sample(SampleFields {
            time: time as i64,
            slot: narrow(0),
            epoch: narrow(1),
            weight: narrow(2),
            end_reason: narrow(3).map(|value| value as u16),
            flags: narrow(4),
            outer: narrow(5),
            span: some[6],
            main_before: some[7],
            waits_on: narrow(8),
            root_high: some[9],
            tags,
            ..SampleFields::default()
        })
    })
}

fn object() -> impl Strategy<Value = Vec<u8>> {
    let point = prop_oneof![
        8 => number32().prop_map(|location| TracePoint::Call { location }),
        4 => sample(),
        2 => number32().prop_map(|location| TracePoint::Site { location }),
        1 => (number32(), number32())
            .prop_map(|(up, location)| TracePoint::OuterSite { up, location }),
        2 => (1..200u32, any::<bool>())
            .prop_map(|(run, unfinished)| TracePoint::Footer { run, unfinished }),
        1 => (number(), number())
            .prop_map(|(before, length)| TracePoint::Gap { before: before as i64, length }),
        1 => number().prop_map(|time_ns| TracePoint::ThreadStart { time_ns }),
    ];
    prop_oneof![
        20 => point.prop_map(|point| {
            let mut out = Vec::new();
            point.encode(&mut out);
            out
        }),
        1 => any::<u32>().prop_map(|stream| {
            let mut out = vec![Kind::BlockStart as u8];
            put_u32(&mut out, stream);
            out
        }),
        1 => Just(vec![Kind::BlockEnd as u8]),
        1 => any::<[u8; 16]>().prop_map(|fields| [&[Kind::Eof as u8], &fields[..]].concat()),
        // Additions follow objects that are not in streams.
        1 => (134..=255u8, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(kind, bytes)| {
            let mut out = vec![kind];
            put_varint(&mut out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
            out
        }),
    ]
}

fn padded(columns: &[Vec<u8>; COLUMNS]) -> [Vec<u8>; COLUMNS] {
    columns.each_ref().map(|column| [&column[..], &[0; SLACK]].concat())
}

/// Checks that splitting either fails or can be undone.
fn there_and_back(payload: &[u8]) -> Option<usize> {
    let mut columns = Columns::default();
    if !columns.split(payload) {
        return None;
    }
    assert_eq!(join(&padded(columns.all()), payload.len()).as_deref(), Ok(payload));
    for wrong in [payload.len().wrapping_sub(1), payload.len() + 1] {
        if wrong < payload.len() + 2 {
            assert!(join(&padded(columns.all()), wrong).is_err());
        }
    }
    Some(columns.all().iter().map(Vec::len).sum())
}

proptest! {
    #[test]
    fn objects_survive(objects in prop::collection::vec(object(), 0..100)) {
        let payload = objects.concat();
        let bytes = there_and_back(&payload);
        prop_assert!(bytes.is_some_and(|bytes| bytes <= payload.len() * GROWTH + COLUMNS));
    }

    #[test]
    fn what_is_cut_or_flipped_survives_or_is_refused(
        objects in prop::collection::vec(object(), 1..20),
        at in any::<prop::sample::Index>(),
        bit in 0u32..8,
    ) {
        let mut payload = objects.concat();
        let at = at.index(payload.len());
        there_and_back(&payload[..at]);
        payload[at] ^= 1 << bit;
        there_and_back(&payload);
    }

    #[test]
    fn arbitrary_payloads_survive_or_are_refused(
        payload in prop::collection::vec(prop_oneof![any::<u8>(), 15..36u8, 0..3u8], 0..200),
    ) {
        there_and_back(&payload);
    }

    #[test]
    fn arbitrary_columns_never_panic(
        columns in prop::array::uniform7(
            prop::collection::vec(prop_oneof![any::<u8>(), 0..4u8], 0..40),
        ),
        bytes in 0usize..400,
    ) {
        if let Ok(payload) = join(&padded(&columns), bytes) {
            prop_assert_eq!(payload.len(), bytes);
        }
    }

    #[test]
    fn arbitrary_sections_never_panic(
        stored in prop::collection::vec(any::<u8>(), 0..200),
        bytes in 0usize..1000,
    ) {
        if let Ok(section) = pack::unpack(Codec::Columns, &stored, bytes) {
            prop_assert_eq!(section.len(), bytes);
        }
    }

    #[test]
    fn a_damaged_section_never_panics(
        objects in prop::collection::vec(object(), 20..60),
        at in any::<prop::sample::Index>(),
        bit in 0u32..8,
    ) {
        let payload = objects.concat();
        let mut packer = Packer::new(Compression::Zstd(3)).unwrap();
        let (codec, [.., mut stored]) = packer.sections([&[], &[], &payload]).unwrap();
        prop_assert_eq!(pack::unpack(codec, &stored, payload.len()), Ok(payload.clone()));
        let at = at.index(stored.len());
        stored[at] ^= 1 << bit;
        let _ = pack::unpack(Codec::Columns, &stored, payload.len());
        let _ = pack::unpack(codec, &stored[..at], payload.len());
    }
}

#[test]
fn forms_that_a_step_cannot_represent_are_refused() {
    for payload in [
        // A TRACEPOINT_FOOTER of no calls.
        &[17, 0][..],
        // Over-long numbers.
        &[22, 0x80, 0],
        &[20, 0x80, 0, 0],
        // A sample with a field that does not exist.
        &[20, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0],
        // Kinds that do not exist here.
        &[1, 0, 0, 0, 0, 0, 0],
        &[40],
        // Objects that are cut.
        &[16],
        &[32, 0, 0],
        &[200, 2, 0],
    ] {
        assert_eq!(there_and_back(payload), None, "{payload:?}");
    }
}

#[test]
fn columns_larger_than_what_they_hold_are_refused() {
    let mut stored = Vec::new();
    for _ in 0..COLUMNS {
        put_varint(&mut stored, 1 << 20);
        put_varint(&mut stored, 0);
    }
    let error = pack::unpack(Codec::Columns, &stored, 1000).unwrap_err();
    assert_eq!(error.what, "the columns are larger than their payload can be");
}

#[test]
fn traces_are_stored_in_columns_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let method = Method::named("f");
    let method = writer.method(&method).unwrap();
    let location = |svma| Location::at(method, svma);
    let locations: Vec<_> =
        (0..300).map(|svma| writer.location(&location(svma)).unwrap()).collect();
    let thread = Thread { pid: 1, tid: 1, name: "t".into(), ..Thread::default() };
    let thread = writer.thread(&thread).unwrap();
    let number = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let stack = |n: u64| -> Vec<LocationId> {
        let depths = 0..number(n) % 20 + 1;
        depths.map(|depth| locations[number(n / 3 + depth) as usize % 300]).collect()
    };
    let sample = |n: u64| Sample {
        time_ns: 1000 * n + number(n) % 900,
        trace_id: (1 << 32) + n / 3,
        weight: 1,
        ..Sample::default()
    };
    for n in 0..20_000 {
        writer.sample(thread, &sample(n), &stack(n)).unwrap();
    }
    writer.finish().unwrap();
    let mut frames = Frames::open(&path).unwrap();
    let mut in_columns = 0;
    while let Some(frame) = frames.next_frame().unwrap() {
        in_columns += u32::from(frame.header.codec == Codec::Columns);
    }
    assert!(in_columns > 0);
    let trace = load(&path).unwrap();
    let mut n = 0;
    trace.threads[0].for_each_sample(&mut |read, own| {
        assert_eq!((read, own), (&sample(n), &stack(n)[..]));
        n += 1;
    });
    assert_eq!(n, 20_000);
}

/// `TRACE=FILE cargo test --release --lib columns::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "its output is its purpose")]
fn speed_of_a_trace_in_the_environment() {
    let path = std::env::var("TRACE").unwrap();
    let mut frames = Frames::open(Path::new(&path)).unwrap();
    let mut sections = Vec::new();
    let mut samples = 0;
    while let Some(frame) = frames.next_frame().unwrap() {
        samples += u64::from(frame.header.samples);
        sections.push(
            frame.payload[frame.header.section(SectionKind::Neutral).bytes as usize..].to_vec(),
        );
    }
    let bytes: usize = sections.iter().map(Vec::len).sum();
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    let since = |start: TimeSpec| (now() - start).num_nanoseconds() as f64;
    let show = |what: &str, ns: f64| {
        let mb = bytes as f64 * 1e3 / ns;
        println!("{what:<8} {:>6.1} ns a sample, {mb:>6.0} MB/s of objects", ns / samples as f64);
    };
    let mut packer = Packer::new(Compression::Zstd(3)).unwrap();
    let mut columns = Columns::default();
    let (mut split_ns, mut pack_ns, mut unpack_ns, mut join_ns) = (0.0, 0.0, 0.0, 0.0);
    for points in &sections {
        let start = now();
        assert!(columns.split(points));
        split_ns += since(start);
        let start = now();
        let (codec, [.., stored]) = packer.sections([&[], &[], points]).unwrap();
        pack_ns += since(start);
        let start = now();
        let back = pack::unpack(codec, &stored, points.len());
        unpack_ns += since(start);
        assert_eq!(back.as_ref(), Ok(points));
        let padded = padded(columns.all());
        let start = now();
        let back = join(&padded, points.len());
        join_ns += since(start);
        assert_eq!(back.as_ref(), Ok(points));
    }
    show("split", split_ns);
    show("pack", pack_ns);
    show("join", join_ns);
    show("unpack", unpack_ns);
}
