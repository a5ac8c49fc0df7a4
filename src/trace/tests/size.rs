//! How large a trace is.

use super::*;

/// Numbers that look random and are the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Small numbers mostly: halves the range again and again.
    fn skewed(&mut self, limit: u64) -> u64 {
        let bits = self.below(u64::from(limit.ilog2()) + 1);
        self.below(2 << bits).min(limit - 1)
    }
}

/// Prints bytes per sample of 200,000 samples of eight threads: depth around 15, 4,000 methods,
/// 20,000 addresses, stacks that change by a random walk, microseconds of jitter, trace ids of
/// hashed slots that change with the epoch.
/// `cargo test --release --lib bytes_per_sample -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the measurement is what it prints")]
fn bytes_per_sample() {
    for (name, address_limit, change_percent) in
        [("changing", 20_000, 95), ("repetitive", 2_000, 30)]
    {
        let (mut writer, _, _) = memory_writer(WriterOptions::default());
        writer.set_metadata("period_ns", Value::Unsigned(5_025_125)).unwrap();
        let mut ids = Vec::new();
        for n in 0..address_limit {
            let method = Method {
                module: None,
                name: format!("some::module::Type<{}>::method_{n}", n / 50),
                start_svma: n / 5 * 320,
            };
            let method = Method { name: method.name.replace(&n.to_string(), ""), ..method };
            let method = writer.method(&method).unwrap();
            let svma = n / 5 * 320 + n % 5 * 20;
            let file = Some(format!("/src/module{}/file.rs", n / 100));
            let location = Location { method, svma, file, line: n as u32, inline_parent: None };
            ids.push(writer.location(&location).unwrap());
        }
        let symbols = {
            writer.flush().unwrap();
            let (data, index) = writer.bytes_written();
            data + index
        };
        let threads: Vec<_> = (0..8).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
        let mut random = Random(7);
        let mut stacks = vec![vec![ids[0]; 3]; threads.len()];
        let mut traces = std::collections::HashMap::new();
        let samples = 200_000u64;
        let start = std::time::Instant::now();
        let mut spent = std::time::Duration::ZERO;
        for round in 0..samples / threads.len() as u64 {
            for (thread, stack) in threads.iter().zip(&mut stacks) {
                if random.below(100) < change_percent {
                    let keep = stack.len().saturating_sub(random.skewed(16) as usize + 1).max(1);
                    stack.truncate(keep);
                    let parent = u64::from(stack[keep - 1].0);
                    let mut at = parent;
                    for _ in 0..random.below(30u64.saturating_sub(keep as u64)) {
                        // A method calls few others, from few places.
                        let callee = at.wrapping_mul(0x9e37_79b9) + random.skewed(8);
                        at = Random(callee).below(address_limit);
                        stack.push(ids[at as usize]);
                    }
                }
                // A new epoch every second: 199 rounds.
                let epoch = round / 199 + 1;
                let slot =
                    *traces.entry((epoch, stack.clone())).or_insert_with(|| random.below(1 << 16));
                let jitter = random.skewed(1 << 17);
                let time_ns = 1 << 45 | round * 5_025_125 + jitter;
                let sample = Sample { trace_id: epoch << 32 | slot, ..sample(time_ns) };
                let begin = std::time::Instant::now();
                writer.sample(*thread, &sample, stack).unwrap();
                spent += begin.elapsed();
            }
            if round % 199 == 0 {
                let begin = std::time::Instant::now();
                writer.flush().unwrap();
                spent += begin.elapsed();
            }
        }
        let written = writer.finish().unwrap();
        let total = written.data_bytes + written.index_bytes;
        let per_sample = |bytes: u64| bytes as f64 / samples as f64;
        println!(
            "{name}: {:.2} B/sample with symbols, {:.2} without, index {:.2}, {:.0} ns/sample (of {:?})",
            per_sample(total),
            per_sample(total - symbols),
            per_sample(written.index_bytes),
            spent.as_nanos() as f64 / samples as f64,
            start.elapsed(),
        );
    }
}
