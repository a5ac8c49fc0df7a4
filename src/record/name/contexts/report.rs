//! The counts of contexts as a line of the closing report and as metadata.

use crate::record::contract::number_format::percent;
use crate::record::name::contexts::ContextStats;

impl ContextStats {
    /// Adds the counts of a later program.
    pub(crate) fn add(&mut self, later: &Self) {
        self.tables += later.tables;
        self.left_out += later.left_out;
        self.samples += later.samples;
        self.carried += later.carried;
        self.unknown += later.unknown;
        self.tags_lost += later.tags_lost;
        self.refused.0 += later.refused.0;
        self.refused.1 += later.refused.1;
        self.records += later.records;
        self.unnamed += later.unnamed;
    }
}

/// Returns the counts for the metadata, by name.
pub(crate) fn numbers(stats: &ContextStats) -> [(&'static str, u64); 10] {
    [
        ("contexts.tables", stats.tables),
        ("contexts.tables_left_out", stats.left_out),
        ("contexts.samples", stats.samples),
        ("contexts.carried", stats.carried),
        ("contexts.kernel_untold", stats.unknown),
        ("contexts.tags_lost", stats.tags_lost),
        ("contexts.threads_refused", stats.refused.0),
        ("contexts.texts_refused", stats.refused.1),
        ("contexts.records", stats.records),
        ("contexts.attributes_unnamed", stats.unnamed),
    ]
}

/// The handlers' counts that concern contexts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ContextHandlerCounts {
    /// The value of [`Counter::ContextTorn`](traceprof_abi::layout::Counter::ContextTorn).
    pub(crate) torn: u64,
    /// The value of
    /// [`Counter::RecordUnreadable`](traceprof_abi::layout::Counter::RecordUnreadable).
    pub(crate) unreadable: u64,
    /// The value of [`Counter::TableUnreadable`](traceprof_abi::layout::Counter::TableUnreadable).
    pub(crate) tables_unreadable: u64,
    /// The value of [`Counter::AttributesLost`](traceprof_abi::layout::Counter::AttributesLost).
    pub(crate) lost: u64,
    /// The value of [`Counter::RecordForeign`](traceprof_abi::layout::Counter::RecordForeign).
    pub(crate) foreign: u64,
}

/// Returns the line of the closing report, if the target sets any contexts, or if names of tasks
/// were lost.
pub(crate) fn line(
    stats: &ContextStats,
    samples: u64,
    handled: ContextHandlerCounts,
) -> Option<String> {
    let ContextHandlerCounts { torn, unreadable, tables_unreadable, lost, foreign } = handled;
    let values_lost = stats.tags_lost + lost;
    if stats.tables == 0 && stats.records == 0 {
        // The names of tasks need no application that sets contexts.
        return (values_lost > 0)
            .then(|| format!("{values_lost} names of tasks could not be kept"));
    }
    let share = percent(stats.samples, samples);
    let mut parts = vec![format!("{} samples ({share}) know their span", stats.samples)];
    for (count, what) in [
        (stats.carried, "of them by the context before and after"),
        (torn, "were torn, since a writer does not keep the order of its stores"),
        (stats.unknown, "kernel samples between short spans do not (with --engine timer they do)"),
        (unreadable, "records of OpenTelemetry could not be read"),
        (tables_unreadable, "times a table that the application had withdrawn was not read"),
        (
            foreign,
            "samples are of threads with an unknown thread block, where no record is searched",
        ),
        (values_lost, "values of tags could not be kept"),
        (stats.unnamed, "attributes have no name"),
        (stats.left_out, "tables were above the limit, and were not read"),
        (stats.refused.0, "threads found no free entry in their table, by the application's count"),
        (stats.refused.1, "texts found no room in their table, by the application's count"),
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
    fn missing_contexts_are_reported() {
        assert_eq!(line(&ContextStats::default(), 10, ContextHandlerCounts::default()), None);
        let tasks = ContextStats { tags_lost: 2, ..ContextStats::default() };
        let lost = ContextHandlerCounts { lost: 1, ..ContextHandlerCounts::default() };
        assert_eq!(line(&tasks, 10, lost).unwrap(), "3 names of tasks could not be kept");
        let mut stats =
            ContextStats { tables: 1, samples: 8, unknown: 1, ..ContextStats::default() };
        assert_eq!(
            line(&stats, 10, ContextHandlerCounts::default()).unwrap(),
            "8 samples (80.0 %) know their span; 1 kernel samples between short spans do not \
             (with --engine timer they do)"
        );
        stats.add(&ContextStats { tables: 1, samples: 2, refused: (3, 0), ..stats });
        assert_eq!((stats.tables, stats.samples, stats.unknown, stats.refused), (2, 10, 2, (3, 0)));
        let handled = ContextHandlerCounts {
            torn: 5,
            unreadable: 6,
            tables_unreadable: 9,
            lost: 7,
            foreign: 8,
        };
        let text = line(&stats, 10, handled).unwrap();
        for part in
            ["5 were torn", "6 records", "7 values", "8 samples are of threads", "9 times a table"]
        {
            assert!(text.contains(part), "{text}");
        }
        let records = ContextStats { records: 1, samples: 10, ..ContextStats::default() };
        let text = line(&records, 10, ContextHandlerCounts::default()).unwrap();
        assert_eq!(text, "10 samples (100.0 %) know their span");
    }
}
