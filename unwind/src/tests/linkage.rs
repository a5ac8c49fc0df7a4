//! Stubs of linkage tables in programs whose linker does not describe their frames.

use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use crate::{ModuleTable, compile};

const SOURCE: &str = "
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char text[100];
    memset(text, argc, sizeof text);
    return printf(\"%zu %s\", strlen(argv[0]), strchr(argv[0], '/')) + memcmp(text, argv[0], 3);
}
";
/// Offsets and lengths of the ELF header fields for the section headers' offset and count.
const SECTION_HEADERS: [(usize, usize); 2] = [(40, 8), (60, 2)];

/// A section of stubs, and a function from each offset in it to the distance of the CFA from sp.
type Stated = (&'static str, fn(u64) -> i32);

fn linked(flags: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("a.c"), directory.path().join("program"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut command = Command::new("cc");
    let status = command.arg("-O2").arg(&source).arg("-o").arg(&program).args(flags).status();
    assert!(status.expect("a compiler is needed").success(), "{flags:?}");
    read(&program)
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn rule_at(table: &ModuleTable, svma: u64) -> Rule {
    let offset = svma - table.base;
    let block = (offset / 256) as usize;
    let (first, end) = (table.blocks[block] as usize, table.blocks[block + 1] as usize);
    let within = table.lows[first..end].iter().filter(|low| u64::from(**low) <= offset % 256);
    let row = first + within.count() - 1;
    table.rules[usize::from(table.ids[row])]
}

/// Checks that every byte of these sections has the rule that its instruction needs, with section
/// headers and without.
fn check(flags: &[&str], sections: &[Stated]) {
    let bytes = linked(flags);
    let mut bare = bytes.clone();
    for (at, len) in SECTION_HEADERS {
        bare[at..at + len].fill(0);
    }
    let file = object::File::parse(&*bytes).unwrap();
    for bytes in [&bytes, &bare] {
        let table = compile(bytes).unwrap();
        for (name, size_at) in sections {
            let section = file.section_by_name(name).unwrap_or_else(|| panic!("{flags:?}: {name}"));
            for at in 0..section.size() {
                let expected = Rule { cfa_off: size_at(at), ..Rule::plain(op::SP) };
                let found = rule_at(&table, section.address() + at);
                assert_eq!(found, expected, "{flags:?}: {name} + {at}");
            }
        }
    }
}

/// Calls of functions that are chosen by the processor's features.
#[test]
fn stubs_of_static_programs_have_rules() {
    check(&["-static"], &[(".plt", |_| 8)]);
    check(&["-static", "-fcf-protection=full", "-Wl,-z,ibtplt"], &[(".plt", |_| 8)]);
}

/// Stubs of linkers that do not describe their tables.
#[test]
fn stubs_without_information_have_rules() {
    let lazily = |at: u64| match at {
        0..6 => 16,
        6..16 => 24,
        at if at % 16 < 11 => 8,
        _ => 16,
    };
    let nothing = "-Wl,--no-ld-generated-unwind-info";
    let own: Stated = (".plt.got", |_| 8);
    check(&["-Wl,-z,lazy", nothing], &[(".plt", lazily), own]);
    check(&["-Wl,-z,now", nothing], &[(".plt", lazily), own]);
    let marked = |at: u64| match at {
        0..6 => 16,
        6..16 => 24,
        at if at % 16 < 9 => 8,
        _ => 16,
    };
    let flags = ["-fcf-protection=full", "-Wl,-z,lazy,-z,ibtplt", nothing];
    check(&flags, &[(".plt", marked), (".plt.sec", |_| 8), own]);
    // GNU ld leaves the description out if no object file has any.
    let flags = ["-shared", "-fPIC", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    check(&flags, &[(".plt", lazily), own]);
}
