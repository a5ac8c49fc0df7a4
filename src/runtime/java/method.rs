//! Java methods: names, signatures, source files and lines.

use std::ops::Range;

use traceprof_abi::runtime::word::FrameInPlace;

use super::class_name::{class_name, is_method_name, is_signature};
use super::layout::{MachineLayout, MethodLayout, SourceSlot};
use super::lines::JavaLines;
use super::numbers::{NumberFormat, NumberReader};
use crate::runtime::Gone;
use crate::runtime::pages::TargetPages;
use crate::runtime::witness::Witness;
use crate::text::printable;

/// Maximum length of a symbol in bytes. The machine allows 65535; longer ones than this are cut
/// when they are printed.
const SYMBOL_MAX: u64 = 8192;
/// Maximum number of words of the constant part of a method: 64 KiB of bytecodes, and tables.
const WORDS_MAX: u64 = 1 << 17;
/// Number of bytes of a line table in the first read. Most tables end in them.
const LINES_FIRST: u64 = 512;
/// Maximum number of bytes of a line table: of a method of 64 KiB with two bytes for each bytecode.
const LINES_MAX: u64 = 128 << 10;

/// A Java method. Positions in it need no further read of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaMethod {
    /// The class that declares it, with dots.
    pub class: String,
    /// The name in the class.
    pub name: String,
    /// Parameters and result, as class files have them.
    pub signature: String,
    /// The source file, with the directories of the package.
    pub file: Option<String>,
    /// The addresses (AVMAs) of its bytecodes.
    code: Range<u64>,
    lines: JavaLines,
}

/// A method, and what says that it is still the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpretedMethod {
    /// The method.
    pub method: JavaMethod,
    /// What it was read from.
    pub witness: Witness,
}

impl JavaMethod {
    /// Returns the class and the name.
    pub fn full_name(&self) -> String {
        printable(&format!("{}.{}", self.class, self.name))
    }

    /// Returns the bytecode of a frame. `None` if the frame does not tell it.
    pub fn bci_of(&self, frame: &FrameInPlace) -> Option<u32> {
        // Native methods have no bytecodes.
        if frame.saved == 0 || self.code.is_empty() {
            return Some(0);
        }
        let found = frame.positions().into_iter().find(|it| self.code.contains(it));
        // Java 8 replaces the addresses in frames by numbers while it collects all garbage. Later
        // versions have no such small number there.
        let bci = found.map_or(frame.saved, |it| it - self.code.start);
        u32::try_from(bci).ok().filter(|_| bci < self.code.end - self.code.start)
    }

    /// Returns the line of a bytecode, 0 if it is unknown.
    pub fn line_at(&self, bci: u32) -> u32 {
        self.lines.line_at(bci)
    }

    /// Returns the bytes of memory that the method takes.
    pub fn bytes(&self) -> usize {
        let texts = self.class.len() + self.name.len() + self.signature.len();
        let file = self.file.as_ref().map_or(0, String::len);
        size_of::<Self>() + texts + file + self.lines.bytes.len()
    }
}

/// Reads methods of one machine.
#[derive(Clone, Copy)]
pub(super) struct MethodReader<'a> {
    pub(super) layout: &'a MachineLayout,
    pub(super) pages: &'a TargetPages<'a>,
    pub(super) format: NumberFormat,
}

