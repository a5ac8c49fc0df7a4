//! The instructions of a function as text.
//!
//! # Invariants
//! - A listing has at most [`ROWS_MAX`] rows, however long the function is: those around the
//!   instructions with samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use iced_x86::{
    Decoder, DecoderOptions, FastFormatter, FlowControl, Instruction, SymbolResolver, SymbolResult,
};

/// Maximum number of rows of a function. Browsers lay out as many at once.
const ROWS_MAX: usize = 500;
/// The numbers of instructions to list before and after one with samples, of which the largest is
/// taken with which the listing is short enough.
const AROUND: [usize; 7] = [32, 16, 8, 4, 2, 1, 0];
/// Maximum length of a name in an instruction, in characters.
const NAME_MAX: usize = 160;

/// An instruction of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListedInstruction {
    pub(super) svma: u64,
    len: u64,
    pub(super) text: String,
    /// Where a jump inside the function leads.
    pub(super) target: Option<u64>,
    /// The number of instructions before this one that are not listed.
    pub(super) skipped: usize,
    /// The file and line of the samples at this instruction.
    pub(super) place: Option<(u32, u32)>,
}

/// The instructions of a function.
#[derive(Debug)]
pub(super) struct CodeRows {
    /// Those that are listed.
    pub(super) rows: Vec<ListedInstruction>,
    /// The number of all.
    pub(super) count: usize,
    /// The number of those after the last row.
    pub(super) skipped: usize,
}

impl CodeRows {
    /// Disassembles the code at an address. `weights` has those of the addresses with samples, and
    /// `names` returns names for addresses.
    pub(super) fn of(
        code: &[u8],
        range: &Range<u64>,
        weights: &BTreeMap<u64, f64>,
        names: impl FnOnce(&[u64]) -> HashMap<u64, String>,
    ) -> Self {
        let decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
        let all: Vec<Instruction> = decoder.into_iter().collect();
        let aims: BTreeSet<u64> = all.iter().filter_map(|it| aim(it, range)).collect();
        let aims: Vec<u64> = aims.into_iter().collect();
        let names = Rc::new(names(&aims));
        let mut formatter = formatter(&names, range);
        let (mut rows, mut next) = (Vec::new(), 0);
        for index in chosen(&all, weights) {
            let instruction = &all[index];
            let mut text = String::new();
            formatter.format(instruction, &mut text);
            // The distance alone says nothing to a reader, the address alone hides what is encoded.
            if let Some(address) = memory_aim(instruction) {
                let name = names.get(&address).map(|name| shortened(name));
                text.push_str(" # ");
                text.push_str(&name.unwrap_or_else(|| format!("{address:#x}")));
            }
            rows.push(ListedInstruction {
                svma: instruction.ip(),
                len: instruction.len() as u64,
                text,
                target: jump_inside(instruction, range),
                skipped: index - next,
                place: None,
            });
            next = index + 1;
        }
        Self { rows, count: all.len(), skipped: all.len() - next }
    }

    /// Returns the index of the row with an address, which may be inside of the instruction: that
    /// of a caller is at the end of its call.
    pub(super) fn row_of(&self, svma: u64) -> Option<usize> {
        let after = self.rows.partition_point(|row| row.svma <= svma);
        let index = after.checked_sub(1)?;
        let row = self.rows.get(index)?;
        (svma - row.svma < row.len).then_some(index)
    }
}

/// Returns the indices of the instructions to list.
fn chosen(all: &[Instruction], weights: &BTreeMap<u64, f64>) -> Vec<usize> {
    if all.len() <= ROWS_MAX {
        return (0..all.len()).collect();
    }
    let mut sampled: BTreeMap<usize, f64> = BTreeMap::new();
    for (svma, weight) in weights {
        let after = all.partition_point(|it| it.ip() <= *svma);
        if let Some(index) = after.checked_sub(1) {
            *sampled.entry(index).or_default() += weight;
        }
    }
    for around in AROUND {
        let near =
            |index: &usize| index.saturating_sub(around)..(index + around + 1).min(all.len());
        let chosen: BTreeSet<usize> = sampled.keys().flat_map(near).collect();
        if chosen.len() <= ROWS_MAX {
            return chosen.into_iter().collect();
        }
    }
    let mut heaviest: Vec<(usize, f64)> = sampled.into_iter().collect();
    heaviest.sort_by(|one, other| other.1.total_cmp(&one.1));
    heaviest.truncate(ROWS_MAX);
    let chosen: BTreeSet<usize> = heaviest.into_iter().map(|(index, _)| index).collect();
    chosen.into_iter().collect()
}

/// Returns the address that an instruction names: of a jump or call, or in memory.
fn aim(instruction: &Instruction, range: &Range<u64>) -> Option<u64> {
    memory_aim(instruction).or_else(|| branch_aim(instruction, range))
}

/// Returns the address in memory that an instruction names by its distance.
fn memory_aim(instruction: &Instruction) -> Option<u64> {
    let is_one = instruction.is_ip_rel_memory_operand();
    is_one.then(|| instruction.ip_rel_memory_address())
}

/// Returns where a call, or a jump out of the function, leads.
fn branch_aim(instruction: &Instruction, range: &Range<u64>) -> Option<u64> {
    let target = instruction.near_branch_target();
    (target != 0 && jump_inside(instruction, range).is_none()).then_some(target)
}

/// Returns where a jump inside the function leads.
fn jump_inside(instruction: &Instruction, range: &Range<u64>) -> Option<u64> {
    let is_jump = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    let target = instruction.near_branch_target();
    (is_jump && range.contains(&target)).then_some(target)
}

/// The names of addresses, for the formatter.
struct AddressNames {
    names: Rc<HashMap<u64, String>>,
    range: Range<u64>,
}

impl SymbolResolver for AddressNames {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        // Other numbers only look like addresses: constants, and offsets in structures.
        let named = branch_aim(instruction, &self.range).filter(|it| *it == address)?;
        Some(SymbolResult::with_string(address, shortened(self.names.get(&named)?)))
    }
}

fn shortened(name: &str) -> String {
    let end = name.char_indices().nth(NAME_MAX).map_or(name.len(), |(end, _)| end);
    if end < name.len() { format!("{}…", &name[..end]) } else { name.to_owned() }
}

fn formatter(names: &Rc<HashMap<u64, String>>, range: &Range<u64>) -> FastFormatter {
    let names = AddressNames { names: Rc::clone(names), range: range.clone() };
    // Its options allow names, so it takes them.
    let formatter = FastFormatter::try_with_options(Some(Box::new(names)));
    let mut formatter = formatter.unwrap_or_default();
    let options = formatter.options_mut();
    options.set_use_hex_prefix(true);
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(true);
    formatter
}
