//! A profile as one JSON object: the summary, and the trees or the heaviest rows.
//!
//! Percentages refer to all selected samples. Calls are a flat list in which `caller` is the index
//! of the caller, because stacks may be deeper than the nesting limit of any reader.

mod json_summary;

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};

use crate::view::print::options::TreeOptions;
use crate::view::print::top_table::{TopTable, nouns};
use crate::view::print::tree_rows::TreeRows;
use crate::view::print::tree_sections::{TreeSection, TreeSections};
use crate::view::profile::call_tree::{Count, StackStep};
use crate::view::profile::flat_profile::{FlatProfile, OtherRows, RowType, TableRow};
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::text::escape::json_escaped;
pub(super) use json_summary::JsonSummary;

/// The part after the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonPart {
    /// Nothing.
    Summary,
    /// The call trees.
    Trees,
    /// The heaviest rows, at most this many.
    Top(usize),
}

/// Writes the object.
pub fn write(
    profile: &Profile,
    part: JsonPart,
    options: &TreeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let head = JsonSummary::new(&profile.recording, SampleTotals::in_profile(profile));
    let writer = ProfileWriter { head, profile };
    let mut all = writer.head.object();
    let mut add = |key: &str, value| all.insert(key.to_owned(), value);
    match part {
        JsonPart::Summary => add("functions", writer.functions(options)),
        JsonPart::Trees => add("functions", writer.functions(options)),
        JsonPart::Top(most) => add("top", writer.top(most, options)),
    };
    if part == JsonPart::Trees {
        return writer.with_trees(all, options, out);
    }
    writeln!(out, "{}", safe(&Json::Object(all)))
}

/// Returns the JSON as text, escaped for display.
fn safe(json: &Json) -> String {
    json_escaped(&json.to_string()).into_owned()
}

/// Writes an object without its closing brace, so that more can follow.
fn write_open(object: Map<String, Json>, out: &mut dyn Write) -> io::Result<()> {
    let text = safe(&Json::Object(object));
    write!(out, "{}", text.strip_suffix('}').unwrap_or(&text))
}

/// Builds objects from the parts of a profile.
struct ProfileWriter<'a> {
    head: JsonSummary<'a>,
    profile: &'a Profile,
}

impl ProfileWriter<'_> {
    fn count(&self, count: Count) -> Json {
        self.head.count(count)
    }

    /// Returns the functions above the threshold, and the sum of the others.
    fn functions(&self, options: &TreeOptions) -> Json {
        let table = FlatProfile::new(self.profile, RowType::Function);
        let least = options.limits.min_percent / 100.0 * table.all.weight as f64;
        let mut rest = OtherRows::default();
        let mut rows = Vec::new();
        for row in &table.rows {
            match row.total.weight as f64 >= least {
                true => rows.push(self.row(row)),
                false => rest.add(row),
            }
        }
        json!({ "rows": rows, "others": self.rest(&rest) })
    }

    fn top(&self, most: usize, options: &TreeOptions) -> Json {
        let top = TopTable::new(self.profile, options);
        let (rows, rest) = top.heaviest(most, options);
        let [noun, _] = nouns(self.profile, top.of);
        json!({
            "of": noun,
            "rows": rows.into_iter().map(|row| self.row(row)).collect::<Vec<_>>(),
            "others": self.rest(&rest),
            "idle": { "number": top.idle.len(), "self": self.count(top.idle_count()) },
        })
    }

    fn row(&self, row: &TableRow) -> Json {
        json!({
            "name": row.name,
            "module": (!row.qualifier.is_empty()).then_some(&row.qualifier),
            "self": self.count(row.own),
            "total": self.count(row.total),
        })
    }

    fn rest(&self, rest: &OtherRows) -> Json {
        json!({ "number": rest.number, "self": self.count(rest.own) })
    }

    /// Writes the object with its trees call by call, because a tree may have millions of calls.
    fn with_trees(
        &self,
        mut all: Map<String, Json>,
        options: &TreeOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let forest = TreeSections::new(self.profile, options);
        all.insert("inverted".to_owned(), json!(options.inverted));
        let threads = |threads: &[&ThreadProfile]| threads.iter().map(|it| thread(it)).collect();
        let mut count = Count::default();
        forest.idle.iter().for_each(|thread| count += thread.count);
        let idle: Vec<Json> = threads(&forest.idle);
        all.insert("idle".to_owned(), json!({ "threads": idle, "self": self.count(count) }));
        let without: Vec<Json> = threads(&forest.without);
        all.insert("threads_without_sample".to_owned(), Json::Array(without));
        write_open(all, out)?;
        write!(out, ",\"trees\":[")?;
        for (index, section) in forest.sections.iter().enumerate() {
            write!(out, "{}", if index == 0 { "" } else { "," })?;
            self.tree(&forest, section, out)?;
        }
        writeln!(out, "]}}")
    }

    fn tree(
        &self,
        forest: &TreeSections<'_>,
        section: &TreeSection<'_>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut head = Map::new();
        let threads = section.threads.iter().map(|it| thread(it)).collect();
        for (key, value) in [
            ("title", json!(section.title)),
            ("threads", threads),
            ("total", self.count(section.count)),
        ] {
            head.insert(key.to_owned(), value);
        }
        write_open(head, out)?;
        write!(out, ",\"calls\":[")?;
        let tree = forest.tree(section);
        let rows = TreeRows::new(&tree, &forest.names, forest.options, forest.scale);
        let mut between = "";
        rows.for_each(&mut |line| {
            let kind = line.what.ok().map(kind_of);
            let module = line.what.ok().map_or("", |step| forest.names.qualifier(step));
            let call = json!({
                "caller": line.caller,
                "kind": kind.unwrap_or("others"),
                "name": line.text,
                "module": (!module.is_empty()).then_some(module),
                "number": line.what.err().unwrap_or(1),
                "total": self.count(line.total),
                "self": (!forest.options.inverted).then(|| self.count(line.own)),
            });
            write!(out, "{between}{}", safe(&call))?;
            between = ",";
            Ok(())
        })?;
        write!(out, "]}}")
    }
}

fn thread(profile: &ThreadProfile) -> Json {
    let thread = &profile.thread;
    let mut object = json!({ "pid": thread.pid, "tid": thread.tid, "name": thread.shown_name() });
    if thread.runtime_name.is_some() {
        object["comm"] = json!(thread.name);
    }
    object
}

/// Returns the kind of a step.
fn kind_of<Id>(step: StackStep<Id>) -> &'static str {
    match step {
        StackStep::Frame(_) => "call",
        StackStep::Group(_) => "group",
        StackStep::ContextText(_) => "context",
        StackStep::Wait(_) => "wait",
        StackStep::Thread | StackStep::Truncated | StackStep::Dropped | StackStep::Empty => "mark",
    }
}
