//! Lines as kernels write them, and this process as it sees itself.

use std::os::unix::ffi::OsStrExt;

use super::mapping::{parse_mapping, parse_maps};
use super::*;

fn line(text: &[u8]) -> Mapping {
    parse_mapping(text).unwrap()
}

#[test]
fn mapping_of_a_file_is_read_completely() {
    let mapping = line(b"7f1200000000-7f1200021000 r-xp 00002000 fe:01 1234   /usr/lib/a b.so");
    assert_eq!((mapping.start, mapping.end), (0x7f12_0000_0000, 0x7f12_0002_1000));
    assert!(mapping.read && mapping.exec && !mapping.write && !mapping.shared);
    assert_eq!((mapping.file_offset, mapping.device), (0x2000, (0xfe, 1)));
    assert_eq!((mapping.inode, mapping.path.as_bytes()), (1234, &b"/usr/lib/a b.so"[..]));
}

#[test]
fn deleted_mark_newline_and_bytes_that_are_not_text_are_distinguished() {
    let mapping = line(b"1000-2000 rw-s 0 00:05 9 /x\\012y\xff (deleted)");
    assert_eq!(mapping.path.as_bytes(), b"/x\ny\xff");
    assert!(mapping.deleted && mapping.shared);
}

#[test]
fn line_without_path_is_anonymous() {
    assert!(line(b"1000-2000 rw-p 00000000 00:00 0 ").path.is_empty());
    assert!(parse_maps(b"nonsense\n").is_err());
}

#[test]
fn status_survives_a_strange_name() {
    let text = b"Name:\ta:b\xff c\nState:\tS (sleeping)\nTgid:\t7\nPid:\t9\nNSpid:\t9\t4\n\
        NStgid:\t7\t2\nUid:\t1\t2\t3\t4\nSigBlk:\tfffffffe7ffbfeff\nTracerPid:\t12\n";
    let status = parse_status(text).unwrap();
    assert_eq!((status.state, status.tgid, status.tracer), ('S', 7, 12));
    assert_eq!((status.inner_pid, status.inner_tgid, status.euid), (4, 2, 2));
    assert!(status.name.starts_with("a:b"));
    assert_eq!(status.blocked, 0xffff_fffe_7ffb_feff);
}

#[test]
fn own_process_is_described() {
    let pid = std::process::id() as i32;
    let marker = 0x5eed_u64;
    let address = &raw const marker as u64;
    let bytes = read_memory(pid, address, 8).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), 0x5eed);
    let status = status(pid).unwrap();
    assert_eq!((status.tgid, status.inner_tgid), (pid, pid));
    assert!(status.has_memory && !status.kernel_thread);
    assert!(tasks(pid).unwrap().contains(&pid));
    assert!(elf_kind(pid).unwrap().is_64);
    assert_eq!(start_time(pid).unwrap(), task_stat(pid, pid).unwrap().start_time);
    let own = mappings(pid).unwrap();
    let code = own.iter().find(|mapping| mapping.exec && mapping.inode != 0).unwrap();
    let mut magic = [0; 4];
    File::from(open_mapping(pid, code).unwrap()).read_exact(&mut magic).unwrap();
    assert_eq!(&magic, b"\x7fELF");
    // The address is in this program's code, as it was when the mappings were read.
    let gone = Mapping { inode: code.inode + 1, path: "/nowhere".into(), ..code.clone() };
    assert!(open_mapping(pid, &gone).is_err());
    let file = File::open("/proc/self/exe").unwrap();
    assert!(code.is_of(&file) && !gone.is_of(&file));
    let shown_otherwise = Mapping { inode: code.inode + 1, ..code.clone() };
    assert!(shown_otherwise.is_of(&file), "as overlays do");
    assert!(!Mapping { deleted: true, ..shown_otherwise }.is_of(&file));
}

#[test]
fn missing_process_is_not_found() {
    for error in [
        mappings(i32::MAX).unwrap_err(),
        tasks(i32::MAX).unwrap_err(),
        status(i32::MAX).unwrap_err(),
        task_stat(std::process::id() as i32, i32::MAX).unwrap_err(),
        elf_kind(i32::MAX).unwrap_err(),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

impl Mapping {
    /// A readable, writable mapping without a file, for tests.
    pub(crate) fn writable(start: u64, end: u64, path: &str) -> Self {
        Self {
            start,
            end,
            read: true,
            write: true,
            exec: false,
            shared: false,
            file_offset: 0,
            device: (0, 0),
            inode: 0,
            path: path.into(),
            deleted: false,
        }
    }
}
