//! The heaviest functions in one line.

use crate::view::print::options::TreeOptions;
use crate::view::print::top_table::TopTable;
use crate::view::profile::flat_profile::{RowType, TableRow};
use crate::view::profile::step_names::MARKS;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::number::percent;
use crate::view::text::text_style::TextStyle;

/// Maximum number of functions.
const MOST: usize = 3;

/// Returns the heaviest functions by self weight, without idle threads, such as `parse 31.4 %, main
/// 20.0 %`. Returns `None` if there is none.
pub fn line(profile: &Profile, style: &TextStyle) -> Option<String> {
    let options = TreeOptions { steps: RowType::Function, style: *style, ..TreeOptions::default() };
    let top = TopTable::new(profile, &options);
    let (rows, _) = top.heaviest(MOST + MARKS.len(), &options);
    let all = profile.count().weight;
    let is_function = |row: &&&TableRow| row.own.weight > 0 && !MARKS.contains(&&*row.name);
    let rows = rows.iter().filter(is_function).take(MOST);
    let texts: Vec<String> =
        rows.map(|row| format!("{} {:.1} %", row.name, percent(row.own.weight, all))).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