impl MethodReader<'_> {
    /// Reads a method, given by the address of its structure.
    pub(super) fn method(&self, method: u64) -> Result<JavaMethod, Gone> {
        let layout = &self.layout.method;
        let MethodLayout { constant, pool, code_len, name, signature, .. } = *layout;
        let pages = self.pages;
        let constant = constant.pointer(pages, method).ok_or(Gone::Unreadable)?;
        let pool = pool.pointer(pages, constant).ok_or(Gone::OtherType)?;
        let code_len = code_len.count(pages, constant).ok_or(Gone::Unreadable)?;
        let slot = |index: Option<u64>| self.symbol_in(pool, index?);
        let code = constant.checked_add(layout.header_len).ok_or(Gone::OtherType)?;
        let code = code..code.checked_add(code_len).ok_or(Gone::OtherType)?;
        let class = layout.pool_class.pointer(pages, pool).ok_or(Gone::OtherType)?;
        let internal = self.internal_name(class).ok_or(Gone::Name)?;
        let name = slot(name.read(pages, constant)).filter(|it| is_method_name(it));
        let signature = slot(signature.read(pages, constant)).filter(|it| is_signature(it));
        Ok(JavaMethod {
            class: class_name(&internal).ok_or(Gone::Name)?,
            name: name.ok_or(Gone::Name)?,
            signature: signature.ok_or(Gone::Name)?,
            file: self.file(class, pool, &internal),
            code,
            lines: self.lines(constant, code_len).ok_or(Gone::LineTable)?,
        })
    }

    /// Reads what a method with a name was read from. `None` if that is not readable.
    pub(super) fn witness(&self, method: u64) -> Option<Witness> {
        let (layout, pages) = (&self.layout.method, self.pages);
        let constant = layout.constant.pointer(pages, method)?;
        let pool = layout.pool.pointer(pages, constant)?;
        let class = layout.pool_class.pointer(pages, pool)?;
        let mut witness = Witness::default();
        witness.add(pages, method, layout.constant)?;
        for field in [layout.pool, layout.code_len, layout.name, layout.signature] {
            witness.add(pages, constant, field)?;
        }
        witness.add(pages, pool, layout.pool_class)?;
        witness.add(pages, class, self.layout.class.name)?;
        self.add_symbol(self.layout.class.name.pointer(pages, class)?, &mut witness)?;
        for index in [layout.name, layout.signature] {
            let at = self.slot_at(pool, index.read(pages, constant)?)?;
            witness.add_bytes(pages, at, 8)?;
            self.add_symbol(pages.word(at)? & !1, &mut witness)?;
        }
        Some(witness)
    }

    fn add_symbol(&self, symbol: u64, witness: &mut Witness) -> Option<()> {
        let (layout, pages) = (&self.layout.method, self.pages);
        // The number of its uses changes, and is beside the length.
        witness.add(pages, symbol, layout.symbol_len)?;
        let len = layout.symbol_len.read(pages, symbol)?.min(SYMBOL_MAX);
        witness.add_bytes(pages, symbol.checked_add(layout.symbol_text)?, len as usize)
    }

    /// Returns the address of a slot of a pool of constants.
    fn slot_at(&self, pool: u64, index: u64) -> Option<u64> {
        let header = self.layout.method.pool_header_len;
        pool.checked_add(header)?.checked_add(index.checked_mul(8)?)
    }

    /// Returns the name of a class as the machine has it.
    pub(super) fn internal_name(&self, class: u64) -> Option<String> {
        let symbol = self.layout.class.name.pointer(self.pages, class)?;
        self.symbol(symbol)
    }

    /// Returns the text in a slot of a pool of constants.
    pub(super) fn symbol_in(&self, pool: u64, index: u64) -> Option<String> {
        let layout = &self.layout.method;
        let len = layout.pool_len.count(self.pages, pool)?;
        if index == 0 || index >= len {
            return None;
        }
        // The lowest bit has a meaning of its own in some slots.
        self.symbol(self.pages.word(self.slot_at(pool, index)?)? & !1)
    }

    fn symbol(&self, symbol: u64) -> Option<String> {
        let layout = &self.layout.method;
        if symbol == 0 || !symbol.is_multiple_of(8) {
            return None;
        }
        let len = layout.symbol_len.read(self.pages, symbol)?.min(SYMBOL_MAX);
        let bytes = self.pages.bytes(symbol.checked_add(layout.symbol_text)?, len as usize)?;
        // Characters outside the basic plane are two surrogates of three bytes each.
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn file(&self, class: u64, pool: u64, internal: &str) -> Option<String> {
        let index = match self.layout.method.source {
            SourceSlot::Class(slot) => slot.read(self.pages, class)?,
            SourceSlot::Pool(slot) => slot.read(self.pages, pool)?,
        };
        let file = self.symbol_in(pool, index)?;
        Some(match internal.rsplit_once('/') {
            Some((package, _)) => printable(&format!("{package}/{file}")),
            None => printable(&file),
        })
    }

    /// Reads the line table, which follows the bytecodes.
    fn lines(&self, constant: u64, code_len: u64) -> Option<JavaLines> {
        let MethodLayout { words, header_len, flags, has_lines, .. } = self.layout.method;
        let words = words.count(self.pages, constant).filter(|words| *words <= WORDS_MAX)?;
        if flags.read(self.pages, constant)? & has_lines == 0 {
            return Some(JavaLines::none());
        }
        let start = header_len.checked_add(code_len)?;
        let len = (words * 8).checked_sub(start)?;
        for len in [len.min(LINES_FIRST), len.min(LINES_MAX)] {
            let bytes = self.pages.bytes(constant.checked_add(start)?, len as usize)?;
            if let Some(len) = table_len(&bytes, self.format) {
                let bytes = bytes.get(..len)?.into();
                return Some(JavaLines { bytes, format: self.format });
            }
        }
        None
    }
}

/// Returns the number of bytes before the end mark of a line table.
fn table_len(bytes: &[u8], format: NumberFormat) -> Option<usize> {
    let mut reader = NumberReader::of(bytes, format);
    loop {
        let before = reader.rest();
        match reader.byte()? {
            0 => return Some(bytes.len() - before),
            0xff => {
                reader.signed()?;
                reader.signed()?;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_addresses_or_numbers_within_the_code() {
        let method = JavaMethod {
            class: "A".to_owned(),
            name: "f".to_owned(),
            signature: "()V".to_owned(),
            file: None,
            code: 0x7000..0x7010,
            lines: JavaLines::none(),
        };
        let bci = |saved, ahead| method.bci_of(&FrameInPlace { object: 1, saved, ahead });
        assert_eq!([bci(0x7003, 0), bci(0x7003, 2), bci(0x7003, 99)], [3, 5, 3].map(Some));
        assert_eq!(
            [bci(0, 0), bci(15, 0), bci(16, 0), bci(0x7010, 0)],
            [Some(0), Some(15), None, None]
        );
    }
}
