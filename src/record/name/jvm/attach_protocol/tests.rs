//! A stand-in for a JVM: this process, with a socket in its own folder.

use crate::record::contract::clock::wait_until;
use crate::record::contract::stop;
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::unistd::{getegid, mkfifo};

use super::*;

const INNER: i32 = 7;
const NEVER: &dyn Fn() -> bool = &|| false;

fn jvm_of(pid: i32, folder: &Path) -> JavaVm {
    let timeouts = AttachTimeouts {
        socket: Duration::from_millis(300),
        answer: Duration::from_millis(300),
        last: Duration::from_millis(50),
        step: Duration::from_millis(5),
    };
    JavaVm {
        pid,
        inner_pid: INNER,
        owner: (geteuid().as_raw(), getegid().as_raw()),
        memory: Memory::of(pid).unwrap(),
        folder: File::open(folder).unwrap().into(),
        timeouts,
    }
}

fn own_jvm(folder: &Path) -> JavaVm {
    jvm_of(std::process::id() as i32, folder)
}

/// Accepts one connection, reads the request, and passes the connection to the caller's function.
fn listen(
    folder: &Path,
    answer: impl FnOnce(&mut UnixStream) + Send + 'static,
) -> JoinHandle<Vec<u8>> {
    let listener = UnixListener::bind(folder.join(".java_pid7")).unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = vec![0; REQUEST.len()];
        stream.read_exact(&mut request).unwrap();
        answer(&mut stream);
        request
    })
}

/// Sends a request and returns its outcome, which must come within a bounded time.
fn asked(answer: impl FnOnce(&mut UnixStream) + Send + 'static) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path(), answer);
    let start = Instant::now();
    let result = own_jvm(folder.path()).ask(NEVER);
    assert!(start.elapsed() < Duration::from_secs(20), "the wait must be bounded");
    assert_eq!(listener.join().unwrap(), REQUEST);
    result.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn answers_are_understood() {
    let write = |text: &'static str| {
        move |stream: &mut UnixStream| {
            stream.write_all(text.as_bytes()).unwrap();
        }
    };
    assert_eq!(asked(write("0\nCommand executed successfully\n")), Ok(()));
    let unknown = "java.lang.IllegalArgumentException: Unknown diagnostic command";
    assert_eq!(
        asked(write("1\njava.lang.IllegalArgumentException: Unknown diagnostic command\n")),
        Err(unknown.into())
    );
    assert_eq!(asked(write("101\n")), Err("refused".into()));
    let silent = Err("the Java virtual machine did not answer".to_string());
    assert_eq!(asked(|_| {}), silent);
    assert_eq!(asked(write("0")), silent);
    assert_eq!(asked(write("\0\x7f no protocol of this world")), silent);
}

#[test]
fn an_answer_may_come_slowly_or_never_or_without_end() {
    let slow = asked(|stream| {
        for byte in b"0\nok" {
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(&[*byte]).unwrap();
        }
    });
    assert_eq!(slow, Ok(()));
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let never = asked(move |_| {
        // Waits until the other end has given up.
        let _ = ended.recv_timeout(Duration::from_millis(600));
    });
    drop(end);
    assert_eq!(never, Err("the Java virtual machine did not answer".into()));
    let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = Arc::clone(&written);
    let endless = asked(move |stream| {
        stream.write_all(b"0\n").unwrap();
        // A gigabyte, if the other end reads it all.
        for _ in 0..1 << 14 {
            if stream.write_all(&[b'x'; 1 << 16]).is_err() {
                return;
            }
            count.fetch_add(1 << 16, Ordering::Relaxed);
        }
    });
    assert_eq!(endless, Ok(()));
    assert!(written.load(Ordering::Relaxed) < 8 << 20, "{written:?}");
}

