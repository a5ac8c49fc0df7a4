//! Tests of the README's examples in the languages that rustdoc does not run.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::cc::{built, compile, run, source};

/// Writes the README's code block in this language to a file and returns its path.
fn examples(language: &str, name: &str) -> PathBuf {
    let text = fs::read_to_string(source("README.md")).expect("the text");
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("a block of code");
    let (code, rest) = rest.split_once("```\n").expect("its end");
    assert!(!rest.contains(&format!("```{language}\n")), "one block of each language");
    let directory = built("readme");
    fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join(name);
    fs::write(&path, code).expect("a file");
    path
}

#[test]
fn the_c_and_cpp_examples_of_the_readme_run() {
    for (language, name, compiler, standard) in
        [("c", "example.c", "cc", "-std=c11"), ("cpp", "example.cpp", "c++", "-std=c++11")]
    {
        let example = examples(language, name);
        let flags = [standard, "-Wno-unused"];
        let example = example.to_str().expect("a path of UTF-8");
        run(&mut Command::new(compile(compiler, &flags, example, &format!("readme.{language}"))));
    }
}

#[test]
fn the_python_example_of_the_readme_runs() {
    let mut python = Command::new("/usr/bin/python3");
    python.arg("-B").env("PYTHONPATH", source("python"));
    run(python.arg(examples("python", "example.py")));
}

#[test]
fn the_java_example_of_the_readme_runs() {
    let classes = built("readme.java");
    let example = examples("java", "Example.java");
    let class = source("java/TraceprofContext.java");
    run(Command::new("javac").arg("-d").arg(&classes).args([class, example]));
    run(Command::new("java").arg("-cp").arg(&classes).arg("Example"));
}
