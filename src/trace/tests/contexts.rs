//! Tests of sample contexts: read as written, shown, kept by a recovery, and nearly free while
//! unchanged.

use super::size::{Random, symbols, walk};
use super::*;
use crate::trace::fuzz_entry;
use crate::trace::object::{SampleFields, TracePoint};

const SAMPLES: u64 = 20_000;

/// Returns `sample` with a complete context of a span.
fn in_span(number: u64, sample: Sample) -> Sample {
    // As random as real ids.
    let word = |place: u64| Random(number * 100 + place).below(u64::MAX);
    let mut tags = [0; 10];
    for (place, tag) in tags.iter_mut().enumerate() {
        *tag = word(10 + place as u64) as u32 | 1;
    }
    let (span, root_span, root_high) = (word(1), word(2), word(3));
    Sample { span, root_span, root_high, tags, ..sample }
}

/// Returns the size in bytes of the trace of four threads, flushed every second. Each span covers
/// `span_samples` samples of a thread; with `None` there is no context.
fn size_with(span_samples: Option<u64>, compress: Compression) -> usize {
    const THREADS: u64 = 4;
    let options = WriterOptions { compress, ..WriterOptions::default() };
    let (mut writer, memory, _) = memory_writer(options);
    writer.set_metadata("period_ns", Value::Unsigned(5_025_125)).unwrap();
    let ids = symbols(&mut writer, 2_000);
    let threads: Vec<_> =
        (0..THREADS as u32).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
    let mut random = Random(7);
    let mut stacks = vec![vec![ids[0]; 3]; threads.len()];
    for round in 0..SAMPLES / THREADS {
        for (place, (thread, stack)) in threads.iter().zip(&mut stacks).enumerate() {
            walk(stack, &mut random, &ids);
            let sample = sample((1 << 45) + round * 5_025_125 + random.skewed(1 << 17));
            let sample = match span_samples {
                Some(samples) => in_span(round / samples * THREADS + place as u64, sample),
                None => sample,
            };
            writer.sample(*thread, &sample, stack).unwrap();
        }
        if round % 199 == 198 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap();
    memory.bytes().len()
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures are worth a line")]
fn an_unchanged_context_costs_under_half_a_byte_per_sample() {
    for compress in [Compression::None, Compression::Zstd(3)] {
        let without = size_with(None, compress);
        let [unchanged, changing] = [u64::MAX, 100].map(|samples| {
            (size_with(Some(samples), compress) as f64 - without as f64) / SAMPLES as f64
        });
        println!("{compress:?}: {unchanged:.3} bytes a sample; a span each 100: {changing:.3}");
        assert!(unchanged < 0.5, "{compress:?}: {unchanged}");
        // About 110 bytes per span, of which the ids are 24 and the tags 40.
        assert!((0.5..1.7).contains(&changing), "{compress:?}: {changing}");
    }
}

#[test]
fn a_context_is_read_as_it_was_written_and_shown_when_it_changes() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let id = writer.thread(&thread(1)).unwrap();
    let route = writer.text("checkout").unwrap();
    let (key, value) = TagKey::metadata(&[
        TagKey { name: "count".into(), kind: TagKind::Number },
        TagKey { name: "route".into(), kind: TagKind::Text },
    ]);
    writer.set_metadata(key, value).unwrap();
    let tags = [7, route.0 + 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let wide = Sample { span: 1, root_span: u64::MAX, root_high: u64::MAX - 1, tags, ..sample(1) };
    let narrow = Sample { root_high: 0, time_ns: 3, ..wide.clone() };
    let expected = [
        wide.clone(),
        Sample { time_ns: 2, ..wide.clone() },
        narrow,
        sample(4),
        Sample { time_ns: 5, ..wide },
    ];
    for sample in &expected {
        writer.sample(id, sample, &[]).unwrap();
    }
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    let read = samples_of(&trace.threads[0]);
    assert_eq!(read.into_iter().map(|(sample, _)| sample).collect::<Vec<_>>(), expected);
    assert_eq!(trace.texts, [(route, "checkout".to_owned())].into());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, data.bytes()).unwrap();
    let objects: Vec<_> = dump_objects(&path).unwrap().map(Result::unwrap).collect();
    let shown = |name: &str| -> Vec<FieldValue> {
        let fields = objects.iter().flat_map(|object| &object.fields);
        fields.filter(|(field, _)| *field == name).map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(shown("root_high"), [u64::MAX - 1, 0, u64::MAX - 1].map(FieldValue::from));
    assert_eq!(shown("span"), [1u64, 0, 1].map(FieldValue::from));
    assert_eq!(shown("tags").len(), 3);
}

/// A sample with only known fields, and one with a field of a later version.
#[test]
fn a_later_field_after_the_root_is_skipped() {
    let fields = SampleFields { time: 1, root_high: Some(300), ..Default::default() };
    let mut known = Vec::new();
    TracePoint::Sample(fields).encode(&mut known);
    // Kind, presence, time, root_high.
    assert_eq!(known, [20, 0x80, 0x40, 2, 0xac, 2]);
    let later = [&[20, 0x80, 0xc0, 1, 2, 0xac, 2][..], &[0xff, 1]].concat();
    let mut neutral = Vec::new();
    for object in
        [crate::trace::object::Neutral::String { id: 0, text: "main".into() }, first_thread()]
    {
        object.encode(&mut neutral);
    }
    for points in [known, later] {
        let content = [&[neutral.len() as u8, points.len() as u8], &neutral[..], &points].concat();
        let trace = load_bytes(&fuzz_entry::build_file(&content)).unwrap();
        let samples = samples_of(&trace.threads[0]);
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].0.root_high, samples[0].0.time_ns), (300, 1));
    }
}