#[test]
fn a_machine_that_accepts_no_connection_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(folder.path().join(".java_pid7")).unwrap();
    let jvm = own_jvm(folder.path());
    // The kernel queues connections until the queue is full; each times out without an answer.
    let first = jvm.ask(NEVER).unwrap_err().to_string();
    assert_eq!(first, "the Java virtual machine did not answer");
    let mut held = Vec::new();
    let full = loop {
        match jvm.connect() {
            Ok(stream) => held.push(stream.unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AskError::Failed(error) if error.kind() == io::ErrorKind::WouldBlock));
    let start = Instant::now();
    assert!(matches!(jvm.ask(&|| true), Err(AskError::Failed(_))));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_end_is_not_waited_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(folder.path().join(".java_pid7")).unwrap();
    let mut jvm = own_jvm(folder.path());
    jvm.timeouts.answer = Duration::from_secs(3600);
    assert!(matches!(jvm.ask(&|| true), Err(AskError::Over)));
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let jvm = own_jvm(folder.path());
    let refused = |part: &str| match jvm.ask(NEVER) {
        Err(AskError::Refused(text)) => assert!(text.contains(part), "{text}"),
        other => panic!("{other:?}"),
    };
    let (socket, map) = (folder.path().join(".java_pid7"), folder.path().join("perf-7.map"));
    let elsewhere = folder.path().join("socket");
    let _listener = UnixListener::bind(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &socket).unwrap();
    refused(".java_pid7 is not its own socket");
    fs::remove_file(&socket).unwrap();
    mkfifo(&socket, Mode::from_bits_truncate(0o600)).unwrap();
    refused("not its own socket");
    fs::remove_file(&socket).unwrap();
    // The JVM would write the map to another file.
    std::os::unix::fs::symlink("/dev/null", &map).unwrap();
    refused("perf-7.map exists and is not its own file");
    fs::remove_file(&map).unwrap();
    // A socket with the right name, but of this process instead of the child.
    fs::rename(&elsewhere, &socket).unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let strange = jvm_of(child.id() as i32, folder.path()).ask(NEVER);
    child.kill().and_then(|()| child.wait()).unwrap();
    let text = strange.unwrap_err().to_string();
    assert!(text.contains("the socket of another process"), "{text}");
}

#[test]
fn only_own_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let jvm = own_jvm(folder.path());
    let map = folder.path().join("perf-7.map");
    assert!(jvm.map().unwrap().is_none());
    fs::write(&map, "1000 10 f\n").unwrap();
    let first = jvm.map().unwrap().unwrap();
    // Another file with the same name, while the first is still open.
    let _held = File::open(&map).unwrap();
    fs::remove_file(&map).unwrap();
    fs::write(&map, "of another process").unwrap();
    let never = SystemTime::UNIX_EPOCH;
    jvm.remove_map(first, never);
    assert!(map.exists());
    jvm.remove_map(jvm.map().unwrap().unwrap(), never);
    assert!(!map.exists());
    let request = folder.path().join(".attach_pid7");
    fs::write(&request, "").unwrap();
    assert!(jvm.make_request().unwrap().is_none(), "another process attaches");
    assert!(request.exists());
    fs::remove_file(&request).unwrap();
    let (name, made) = jvm.make_request().unwrap().unwrap();
    assert!(request.exists());
    jvm.remove(&name, made);
    assert!(!request.exists());
}

#[test]
fn a_map_of_the_next_program_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let jvm = jvm_of(child.id() as i32, folder.path());
    child.kill().and_then(|()| child.wait()).unwrap();
    let map = folder.path().join("perf-7.map");
    fs::write(&map, "1000 10 f\n").unwrap();
    let found = jvm.map().unwrap().unwrap();
    assert_eq!(found.modified, fs::metadata(&map).unwrap().modified().unwrap());
    jvm.remove_map(found, found.modified - Duration::from_millis(1));
    assert!(map.exists(), "it was written after the last answer");
    jvm.remove_map(found, found.modified);
    assert!(!map.exists());
}

