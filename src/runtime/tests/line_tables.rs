//! Line tables that the compilers of all versions have made. `tests/targets/python_line_tables.py`
//! prints them, with the lines that each interpreter itself finds in them.

use crate::runtime::python::LineTable;

const TABLES: &str = include_str!("line_tables.txt");

/// Returns the bytes that hexadecimal digits stand for.
fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn lines_are_those_that_the_interpreter_finds() {
    let (mut positions, mut without) = (0, 0);
    for row in TABLES.lines() {
        let fields: Vec<&str> = row.split(' ').collect();
        let [version, name, first, digits, runs @ ..] = &fields[..] else { panic!("{row}") };
        let minor: u8 = version.split('.').nth(1).unwrap().parse().unwrap();
        let table = LineTable::for_test(minor, &bytes(digits.trim_matches('-')));
        let first: u32 = first.parse().unwrap();
        let mut position = 0;
        for run in runs {
            let (line, len) = run.split_once('*').unwrap();
            let (line, len): (u32, u32) = (line.parse().unwrap(), len.parse().unwrap());
            for _ in 0..len {
                let found = table.line_at(first, position);
                assert_eq!(found, line, "{version} {name} at {position}");
                position += 1;
                without += u32::from(line == 0);
            }
        }
        positions += position;
        assert_eq!(table.line_at(first, u32::MAX), first, "{version} {name} has not started");
        assert_eq!(table.line_at(first, u32::MAX - 1), first, "{version} {name} has not started");
        if minor > 9 {
            assert_eq!(table.line_at(first, position), 0, "{version} {name} has no more code");
        }
    }
    assert!(positions > 10_000 && without > 20, "{positions} {without}");
}

#[test]
fn damaged_tables_have_some_line_or_none() {
    let mut state = 5u64;
    for minor in 8..=14 {
        for _ in 0..2000 {
            let len = (state >> 40) as usize % 40;
            let mut table = Vec::new();
            for _ in 0..len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                table.push((state >> 33) as u8);
            }
            state = state.wrapping_add(len as u64);
            let table = LineTable::for_test(minor, &table);
            for position in [0, 1, 2, 30, 1000, u32::MAX, 1 << 31, u32::MAX - 2] {
                for first in [0, 1, i32::MAX as u32, u32::MAX] {
                    table.line_at(first, position);
                }
            }
        }
    }
}
