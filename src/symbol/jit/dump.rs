//! `jit-PID.dump`, the format of `perf inject --jit`: records of pieces of code that were generated
//! or moved, and of their lines.

use std::sync::Arc;

use super::{CodeReader, JitCode, Lines};
use crate::text::printable;

const MAGIC: [u8; 4] = *b"DTiJ";
/// Bytes at the start of the header, which contain the header's length.
const HEADER: usize = 12;
/// Offset of the flags in the header.
const FLAGS: usize = 32;
/// The flag of a dump whose times come from a time stamp counter.
const ARCH_TIMESTAMP: u64 = 1;
/// Length in bytes of a record's prefix: kind, length and time.
const PREFIX: usize = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
/// Maximum length in bytes of a record. A record contains the code of one function, so a longer one
/// is invalid.
const RECORD_MAX: usize = 64 << 20;
/// The file name that means the same file as before.
const SAME_FILE: &[u8] = &[0xff];

/// Reads a dump while it grows.
#[derive(Debug, Default)]
pub struct JitDump {
    /// Bytes of the last record, which is not complete yet.
    rest: Vec<u8>,
    state: DumpState,
    /// Whether times are of another clock than CLOCK_MONOTONIC.
    has_other_clock: bool,
    /// The address and the lines of the next piece of code.
    lines: Option<(u64, Lines)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum DumpState {
    #[default]
    Header,
    Records,
    /// The file is not a dump or is corrupt. Nothing after this point can be parsed.
    Lost,
}

impl CodeReader for JitDump {
    fn feed(&mut self, bytes: &[u8], code: &mut JitCode) {
        if self.state == DumpState::Lost {
            return;
        }
        self.rest.extend(bytes);
        let mut rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while let Some(len) = self.next_len(&rest[at..])
            && let Some(record) = rest.get(at..at + len)
        {
            match self.state {
                DumpState::Header => {
                    let flags = u64_at(record, FLAGS).unwrap_or(0);
                    self.has_other_clock = flags & ARCH_TIMESTAMP != 0;
                    self.state = DumpState::Records;
                }
                _ => self.read(record, code),
            }
            at += len;
        }
        if self.state != DumpState::Lost {
            // While a long record grows, no bytes are moved.
            rest.drain(..at);
            self.rest = rest;
        }
    }
}

impl JitDump {
    /// Returns the length of the header or of the next record, once it is known.
    fn next_len(&mut self, rest: &[u8]) -> Option<usize> {
        let (at, least) = match self.state {
            DumpState::Header => (8, HEADER),
            _ => (4, PREFIX),
        };
        let magic_is_right = self.state != DumpState::Header || rest.starts_with(&MAGIC);
        let len = u32_at(rest, at)? as usize;
        if !magic_is_right || !(least..=RECORD_MAX).contains(&len) {
            self.state = DumpState::Lost;
            return None;
        }
        Some(len)
    }

    fn read(&mut self, record: &[u8], code: &mut JitCode) {
        let body = &record[PREFIX..];
        let time_ns = u64_at(record, 8).filter(|_| !self.has_other_clock).unwrap_or(0);
        // A record that is too short for its kind is ignored.
        let _ = match u32_at(record, 0) {
            Some(CODE_LOAD) => self.load(time_ns, body, code),
            Some(CODE_MOVE) => relocate(time_ns, body, code),
            Some(DEBUG_INFO) => self.debug_info(body),
            _ => None,
        };
    }

    /// Parses process, thread, two addresses, length and index, then the name and the code.
    fn load(&mut self, time_ns: u64, body: &[u8], code: &mut JitCode) -> Option<()> {
        let (start, len) = (u64_at(body, 16)?, u64_at(body, 24)?);
        let name = text(body.get(40..)?)?;
        let lines = self.lines.take().filter(|(of, _)| *of == start);
        let lines = lines.map(|(_, lines)| Arc::new(lines));
        code.add_since(time_ns, (start, len), &String::from_utf8_lossy(name), lines);
        Some(())
    }

