//! A stress test of contexts. Threads change their contexts millions of times a second. More than
//! ten thousand signals a second interrupt them, and the handler reads through the table as the
//! agent does. A context that it accepts must be a complete state of the thread: the one before the
//! interrupted update, or the one after it. With a planted mistake in the writer, the same test
//! must find states that never existed.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{find, own_tables, tid};
use traceprof_abi::context::{Context, ContextTable, Reading, TAGS, Values, checksum};

const WORKERS: usize = 2;
const SIGNAL: i32 = libc::SIGUSR2;
/// Interval of each worker's timer, which signals the worker while it runs, however busy the
/// machine is. Another thread also signals the workers, whenever it runs.
const INTERVAL_NS: i64 = 25_000;
/// Number of updates after which a worker starts again with another span.
const CYCLE: u64 = 8;

/// The way in which a worker writes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Writer {
    /// With the functions of the crate.
    Real,
    /// Does not mark the context while it changes.
    NoMark,
    /// Stores the checksum before the fields.
    WrongOrder,
}

/// An update of a context.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Update {
    All(Values),
    Ids(u64, u64),
    Tag(usize, u32),
    Clear,
}

/// Returns the span of an update. Ids and tags follow from the update's number, so no two states
/// share a part.
fn span_of(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn root_of(span: u64) -> u64 {
    span.rotate_left(13) ^ 0x5555
}

fn tags_of(number: u64) -> [u32; TAGS] {
    std::array::from_fn(|at| (number as u32).wrapping_mul(31).wrapping_add(at as u32) | 1 << 31)
}

/// Returns the update with this number. The first of a cycle sets all values.
fn update(number: u64) -> Update {
    let span = span_of(number / CYCLE);
    let all = Values { span, root_span: root_of(span), tags: tags_of(number) };
    match number % CYCLE {
        1 | 4 => Update::Tag(number as usize % TAGS, tags_of(number)[0]),
        3 => Update::Ids(!span, root_of(!span)),
        6 => Update::Clear,
        // Of the other updates, 2 and 5 keep span and root and change the tags.
        5 => Update::All(Values { span: !span, root_span: root_of(!span), ..all }),
        _ => Update::All(all),
    }
}

/// Returns the published context after the update with this number.
fn state(number: u64) -> Reading {
    let mut values = None;
    for number in number - number % CYCLE..=number {
        let before = values.unwrap_or_default();
        values = match update(number) {
            Update::All(all) => Some(all),
            Update::Ids(span, root_span) => Some(Values { span, root_span, ..before }),
            Update::Tag(index, value) => {
                let mut tags = before.tags;
                tags[index] = value;
                Some(Values { tags, ..before })
            }
            Update::Clear => None,
        };
    }
    values.map_or(Reading::None, Reading::Set)
}

/// A thread that changes its context, with the counts of its handler.
#[derive(Default)]
struct Worker {
    tid: AtomicU64,
    /// Number of the current or the next update, plus 1.
    begun: AtomicU64,
    /// Number of the last finished update, plus 1.
    done: AtomicU64,
    handled: AtomicU64,
    accepted: AtomicU64,
    within: AtomicU64,
    torn: AtomicU64,
    inconsistent: AtomicU64,
    cpu_ns: AtomicU64,
}

struct Shared {
    table: ContextTable<'static>,
    workers: [Worker; WORKERS],
    stop: AtomicU64,
}

static SHARED: Mutex<()> = Mutex::new(());
static RUNNING: AtomicU64 = AtomicU64::new(0);

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

extern "C" fn on_signal(_: i32) {
    let running = RUNNING.load(Ordering::Acquire) as *const Shared;
    // SAFETY: it is null, or points to a value that lives until no signal is sent any more.
    let Some(shared) = (unsafe { running.as_ref() }) else { return };
    let tid = tid();
    let of_thread = |worker: &&Worker| get(&worker.tid) == u64::from(tid);
    let Some(worker) = shared.workers.iter().find(of_thread) else { return };
    count(&worker.handled);
    let (begun, done) = (get(&worker.begun), get(&worker.done));
    let Some(context) = shared.table.find(tid) else { return count(&worker.inconsistent) };
    let reading = context.read();
    if begun != done {
        count(&worker.within);
    }
    match reading {
        Reading::Torn => count(&worker.torn),
        // During an update nothing may be published. Otherwise the last update counts.
        Reading::None if begun != done || state(done - 1) == Reading::None => {}
        Reading::Set(_) if reading == state(done - 1) || reading == state(begun - 1) => {
            count(&worker.accepted);
        }
        Reading::None | Reading::Set(_) => count(&worker.inconsistent),
    }
}

/// Applies an update with a planted mistake, without the crate's functions.
fn write(context: &Context, writer: Writer, update: Update) {
    let before = context.values();
    let Values { span, root_span, tags } = match update {
        Update::All(all) => all,
        Update::Ids(span, root_span) => Values { span, root_span, ..before },
        Update::Tag(index, value) => {
            let mut tags = before.tags;
            tags[index] = value;
            Values { tags, ..before }
        }
        Update::Clear => return context.clear(),
    };
    let finish = || context.checksum.swap(checksum(span, root_span), Ordering::SeqCst);
    if writer == Writer::WrongOrder {
        context.checksum.store(0, Ordering::Release);
        finish();
    }
    context.span.store(span, Ordering::Release);
    context.root_span.store(root_span, Ordering::Release);
    for (word, tag) in context.tags.iter().zip(tags) {
        word.store(tag, Ordering::Release);
    }
    if writer == Writer::NoMark {
        finish();
    }
}

fn apply(context: &Context, writer: Writer, number: u64) {
    match update(number) {
        update if writer != Writer::Real => write(context, writer, update),
        Update::All(values) => traceprof_context::set_all(&values),
        Update::Ids(span, root_span) => traceprof_context::set(span, root_span),
        // `run` registered the tags in this order.
        Update::Tag(index, value) => TAG_HANDLES.get().expect("registered")[index].set(value),
        Update::Clear => traceprof_context::clear(),
    }
}

static TAG_HANDLES: OnceLock<Vec<traceprof_context::Tag<u32>>> = OnceLock::new();

/// Starts a timer that signals the calling thread at `INTERVAL_NS`.
fn start_timer() -> libc::timer_t {
    // SAFETY: zero bytes are a valid sigevent.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = SIGNAL;
    event.sigev_notify_thread_id = tid() as i32;
    let mut timer = std::ptr::null_mut();
    // SAFETY: both are live structures of the library's layout.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    let interval = libc::timespec { tv_sec: 0, tv_nsec: INTERVAL_NS };
    let setting = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: the timer exists, and the call only reads the setting.
    let set = unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
    assert_eq!((made, set), (0, 0), "{}", std::io::Error::last_os_error());
    timer
}

fn work(worker: &Worker, writer: Writer, shared: &Shared, ready: &Barrier) {
    traceprof_context::clear();
    let context = find(tid()).expect("an entry");
    apply(context, Writer::Real, 0);
    for word in [&worker.begun, &worker.done] {
        word.store(1, Ordering::Relaxed);
    }
    worker.tid.store(u64::from(tid()), Ordering::Relaxed);
    ready.wait();
    let timer = start_timer();
    let mut number = 1;
    while get(&shared.stop) == 0 {
        for _ in 0..1000 {
            worker.begun.store(number + 1, Ordering::Relaxed);
            // A compiler fence, for the handler on this thread.
            compiler_fence(Ordering::SeqCst);
            apply(context, writer, number);
            compiler_fence(Ordering::SeqCst);
            worker.done.store(number + 1, Ordering::Relaxed);
            number += 1;
        }
    }
    // SAFETY: the timer was created above.
    unsafe { libc::timer_delete(timer) };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    worker
        .cpu_ns
        .store(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64, Ordering::Relaxed);
}

/// Returns whether this many signals in this time are enough for a test of `seconds`. Fails if the
/// test has waited too long.
fn is_enough(elapsed: Duration, handled: u64, seconds: u64) -> Result<bool, String> {
    let wanted = 12_000 * seconds;
    if elapsed.as_secs() >= seconds && handled >= wanted {
        return Ok(true);
    }
    // A busy machine may take ten times as long.
    if elapsed.as_secs() >= seconds * 10 {
        return Err(format!("{handled} signals of {wanted} were handled in {elapsed:?}"));
    }
    Ok(false)
}

/// Signals the workers in turn until there were enough signals.
fn fire(shared: &Shared, seconds: u64) -> Result<Duration, String> {
    let started = Instant::now();
    let handled = || shared.workers.iter().map(|worker| get(&worker.handled)).sum::<u64>();
    loop {
        for worker in &shared.workers {
            // SAFETY: touches no memory.
            unsafe {
                libc::syscall(libc::SYS_tgkill, std::process::id(), get(&worker.tid), SIGNAL)
            };
        }
        let elapsed = started.elapsed();
        if is_enough(elapsed, handled(), seconds)? {
            return Ok(elapsed);
        }
    }
}

/// The counts of all workers' handlers.
#[derive(Debug)]
struct Outcome {
    elapsed: Duration,
    handled: u64,
    accepted: u64,
    within: u64,
    torn: u64,
    inconsistent: u64,
    /// Updates of the slowest worker in a second of its CPU time, because a busy machine gives it
    /// less.
    updates_per_second: f64,
    /// Signals of all workers in a second of their CPU time.
    signals_per_second: f64,
}

fn run(writer: Writer, seconds: u64) -> Outcome {
    let _alone = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    TAG_HANDLES.get_or_init(|| {
        let tag = |index| traceprof_context::Tag::number(&format!("tag {index}")).expect("a tag");
        (0..TAGS).map(tag).collect()
    });
    install();
    let shared =
        Shared { table: own_tables()[0], workers: Default::default(), stop: AtomicU64::new(0) };
    let ready = Barrier::new(WORKERS + 1);
    RUNNING.store(&raw const shared as u64, Ordering::Release);
    let elapsed = thread::scope(|scope| {
        for worker in &shared.workers {
            let (shared, ready) = (&shared, &ready);
            scope.spawn(move || work(worker, writer, shared, ready));
        }
        ready.wait();
        let elapsed = fire(&shared, seconds);
        shared.stop.store(1, Ordering::Relaxed);
        elapsed
    });
    // The threads have exited, so no signal is pending.
    RUNNING.store(0, Ordering::Release);
    let elapsed = elapsed.unwrap_or_else(|error| panic!("{writer:?}: {error}"));
    let sum = |counter: fn(&Worker) -> &AtomicU64| -> u64 {
        shared.workers.iter().map(|worker| get(counter(worker))).sum()
    };
    let rate = |worker: &Worker| get(&worker.done) as f64 * 1e9 / get(&worker.cpu_ns) as f64;
    let cpu_seconds = sum(|worker| &worker.cpu_ns) as f64 / 1e9;
    let outcome = Outcome {
        elapsed,
        handled: sum(|worker| &worker.handled),
        accepted: sum(|worker| &worker.accepted),
        within: sum(|worker| &worker.within),
        torn: sum(|worker| &worker.torn),
        inconsistent: sum(|worker| &worker.inconsistent),
        updates_per_second: shared.workers.iter().map(rate).fold(f64::INFINITY, f64::min),
        signals_per_second: sum(|worker| &worker.handled) as f64 / cpu_seconds,
    };
    eprintln!("{writer:?}: {outcome:?}");
    outcome
}

fn install() {
    // SAFETY: zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler has the kernel's signature and is never removed.
    let result = unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

#[test]
fn no_accepted_context_is_inconsistent_and_none_is_torn_on_its_own_thread() {
    let seconds = if std::env::var_os("TRACEPROF_TEST_LONG").is_some() { 60 } else { 3 };
    let outcome = run(Writer::Real, seconds);
    assert_eq!((outcome.inconsistent, outcome.torn), (0, 0), "{outcome:?}");
    assert!(outcome.elapsed.as_secs() >= seconds, "{outcome:?}");
    assert!(outcome.signals_per_second > 10_000.0, "{outcome:?}");
    assert!(outcome.updates_per_second > 1e6, "{outcome:?}");
    assert!(outcome.within > outcome.handled / 10, "few updates were interrupted: {outcome:?}");
    assert!(outcome.accepted > outcome.handled / 10, "few contexts were read: {outcome:?}");
}

#[test]
fn a_writer_that_does_not_mark_its_context_is_caught() {
    let outcome = run(Writer::NoMark, 1);
    assert!(outcome.inconsistent > 0 && outcome.torn > 0, "{outcome:?}");
}

#[test]
fn a_writer_that_stores_in_the_wrong_order_is_caught() {
    let outcome = run(Writer::WrongOrder, 1);
    assert!(outcome.inconsistent > 0 && outcome.torn > 0, "{outcome:?}");
}

#[test]
fn missing_signals_are_a_failure() {
    let after = |seconds, handled| is_enough(Duration::from_secs(seconds), handled, 3);
    assert_eq!(after(2, 36_000), Ok(false));
    assert_eq!(after(3, 36_000), Ok(true));
    assert_eq!(after(29, 35_999), Ok(false));
    let error = after(30, 35_999).unwrap_err();
    assert_eq!(error, "35999 signals of 36000 were handled in 30s");
}

#[test]
fn states_share_no_part() {
    let states: Vec<Reading> = (0..1000).map(state).collect();
    for (at, one) in states.iter().enumerate() {
        let is_none = at as u64 % CYCLE == 6;
        assert_eq!(*one == Reading::None, is_none);
        assert!(is_none || states[..at].iter().all(|other| other != one), "{at}");
    }
}
