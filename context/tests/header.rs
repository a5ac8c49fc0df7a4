//! Tests of the C header: it has the layout of the Rust crate, and its functions work as
//! documented.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use common::cc::{compile, has_command, run};
use traceprof_abi::context::{
    Context, ContextTableHeader, TABLE_LEN, TABLE_MAGIC, TABLE_VERSION, TAG_NAME_MAX, TAGS,
    TEXT_MAX, TagKey, TagKind, checksum, table_layout,
};

/// Returns what `layout.c` must print, according to the Rust crate.
fn expected() -> BTreeMap<String, u64> {
    let sizes = [
        ("context.size", size_of::<Context>()),
        ("context.align", align_of::<Context>()),
        ("context.span", offset_of!(Context, span)),
        ("context.root_span", offset_of!(Context, root_span)),
        ("context.checksum", offset_of!(Context, checksum)),
        ("context.tags", offset_of!(Context, tags)),
        ("values.size", size_of::<Context>()),
        ("values.align", align_of::<u64>()),
        ("context_values.span", offset_of!(Context, span)),
        ("context_values.root_span", offset_of!(Context, root_span)),
        ("context_values.checksum", offset_of!(Context, checksum)),
        ("context_values.tags", offset_of!(Context, tags)),
        ("key.size", size_of::<TagKey>()),
        ("context_tag_key.kind", offset_of!(TagKey, kind)),
        ("context_tag_key.len", offset_of!(TagKey, len)),
        ("context_tag_key.name", offset_of!(TagKey, name)),
        ("context_header.magic", offset_of!(ContextTableHeader, magic)),
        ("context_header.version", offset_of!(ContextTableHeader, version)),
        ("context_header.pid", offset_of!(ContextTableHeader, pid)),
        ("context_header.refused", offset_of!(ContextTableHeader, refused)),
        ("context_header.text_words", offset_of!(ContextTableHeader, text_words)),
        ("context_header.texts_refused", offset_of!(ContextTableHeader, texts_refused)),
        ("context_header.tags_used", offset_of!(ContextTableHeader, tags_used)),
        ("context_header.tags", offset_of!(ContextTableHeader, tags)),
        ("tags", TAGS),
        ("name_max", TAG_NAME_MAX),
        ("text_max", TEXT_MAX),
        ("entries", table_layout::ENTRIES),
        ("line", table_layout::LINE),
        ("run", table_layout::RUN),
        ("text_index", table_layout::TEXT_INDEX_LEN),
        ("text_probes", table_layout::TEXT_PROBES),
        ("text_words", table_layout::TEXT_WORDS),
    ];
    let words = [
        ("context_table.tids", table_layout::TIDS),
        ("context_table.contexts", table_layout::CONTEXTS),
        ("context_table.text_index", table_layout::TEXT_INDEX),
        ("context_table.texts", table_layout::TEXTS),
        ("table.size", TABLE_LEN),
        ("magic", TABLE_MAGIC),
        ("version", u64::from(TABLE_VERSION)),
        ("kind.number", TagKind::Number as u64),
        ("kind.text", TagKind::Text as u64),
    ];
    let sizes = sizes.into_iter().map(|(name, size)| (name.to_owned(), size as u64));
    let words = words.into_iter().map(|(name, word)| (name.to_owned(), word));
    sizes.chain(words).collect()
}

/// Compares the lines of `layout.c` with the Rust crate.
fn check_layout(printed: &str) {
    let mut expected = expected();
    let mut checksums = 0;
    for line in printed.lines() {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        let value: u64 = value.parse().expect("a number");
        if let Some(ids) = name.strip_prefix("checksum.") {
            let (span, root) = ids.split_once('.').expect("two ids");
            let id = |text| u64::from_str_radix(text, 16).expect("an id");
            assert_eq!(value, checksum(id(span), id(root)), "{name}");
            checksums += 1;
        } else {
            assert_eq!(expected.remove(name), Some(value), "{name}");
        }
    }
    assert_eq!((expected, checksums), (BTreeMap::new(), 8), "the printed values are incomplete");
}

fn check(compiler: &str, flags: &[&str], name: &str) {
    check_layout(&run(&mut Command::new(compile(
        compiler,
        flags,
        "tests/c/layout.c",
        &format!("layout.{name}"),
    ))));
    let sanity = compile(compiler, flags, "tests/c/sanity.c", &format!("sanity.{name}"));
    assert_eq!(run(&mut Command::new(sanity)), "well\n");
}

#[test]
fn c_has_the_layout_and_passes_the_sanity_tests() {
    check("cc", &["-std=c11"], "c11");
    check("cc", &["-std=gnu17", "-O0"], "gnu17");
    check("cc", &["-std=c11", "-static"], "static");
}

#[test]
fn c_and_cpp_have_no_undefined_behaviour() {
    let strict = ["-fsanitize=undefined", "-fno-sanitize-recover=all"];
    check("cc", &[&["-std=c11"], &strict[..]].concat(), "ubsan");
    check("c++", &[&["-x", "c++", "-std=c++17"], &strict[..]].concat(), "ubsan_cpp");
}

#[test]
fn cpp_has_the_layout_and_passes_the_sanity_tests() {
    for standard in ["-std=c++11", "-std=c++17", "-std=c++20"] {
        check("c++", &["-x", "c++", standard], &standard[5..]);
    }
}

#[test]
fn clang_has_the_layout_and_passes_the_sanity_tests() {
    if !has_command("clang") {
        return common::announce_skip("clang is not installed");
    }
    check("clang", &["-std=c11"], "clang");
    check("clang", &["-x", "c++", "-std=c++20"], "clang_cpp");
}

#[test]
fn musl_has_the_layout_and_passes_the_sanity_tests() {
    check("musl-gcc", &["-std=c11"], "musl");
    check("musl-gcc", &["-std=c11", "-static"], "musl_static");
}

#[test]
fn aarch64_has_the_layout_and_passes_the_sanity_tests() {
    let (compiler, machine) = ("aarch64-linux-gnu-gcc", "qemu-aarch64");
    for command in [compiler, machine] {
        if !has_command(command) {
            return common::announce_skip(&format!("{command} is not installed"));
        }
    }
    let program = |name: &str| {
        let path = format!("tests/c/{name}.c");
        compile(compiler, &["-std=c11", "-static"], &path, &format!("{name}.aarch64"))
    };
    let emulated = |program: &Path| run(Command::new(machine).arg(program));
    check_layout(&emulated(&program("layout")));
    assert_eq!(emulated(&program("sanity")), "well\n");
}