    /// Parses the address of the code and the count, then an address, a line and a file for each
    /// entry.
    fn debug_info(&mut self, body: &[u8]) -> Option<()> {
        let (start, count) = (u64_at(body, 0)?, u64_at(body, 8)?);
        let mut lines = Lines::default();
        let mut at = 16;
        for _ in 0..count {
            let (avma, line) = (u64_at(body, at)?, u32_at(body, at + 8)?);
            let file = text(body.get(at + 16..)?)?;
            at += 16 + file.len() + 1;
            if file != SAME_FILE {
                let file = printable(&String::from_utf8_lossy(file));
                if lines.files.last() != Some(&file) {
                    lines.files.push(file);
                }
            }
            let number = lines.files.len().checked_sub(1)? as u32;
            if let Some(offset) = avma.checked_sub(start).and_then(|it| u32::try_from(it).ok()) {
                lines.positions.push((offset, number, line));
            }
        }
        lines.positions.sort_by_key(|(offset, ..)| *offset);
        self.lines = Some((start, lines));
        Some(())
    }
}

/// Parses process, thread, address, old and new address of the code, and length.
fn relocate(time_ns: u64, body: &[u8], code: &mut JitCode) -> Option<()> {
    code.relocate(time_ns, u64_at(body, 16)?, (u64_at(body, 24)?, u64_at(body, 32)?));
    Some(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the bytes before the first zero byte.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    bytes.split(|&byte| byte == 0).next().filter(|text| text.len() < bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (PREFIX + body.len()) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), &[0; 8], body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn dump() -> Vec<u8> {
        let header = [&MAGIC[..], &[1, 0, 0, 0], &[40, 0, 0, 0], &[0; 28]].concat();
        let entry = |avma: u64, line: u32, file: &[u8]| {
            [&avma.to_le_bytes()[..], &line.to_le_bytes(), &[0; 4], file, &[0]].concat()
        };
        let entries =
            [entry(0x1000, 3, b"a.js"), entry(0x1008, 5, b"\xff"), entry(0x1010, 9, b"b.js")];
        let lines = record(2, &[words(&[0x1000, 3]), entries.concat()].concat());
        let load = |start: u64, name: &[u8]| {
            record(0, &[words(&[0, start, start, 0x20, 1]), name.to_vec(), vec![0xcc; 5]].concat())
        };
        let moved = record(1, &words(&[0, 0, 0x2000, 0x3000, 0x20, 2]));
        [header, lines, load(0x1000, b"f\0"), load(0x2000, b"g\0"), moved, record(3, &[])].concat()
    }

    #[test]
    fn code_is_loaded_moved_and_has_lines() {
        let bytes = dump();
        for step in [1, 13, bytes.len()] {
            let (mut dump, mut code) = (JitDump::default(), JitCode::default());
            bytes.chunks(step).for_each(|part| dump.feed(part, &mut code));
            let at = |avma| {
                let found: crate::symbol::Resolved = code.find(avma)?;
                Some((found.function?.name, found.file.unwrap_or_default(), found.line))
            };
            let expected = |name: &str, file: &str, line| Some((name.into(), file.into(), line));
            assert_eq!(at(0x1007), expected("f", "a.js", 3), "{step}");
            assert_eq!(at(0x1008), expected("f", "a.js", 5));
            assert_eq!(at(0x101f), expected("f", "b.js", 9));
            assert_eq!((at(0x2000), at(0x3000)), (None, expected("g", "", 0)));
        }
    }

    #[test]
    fn damaged_dumps_are_left() {
        let whole = dump();
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let (mut dump, mut code) = (JitDump::default(), JitCode::default());
                dump.feed(&bytes, &mut code);
                // There are two pieces, one of them moved. Each may split another piece.
                assert!(code.len() <= 4);
            }
        }
        let (mut dump, mut code) = (JitDump::default(), JitCode::default());
        dump.feed(b"#!/bin/sh\nexit 0\n", &mut code);
        assert_eq!((&dump.state, dump.rest.len()), (&DumpState::Lost, 0));
    }
}
