//! The heaviest functions in one line.

use crate::view::print::options::TreeOptions;
use crate::view::print::top_table::TopTable;
use crate::view::profile::flat_profile::RowType;
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
    let (rows, _) = top.heaviest(MOST, &options);
    let all = profile.count().weight;
    let rows = rows.iter().filter(|row| row.own.weight > 0);
    let texts: Vec<String> =
        rows.map(|row| format!("{} {:.1} %", row.name, percent(row.own.weight, all))).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
