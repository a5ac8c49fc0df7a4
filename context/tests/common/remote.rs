//! Reads another process's table as a profiler does, by the name of the mapping.

use std::fs::File;
use std::os::unix::fs::FileExt;

use traceprof_abi::context::{
    ContextTable, Reading, TABLE_LEN, TABLE_MAGIC, TAG_NAME_MAX, TEXT_MAX, TagKind, Values,
};

#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; 4096]);

/// A copy of the table of a process.
pub(crate) struct Remote(Vec<Page>);

impl Remote {
    /// Reads the only table of a process.
    pub(crate) fn of(pid: u32) -> Self {
        let [base] = super::tables(pid)[..] else { panic!("{:?}", super::tables(pid)) };
        let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory");
        let mut pages = vec![Page([0; 4096]); (TABLE_LEN as usize).div_ceil(4096)];
        for (at, page) in pages.iter_mut().enumerate() {
            memory.read_exact_at(&mut page.0, base + at as u64 * 4096).expect("a page");
        }
        let remote = Self(pages);
        let header = remote.table().header;
        assert_eq!(header.magic.load(std::sync::atomic::Ordering::Relaxed), TABLE_MAGIC);
        assert_eq!(header.pid.load(std::sync::atomic::Ordering::Relaxed), pid);
        remote
    }

    fn table(&self) -> ContextTable<'_> {
        // SAFETY: the copy has that length and is aligned, and nobody writes it.
        unsafe { ContextTable::new(self.0.as_ptr().cast()) }
    }

    /// Returns the threads that have an entry, and their contexts.
    pub(crate) fn published(&self) -> Vec<(u32, Reading)> {
        let table = self.table();
        let tids = table.tids.iter().map(|tid| tid.load(std::sync::atomic::Ordering::Relaxed));
        tids.zip(table.contexts)
            .filter(|(tid, _)| *tid != 0)
            .map(|(tid, c)| (tid, c.read()))
            .collect()
    }

    /// Returns the tags of a context by name, as texts.
    pub(crate) fn tags(&self, values: &Values) -> Vec<(String, String)> {
        let table = self.table();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let named = table.header.tags.iter().zip(values.tags).filter(|(_, value)| *value != 0);
        let tag = |(key, value): (&traceprof_abi::context::TagKey, u32)| {
            let mut name = [0; TAG_NAME_MAX];
            let (kind, name) = key.read(&mut name).expect("a name");
            let value = match kind {
                TagKind::Number => value.to_string(),
                TagKind::Text => text(table.texts.get(value, &mut [0; TEXT_MAX]).expect("a text")),
            };
            (text(name), value)
        };
        named.map(tag).collect()
    }
}
