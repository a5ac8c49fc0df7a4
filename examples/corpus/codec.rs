//! The format of a corpus on disk.
//!
//! A file is one zstd frame of varints (LEB128), column after column. Differences are zigzag
//! varints. `n?` is 0 for none, else the number plus 1.
//!
//! | part | columns |
//! |---|---|
//! | head | 8 bytes of magic, period in ns, number of modules |
//! | methods | count; module?; start (difference to the previous one) |
//! | locations | count; method (difference); svma (difference); file?; line (difference); distance to the inline parent, which comes before this location, 0 for none |
//! | paths | count; distance to the parent, which comes before this path, 0 for a root; location |
//! | threads | count; per thread: begin in ns, count of samples, then the columns of its samples |
//! | samples | ns since the previous one; path? (difference); slot?, none if it is that of the thread's last sample with this path; epoch (difference); weight; end reason; flags |
//!
//! # Invariants
//! - What `decode` returns has no dangling reference, and no parent comes after its child.

use std::collections::HashMap;

use super::{Corpus, Location, Method, Sample, Step, Thread};

const MAGIC: &[u8; 8] = b"TPSTACK1";

/// Encodes an optional number.
fn optional(number: Option<u32>) -> u64 {
    number.map_or(0, |number| u64::from(number) + 1)
}

#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn column(&mut self, values: impl Iterator<Item = u64>) {
        values.for_each(|value| self.number(value));
    }

    /// Writes the differences of consecutive values.
    fn differences(&mut self, values: impl Iterator<Item = u64>) {
        let mut before = 0u64;
        for value in values {
            let difference = value.wrapping_sub(before) as i64;
            self.number((difference << 1 ^ difference >> 63) as u64);
            before = value;
        }
    }
}

/// Returns the bytes of a corpus, not compressed.
pub(super) fn encode(corpus: &Corpus) -> Vec<u8> {
    let mut out = Output(MAGIC.to_vec());
    out.number(corpus.period_ns);
    out.number(corpus.modules.into());
    let methods = &corpus.methods;
    out.number(methods.len() as u64);
    out.column(methods.iter().map(|method| optional(method.module)));
    out.differences(methods.iter().map(|method| method.start_svma));
    let locations = &corpus.locations;
    out.number(locations.len() as u64);
    out.differences(locations.iter().map(|location| location.method.into()));
    out.differences(locations.iter().map(|location| location.svma));
    out.column(locations.iter().map(|location| optional(location.file)));
    out.differences(locations.iter().map(|location| location.line.into()));
    let back = |index: usize, parent: Option<u32>| {
        parent.map_or(0, |parent| index as u64 - u64::from(parent))
    };
    let parents = locations.iter().enumerate();
    out.column(parents.map(|(index, location)| back(index, location.inline_parent)));
    out.number(corpus.paths.len() as u64);
    out.column(corpus.paths.iter().enumerate().map(|(index, step)| back(index, step.parent)));
    out.column(corpus.paths.iter().map(|step| step.location.into()));
    out.number(corpus.threads.len() as u64);
    corpus.threads.iter().for_each(|thread| encode_thread(&mut out, thread));
    out.0
}

fn encode_thread(out: &mut Output, thread: &Thread) {
    let samples = &thread.samples;
    out.number(thread.begin_ns);
    out.number(samples.len() as u64);
    let mut before_ns = 0;
    for sample in samples {
        out.number(sample.time_ns - before_ns);
        before_ns = sample.time_ns;
    }
    out.differences(samples.iter().map(|sample| optional(sample.path)));
    let mut slots = HashMap::new();
    for sample in samples {
        let known = slots.insert(sample.path, sample.slot) == Some(sample.slot);
        out.number(if known { 0 } else { u64::from(sample.slot) + 1 });
    }
    out.differences(samples.iter().map(|sample| sample.epoch.into()));
    out.column(samples.iter().map(|sample| sample.weight.into()));
    out.column(samples.iter().map(|sample| sample.end_reason.into()));
    out.column(samples.iter().map(|sample| sample.flags.into()));
}

struct Input<'a>(&'a [u8]);

type Decoded<T> = Result<T, &'static str>;

impl Input<'_> {
    fn number(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("the corpus is cut off")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of the corpus is too large")
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Decoded<T> {
        T::try_from(self.number()?).map_err(|_| "a number of the corpus is too large")
    }

    /// Reads a number of items, each of which takes at least one byte.
    fn count(&mut self) -> Decoded<usize> {
        let count: usize = self.small()?;
        if count <= self.0.len() { Ok(count) } else { Err("the corpus is cut off") }
    }

    fn column<T: TryFrom<u64>>(&mut self, count: usize) -> Decoded<Vec<T>> {
        (0..count).map(|_| self.small()).collect()
    }

    fn differences<T: TryFrom<u64>>(&mut self, count: usize) -> Decoded<Vec<T>> {
        let mut value = 0u64;
        let mut column = Vec::new();
        for _ in 0..count {
            let word = self.number()?;
            value = value.wrapping_add((word >> 1) ^ (word & 1).wrapping_neg());
            column.push(T::try_from(value).map_err(|_| "a number of the corpus is too large")?);
        }
        Ok(column)
    }

    /// Reads the indices of parents. Each is less than its child's.
    fn parents(&mut self, count: usize) -> Decoded<Vec<Option<u32>>> {
        let index = |index: usize, back: u64| match back {
            0 => Ok(None),
            back => match (index as u64).checked_sub(back) {
                Some(parent) => Ok(Some(parent as u32)),
                None => Err("the corpus has a parent before its first item"),
            },
        };
        (0..count).map(|at| index(at, self.number()?)).collect()
    }
}

fn present(word: u32) -> Option<u32> {
    word.checked_sub(1)
}

