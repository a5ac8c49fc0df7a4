//! The programs that the target executed during a recording, for the trace and the closing report.
//!
//! # Invariants
//! - All programs are counted, and a bounded number is listed. Memory does not grow with their
//!   number.

use crate::trace::Value;

/// The number of programs that the trace lists.
const LISTED: u64 = 1000;
/// The number of programs that the closing report names.
const NAMED: usize = 4;

/// The outcome for an executed program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is sampled from this time on, in CLOCK_MONOTONIC nanoseconds.
    Sampled(u64),
    /// It exited, executed another program, or the recording ended, before it could be sampled.
    Missed,
    /// It could not be sampled, for this reason.
    Refused(String),
}

/// A program that the target executed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExecutionRecord {
    name: String,
    time_ns: u64,
    fate: Option<Fate>,
}

/// The programs that the target has executed so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Executions {
    count: u64,
    missed: u64,
    /// The first [`NAMED`] programs, and the last one.
    named: Vec<ExecutionRecord>,
}

impl Executions {
    /// Adds a program that the target executed at this time, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) fn begin(&mut self, name: String, time_ns: u64) {
        self.count += 1;
        if self.named.len() > NAMED {
            self.named.pop();
        }
        self.named.push(ExecutionRecord { name, time_ns, fate: None });
    }

    /// Records the outcome for the last program. Returns a key and a value for the trace, if the
    /// trace lists the program.
    pub(crate) fn settle(&mut self, fate: Fate) -> Option<(String, Value)> {
        let count = self.count;
        let last = self.named.last_mut()?;
        let mut value = vec![Value::Text(last.name.clone()), Value::Unsigned(last.time_ns)];
        match &fate {
            Fate::Sampled(since_ns) => value.push(Value::Unsigned(*since_ns)),
            Fate::Missed => self.missed += 1,
            Fate::Refused(why) => value.push(Value::Text(why.clone())),
        }
        last.fate = Some(fate);
        (count <= LISTED).then(|| (format!("executed.{count}"), Value::List(value)))
    }

    /// Adds the programs of another process.
    pub(crate) fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.missed += other.missed;
        let room = (NAMED + 1).saturating_sub(self.named.len());
        self.named.extend(other.named.iter().take(room).cloned());
    }

    /// Returns the name of the last program.
    pub(crate) fn last(&self) -> Option<&str> {
        self.named.last().map(|it| it.name.as_str())
    }

    /// Returns the number of programs.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the last program's name and the reason, if it could not be sampled.
    pub(crate) fn refused(&self) -> Option<(&str, &str)> {
        let last = self.named.last()?;
        match &last.fate {
            Some(Fate::Refused(why)) => Some((&last.name, why)),
            _ => None,
        }
    }

    /// Returns the text for the closing report. Times count from `begin_ns`.
    pub(crate) fn text(&self, begin_ns: u64) -> Option<String> {
        let one = |it: &ExecutionRecord| {
            let after_ns = it.time_ns.saturating_sub(begin_ns);
            format!("{} after {:.3} s", it.name, after_ns as f64 / 1e9)
        };
        let first = self.named.iter().take(NAMED).map(one).collect::<Vec<_>>().join(", ");
        let more = match self.count.saturating_sub(NAMED as u64) {
            0 => String::new(),
            1 => format!(", {}", self.named.last().map(one)?),
            more => format!(", and {more} more, the last {}", self.named.last().map(one)?),
        };
        let missed = match self.missed {
            0 => String::new(),
            missed => format!("; {missed} of {} too short to be sampled", self.count),
        };
        (self.count > 0).then(|| format!("{first}{more}{missed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_first_ones_and_the_last_are_named_and_all_are_counted() {
        let mut executions = Executions::default();
        assert_eq!((executions.text(0), executions.settle(Fate::Missed)), (None, None));
        let listed = (1..=1200u64).filter(|number| {
            executions.begin(format!("p{number}"), number * MS);
            executions.settle(Fate::Sampled(number * MS + 1)).is_some()
        });
        assert_eq!((listed.count(), executions.count()), (1000, 1200));
        assert_eq!(
            executions.text(MS).unwrap(),
            "p1 after 0.000 s, p2 after 0.001 s, p3 after 0.002 s, p4 after 0.003 s, and 1196 \
             more, \
             the last p1200 after 1.199 s"
        );
        assert!(executions.named.len() <= NAMED + 1);
    }

    #[test]
    fn what_became_of_a_program_is_told() {
        let mut executions = Executions::default();
        let list = |value: Value| match value {
            Value::List(list) => list.len(),
            _ => 0,
        };
        executions.begin("a".to_owned(), MS);
        let (key, value) = executions.settle(Fate::Sampled(2 * MS)).unwrap();
        assert_eq!((key.as_str(), list(value)), ("executed.1", 3));
        executions.begin("b".to_owned(), 3 * MS);
        assert_eq!(executions.settle(Fate::Missed).map(|(_, value)| list(value)), Some(2));
        assert_eq!(executions.refused(), None);
        executions.begin("c".to_owned(), 4 * MS);
        let (_, value) = executions.settle(Fate::Refused("32-bit".to_owned())).unwrap();
        let Value::List(list) = value else { panic!("{value:?}") };
        assert_eq!(list[2], Value::Text("32-bit".to_owned()));
        assert_eq!(executions.refused(), Some(("c", "32-bit")));
        assert_eq!(
            executions.text(0).unwrap(),
            "a after 0.001 s, b after 0.003 s, c after 0.004 s; 1 of 3 too short to be sampled"
        );
    }
}
