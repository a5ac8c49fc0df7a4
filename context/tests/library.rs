//! Tests of threads, children and libraries of C programs, and of the C writer under the thread
//! sanitizer.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::process::Command;

use common::cc::{built, compile, run, source};

fn check(compiler: &str, flags: &[&str], path: &str, name: &str) {
    assert_eq!(run(&mut Command::new(compile(compiler, flags, path, name))), "well\n");
}

#[test]
fn c_threads_that_start_exit_and_are_reused_do_not_inherit_contexts() {
    check("cc", &["-std=gnu11"], "tests/c/threads.c", "threads.c11");
    check("c++", &["-x", "c++", "-std=c++17"], "tests/c/threads.c", "threads.cpp");
    check("musl-gcc", &["-std=gnu11", "-static"], "tests/c/threads.c", "threads.musl");
}

/// Builds the shared library with the command that the header documents.
fn shared_library(compiler: &str, flags: &[&str], path: &str, name: &str) -> String {
    let flags = [&["-fPIC", "-shared"], flags].concat();
    compile(compiler, &flags, path, name).to_str().expect("a path of UTF-8").to_owned()
}

fn check_loaded(loader: &[&str], library: &str, tables: &str, name: &str) {
    let loader = compile("cc", loader, "tests/c/loader.c", &format!("loader.{name}"));
    assert_eq!(run(Command::new(loader).args([library, tables])), "well\n");
}

#[test]
fn a_library_that_is_loaded_shares_the_table_of_a_program_that_shows_its_own() {
    let library = shared_library("cc", &[], "tests/c/plugin.c", "plugin.c.so");
    check_loaded(&["-rdynamic", "-ldl"], &library, "1", "shown");
}

#[test]
fn a_library_that_cannot_see_the_programs_table_has_one_of_its_own_and_is_not_unloaded() {
    let library = shared_library("cc", &[], "tests/c/plugin.c", "plugin.c.so.2");
    check_loaded(&["-ldl"], &library, "2", "hidden");
    let flags = ["-x", "c++", "-std=c++11"];
    let library = shared_library("c++", &flags, "tests/c/plugin.c", "plugin.cpp.so");
    check_loaded(&["-ldl"], &library, "2", "hidden_cpp");
}

#[test]
fn the_libraries_are_made_as_the_header_says() {
    let header = std::fs::read_to_string(source("include/traceprof_context.h")).unwrap();
    let mut made = 0;
    for line in header.lines() {
        let Some(command) = line.strip_prefix(" *     ") else { continue };
        if !command.starts_with("cc ") && !command.starts_with("ar ") {
            continue;
        }
        let mut words = command.split(' ');
        let mut compiler = Command::new(words.next().unwrap());
        for word in words {
            // The words of the documented command, with the test's directories for the files.
            let is_result = word.starts_with("lib") || word == "traceprof_context.o";
            match word {
                "-Iinclude" => compiler.arg("-I").arg(source("include")),
                "c/traceprof_context.c" => compiler.arg(source(word)),
                _ if is_result => compiler.arg(built(word)),
                _ => compiler.arg(word),
            };
        }
        run(&mut compiler);
        made += 1;
    }
    assert_eq!(made, 3);
    for name in ["libtraceprof_context.a", "libtraceprof_context.so"] {
        let symbols = run(Command::new("nm").arg(built(name)));
        for symbol in
            ["T traceprof_context_set", "T traceprof_context_here", "traceprof_context_table_v1"]
        {
            assert!(symbols.contains(symbol), "{name}: {symbol}");
        }
    }
}

#[test]
fn the_c_writer_and_reader_are_free_of_races_by_the_thread_sanitizer() {
    let flags = ["-std=gnu11", "-fsanitize=thread"];
    check("cc", &flags, "tests/c/races.c", "races");
    // The same with a field that is stored like an ordinary variable.
    let planted = [&flags[..], &["-DPLANTED"]].concat();
    let program = compile("cc", &planted, "tests/c/races.c", "races.planted");
    let output = Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("data race"), "not caught: {said}");
}
