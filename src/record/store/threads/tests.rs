//! Lives, slots and samples of the threads of this process, with and without reports.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use traceprof_abi::storage::log::Sample;
use traceprof_abi::thread::{Claim, SlotState};

use super::*;
use crate::record::batch::threads::ThreadLife;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::task_record::{TaskChange, TaskEvent};
use crate::record::store::threads::lives::Life;
use crate::record::target::shm::own_data;

const MS: u64 = 1_000_000;
/// An id that no thread has.
const NOT_THERE: u32 = 1 << 30;

fn registry() -> Registry {
    let data = own_data();
    data.control().slots_limit.store(8, Ordering::Relaxed);
    let mut registry = Registry::new(std::process::id() as i32, data, 0, &Arc::default()).unwrap();
    registry.scan(true);
    registry
}

/// A thread that runs until the test ends it.
struct Guest {
    tid: i32,
    hold: Sender<()>,
    thread: JoinHandle<()>,
}

impl Guest {
    fn start(name: &str) -> Self {
        let (send, tid) = channel();
        let (hold, held): (_, Receiver<()>) = channel();
        let thread = std::thread::Builder::new().name(name.to_string());
        let thread = thread.spawn(move || {
            send.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = held.recv();
        });
        Self { tid: tid.recv().unwrap(), hold, thread: thread.unwrap() }
    }

    fn end(self) {
        drop(self.hold);
        self.thread.join().unwrap();
    }
}

fn sample(slot: usize, tid: i32, time: u64) -> Sample {
    Sample { slot: slot as u32, tid: tid as u32, time, ..Sample::default() }
}

fn seen(changes: &[ThreadChange], tid: i32) -> Vec<(u32, ThreadLife)> {
    let seen = changes.iter().filter_map(|change| match change {
        ThreadChange::Seen { key, life } if life.tid == tid => Some((key.0, life.clone())),
        _ => None,
    });
    seen.collect()
}

fn exited(changes: &[ThreadChange]) -> Vec<u32> {
    let exited = changes.iter().filter_map(|change| match change {
        ThreadChange::Exited { key, .. } => Some(key.0),
        _ => None,
    });
    exited.collect()
}

#[test]
fn only_a_thread_that_does_not_exist_is_gone() {
    for same_namespace in [true, false] {
        let mut registry = registry();
        registry.list.same_namespace &= same_namespace;
        // Without a scan: a thread that started after the last scan is not gone.
        let own = proc::status(registry.list.pid).unwrap().inner_pid as u32;
        assert!(!registry.is_gone(own));
        assert!(registry.is_gone(u32::MAX >> 1));
    }
}

/// Runs a test again in its own process, where it cannot disturb other tests; returns true there.
fn runs_in_own_process(name: &str) -> bool {
    const OWN_PROCESS: &str = "TRACEPROF_TEST_APART";
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let path = module_path!().split_once("::").unwrap().1;
    let output = again.env(OWN_PROCESS, "1").args(["--exact", &format!("{path}::{name}")]).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// The recorder may be out of descriptors. That says nothing about the threads, and to assume that
/// they exited would recycle slots that are in use.
#[test]
fn a_list_that_cannot_be_read_ends_no_thread() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if !runs_in_own_process("a_list_that_cannot_be_read_ends_no_thread") {
        return;
    }
    for same_namespace in [true, false] {
        let mut registry = registry();
        registry.list.same_namespace &= same_namespace;
        let guest = Guest::start("guest");
        let inner = proc::task_status(registry.list.pid, guest.tid).unwrap().inner_pid as u32;
        registry.scan(false);
        let before = registry.count();
        assert!(registry.alive().any(|(tid, _)| tid == guest.tid));
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
        let is_readable = proc::tasks(registry.list.pid).is_ok();
        registry.scan(true);
        let is_gone = registry.is_gone(inner);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert!(!is_readable && !is_gone);
        assert_eq!((registry.count(), registry.list.exited.len()), (before, 0));
        guest.end();
    }
}

