//! PHP that serves pages: its own server, and workers of php-fpm with and without the cache.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use traceprof::trace::FrameKind;

use crate::common::managed_frames::{ALL_SAMPLES, for_each_stack};
use crate::common::served::{Client, Served, asks_http, free_port};
use crate::common::{
    Outcome, Php, is_root, needs_recording, record_cpu, scratch_dir, script, skip, together,
    wait_until,
};

/// The callers of the functions of `page.php`.
const PAGE_CALLERS: [(&str, &str); 5] = [
    ("p_page", "{main}"),
    ("p_row", "p_page"),
    ("p_cell", "p_row"),
    ("p_text", "p_row"),
    ("p_shorten", "{closure}"),
];

/// Checks the functions of `page.php` in all samples of a process that serves it.
fn check_page(label: &str, outcome: &Outcome) {
    let lines: Vec<&str> = include_str!("targets/php/page.php").lines().collect();
    let (mut calls, mut wrong) = (0, BTreeMap::<String, u64>::new());
    for_each_stack(outcome, FrameKind::Php, |stack| {
        for pair in stack.windows(2) {
            let Some((_, by)) = PAGE_CALLERS.iter().find(|(name, _)| *name == pair[1].name) else {
                continue;
            };
            calls += 1;
            if pair[0].name.ends_with("gone]") {
                continue;
            }
            // 8.4 says where a closure is.
            let is_it = pair[0].name.starts_with(by.trim_end_matches('}'));
            let line = lines.get(pair[0].line.saturating_sub(1) as usize).unwrap_or(&"");
            let is_there = line.contains(&format!("{}(", pair[1].name));
            if !is_it || !is_there || !pair[0].file.ends_with("/page.php") {
                *wrong.entry(format!("{:?} calls {}", pair[0], pair[1].name)).or_default() += 1;
            }
        }
    });
    assert!(wrong.is_empty(), "{label}: {wrong:#?}\n{}", outcome.text());
    assert!(calls > 3000, "{label}: {calls} calls\n{}", outcome.text());
    let [samples, named] =
        ["samples.php", "samples_named.php"].map(|key| outcome.trace.number(key));
    // The cache is off in one of the servers: the functions of a page live as long as it.
    assert!(named * 100 >= samples * 95, "{label}: {named} of {samples}\n{}", outcome.text());
    eprintln!("{label}: {calls} calls, {named} of {samples} have names\n{}", outcome.text());
}

/// Records PHP's own server.
fn a_server_has_names(minor: u32) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    let port = free_port();
    let mut command = php.command(&["-S", &format!("127.0.0.1:{port}"), "-t"]);
    let folder = script("php");
    command.arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Served(command.spawn().expect("a server"));
    let asks = move |number| asks_http(port, &format!("page.php?number={number}"));
    assert!(wait_until(Duration::from_secs(20), || asks(1)), "it answers");
    let client = Client::start(asks);
    let outcome = record_cpu(server.0.id() as i32, Duration::from_secs(3), &ALL_SAMPLES);
    let answers = client.finish();
    assert!(answers > 10, "{answers} answers");
    check_page(&format!("PHP 8.{minor} -S"), &outcome);
    assert!(server.0.try_wait().expect("a server").is_none(), "it lives");
}

#[test]
fn a_server_of_8_2_has_names() {
    a_server_has_names(2);
}

#[test]
fn a_server_of_8_4_has_names() {
    a_server_has_names(4);
}

/// Returns a record of FastCGI.
fn fast_cgi(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0][..], content].concat()
}

/// Returns whether a worker of php-fpm answers at this socket.
fn asks_fast_cgi(socket: &Path, page: &Path, number: u64) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let page = page.to_str().expect("a path");
    let query = format!("number={number}");
    let parameters = [
        ("SCRIPT_FILENAME", page),
        ("SCRIPT_NAME", "/page.php"),
        ("REQUEST_METHOD", "GET"),
        ("QUERY_STRING", &query),
    ];
    let pairs = parameters.map(|(name, value)| {
        let len = (value.len() as u32 | 1 << 31).to_be_bytes();
        [&[name.len() as u8][..], &len, name.as_bytes(), value.as_bytes()].concat()
    });
    let begin = fast_cgi(1, &[0, 1, 0, 0, 0, 0, 0, 0]);
    let request =
        [begin, fast_cgi(4, &pairs.concat()), fast_cgi(4, &[]), fast_cgi(5, &[])].concat();
    let mut answer = Vec::new();
    stream.write_all(&request).is_ok()
        && stream.read_to_end(&mut answer).is_ok()
        && String::from_utf8_lossy(&answer).contains("text/plain")
}

/// Records a worker of php-fpm.
fn a_worker_has_names(minor: u32, has_cache: bool) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    let folder = scratch_dir();
    let socket = folder.path().join("socket");
    let settings = folder.path().join("settings");
    let text = format!(
        "[global]\nerror_log={0}/log\ndaemonize=no\n[pool]\nlisten={0}/socket\npm=static\n\
         pm.max_children=1\n{1}",
        folder.path().display(),
        if is_root() { "user=root\ngroup=root\n" } else { "" }
    );
    std::fs::write(&settings, text).expect("a file");
    let mut command = php.server();
    command.arg("-F").arg("-R").arg("-y").arg(&settings).stderr(Stdio::null());
    if has_cache {
        command.args(php.with_cache(None));
    }
    let mut server = Served(command.spawn().expect("a server"));
    let page = script("php/page.php");
    let asks = move |number| asks_fast_cgi(&socket, &page, number);
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    assert!(wait_until(Duration::from_secs(20), || asks(1)), "it answers\n{}", log());
    let worker = worker_of(server.0.id());
    let client = Client::start(asks);
    let outcome = record_cpu(worker, Duration::from_secs(3), &ALL_SAMPLES);
    let answers = client.finish();
    assert!(answers > 10, "{answers} answers");
    check_page(&format!("PHP 8.{minor} FPM, cache: {has_cache}"), &outcome);
    assert!(server.0.try_wait().expect("a server").is_none(), "it lives");
}

/// Returns the only child of a process.
fn worker_of(pid: u32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.expect("children").trim().parse().expect("one worker")
}

#[test]
fn a_worker_of_8_2_has_names() {
    a_worker_has_names(2, false);
}

#[test]
fn a_worker_of_8_4_has_names() {
    a_worker_has_names(4, false);
}

#[test]
fn a_worker_of_8_2_with_a_cache_has_names() {
    a_worker_has_names(2, true);
}

#[test]
fn a_worker_of_8_4_with_a_cache_has_names() {
    a_worker_has_names(4, true);
}
