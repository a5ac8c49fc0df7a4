//! Tests of complete traces: written, read, torn, forged.

mod contexts;
mod crash;
mod damage;
mod excerpt;
mod faults;
mod format;
mod fuzz;
pub(crate) mod heap;
mod indices;
mod kinds;
mod lazy;
mod numbers;
mod recover;
mod roundtrip;
mod scan;
mod sealed;
mod series;
mod size;
mod tree;
mod waits;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::sink::{Sink, TraceFile};
use super::*;

/// A file in memory that holds at most `room` bytes.
#[derive(Debug, Clone)]
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Memory {
    fn new(room: usize) -> Self {
        Self { bytes: Arc::default(), room }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl Write for Memory {
    /// Accepts at most 100 bytes at a time, as a file may.
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let taken = new.len().min(100).min(self.room - bytes.len());
        if taken == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        bytes.extend_from_slice(&new[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Memory {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().truncate(bytes as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    fn release(&mut self) {}
}

/// Creates a writer into memory. Returns it with its data file and index file.
fn memory_writer(options: WriterOptions) -> (TraceWriter, Memory, Memory) {
    let (data, index) = (Memory::new(usize::MAX), Memory::new(usize::MAX));
    let target =
        |memory: &Memory, name| TraceFile::new(Box::new(memory.clone()), PathBuf::from(name));
    let options = WriterOptions { salt: options.salt.or(Some(0x5a17)), ..options };
    let writer =
        TraceWriter::with_files(target(&data, "data"), target(&index, "index"), options).unwrap();
    (writer, data, index)
}

fn load_bytes(bytes: &[u8]) -> Result<LoadedTrace, TraceError> {
    load_from(bytes, Path::new("data"))
}

/// Writes `count` methods with ten locations each: location n is at address n of method n / 10.
fn locations(writer: &mut TraceWriter, count: u32) -> Vec<LocationId> {
    let module = Module { path: "/bin/x".into(), build_id: vec![1, 2, 3] };
    let module = writer.module(&module).unwrap();
    let mut ids = Vec::new();
    for n in 0..count * 10 {
        let name = format!("method{}", n / 10);
        let start_svma = u64::from(n / 10 * 10);
        let method = Method { module: Some(module), name, start_svma, ..Method::default() };
        let method = writer.method(&method).unwrap();
        let file = Some("x.c".into());
        let location = Location { file, line: n, ..Location::at(method, n.into()) };
        ids.push(writer.location(&location).unwrap());
    }
    ids
}

/// Returns the thread whose numbers are all the first.
fn first_thread() -> object::Neutral {
    object::Neutral::Thread {
        id: 0,
        tid: 1,
        pid: 1,
        name: 0,
        first_seen: 0,
        ended: u64::MAX,
        runtime_name: 0,
    }
}

fn thread(tid: u32) -> Thread {
    Thread { pid: 1, tid, name: format!("thread {tid}"), ..Thread::default() }
}

fn sample(time_ns: u64) -> Sample {
    Sample { time_ns, ..Sample::default() }
}

/// Prints a complete trace as text, for comparing two readers or two writers.
fn outline(trace: &LoadedTrace) -> String {
    let LoadedTrace { metadata, modules, methods, locations, mapped, texts, .. } = trace;
    let mut out = format!("{metadata:?} {modules:?} {methods:?} {locations:?} {mapped:?}\n");
    out += &format!("{texts:?}\n");
    for thread in &trace.threads {
        out += &format!("{:?} {:?}\n{:?}\n", thread.id(), thread.thread(), samples_of(thread));
        thread.roots().for_each(|root| outline_node(root, &mut out));
    }
    out
}

fn outline_node(node: Node<'_>, out: &mut String) {
    let Node::Call(call) = node else {
        *out += &format!("{node:?} ");
        return;
    };
    let (place, site, times) =
        (call.location(), call.call_site(), (call.first_ns(), call.last_ns()));
    *out += &format!("{place:?}<{site:?} {times:?} {} {}(", call.samples(), call.unfinished());
    call.children().for_each(|child| outline_node(child, out));
    *out += ")\n";
}

/// Returns all samples of a thread with their stacks.
fn samples_of(thread: &ThreadTrace) -> Vec<(Sample, Vec<LocationId>)> {
    let mut samples = Vec::new();
    thread.for_each_sample(&mut |sample, stack| samples.push((sample.clone(), stack.to_vec())));
    samples
}