#[test]
fn parents_are_threads_that_start_others() {
    let mut registry = registry();
    let before = registry.parents(usize::MAX, |_| true).len();
    let (send, tids) = channel();
    let (hold, held): (_, Receiver<()>) = channel();
    let parent = std::thread::spawn(move || {
        let child = std::thread::spawn(nix::unistd::gettid);
        send.send((nix::unistd::gettid().as_raw(), child.join().unwrap().as_raw())).unwrap();
        let _ = held.recv();
    });
    let (parent_tid, child_tid) = tids.recv().unwrap();
    registry.scan(false);
    let parents = registry.parents(usize::MAX, |_| true);
    if registry.list.watch.has_events() {
        let found = parents.iter().find(|it| it.tid == parent_tid);
        assert!(found.is_some_and(|it| it.cpu_ns > 0), "{parents:?}");
        assert!(parents.iter().all(|it| it.tid != child_tid));
        assert_eq!(registry.parents(1, |_| true).len(), 1);
        assert!(registry.parents(usize::MAX, |_| false).is_empty(), "none is due");
    }
    drop(hold);
    parent.join().unwrap();
    registry.list.watch.drop_events();
    // Without reports: the threads that existed at the start.
    assert!(registry.parents(usize::MAX, |_| true).len() >= before);
    assert!(registry.parents(usize::MAX, |_| true).iter().all(|it| it.tid != parent_tid));
}

#[test]
fn the_owner_of_a_hazard_is_gone_with_its_slot_or_its_thread() {
    let registry = registry();
    let threads = registry.slots.data.threads();
    let claim = |tid: u32| threads.claim(tid).index().unwrap();
    let (own, dead) = (claim(nix::unistd::gettid().as_raw() as u32), claim(u32::MAX >> 1));
    let slot = &threads.slots[own];
    let owner = threads.owner(own);
    assert!(!registry.is_owner_gone(owner));
    assert!(registry.is_owner_gone(threads.owner(dead)), "no such thread");
    // A thread may have found its predecessor's slot just before it was retired, and be inside.
    let state = &threads.slots[own].state;
    let before = state.swap(SlotState::Retired as u32, Ordering::Relaxed);
    assert!(!registry.is_owner_gone(owner), "the slot is retired, but the thread exists");
    state.store(before, Ordering::Relaxed);
    assert!(registry.is_owner_gone(9) && registry.is_owner_gone(u32::MAX), "no such slot");
    slot.generation.fetch_add(1, Ordering::Relaxed);
    assert!(registry.is_owner_gone(owner), "the slot is in its next life");
    assert!(!registry.is_owner_gone(threads.owner(own)));
}

#[test]
fn a_slot_is_recycled_once_all_earlier_samples_are_read() {
    for has_events in [true, false] {
        let mut registry = registry();
        if !has_events {
            registry.list.watch.drop_events();
        }
        let threads = registry.slots.data.threads();
        let guest = Guest::start("guest");
        let tid = guest.tid;
        let slot = threads.claim(tid as u32).index().unwrap();
        registry.scan(false);
        let changes = registry.take_changes();
        let [(life, seen_life)] = &seen(&changes, tid)[..] else { panic!("{changes:?}") };
        assert_eq!(seen_life.name, "guest");
        let mut changes = Vec::new();
        registry.retire(true, &mut changes);
        assert!(changes.is_empty(), "it lives: {changes:?}");
        let mut samples = [sample(slot, tid, monotonic_now_ns())];
        guest.end();
        registry.scan(false);
        assert_eq!(threads.find(tid as u32), Some(slot));
        registry.take_changes();
        assert_eq!(
            threads.find(tid as u32),
            None,
            "the next thread with this id gets its own slot"
        );
        registry.retire(false, &mut changes);
        assert!(changes.is_empty(), "a table is held back: {changes:?}");
        assert_eq!(threads.claim(NOT_THERE), Claim::New(slot + 1), "it is not free");
        registry.attribute(&mut samples, &mut changes);
        assert_eq!((samples[0].slot, samples[0].generation), (*life, 0));
        let exits = registry.exits(true);
        let exit = exits.iter().find(|exit| exit.tid == tid).unwrap();
        assert_eq!(exit.cpu_ns.is_some(), registry.list.watch.has_cpu_times());
        assert!(registry.exits(false).is_empty());
        registry.retire(true, &mut changes);
        assert!(exited(&changes).contains(life), "{changes:?}");
        assert_eq!(threads.claim(NOT_THERE + 1), Claim::New(slot));
        assert!(registry.list.lives.get(*life).is_none(), "forgotten");
    }
}

