//! `perf-PID.map`: one line per piece of code, with its start and length in hexadecimal and its
//! name.

use super::{CodeReader, JitCode};

/// Maximum length in bytes of a line. A longer line does not belong to a map.
const LINE_MAX: usize = 64 << 10;

/// Reads a map while it grows.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// The written part of the last line.
    torn: Vec<u8>,
    /// Whether the last line is too long. Then the bytes up to the next line feed are skipped.
    is_skipped: bool,
}

impl CodeReader for PerfMap {
    fn feed(&mut self, bytes: &[u8], code: &mut JitCode) {
        let mut lines = bytes.split(|&byte| byte == b'\n');
        // The part after the last line feed is incomplete or empty.
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.torn.is_empty() && !self.is_skipped && line.len() <= LINE_MAX {
                add(line, code);
                continue;
            }
            self.extend(line);
            if !std::mem::take(&mut self.is_skipped) {
                add(&self.torn, code);
            }
            self.torn.clear();
        }
        self.extend(last);
    }
}

impl PerfMap {
    fn extend(&mut self, part: &[u8]) {
        self.is_skipped |= self.torn.len() + part.len() > LINE_MAX;
        if self.is_skipped {
            self.torn.clear();
        } else {
            self.torn.extend(part);
        }
    }
}

fn add(line: &[u8], code: &mut JitCode) {
    let text = String::from_utf8_lossy(line);
    let mut fields = text.trim_end_matches('\r').splitn(3, ' ');
    let mut number = || hexadecimal(fields.next()?);
    let numbers = number().zip(number());
    if let Some(((start, len), name)) = numbers.zip(fields.next())
        && !name.trim().is_empty()
    {
        code.add(start, len, name, None);
    }
}

/// Parses a hexadecimal number, with a leading `0x` as OpenJDK writes it, or without.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_runtimes_are_read() {
        let text = "7f00 10 LazyCompile:~f /a b.js:1\n0x0000000000008000 0x20 \
            java.lang.String::hash\r\n\
                    nonsense\n\n9000 zz bad\n9000 10\n9000 10  \na000 0 empty\nb000 1 \
                    py::f:/x.py\nc000 9 torn";
        for step in [1, 7, text.len()] {
            let (mut map, mut code) = (PerfMap::default(), JitCode::default());
            text.as_bytes().chunks(step).for_each(|part| map.feed(part, &mut code));
            let name = |avma| Some(code.find(avma)?.function?.name);
            assert_eq!(name(0x7f0f).as_deref(), Some("LazyCompile:~f /a b.js:1"), "{step}");
            assert_eq!(name(0x801f).as_deref(), Some("java.lang.String::hash"));
            assert_eq!(name(0xb000).as_deref(), Some("py::f:/x.py"));
            assert_eq!((code.len(), name(0xc000)), (3, None), "the last line is not complete yet");
            map.feed(b" no more\n", &mut code);
            let found = code.find(0xc008).and_then(|found| found.function);
            assert_eq!(found.map(|it| it.name).as_deref(), Some("torn no more"));
        }
    }

    #[test]
    fn lines_that_are_too_long_are_skipped() {
        let long = format!("1000 10 {}\n2000 10 next\n", "x".repeat(LINE_MAX));
        for step in [1000, long.len()] {
            let (mut map, mut code) = (PerfMap::default(), JitCode::default());
            long.as_bytes().chunks(step).for_each(|part| map.feed(part, &mut code));
            let names: Vec<bool> = [0x1000, 0x2000].map(|avma| code.find(avma).is_some()).into();
            assert_eq!((code.len(), names), (1, vec![false, true]), "{step}");
        }
    }
}