#[test]
fn a_process_that_handles_no_sigquit_gets_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let jvm = jvm_of(child.id() as i32, folder.path());
    let outcome = jvm.ask(NEVER);
    assert!(matches!(outcome, Err(AskError::NotYet)), "{outcome:?}");
    // The signal would have killed it.
    std::thread::sleep(Duration::from_millis(50));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().and_then(|()| child.wait()).unwrap();
    assert!(jvm.is_gone() && fs::read_dir(folder.path()).unwrap().next().is_none());
}

/// The JVM handles the signal only in a thread with this name.
#[test]
fn a_machine_is_woken_by_the_thread_that_handles_it() {
    let folder = tempfile::tempdir().unwrap();
    let jvm = own_jvm(folder.path());
    let is_woken = Arc::new(AtomicBool::new(false));
    stop::notice(Signal::SIGQUIT as i32, Arc::clone(&is_woken));
    assert!(matches!(jvm.ask(NEVER), Err(AskError::NotYet)), "no thread handles it");
    assert!(!is_woken.load(Ordering::Relaxed));
    let (path, woken) = (folder.path().to_owned(), Arc::clone(&is_woken));
    let thread = std::thread::Builder::new().name(HANDLES_QUIT.to_string()).spawn(move || {
        while !woken.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(path.join(".attach_pid7").exists());
        let listener = listen(&path, |stream| stream.write_all(b"0\nok").unwrap());
        listener.join().unwrap();
    });
    let thread = thread.unwrap();
    // The thread sets its own name.
    while matches!(jvm.quit_thread(), Err(AskError::NotYet)) {
        std::thread::yield_now();
    }
    jvm.ask(NEVER).unwrap();
    thread.join().unwrap();
    assert!(!folder.path().join(".attach_pid7").exists());
    explains_the_signal_at_the_end(&is_woken);
}

/// The end is requested while the signal is pending.
///
/// This is a part of the test above, since the process can have only one thread with this name.
fn explains_the_signal_at_the_end(is_woken: &Arc<AtomicBool>) {
    let folder = tempfile::tempdir().unwrap();
    let mut jvm = own_jvm(folder.path());
    jvm.timeouts.last = Duration::from_secs(10);
    is_woken.store(false, Ordering::Relaxed);
    let (path, woken) = (folder.path().to_owned(), Arc::clone(is_woken));
    let thread = std::thread::Builder::new().name(HANDLES_QUIT.to_string()).spawn(move || {
        while !woken.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let is_known = path.join(".attach_pid7").exists();
        (is_known, UnixListener::bind(path.join(".java_pid7")).unwrap())
    });
    let thread = thread.unwrap();
    while matches!(jvm.quit_thread(), Err(AskError::NotYet)) {
        std::thread::yield_now();
    }
    let outcome = jvm.ask(&|| is_woken.load(Ordering::Relaxed));
    assert!(matches!(outcome, Err(AskError::Over)), "{outcome:?}");
    let (is_known, listener) = thread.join().unwrap();
    assert!(is_known, "it would write its stacks");
    let mut asked = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut asked).unwrap();
    assert!(asked.is_empty() && !folder.path().join(".attach_pid7").exists());
}

#[test]
fn a_stopped_machine_is_not_signalled() {
    let status = proc::task_status(std::process::id() as i32, nix::unistd::gettid().as_raw());
    let status = Status { name: HANDLES_QUIT.to_string(), ..status.unwrap() };
    let with = |state| handles_quit(&Status { state, ..status.clone() });
    assert_eq!(['R', 'S', 'T', 't'].map(with), [true, true, false, false]);
}

#[test]
fn no_signal_goes_to_the_next_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "read _; exec sleep 60"]).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let pid = child.id() as i32;
    let jvm = jvm_of(pid, folder.path());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_until("no exec", || jvm.is_gone());
    let outcome = jvm.signal_and_wait(pid, NEVER);
    assert!(matches!(outcome, Err(AskError::Over)), "{outcome:?}");
    std::thread::sleep(Duration::from_millis(50));
    assert!(child.try_wait().unwrap().is_none(), "the signal has killed the program");
    child.kill().and_then(|()| child.wait()).unwrap();
}