/// Refuses a number that is not less than the count of the items that it refers to.
fn below(number: Option<u32>, count: usize) -> Decoded<()> {
    match number.is_none_or(|number| (number as usize) < count) {
        true => Ok(()),
        false => Err("the corpus has a dangling reference"),
    }
}

/// Returns the corpus that `bytes` encodes.
pub(super) fn decode(bytes: &[u8]) -> Decoded<Corpus> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("not a corpus of stacks")?;
    let mut input = Input(rest);
    let (period_ns, modules) = (input.number()?, input.small()?);
    let methods = decode_methods(&mut input, modules)?;
    let locations = decode_locations(&mut input, methods.len())?;
    let count = input.count()?;
    let parents = input.parents(count)?;
    let step_locations = input.column(count)?;
    let step = |(parent, location)| Step { parent, location };
    let paths: Vec<Step> = parents.into_iter().zip(step_locations).map(step).collect();
    paths.iter().try_for_each(|step| below(Some(step.location), locations.len()))?;
    let threads = (0..input.count()?).map(|_| decode_thread(&mut input, paths.len()));
    let threads = threads.collect::<Decoded<_>>()?;
    if !input.0.is_empty() {
        return Err("the corpus has excess bytes");
    }
    Ok(Corpus { period_ns, modules, methods, locations, paths, threads })
}

fn decode_methods(input: &mut Input<'_>, modules: u32) -> Decoded<Vec<Method>> {
    let count = input.count()?;
    let of: Vec<u32> = input.column(count)?;
    let starts = input.differences(count)?;
    let method = |(module, start_svma)| Method { module: present(module), start_svma };
    let methods: Vec<Method> = of.into_iter().zip(starts).map(method).collect();
    methods.iter().try_for_each(|method| below(method.module, modules as usize))?;
    Ok(methods)
}

fn decode_locations(input: &mut Input<'_>, methods: usize) -> Decoded<Vec<Location>> {
    let count = input.count()?;
    let of: Vec<u32> = input.differences(count)?;
    let svmas: Vec<u64> = input.differences(count)?;
    let files: Vec<u32> = input.column(count)?;
    let lines: Vec<u32> = input.differences(count)?;
    let parents = input.parents(count)?;
    let location = |index: usize| Location {
        method: of[index],
        svma: svmas[index],
        file: present(files[index]),
        line: lines[index],
        inline_parent: parents[index],
    };
    of.iter().try_for_each(|method| below(Some(*method), methods))?;
    Ok((0..count).map(location).collect())
}

fn decode_thread(input: &mut Input<'_>, path_count: usize) -> Decoded<Thread> {
    let begin_ns = input.number()?;
    let count = input.count()?;
    let mut times_ns: Vec<u64> = input.column(count)?;
    let mut now_ns = 0u64;
    for time_ns in &mut times_ns {
        now_ns = now_ns.checked_add(*time_ns).ok_or("a time of the corpus is too large")?;
        *time_ns = now_ns;
    }
    let paths: Vec<u32> = input.differences(count)?;
    paths.iter().try_for_each(|path| below(present(*path), path_count))?;
    let mut slots: Vec<u32> = input.column(count)?;
    let mut known = HashMap::new();
    for (slot, path) in slots.iter_mut().zip(&paths) {
        *slot = match present(*slot) {
            Some(slot) => slot,
            None => *known.get(path).ok_or("a call-trace id is not in the corpus")?,
        };
        known.insert(*path, *slot);
    }
    let epochs: Vec<u32> = input.differences(count)?;
    let weights: Vec<u32> = input.column(count)?;
    let reasons: Vec<u16> = input.column(count)?;
    let flags: Vec<u32> = input.column(count)?;
    let sample = |index: usize| Sample {
        time_ns: times_ns[index],
        path: present(paths[index]),
        epoch: epochs[index],
        slot: slots[index],
        weight: weights[index],
        end_reason: reasons[index],
        flags: flags[index],
    };
    Ok(Thread { begin_ns, samples: (0..count).map(sample).collect() })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn files() -> Vec<PathBuf> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().ends_with(".stacks.zst")).collect()
    }

    #[test]
    fn committed_corpora_survive_and_are_large_enough() {
        let mut addresses = 0;
        for path in files() {
            let corpus = Corpus::read(&path).unwrap();
            assert_eq!(decode(&encode(&corpus)).as_ref(), Ok(&corpus), "{}", path.display());
            assert!(corpus.samples() > 10_000, "{}", corpus.summary());
            let physical = corpus.locations.iter().filter(|it| it.inline_parent.is_none());
            addresses += physical.count();
        }
        assert!(addresses >= 8_000, "{addresses} distinct addresses");
    }

    #[test]
    fn damaged_bytes_never_panic_nor_give_dangling_references() {
        let smallest = files().into_iter().min_by_key(|path| path.metadata().unwrap().len());
        let corpus = Corpus::read(&smallest.unwrap()).unwrap();
        let threads =
            vec![Thread { samples: corpus.threads[0].samples[..20].to_vec(), begin_ns: 7 }];
        let bytes = encode(&Corpus { threads, ..corpus });
        let mut refused = 0;
        for step in 0..200 {
            let mut bytes = bytes.clone();
            let at = bytes.len() * step / 200;
            bytes[at] ^= 0x55 + step as u8 % 3;
            match decode(&bytes) {
                Err(_) => refused += 1,
                Ok(corpus) => corpus.threads.iter().flat_map(|it| &it.samples).for_each(|it| {
                    corpus.stack(it.path);
                }),
            }
            assert!(decode(&bytes[..at]).is_err());
        }
        assert!(refused > 10, "only {refused} of 200 were noticed");
    }
}