#[test]
fn a_thread_that_no_scan_found_gets_its_samples() {
    let mut registry = registry();
    let mut changes = Vec::new();
    let threads = registry.slots.data.threads();
    let slot = threads.claim(NOT_THERE).index().unwrap();
    let mut samples =
        [500, 400, 600].map(|ms| sample(slot, NOT_THERE as i32, ms * MS + monotonic_now_ns()));
    registry.attribute(&mut samples, &mut changes);
    let [(life, seen_life)] = &seen(&changes, NOT_THERE as i32)[..] else { panic!("{changes:?}") };
    assert_eq!(seen_life.name, "");
    assert!(samples.iter().all(|sample| sample.slot == *life), "{samples:?}");
    registry.take_changes();
    registry.scan(false);
    registry.take_changes();
    registry.retire(true, &mut changes);
    assert!(exited(&changes).contains(life), "{changes:?}");
    assert_eq!(threads.claim(1), Claim::New(slot));
}

/// The kernel reports an id that passes from one thread to another within one rotation.
#[test]
fn samples_of_a_reused_id_go_to_the_thread_of_their_time() {
    let mut registry = registry();
    let tid = NOT_THERE as i32;
    let threads = registry.slots.data.threads();
    let slot = threads.claim(NOT_THERE).index().unwrap();
    let now_ns = monotonic_now_ns();
    let t = |ms: u64| now_ns + ms * MS;
    let report = |registry: &mut Registry, time_ns: u64, change: TaskChange| {
        registry.list.report(TaskEvent { time_ns, tid, change });
    };
    let start = |registry: &mut Registry, ms: u64| {
        report(registry, t(ms), TaskChange::Started { parent: 0 });
    };
    start(&mut registry, 100);
    report(&mut registry, t(101), TaskChange::Renamed("one".to_string()));
    report(&mut registry, t(200), TaskChange::Exited { cpu_ns: Some(7) });
    // The ring of another core was read first.
    report(&mut registry, t(400), TaskChange::Exited { cpu_ns: Some(8) });
    start(&mut registry, 300);
    start(&mut registry, 500);
    report(&mut registry, t(501), TaskChange::Renamed("three".to_string()));
    let mut samples = [150, 199, 350, 501].map(|ms| sample(slot, tid, t(ms)));
    let mut changes = Vec::new();
    registry.attribute(&mut samples, &mut changes);
    let lives = samples.map(|sample| sample.slot);
    assert!(lives[0] == lives[1] && lives[1] != lives[2] && lives[2] != lives[3], "{lives:?}");
    let names: Vec<_> = seen(&changes, tid).into_iter().map(|(_, life)| life.name).collect();
    assert_eq!(names, ["one", "", "three"]);
    assert_eq!(registry.key_of(tid, t(360), &mut changes), (lives[2], 0), "kernel samples, too");
    assert_eq!(registry.metrics().ids_reused, 2);
    registry.take_changes();
    let exits = registry.exits(true);
    let cpu_ns = |life: u32| exits.iter().find(|exit| exit.key.0 == life).map(|exit| exit.cpu_ns);
    assert_eq!((cpu_ns(lives[0]), cpu_ns(lives[2])), (Some(Some(7)), Some(Some(8))));
    assert_eq!(cpu_ns(lives[3]), None, "it lives");
}

/// Without reports. The thread that exists now started after the known one.
#[test]
fn a_reused_id_is_detected_by_its_start_time() {
    let mut registry = registry();
    registry.list.watch.drop_events();
    let guest = Guest::start("second");
    let tid = guest.tid;
    let started = proc::start_ns(proc::task_stat(registry.list.pid, tid).unwrap().start_time);
    let first = registry.list.begin(Life {
        tid,
        inner: tid as u32,
        name: "first".to_string(),
        start_ns: started - 500 * MS,
        start_ticks: Some(1),
        start_slack_ns: proc::tick_ns(),
        ..Life::default()
    });
    let tick = proc::tick_ns();
    // Each reading of the start is off by the time between the readings of two clocks.
    let times = [started - 400 * MS, started + tick / 2, started + tick + MS];
    let mut samples = times.map(|time| sample(0, tid, time));
    let mut changes = Vec::new();
    registry.attribute(&mut samples, &mut changes);
    assert_eq!(samples[0].slot, first);
    assert_eq!(samples[1].slot, NOBODY, "within one clock tick it is unknown");
    assert!(![first, NOBODY].contains(&samples[2].slot));
    let names: Vec<_> = seen(&changes, tid).into_iter().map(|(_, life)| life.name).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!((registry.metrics().ambiguous, registry.metrics().ids_reused), (1, 1));
    guest.end();
}

