//! Publishing, replacing and reusing snapshots.

use traceprof_abi::unwind::rule::op;

use super::{SegmentMemory, libc_path};
use crate::{ExecRange, TableWriter, compile};

fn anonymous(start: u64, end: u64) -> ExecRange {
    ExecRange { start, end, bias: 0, module: None }
}

#[test]
fn ranges_are_found_at_their_edges() {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let tables = segment.tables();
    assert!(tables.snapshot().is_none(), "nothing is published yet");
    let ranges = [anonymous(0x3000, 0x4000), anonymous(0x1000, 0x2000), anonymous(0x9000, 0x9000)];
    writer.publish(&ranges, &[(0x8000, 0x9000), (0x5000, 0x6000)]).unwrap();
    let snapshot = tables.snapshot().unwrap();
    let range = |avma| snapshot.range(avma).map(|range| range.start);
    assert_eq!(range(0xFFF), None);
    assert_eq!(range(0x1000), Some(0x1000));
    assert_eq!(range(0x1FFF), Some(0x1000));
    assert_eq!(range(0x2000), None);
    assert_eq!(range(0x3FFF), Some(0x3000));
    assert_eq!(range(0x9000), None);
    assert_eq!(snapshot.writable(0x4FFF), None);
    assert_eq!(snapshot.writable(0x5000), Some((0x5000, 0x6000)));
    assert_eq!(snapshot.writable(0x8FFF), Some((0x8000, 0x9000)));
    assert_eq!(snapshot.stack_end(0x8FFF), None, "none of them is the first thread's stack");
    writer.end_stack_at(0x9000);
    writer.publish(&ranges, &[(0x8000, 0x9000), (0x5000, 0x6000)]).unwrap();
    let stack_end = |avma| tables.snapshot().unwrap().stack_end(avma);
    let ends = [0x5000, 0x7FFF, 0x8000, 0x8FFF, 0x9000].map(stack_end);
    assert_eq!(ends, [None, None, Some(0x9000), Some(0x9000), None]);
    assert_eq!(snapshot.writable(0x9000), None);
    assert_eq!(snapshot.writable(u64::MAX), None);
}

#[test]
fn replaced_snapshot_is_reused_only_after_recycling() {
    let segment = SegmentMemory::new(1 << 16);
    let mut writer = TableWriter::new(segment.words());
    let tables = segment.tables();
    writer.publish(&[anonymous(0x1000, 0x2000)], &[]).unwrap();
    let first = tables.snapshot().unwrap();
    let used = writer.used();
    writer.publish(&[anonymous(0x3000, 0x4000)], &[]).unwrap();
    assert!(writer.used() > used, "the first snapshot may still be read");
    assert!(first.range(0x1000).is_some() && first.range(0x3000).is_none());
    assert_eq!(first.generation(), 1);
    let used = writer.used();
    for round in 0..100 {
        writer.recycle();
        writer.publish(&[anonymous(0x1000 * round, 0x1000 * round + 1)], &[]).unwrap();
        assert_eq!(writer.used(), used, "two snapshots' memory is enough");
        assert!(tables.snapshot().unwrap().range(0x1000 * round).is_some());
    }
}

#[test]
fn full_segment_is_an_error_and_leaves_the_snapshot() {
    let segment = SegmentMemory::new(8192);
    let mut writer = TableWriter::new(segment.words());
    let tables = segment.tables();
    writer.publish(&[anonymous(0x1000, 0x2000)], &[]).unwrap();
    let module = compile(&std::fs::read(libc_path()).unwrap()).unwrap();
    let full = writer.add_module(&module).unwrap_err();
    assert!(full.wanted > full.left);
    assert!(writer.publish(&[anonymous(0x5000, 0x6000)], &[]).is_err());
    let snapshot = tables.snapshot().unwrap();
    assert!(snapshot.range(0x1000).is_some() && snapshot.range(0x5000).is_none());
}

#[test]
fn module_is_read_back_as_it_was_compiled() {
    let bytes = std::fs::read(libc_path()).unwrap();
    let compiled = compile(&bytes).unwrap();
    let segment = SegmentMemory::new(1 << 20);
    let mut writer = TableWriter::new(segment.words());
    let module = Some(writer.add_module(&compiled).unwrap());
    let (start, end) = (0x7F00_0000_0000, 0x7F00_1000_0000);
    writer.publish(&[ExecRange { start, end, bias: start, module }], &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let table = snapshot.module(snapshot.range(start).unwrap()).unwrap();
    for (row, id) in compiled.ids.iter().enumerate() {
        let block = compiled.blocks.partition_point(|&first| first as usize <= row) - 1;
        let svma = compiled.base + block as u64 * 256 + u64::from(compiled.lows[row]);
        assert_eq!(table.rule(svma), compiled.rules[usize::from(*id)], "{svma:#x}");
    }
    assert_eq!(table.rule(0).op, op::GAP_GUESS);
    assert_eq!(table.rule(u64::MAX).op, op::GAP_GUESS);
}
