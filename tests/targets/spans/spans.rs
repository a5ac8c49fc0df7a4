//! Threads that publish spans with the crate `traceprof-context`. Each writes its spans to the log,
//! the only argument, before it sets them. Until SIGTERM.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use traceprof_context::{Tag, Text, span};

static STOP: AtomicBool = AtomicBool::new(false);
static READY: AtomicU32 = AtomicU32::new(0);
const ROUTES: [&str; 3] = ["/checkout", "/cart", "/search"];

unsafe extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn prctl(option: i32, value: usize, ...) -> i32;
    fn gettid() -> i32;
}

extern "C" fn on_sigterm(_number: i32) {
    STOP.store(true, Ordering::Relaxed);
}

struct Writer {
    log: File,
    random: u64,
    tenant: Tag<u32>,
    route: Tag<Text>,
}

impl Writer {
    fn new(log: File, seed: u64) -> Self {
        let (tenant, route) = (Tag::number("tenant").unwrap(), Tag::text("route").unwrap());
        Self { log, random: seed, tenant, route }
    }

    /// Returns the id of a new span, which the log has by then. The root span 0 is the span itself.
    fn announce(&mut self, root: u64, function: &str, route: &str, tenant: u32) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x9e37_79b9);
        let id = self.random | 1;
        let root = if root == 0 { id } else { root };
        // SAFETY: takes nothing.
        let tid = unsafe { gettid() };
        let line = format!("{id:x} {root:x} {tid} {function} {route} {tenant}\n");
        self.log.write_all(line.as_bytes()).unwrap();
        id
    }
}

#[inline(never)]
fn burn(ms: u64) {
    let until = Instant::now() + Duration::from_millis(ms);
    while Instant::now() < until {
        black_box((0..2000).fold(1, |x: u64, _| black_box(x.wrapping_mul(31) + 7)));
    }
}

#[inline(never)]
fn in_none() {
    burn(5);
    black_box(());
}

#[inline(never)]
fn in_query() {
    burn(8);
    black_box(());
}

#[inline(never)]
fn in_request(writer: &mut Writer, root: u64, tenant: u32) {
    burn(8);
    query(writer, root, tenant);
    burn(8);
    black_box(());
}

/// A span within the span of a request. It keeps the tenant.
#[inline(never)]
fn query(writer: &mut Writer, root: u64, tenant: u32) {
    let id = writer.announce(root, "in_query", "/query", tenant);
    let span = span(id, root);
    writer.route.set_text("/query");
    in_query();
    drop(span);
    black_box(());
}

#[inline(never)]
fn request(writer: &mut Writer, number: u32) {
    let (route, tenant) = (ROUTES[number as usize % ROUTES.len()], 1 + number % 50);
    let id = writer.announce(0, "in_request", route, tenant);
    let span = span(id, id);
    writer.tenant.set(tenant);
    writer.route.set_text(route);
    in_request(writer, id, tenant);
    drop(span);
    black_box(());
}

fn main() {
    // SAFETY: the handler only stores to an atomic.
    unsafe { signal(15, on_sigterm) };
    // PR_SET_PTRACER, any: where yama lets only parents trace, a test's recorder is only a sibling.
    // SAFETY: this option only takes numbers.
    unsafe { prctl(0x5961_6d61, usize::MAX, 0_usize, 0_usize, 0_usize) };
    let path = std::env::args().nth(1).unwrap();
    let log = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let threads = [0x1234, 0x5678_9abc].map(|seed| {
        let mut writer = Writer::new(log.try_clone().unwrap(), seed);
        thread::spawn(move || {
            let mut number = 0;
            while !STOP.load(Ordering::Relaxed) {
                request(&mut writer, number);
                in_none();
                number += 1;
                READY.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    while READY.load(Ordering::Relaxed) < 4 {
        thread::sleep(Duration::from_millis(5));
    }
    println!("ready");
    for thread in threads {
        thread.join().unwrap();
    }
    std::process::exit(17);
}
