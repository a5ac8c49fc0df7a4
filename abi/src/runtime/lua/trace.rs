//! Traces: pieces of compiled code that jump to each other.
//!
//! A trace says that it runs in one of its first instructions. Before that, the variable of what
//! runs has the number of the one that has jumped to it: the one to which a trace goes on at its
//! end, or a branch of it.

use super::Reader;
use crate::runtime::WordReader;
use crate::runtime::reader::Lost;

/// Distances from the address of a trace's code: to its length, which has 32 bits, and to numbers
/// of traces, which have 16: its own, the one to which it goes on, the one of which it is a branch,
/// and the next branch of that one.
const LENGTH: u16 = 0u16.wrapping_sub(4);
const OWN: u16 = 0x10;
const GOES_ON: u16 = 0x12;
const ROOT: u16 = 0x14;
const NEXT_BRANCH: u16 = 0x18;
/// Maximum number of branches that are searched.
const BRANCHES_MAX: u32 = 64;

/// Whether an address is in the code of a trace that runs, or of one to which it has just jumped.
/// `traces` is the array of all.
pub(super) fn has_code(
    reader: &mut Reader<'_, impl WordReader>,
    (traces, number): (u64, u16),
    avma: u64,
) -> Result<bool, Lost> {
    let mut all = Traces { reader, traces };
    if all.has_code(number, avma)? {
        return Ok(true);
    }
    // The numbers are where they are expected.
    if all.number(number, OWN)? != number {
        return Ok(false);
    }
    let goes_on = all.number(number, GOES_ON)?;
    if goes_on != 0 && all.has_code(goes_on, avma)? {
        return Ok(true);
    }
    let root = all.number(number, ROOT)?;
    let mut branch = if root == 0 { number } else { root };
    for _ in 0..BRANCHES_MAX {
        branch = all.number(branch, NEXT_BRANCH)?;
        if branch == 0 {
            break;
        }
        if all.has_code(branch, avma)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The traces of a program.
struct Traces<'r, 'a, M> {
    reader: &'r mut Reader<'a, M>,
    traces: u64,
}

impl<M: WordReader> Traces<'_, '_, M> {
    /// Whether an address is in the code of a trace.
    fn has_code(&mut self, number: u16, avma: u64) -> Result<bool, Lost> {
        let (trace, code) = (self.trace(number)?, self.reader.layout.machine_code);
        let len = self.reader.half(trace, code.wrapping_add(LENGTH))?;
        let start = self.reader.field(trace, code)?;
        Ok(avma.wrapping_sub(start) < u64::from(len))
    }

    /// Returns the number of a trace at a distance from the address of a trace's code.
    fn number(&mut self, of: u16, distance: u16) -> Result<u16, Lost> {
        let trace = self.trace(of)?;
        let at = self.reader.layout.machine_code.wrapping_add(distance);
        let word = self.reader.field(trace, at & !7)?;
        Ok(word.wrapping_shr(u32::from(at & 7).wrapping_mul(8)) as u16)
    }

    /// Returns the address of a trace.
    fn trace(&mut self, number: u16) -> Result<u64, Lost> {
        self.reader.word(self.traces.wrapping_add(u64::from(number).wrapping_mul(8)))
    }
}