/// Most threads of a storm have exited before the recorder sweeps their slots.
#[test]
fn a_thread_that_exited_before_its_slot_was_swept_gets_one_life() {
    let mut registry = registry();
    let tid = NOT_THERE as i32;
    let slot = registry.slots.data.threads().claim(NOT_THERE).index().unwrap();
    let now = monotonic_now_ns();
    let reports = [
        (now, TaskChange::Started { parent: 0 }),
        (now + 2 * MS, TaskChange::Exited { cpu_ns: None }),
    ];
    for (time_ns, change) in reports {
        registry.list.report(TaskEvent { time_ns, tid, change });
    }
    let mut changes = registry.take_changes();
    let mut samples = [sample(slot, tid, now + MS)];
    registry.attribute(&mut samples, &mut changes);
    registry.retire(true, &mut changes);
    // Threads of other tests come and go meanwhile, so totals of all threads say nothing.
    assert_eq!(registry.metrics().ambiguous, 0);
    assert_eq!(seen(&changes, tid).len(), 1, "{changes:?}");
    assert_eq!(exited(&changes), [samples[0].slot]);
    assert_eq!(registry.slots.data.threads().claim(1), Claim::New(slot));
}

#[test]
fn threads_without_a_slot_are_announced_with_their_first_sample() {
    let mut registry = registry();
    let guest = Guest::start("kernel");
    registry.scan(false);
    let mut changes = Vec::new();
    let key = registry.key_of(guest.tid, monotonic_now_ns(), &mut changes);
    assert_eq!(registry.key_of(guest.tid, monotonic_now_ns(), &mut changes), key);
    let [(life, seen_life)] = &seen(&changes, guest.tid)[..] else { panic!("{changes:?}") };
    assert_eq!((*life, seen_life.name.as_str()), (key.0, "kernel"));
    guest.end();
}

#[test]
fn new_threads_and_names_are_noticed() {
    for has_events in [true, false] {
        let mut registry = registry();
        if !has_events {
            registry.list.watch.drop_events();
        }
        registry.turn(Instant::now());
        let guest = Guest::start("before");
        let until = Instant::now() + std::time::Duration::from_secs(5);
        while !registry.turn(Instant::now()).new.contains(&guest.tid) {
            assert!(Instant::now() < until, "events: {has_events}");
        }
        let mut changes = Vec::new();
        let key = registry.key_of(guest.tid, monotonic_now_ns(), &mut changes);
        let name = format!("/proc/self/task/{}/comm", guest.tid);
        std::fs::write(name, "after").unwrap();
        registry.scan(true);
        let renamed = ThreadChange::Renamed { key, name: "after".to_string() };
        assert!(registry.take_changes().contains(&renamed), "events: {has_events}");
        guest.end();
    }
}

#[test]
fn names_of_all_threads_are_read_in_turn() {
    let guests: Vec<Guest> = (0..20).map(|_| Guest::start("before")).collect();
    let mut registry = registry();
    registry.list.watch.drop_events();
    let name = |guest: &Guest| format!("/proc/self/task/{}/comm", guest.tid);
    guests.iter().for_each(|guest| std::fs::write(name(guest), "after").unwrap());
    let renamed = |registry: &Registry| {
        let is_renamed = |guest: &&Guest| {
            let life =
                registry.list.lives.living(guest.tid).and_then(|it| registry.list.lives.get(it));
            life.is_some_and(|life| life.name == "after")
        };
        guests.iter().filter(is_renamed).count()
    };
    // The threads of other tests have their turns as well.
    for check in 1..=registry.count() {
        registry.read_names(std::time::Duration::ZERO);
        assert!(renamed(&registry) <= check, "more than one at a time");
    }
    assert_eq!(renamed(&registry), guests.len());
    guests.into_iter().for_each(Guest::end);
}

