//! Servers under load.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A client that asks for the page again and again until the value is dropped.
pub(crate) struct Client {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Client {
    /// Starts a client; `ask` gets the number of the request, and returns whether it was answered.
    pub(crate) fn start(mut ask: impl FnMut(u64) -> bool + Send + 'static) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let asks = move || {
            let mut answers = 0;
            for number in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                answers += u64::from(ask(number));
            }
            answers
        };
        Self { is_done, thread: Some(std::thread::spawn(asks)) }
    }

    /// Ends the client, and returns the number of answers.
    pub(crate) fn finish(mut self) -> u64 {
        self.is_done.store(true, Ordering::Relaxed);
        self.thread.take().expect("ended only here").join().expect("a client")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a server at this port has a page.
pub(crate) fn asks_http(port: u16, page: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = format!("GET /{page} HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains("200 OK")
}

/// Returns a port that nothing uses.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port()
}

/// A server that ends when the value is dropped.
pub(crate) struct Served(pub(crate) Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Its workers end with it.
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}