#[test]
fn recovery_keeps_the_texts_of_tags() {
    let options = WriterOptions { frame_bytes: 1, ..WriterOptions::default() };
    let (mut writer, data, _) = memory_writer(options);
    let (key, value) = TagKey::metadata(&[TagKey { name: "route".into(), kind: TagKind::Text }]);
    let id = writer.thread(&thread(1)).unwrap();
    let routes = ["/a", "/b", "/c"].map(|text| writer.text(text).unwrap());
    for (number, route) in (0..).zip(routes.into_iter().chain([TextId(77)])) {
        let tags = [route.0 + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        writer.sample(id, &Sample { span: 1, tags, ..sample(number) }, &[]).unwrap();
        writer.flush().unwrap();
    }
    writer.set_metadata(key, value).unwrap();
    writer.finish().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tag_texts_of = |bytes: &[u8], name: &str| -> Vec<String> {
        let (input, output) = (dir.path().join(name), dir.path().join(format!("{name}.out")));
        std::fs::write(&input, bytes).unwrap();
        recover(&input, &output, WriterOptions::default()).unwrap();
        let trace = LazyTrace::open(&output).unwrap();
        let mut texts = Vec::new();
        let mut add = |_, sample: &Sample, _: &[LocationId]| {
            texts.push(trace.tag_text(TextId(sample.tags[0] - 1)).unwrap());
        };
        trace.for_each_sample(&Window::default(), &mut add).unwrap();
        texts
    };
    let whole = data.bytes();
    assert_eq!(tag_texts_of(&whole, "whole"), ["/a", "/b", "/c", "[lost]"]);
    // The frame of "/a" and all earlier frames are lost, so the others have other ids.
    let text = whole.windows(4).rposition(|bytes| bytes == b"\0\x02/b").unwrap();
    let mut damaged = whole;
    damaged[200..text - 150].fill(0x55);
    let left = tag_texts_of(&damaged, "damaged");
    assert!(left.ends_with(&["/c".into(), "[lost]".into()]) && left[0] == "[lost]", "{left:?}");
}
