//! Tests of journals: they are used as far as they are valid.

use super::*;

/// A truncated journal is used up to its last complete group, and its rows equal those of the
/// complete journal.
#[test]
fn a_torn_journal_says_how_far_it_reaches() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 120);
    let files = Files::new(&data, &journal);
    let whole = files.tables();
    let mut frames = whole.frames.len();
    let file = fs::OpenOptions::new().write(true).open(index_path(&files.path)).unwrap();
    for len in (HEADER_BYTES..journal.len()).rev().step_by(3) {
        file.set_len(len as u64).unwrap();
        let opened = index::open(&files.path, &files.first, data.len() as u64).unwrap().unwrap();
        let Index::Tables(tables) = opened.index else { panic!("the index is sorted") };
        assert!(!opened.complete);
        assert!(tables.frames.len() == frames || tables.frames.len() + 1 == frames, "{len}");
        frames = tables.frames.len();
        assert_eq!(tables.frames, whole.frames[..frames]);
        for (stream, rows) in &tables.streams {
            let blocks = &whole.streams[stream].blocks;
            assert_eq!(rows.blocks, blocks[..rows.blocks.len()]);
        }
    }
    assert_eq!(frames, 0);
    for len in 0..HEADER_BYTES {
        files.put_index(&journal[..len]);
        assert!(files.open().is_err(), "{len}");
    }
    fs::remove_file(index_path(&files.path)).unwrap();
    assert!(files.open().unwrap().is_none());
}

#[test]
fn a_flipped_bit_shortens_a_journal_and_never_changes_it() {
    let (mut writer, data, journal) = memory_writer(options(Compression::Zstd(3)));
    let ids = locations(&mut writer, 1);
    let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    for time_ns in 0..8 {
        writer.sample(threads[time_ns % 2], &sample(time_ns as u64), &ids[..time_ns]).unwrap();
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let journal = journal.bytes();
    let files = Files::new(&data.bytes(), &journal);
    let whole = files.tables();
    assert!(whole.frames.len() > 8 && whole.streams[&1].calls.len() > 2);
    let file = fs::OpenOptions::new().write(true).open(index_path(&files.path)).unwrap();
    for bit in 0..journal.len() * 8 {
        let byte = journal[bit / 8] ^ 1 << (bit % 8);
        file.write_all_at(&[byte], bit as u64 / 8).unwrap();
        match files.open() {
            Ok(Some(Index::Tables(tables))) => {
                let frames = tables.frames.len();
                assert_eq!(tables.frames, whole.frames[..frames], "bit {bit}");
                for (rows, known) in tables.neutral.iter().zip(&whole.neutral) {
                    assert!(rows.iter().all(|row| known.contains(row)), "bit {bit}");
                }
                for (stream, rows) in &tables.streams {
                    let known = &whole.streams[stream];
                    assert_eq!(rows.blocks, known.blocks[..rows.blocks.len()], "bit {bit}");
                    assert!(rows.calls.iter().all(|row| known.calls.contains(row)), "bit {bit}");
                }
            }
            Ok(_) => panic!("bit {bit} made another kind of index"),
            // Damage before the groups cannot be repaired.
            Err(_) => assert!(bit / 8 < HEADER_BYTES + 2 * index::CELL_BYTES + 1, "bit {bit}"),
        }
        file.write_all_at(&journal[bit / 8..bit / 8 + 1], bit as u64 / 8).unwrap();
    }
}

#[test]
fn forged_groups_end_a_journal() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 120);
    let files = Files::new(&data, &journal);
    let whole = files.tables();
    let kind_at = |at: usize| Kind::from_number(journal[at]);
    let cells: Vec<_> = forge::cells(&journal).collect();
    let forged = |at: usize, field: usize, value: u64| {
        let mut forged = journal.clone();
        forge::set(&mut forged, at, field, value);
        forge::reseal(&mut forged);
        files.put_index(&forged);
        files.open().map(|index| index.unwrap().frame_count() as usize)
    };
    let mut group = 0;
    for at in cells {
        let refused: &[(usize, u64)] = match kind_at(at).unwrap() {
            Kind::Group => {
                group += 1;
                &[(0, 42), (2, 5), (3, 0), (3, 1 << 22), (3, u64::MAX)]
            }
            Kind::Frame => &[(0, 1), (2, 7), (3, 0), (3, 1 << 40)],
            Kind::BlockStart | Kind::BlockPart => &[(0, 0), (2, 0), (3, 0), (3, u64::MAX)],
            Kind::BlockSpan | Kind::CallSummary => &[(0, 16), (0, 0)],
            Kind::Call => &[(0, 0), (2, u64::MAX), (1, u64::MAX)],
            Kind::Identity | Kind::Eof => &[],
            _ => &[(0, 0), (0, 18), (2, 3), (2, u64::MAX)],
        };
        for (field, value) in refused {
            let frames = forged(at, *field, *value).unwrap_or(0);
            assert!(frames < whole.frames.len(), "{at} {field} {value}");
            assert_eq!(frames, group - 1, "{at} {field} {value}");
        }
    }
    assert_eq!(group, whole.frames.len());
}

#[test]
fn a_journal_that_is_ahead_of_the_data_is_cut_to_it() {
    let (data, journal) = journaled(options(Compression::Zstd(3)), 300);
    let ends = frame_ends(&data);
    for (n, end) in ends.iter().enumerate().step_by(5) {
        for len in [*end, *end + 1] {
            let files = Files::new(&data[..len.min(data.len())], &journal);
            assert_eq!(files.tables().frames.len(), n + 1);
        }
    }
}
