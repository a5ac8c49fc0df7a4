//! A thread's OpenTelemetry context record, read from outside.
//!
//! A sleeping thread does not change its record. The record of a running thread is read twice, and
//! used if both readings are equal: its writer marks it invalid while it changes the record.

use traceprof_abi::context::{RECORD_HEADER, Record, TlsLocation, is_own_block};

/// Returns whether a thread block belongs to the thread with this inner id.
pub(super) fn is_own(
    thread_pointer: u64,
    inner_tid: u32,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> bool {
    is_own_block(thread_pointer, inner_tid, |avma| word(avma, &read))
}

/// Reads the record of a thread and its attribute bytes, from the first location that leads to a
/// valid record.
///
/// `read` reads the target's memory, and returns the number of bytes that it could read.
pub(super) fn read_from_outside(
    thread_pointer: u64,
    locations: &[TlsLocation],
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> Option<(Record, Vec<u8>)> {
    locations.iter().find_map(|location| {
        let variable = location.variable(thread_pointer, |avma| word(avma, &read)).ok()??;
        let record = record_of(variable, &read)?;
        (record_of(variable, &read).as_ref() == Some(&record)).then_some(record)
    })
}

fn word(avma: u64, read: &impl Fn(u64, &mut [u8]) -> usize) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(avma, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

fn record_of(variable: u64, read: &impl Fn(u64, &mut [u8]) -> usize) -> Option<(Record, Vec<u8>)> {
    let avma = word(variable, read).filter(|avma| *avma != 0)?;
    let mut header = [0; RECORD_HEADER];
    if read(avma, &mut header) != RECORD_HEADER {
        return None;
    }
    let record = Record::parse(&header)?;
    let mut attributes = vec![0; record.attributes_len];
    let got = match attributes.len() {
        0 => 0,
        _ => read(avma.wrapping_add(RECORD_HEADER as u64), &mut attributes),
    };
    attributes.truncate(got);
    Some((record, attributes))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    use nix::unistd::gettid;
    use traceprof_abi::context::RecordKind;

    use super::*;
    use crate::{inject, proc};

    /// Makes a record with 4 bytes of attributes.
    fn record(span: u8, valid: u8) -> &'static [u8] {
        let mut bytes = [[0; 16].as_slice(), &[span; 8], &[valid, 0, 4, 0], b"\x00\x02ok"].concat();
        bytes[15] = 9;
        bytes.leak()
    }

    fn read_own(avma: u64, into: &mut [u8]) -> usize {
        inject::read_part(std::process::id() as i32, avma, into)
    }

    #[test]
    fn the_record_of_a_sleeping_thread_is_read_without_a_stop() {
        let variable: &'static [u64; 1] = Box::leak(Box::new([record(7, 1).as_ptr() as u64]));
        let ((sender, tid), (end, wait)) = (channel(), channel::<()>());
        let sleeper = std::thread::spawn(move || {
            sender.send(gettid().as_raw()).unwrap();
            wait.recv().unwrap_err();
        });
        let tid = tid.recv().unwrap();
        let thread = proc::thread_pointer(tid, read_own).unwrap();
        let to = |variable: u64| {
            let offset = variable.wrapping_sub(thread);
            TlsLocation { kind: RecordKind::Offset, offset, module: 0 }
        };
        let nowhere = to(8);
        let location = to(variable.as_ptr() as u64);
        let (found, attributes) =
            read_from_outside(thread, &[nowhere, location], read_own).unwrap();
        assert_eq!((found.trace, found.span), ((0, 9), 0x0707_0707_0707_0707));
        assert_eq!(attributes, b"\x00\x02ok");
        assert_eq!(read_from_outside(thread, &[nowhere], read_own), None);
        assert_eq!(read_from_outside(thread, &[], read_own), None);
        drop(end);
        sleeper.join().unwrap();
    }

    #[test]
    fn a_record_that_changes_during_the_reading_is_ignored() {
        let (first, second) = (record(7, 1), record(8, 1));
        let (tid, reads) = (gettid().as_raw(), Cell::new(0));
        let thread = proc::thread_pointer(tid, read_own).unwrap();
        let offset = 0x100u64.wrapping_sub(thread);
        let location = TlsLocation { kind: RecordKind::Offset, offset, module: 0 };
        // The variable exists for this test alone.
        let changes_after = |most: usize| {
            reads.set(0);
            let (reads, first, second) = (&reads, first.as_ptr(), second.as_ptr());
            move |avma: u64, into: &mut [u8]| {
                if avma != 0x100 {
                    return read_own(avma, into);
                }
                reads.set(reads.get() + 1);
                let now = if reads.get() <= most { first } else { second };
                into.copy_from_slice(&(now as u64).to_le_bytes());
                into.len()
            }
        };
        let span = |most: usize| {
            let found = read_from_outside(thread, &[location], changes_after(most));
            found.map(|(record, _)| record.span as u8)
        };
        assert_eq!([span(2), span(1), span(0)], [Some(7), None, Some(8)]);
    }
}