/// Starts a process that executes another program when it gets a line, and makes its registry.
fn shell(first: u32) -> (std::process::Child, Registry) {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "echo; read _; exec sleep 60"]);
    let piped = std::process::Stdio::piped;
    let mut shell = shell.stdin(piped()).stdout(piped()).spawn().unwrap();
    let ready = std::io::Read::read(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    assert_eq!(ready, 1);
    let registry = Registry::new(shell.id() as i32, own_data(), first, &Arc::default()).unwrap();
    (shell, registry)
}

#[test]
fn threads_end_with_their_program_and_take_no_name_of_the_next_one() {
    const FIRST: u32 = 40;
    for has_events in [true, false] {
        let (mut shell, mut registry) = shell(FIRST);
        if !has_events {
            registry.list.watch.drop_events();
        }
        let (tid, mut changes) = (registry.list.pid, Vec::new());
        registry.scan(true);
        let before_ns = monotonic_now_ns();
        assert_eq!(registry.key_of(tid, before_ns, &mut changes), (FIRST, 0));
        assert!(!registry.is_program_gone());
        std::io::Write::write_all(shell.stdin.as_mut().unwrap(), b"\n").unwrap();
        let until = Instant::now() + std::time::Duration::from_secs(10);
        let is_next = |tid| proc::task_stat(tid, tid).unwrap().name == "sleep";
        while !is_next(tid) {
            assert!(Instant::now() < until, "no exec");
        }
        assert!(registry.is_program_gone());
        // The listed threads now belong to another program.
        registry.turn(Instant::now());
        registry.scan(true);
        let ended_ns = registry.end_all();
        assert!((before_ns..=monotonic_now_ns()).contains(&ended_ns));
        changes.extend(registry.take_changes());
        registry.retire(true, &mut changes);
        let names: Vec<_> = seen(&changes, tid).into_iter().map(|(_, life)| life.name).collect();
        assert_eq!(
            (names, exited(&changes)),
            (vec!["sh".to_owned()], vec![FIRST]),
            "events: {has_events}"
        );
        let renamed = changes.iter().any(|it| matches!(it, ThreadChange::Renamed { .. }));
        assert!(!renamed, "events: {has_events}: {changes:?}");
        assert_eq!((registry.next(), registry.count(), registry.count_ever()), (FIRST + 1, 0, 1));
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}

#[test]
fn without_free_slots_nothing_breaks() {
    let mut registry = registry();
    registry.slots.data.control().slots_limit.store(1, Ordering::Relaxed);
    let own = registry.list.pid;
    let guest = Guest::start("guest");
    registry.scan(false);
    registry.prime([(guest.tid, EventWord(3)), (own, EventWord(4))].into_iter());
    let threads = registry.slots.data.threads();
    assert_eq!(threads.find(guest.tid as u32), Some(0));
    assert_eq!(threads.claim(own as u32), Claim::Exhausted);
    registry.take_changes();
    let metrics = registry.metrics();
    assert_eq!((metrics.slots_held, metrics.slots_held_max), (1, 1));
    let tid = guest.tid;
    guest.end();
    registry.scan(false);
    registry.take_changes();
    registry.retire(true, &mut Vec::new());
    assert_eq!(threads.claim(own as u32), Claim::New(0), "room again");
    assert_eq!(threads.find(tid as u32), None);
    assert_eq!(registry.metrics().slots_held, 0);
}

#[test]
fn the_younger_of_two_events_is_closed() {
    let registry = registry();
    let threads = registry.slots.data.threads();
    for (tid, event, other) in [(1, 8, 3), (2, 4, 9), (3, 6, 0)] {
        let slot = &threads.slots[threads.claim(tid).index().unwrap()];
        slot.event.store(event, Ordering::Relaxed);
        slot.other_event.store(other, Ordering::Relaxed);
    }
    assert_eq!(registry.younger_events(), BTreeSet::from([7, 8]));
    // Events of the previous family are closed.
    registry.slots.data.control().event_family.store(1, Ordering::Relaxed);
    assert_eq!(registry.younger_events(), BTreeSet::new());
    let noted = |index: u32| EventWord::new(index, 5, 1).0 + 1;
    threads.slots[0].event.store(noted(20), Ordering::Relaxed);
    threads.slots[0].other_event.store(noted(30), Ordering::Relaxed);
    assert_eq!(registry.younger_events(), BTreeSet::from([30]));
}
