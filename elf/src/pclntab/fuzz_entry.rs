//! The entry for fuzzing, which checks the invariants for any bytes.

use super::Pclntab;

/// The range of functions.
const CODE: std::ops::Range<u64> = 0x1000..0x9000;

/// Parses a table of Go functions. Panics if, and only if, an invariant is broken.
pub fn pclntab(bytes: &[u8]) {
    let Some(table) = Pclntab::parts(bytes) else { return };
    let table = Pclntab { text: CODE.start, code: CODE, trees: Some(bytes), ..table };
    let mut behind = CODE.start;
    for function in table.functions() {
        let range = function.range.clone();
        assert!(behind <= range.start && range.start < range.end && range.end <= CODE.end);
        behind = range.end;
        let mut at = range.start;
        for (values, _) in function.frame_sizes() {
            assert!(values.start == at && values.start < values.end);
            at = values.end;
        }
        assert!(at <= range.end);
        for svma in [range.start, range.end - 1] {
            function.locations(svma);
        }
    }
    for svma in CODE.step_by(97).chain([0, u64::MAX]) {
        assert!(table.find_function(svma).is_none_or(|it| it.range.contains(&svma)));
    }
}
