//! The functions that thaw frames of virtual threads, and those to which thawed frames return.
//!
//! The frame that entered the virtual thread is above them. It begins where the thread says, in
//! memory that is no stack, but all along the frame pointer is that frame's: it made the call, or
//! the last thawed frame had saved it.

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::follow::Followed;

/// `pop rbp; ret`: the end of a function that has thawed a frame, which then is at the stack
/// pointer.
const RETURN: [u8; 2] = [0x5d, 0xc3];
/// The rules of these two instructions.
const RETURN_RULES: [Rule; 2] = [
    Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 16 },
    Rule { cfa_off: 8, ..Rule::plain(op::SP) },
];

/// Gives rules to the instructions in the middle of the functions, and to their ends. They lead to
/// the frame of the code at this offset, which may be outside, and which has this many words.
pub(super) fn add_thaw_rules(followed: &mut Followed, bytes: &[u8], entered: i64, words: i16) {
    let mut rows: Vec<(u32, Rule)> = Vec::with_capacity(followed.rows.len());
    let mut ends = followed.rows.iter().skip(1).map(|(end, _)| *end).chain([bytes.len() as u32]);
    for (start, rule) in &followed.rows {
        let end = ends.next().unwrap_or(*start);
        if *rule != Rule::BAD {
            rows.push((*start, *rule));
            continue;
        }
        // The address that leads to the frame is relative to the instruction, so each byte has a
        // rule of its own.
        for at in *start..end {
            let distance = i32::try_from(entered - i64::from(at)).ok();
            let code = bytes.get(at as usize..).unwrap_or_default();
            let rule = match distance {
                _ if code.starts_with(&RETURN) => RETURN_RULES[0],
                _ if code.first() == Some(&RETURN[1]) => RETURN_RULES[1],
                Some(cfa_off) => {
                    Rule { op: op::RETURN_BARRIER, fp_op: fp_op::AT_FP, fp_off: words, cfa_off }
                }
                None => Rule::BAD,
            };
            rows.push((at, rule));
        }
    }
    followed.rows = rows;
}
