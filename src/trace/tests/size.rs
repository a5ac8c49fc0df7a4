//! Tests of the size of a trace.

use super::*;

/// Pseudo-random numbers that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns mostly small numbers: halves the range repeatedly.
    pub(super) fn skewed(&mut self, limit: u64) -> u64 {
        let bits = self.below(u64::from(limit.ilog2()) + 1);
        self.below(2 << bits).min(limit - 1)
    }
}

/// Writes `count` locations in a fifth as many methods.
pub(super) fn symbols(writer: &mut TraceWriter, count: u64) -> Vec<LocationId> {
    let mut ids = Vec::new();
    for n in 0..count {
        let name = format!("some::module{}::Type::method_{}", n / 50, n / 5);
        let method = Method { module: None, name, start_svma: n / 5 * 320, ..Method::default() };
        let method = writer.method(&method).unwrap();
        let svma = n / 5 * 320 + n % 5 * 20;
        let file = Some(format!("/src/module{}/file.rs", n / 100));
        let location = Location { file, line: n as u32, ..Location::at(method, svma) };
        ids.push(writer.location(&location).unwrap());
    }
    ids
}

/// Leaves some calls of a stack and enters others: a method calls few others, from few locations.
pub(super) fn walk(stack: &mut Vec<LocationId>, random: &mut Random, ids: &[LocationId]) {
    let left = random.skewed(16) as usize + 1;
    stack.truncate(stack.len().saturating_sub(left).max(1));
    let mut at = stack.last().map_or(0, |location| u64::from(location.0));
    for _ in 0..random.below(30u64.saturating_sub(stack.len() as u64)) {
        let callee = at.wrapping_mul(0x9e37_79b9) + random.skewed(8);
        at = Random(callee).below(ids.len() as u64);
        stack.push(ids[at as usize]);
    }
}

/// Prints the bytes per sample of 200,000 samples of eight threads that are flushed every second.
/// The stacks change by a random walk over thousands of addresses, the jitter is up to 131
/// microseconds, and the trace ids are hashed slots that change with the epoch.
/// `cargo test --release --lib bytes_per_sample -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the measurement is what it prints")]
fn bytes_per_sample() {
    const SAMPLES: u64 = 200_000;
    const PERIOD_NS: u64 = 5_025_125;
    let traces = [
        ("changing", 20_000, 95, true),
        ("changing, no trace ids", 20_000, 95, false),
        ("repetitive", 2_000, 30, true),
        ("repetitive, no trace ids", 2_000, 30, false),
    ];
    for (name, addresses, change_percent, trace_ids) in traces {
        let options = WriterOptions { trace_ids, ..WriterOptions::default() };
        let (mut writer, memory, _) = memory_writer(options);
        writer.set_metadata("period_ns", Value::Unsigned(PERIOD_NS)).unwrap();
        let ids = symbols(&mut writer, addresses);
        writer.flush().unwrap();
        let (data, index) = writer.bytes_written();
        let threads: Vec<_> = (0..8).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
        let mut random = Random(7);
        let mut stacks = vec![vec![ids[0]; 3]; threads.len()];
        let mut slots = std::collections::HashMap::new();
        let mut depths = 0;
        let mut spent = std::time::Duration::ZERO;
        for round in 0..SAMPLES / threads.len() as u64 {
            for (thread, stack) in threads.iter().zip(&mut stacks) {
                if random.below(100) < change_percent {
                    walk(stack, &mut random, &ids);
                }
                depths += stack.len();
                let epoch = round / 199 + 1;
                let new_slot = random.below(1 << 16);
                let slot = *slots.entry((epoch, stack.clone())).or_insert(new_slot);
                let time_ns = (1 << 45) + round * PERIOD_NS + random.skewed(1 << 17);
                let sample = Sample { trace_id: (epoch << 32) + slot, ..sample(time_ns) };
                let begin = std::time::Instant::now();
                writer.sample(*thread, &sample, stack).unwrap();
                if round % 199 == 198 && thread.0 == 7 {
                    writer.flush().unwrap();
                }
                spent += begin.elapsed();
            }
        }
        let written = writer.finish().unwrap();
        let per_sample = |number: u64| number as f64 / SAMPLES as f64;
        println!(
            "{name}: depth {:.1}, data {:.2} + symbols {:.2} + index {:.2} = {:.2} B/sample, {:.0} \
             ns/sample",
            per_sample(depths as u64),
            per_sample(written.data_bytes - data),
            per_sample(data + index),
            per_sample(written.index_bytes - index),
            per_sample(written.data_bytes + written.index_bytes),
            per_sample(spent.as_nanos() as u64),
        );
        let bytes = memory.bytes();
        let begin = std::time::Instant::now();
        let trace = load_bytes(&bytes).unwrap();
        println!("{name}: loaded in {:.0?}, {} threads", begin.elapsed(), trace.threads.len());
    }
}
