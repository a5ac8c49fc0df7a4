//! Machines in memory that was made by hand, and then damaged.

use std::panic::catch_unwind;
use std::path::Path;

use traceprof_abi::context::RecordKind;

use crate::runtime::fuzz_entry::START;
use crate::runtime::java::fuzz_entry::{VERSIONS, java};
use crate::runtime::java::image::{self, JavaImage, TIDS};
use crate::runtime::java::{JavaMachine, JavaWaits, UnloadCount, carried_block};
use crate::runtime::memory::read_made;
use crate::runtime::{TargetMemory, TaskKind, TaskName, running_task};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/java");

impl TargetMemory for JavaImage {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.bytes), avma, into)
    }
}

fn images() -> impl Iterator<Item = (u8, JavaImage, JavaMachine)> {
    VERSIONS.into_iter().map(|version| {
        let image = JavaImage::of(version, START);
        let machine = image::exports().locate(START, &image).unwrap().unwrap();
        assert_eq!(machine.label, format!("Java {version}.0.1"));
        (version, image, machine)
    })
}

#[test]
fn methods_of_each_version_are_named() {
    for (version, image, machine) in images() {
        let reader = machine.now(&image);
        let blob = reader.blob_at(image.code + 8).unwrap();
        assert_eq!((blob.name.as_str(), blob.code.start), ("nmethod", image.code));
        let code = reader.compiled(&blob).unwrap();
        let named = |avma| {
            let positions = code.at(avma).into_iter();
            let name = |it: crate::runtime::java::JavaPosition<'_>| {
                let method = it.method.unwrap();
                let file = method.file.clone().unwrap();
                format!("{} {file}:{}", method.full_name(), it.line())
            };
            positions.map(name).collect::<Vec<_>>()
        };
        let outer = "of.Hand.größe of/Hand.java:7";
        assert_eq!(named(image.code + 3), [outer], "Java {version}");
        let inner = "of.Hand.inlined of/Hand.java:5";
        assert_eq!(named(image.code + 8), [inner, outer], "Java {version}");
        assert!(code.is_call(image.code + 50) && !code.is_call(image.code + 8));
        let interpreted = reader.interpreted(image.method).unwrap();
        assert_eq!(interpreted.method.signature, "(I)I", "Java {version}");
    }
}

#[test]
fn threads_of_each_version_are_named() {
    for (version, image, machine) in images() {
        let threads = machine.now(&image).threads().unwrap();
        let found = threads.iter().map(|it| (u64::from(it.inner_tid), it.name.as_deref().unwrap()));
        let expected = TIDS.into_iter().zip(["a worker of größe", "C2 CompilerThread0"]);
        assert!(found.eq(expected), "Java {version}: {threads:?}");
        assert_eq!(threads[1].compiles.as_deref(), Some("of.Hand.größe"), "Java {version}");
        let waits = JavaWaits::default().of(&machine, &image, TIDS[0] as u32);
        let expected = "LockSupport.park for java.lang.String";
        assert_eq!(waits.as_deref(), Some(expected), "Java {version}");
        let unloaded = UnloadCount::of(&machine, &image).and_then(|count| count.read(&image));
        assert_eq!(unloaded, Some(3), "Java {version}");
    }
}

#[test]
fn virtual_threads_that_are_carried_are_named() {
    for (version, mut image, machine) in images() {
        let file = (&image::exports(), START);
        let block = carried_block(&machine, file, RecordKind::Glibc, &image);
        assert_eq!(block.is_some(), version > 17, "Java {version}");
        let Some(block) = block else { continue };
        let named = |image: &JavaImage| {
            let found = running_task(&[block], image.carrier.pointer, image);
            found.map(|TaskName { kind, name }| (kind == TaskKind::VirtualThread, name))
        };
        assert_eq!(named(&image), Some((true, "carried 😀".to_owned())), "Java {version}");
        image.unname();
        assert_eq!(named(&image), Some((true, "virtual #31".to_owned())), "Java {version}");
        // In the machine's own code, in native code, and while the machine waits.
        image.set_state(6);
        assert!(named(&image).is_some(), "Java {version}");
        for state in [4, 5, 10] {
            image.set_state(state);
            assert_eq!(named(&image), None, "Java {version}");
        }
        let carried = machine.now(&image).threads().unwrap().remove(0).virtual_thread;
        assert_eq!(carried, None, "it has no name now");
    }
}

#[test]
fn damaged_images_hold() {
    let is_update = std::env::var_os("UPDATE").is_some();
    for (number, (version, image, _)) in images().enumerate() {
        let path = Path::new(CORPUS).join(version.to_string());
        // The last byte tells which machine's description is taken for the one that is damaged.
        let bytes = [&image.bytes[..], &[number as u8]].concat();
        if is_update {
            std::fs::create_dir_all(CORPUS).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{}", path.display());
    }
    for entry in std::fs::read_dir(CORPUS).unwrap() {
        let path = entry.unwrap().path();
        let pristine = std::fs::read(&path).unwrap();
        let mut state = 7u64;
        for change in 0..100 {
            let mut bytes = pristine.clone();
            for _ in 0..change.min(5) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % (bytes.len() / 8) * 8;
                let wild = [0, 1, u64::MAX, START + (state >> 50) / 8 * 8, state];
                let word = wild[(state >> 20) as usize % wild.len()];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let held = catch_unwind(|| java(&bytes));
            assert!(held.is_ok(), "{}, change {change}", path.display());
        }
    }
}
