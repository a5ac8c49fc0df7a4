//! What the contexts came to: a line of the trailer, numbers of the metadata.

use super::ContextStats;

impl ContextStats {
    /// Adds those of a later program.
    pub(in crate::record) fn add(&mut self, later: &Self) {
        self.tables += later.tables;
        self.left_out += later.left_out;
        self.samples += later.samples;
        self.carried += later.carried;
        self.untold += later.untold;
        self.tags_lost += later.tags_lost;
        self.refused.0 += later.refused.0;
        self.refused.1 += later.refused.1;
        self.records += later.records;
        self.unnamed += later.unnamed;
    }
}

/// Numbers for the metadata, by name.
pub(in crate::record) fn numbers(stats: &ContextStats) -> [(&'static str, u64); 10] {
    [
        ("contexts.tables", stats.tables),
        ("contexts.tables_left_out", stats.left_out),
        ("contexts.samples", stats.samples),
        ("contexts.carried", stats.carried),
        ("contexts.kernel_untold", stats.untold),
        ("contexts.tags_lost", stats.tags_lost),
        ("contexts.threads_refused", stats.refused.0),
        ("contexts.texts_refused", stats.refused.1),
        ("contexts.records", stats.records),
        ("contexts.attributes_unnamed", stats.unnamed),
    ]
}

/// What the handlers have counted.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::record) struct Handled {
    /// [`Counter::ContextTorn`](traceprof_abi::layout::Counter::ContextTorn)
    pub(in crate::record) torn: u64,
    /// [`Counter::RecordUnreadable`](traceprof_abi::layout::Counter::RecordUnreadable)
    pub(in crate::record) unreadable: u64,
    /// [`Counter::AttributesLost`](traceprof_abi::layout::Counter::AttributesLost)
    pub(in crate::record) lost: u64,
    /// [`Counter::RecordForeign`](traceprof_abi::layout::Counter::RecordForeign)
    pub(in crate::record) foreign: u64,
}

/// What the trailer says of so many samples, if the target tells of contexts at all.
pub(in crate::record) fn line(
    stats: &ContextStats,
    samples: u64,
    handled: Handled,
) -> Option<String> {
    if stats.tables == 0 && stats.records == 0 {
        return None;
    }
    let Handled { torn, unreadable, lost, foreign } = handled;
    let share = super::super::account::percent(stats.samples, samples);
    let mut parts = vec![format!("{} samples ({share}) know their span", stats.samples)];
    for (count, what) in [
        (stats.carried, "of them as before and after"),
        (torn, "were torn: a writer does not keep the order"),
        (
            stats.untold,
            "hits in the kernel between short spans do not (with --engine timer they do)",
        ),
        (unreadable, "records of OpenTelemetry could not be read"),
        (
            foreign,
            "hits of threads without a block of their own that is known, where no record is looked for",
        ),
        (stats.tags_lost + lost, "values of tags could not be kept"),
        (stats.unnamed, "attributes have no name"),
        (stats.left_out, "tables had no place, and were not read"),
        (stats.refused.0, "threads found no entry in their table, as the application says"),
        (stats.refused.1, "texts found no room in their table, as the application says"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    Some(parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_told_is_said() {
        assert_eq!(line(&ContextStats::default(), 10, Handled::default()), None);
        let mut stats =
            ContextStats { tables: 1, samples: 8, untold: 1, ..ContextStats::default() };
        assert_eq!(
            line(&stats, 10, Handled::default()).unwrap(),
            "8 samples (80.0 %) know their span; 1 hits in the kernel between short spans do not \
             (with --engine timer they do)"
        );
        stats.add(&ContextStats { tables: 1, samples: 2, refused: (3, 0), ..stats });
        assert_eq!((stats.tables, stats.samples, stats.untold, stats.refused), (2, 10, 2, (3, 0)));
        let handled = Handled { torn: 5, unreadable: 6, lost: 7, foreign: 8 };
        let text = line(&stats, 10, handled).unwrap();
        for part in ["5 were torn", "6 records", "7 values", "8 hits of threads"] {
            assert!(text.contains(part), "{text}");
        }
        let records = ContextStats { records: 1, samples: 10, ..ContextStats::default() };
        let text = line(&records, 10, Handled::default()).unwrap();
        assert_eq!(text, "10 samples (100.0 %) know their span");
    }
}
