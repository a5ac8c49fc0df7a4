//! The columns of numbers before a call.
//!
//! A pipe gets all columns. A narrow terminal omits the columns that can be computed from others,
//! so that there is space for the call.

use crate::view::profile::call_tree::Count;
use crate::view::recording::unit::Scale;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::number::{percent, wall_seconds};
use crate::view::text::text_style::{Ink, TextStyle};

/// Minimum width of a terminal that has space for all columns.
const WIDE: usize = 120;
/// Width of a bar in columns.
const BAR: usize = 8;

/// Which columns are shown, and the scale of their shares.
#[derive(Debug)]
pub(in crate::view) struct TreeColumns {
    style: TextStyle,
    scale: Scale,
    /// The weight of the tree.
    whole: u64,
    /// Whether there is a column for self time. Trees of callers have none.
    own: bool,
    wide: bool,
}

impl TreeColumns {
    /// Creates the columns of a tree.
    pub(in crate::view) fn new(style: TextStyle, scale: Scale, whole: u64, own: bool) -> Self {
        Self { style, scale, whole, own, wide: style.width.is_none_or(|width| width >= WIDE) }
    }

    /// Returns whether weights have a column next to the times.
    fn has_weights(&self) -> bool {
        self.wide || self.scale.unit == WeightUnit::Periods(None)
    }

    /// Returns the headings of the columns.
    pub(in crate::view) fn head(&self) -> String {
        let mut head = " total %".to_owned();
        if self.own {
            head.push_str("  self %");
        }
        if self.wide {
            head.push_str("   all %");
        }
        head.push(' ');
        match self.scale.unit {
            WeightUnit::Microseconds => {
                head.push_str(" total (s)");
                if self.own && self.wide {
                    head.push_str("   self (s)");
                }
            }
            WeightUnit::Periods(period) => {
                if self.has_weights() {
                    head.push_str("    total");
                }
                if self.has_weights() && self.own {
                    head.push_str("      self");
                }
                if period.is_some() {
                    let space = if self.has_weights() { "  " } else { " " };
                    head.push_str(space);
                    head.push_str("time (s)");
                }
            }
        }
        if self.style.bars {
            head.push_str(&" ".repeat(BAR + 2));
        }
        head.push_str("  ");
        head
    }

    /// Returns the numbers of a line. Without colours they are as wide as the headings.
    pub(in crate::view) fn row(&self, total: Count, own: Count) -> String {
        let share = percent(total.weight, self.whole);
        let number = format!("{share:8.1}");
        let mut row = self.style.paint(Ink::of_share(share), &number).into_owned();
        if self.own {
            let share = percent(own.weight, self.whole);
            let number = format!(" {:>7}", dash(own.weight, format!("{share:.1}")));
            row.push_str(&self.style.paint(Ink::of_share(share), &number));
        }
        if self.wide {
            row.push_str(&format!(" {:7.1}", percent(total.weight, self.scale.all)));
        }
        row.push(' ');
        self.weights(&mut row, total.weight, own.weight);
        if self.style.bars {
            let bar = self.style.bar(share, BAR);
            row.push_str("  ");
            row.push_str(&self.style.paint(Ink::of_share(share), &bar));
        }
        row.push_str("  ");
        row
    }

    fn weights(&self, row: &mut String, total: u64, own: u64) {
        if self.scale.unit == WeightUnit::Microseconds {
            row.push_str(&format!("{:>10}", wall_seconds(total)));
            if self.own && self.wide {
                row.push_str(&format!(" {:>10}", dash(own, wall_seconds(own))));
            }
            return;
        }
        if self.has_weights() {
            row.push_str(&format!("{total:9}"));
        }
        if self.has_weights() && self.own {
            row.push_str(&format!(" {:>9}", dash(own, own.to_string())));
        }
        if let Some(time) = self.scale.unit.seconds(total) {
            let space = if self.has_weights() { " " } else { "" };
            row.push_str(&format!("{space}{time:>9}"));
        }
    }
}

/// Returns the text of a number, or a dash for 0.
pub(in crate::view) fn dash(number: u64, text: String) -> String {
    if number == 0 { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn headings_and_rows_are_equally_wide() {
        let units =
            [WeightUnit::Periods(None), WeightUnit::Periods(Some(1e6)), WeightUnit::Microseconds];
        let counts = [Count::default(), Count { samples: 3, weight: 700 }];
        for unit in units {
            for width in [None, Some(80), Some(140)] {
                for (bars, own) in [(false, false), (false, true), (true, false), (true, true)] {
                    let style = TextStyle { width, bars, ..TextStyle::default() };
                    let columns = TreeColumns::new(style, Scale { all: 1000, unit }, 700, own);
                    let head = columns.head();
                    for count in counts {
                        let row = columns.row(count, count);
                        assert_eq!(row.width(), head.width(), "{head:?} {row:?}");
                    }
                    let most = if width == Some(80) { 48 } else { 68 };
                    assert!(head.width() <= most, "{head:?}");
                }
            }
        }
    }
}
