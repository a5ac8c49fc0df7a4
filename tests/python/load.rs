//! Requests to a server, one after the other, from a thread of the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long to wait for an answer: longer than the server takes on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a server for pages until the value is dropped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Load {
    /// Starts to ask the server at a port of this machine.
    pub(super) fn start(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut answers = 0;
            // Relaxed: nothing is passed with the flag.
            while !is_over.load(Ordering::Relaxed) {
                // A server that ends refuses connections, or closes them.
                answers += u64::from(ask(port).unwrap_or(false));
            }
            answers
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it. Returns the number of answers.
    pub(super) fn end(mut self) -> u64 {
        // Relaxed: nothing is passed with the flag.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("only here").join().expect("the load")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Relaxed: nothing is passed with the flag.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Asks for one page. Returns whether it came.
fn ask(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /some/page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 OK"))
}
