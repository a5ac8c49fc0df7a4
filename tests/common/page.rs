//! Parser of the data block of an HTML page, which reads it as the page's script does.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;
use serde_json::Value as Json;

/// The contents of a page.
pub(crate) struct Page {
    pub(crate) head: Json,
    pub(crate) columns: BTreeMap<String, Vec<u64>>,
}

/// A sample of the page, or several that were merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageSample {
    pub(crate) thread: usize,
    pub(crate) time_us: u64,
    pub(crate) weight: u64,
    pub(crate) samples: u64,
    /// Functions, root first.
    pub(crate) stack: Vec<String>,
    /// Number of the context; 0 for none.
    pub(crate) context: u64,
}

impl Page {
    /// Parses the text of a page.
    pub(crate) fn parse(html: &str) -> Self {
        let block =
            html.split_once("<script id=\"trace\" type=\"text/plain\">").expect("a block").1;
        let packed = from_base64(block.split_once("</script>").expect("its end").0);
        let mut bytes = Vec::new();
        DeflateDecoder::new(&*packed).read_to_end(&mut bytes).expect("deflated bytes");
        let (length, rest) = bytes.split_first_chunk().expect("a length");
        let (head, mut rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        let head: Json = serde_json::from_slice(head).expect("JSON");
        let mut columns = BTreeMap::new();
        for column in head["columns"].as_array().expect("columns") {
            let size = column[1].as_u64().expect("a size") as usize;
            columns.insert(column[0].as_str().expect("a name").to_owned(), numbers(&rest[..size]));
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "{} bytes are of no column", rest.len());
        Self { head, columns }
    }

    /// Returns the head of a mode.
    pub(crate) fn mode(&self, name: &str) -> Option<&Json> {
        self.head["modes"].as_array().unwrap().iter().find(|mode| mode["name"] == name)
    }

    /// Returns all samples of a mode.
    pub(crate) fn samples(&self, mode: &str) -> Vec<PageSample> {
        let column = |name: &str| &self.columns[&format!("{mode}.{name}")];
        let mut samples = Vec::new();
        for (thread, count) in
            self.mode(mode).unwrap()["entries"].as_array().unwrap().iter().enumerate()
        {
            let mut time_us = 0;
            for _ in 0..count.as_u64().unwrap() {
                let row = samples.len();
                time_us += column("time")[row];
                samples.push(PageSample {
                    thread,
                    time_us,
                    weight: column("weight")[row],
                    samples: column("samples")[row],
                    stack: self.stack(column("call")[row]),
                    context: column("context")[row],
                });
            }
        }
        for name in ["time", "call", "weight", "context", "samples"] {
            assert_eq!(column(name).len(), samples.len(), "{mode}.{name}");
        }
        samples
    }

    /// Returns the total weight of a mode's samples.
    pub(crate) fn weight(&self, mode: &str) -> u64 {
        self.columns.get(&format!("{mode}.weight")).map_or(0, |weights| weights.iter().sum())
    }

    /// Returns the functions of a call, root first.
    fn stack(&self, mut call: u64) -> Vec<String> {
        let mut stack = Vec::new();
        while call != 0 {
            let frame = self.columns["call.frame"][call as usize];
            let function = self.columns["frame.function"][frame as usize];
            let name = &self.head["texts"]["functions"][function as usize];
            stack.push(name.as_str().expect("a name").to_owned());
            call -= self.columns["call.caller"][call as usize];
        }
        stack.reverse();
        stack
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    let (mut value, mut shift) = (0, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(value);
            (value, shift) = (0, 0);
        }
    }
    assert_eq!(shift, 0, "a number without an end");
    numbers
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{c} is no digit"),
    };
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(digit(c));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
