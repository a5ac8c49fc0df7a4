//! Call frame information that is missing in a module's own file.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Random;
use crate::{CallFrames, ModuleTable, compile, compile_with};

const SOURCE: &str = "
__attribute__((noinline)) int tail(volatile int *x) { int all = 0; while (*x) all += --*x; return all; }
__attribute__((noinline)) int body(int x) { volatile int frame[40]; frame[x % 40] = x; return tail(frame) + 1; }
int main(int argc, char **argv) { (void)argv; return body(argc); }
";

fn run(program: &str, args: &[&str], dir: &Path) {
    let output = Command::new(program).args(args).current_dir(dir).output().expect(program);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a program without unwind information for its own functions, and its debug file.
fn split(flags: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    let all = ["-g", "-O2", "-fomit-frame-pointer", "-o", "program", "a.c"];
    run("cc", &[&all, flags].concat(), dir.path());
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    run("objcopy", &["--only-keep-debug", "program", "program.debug"], dir.path());
    run("strip", &["program"], dir.path());
    (read("program"), read("program.debug"))
}

fn gap_bytes(table: &ModuleTable) -> u64 {
    table.statistics().gap_bytes
}

#[test]
fn the_debug_file_describes_functions_without_own_information() {
    for packed in ["-gz=none", "-gz=zlib"] {
        let flags = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", packed];
        let (program, debug) = split(&flags);
        let own = compile(&program).unwrap();
        let frames = CallFrames::read(&debug).expect("a .debug_frame");
        let both = compile_with(&program, &frames).unwrap();
        assert_eq!(both.statistics().fdes, own.statistics().fdes + 3, "{packed}");
        assert!(gap_bytes(&both) + 40 < gap_bytes(&own), "{packed}");
        assert_eq!(both.statistics().skipped_fdes, own.statistics().skipped_fdes);
    }
}

/// In a program that was not stripped, everything is in one file, compressed or not.
#[test]
fn compressed_information_of_the_file_itself_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    let tables = ["none", "zlib"].map(|packed| {
        let packed = format!("-gz={packed}");
        let flags = ["-g", "-O2", "-fno-asynchronous-unwind-tables", "-o", "program", "a.c"];
        run("cc", &[&flags[..], &[&packed]].concat(), dir.path());
        compile(&fs::read(dir.path().join("program")).unwrap()).unwrap()
    });
    assert_eq!(tables[0], tables[1]);
    assert!(tables[0].statistics().fdes >= 3);
}

#[test]
fn information_of_the_file_itself_comes_first() {
    let (program, debug) = split(&[]);
    assert!(CallFrames::read(&debug).is_none(), "premise: the section stayed in the program");
    let own = compile(&program).unwrap();
    // A debug file that is the complete program.
    let frames = CallFrames::read(&program).expect("an .eh_frame");
    assert_eq!(compile_with(&program, &frames).unwrap(), own);
}

#[test]
fn damaged_debug_files_are_read_or_refused() {
    let flags = ["-fno-asynchronous-unwind-tables", "-gz=zlib"];
    let (program, debug) = split(&flags);
    let mut random = Random(0x5E9A_4A7E);
    let mut read = 0;
    for round in 0..600 {
        let mut bytes = debug.clone();
        for _ in 0..1 + random.below(8) {
            // The section headers are at the end.
            let near_end = bytes.len() as u64 - random.below(0xa00) - 1;
            let at = if round % 2 == 0 { near_end } else { random.below(bytes.len() as u64) };
            bytes[at as usize] = random.next() as u8;
        }
        if let Some(frames) = CallFrames::read(&bytes) {
            let table = compile_with(&program, &frames).unwrap();
            assert!(table.blocks.windows(2).all(|block| block[0] <= block[1]));
            read += 1;
        }
    }
    assert!((50..600).contains(&read), "the damage is neither total nor unnoticed: {read}");
}
