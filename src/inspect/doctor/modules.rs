//! The names, lines and unwind tables of a target's modules.

use std::sync::Arc;

use traceprof_abi::context::{RECORD_SYMBOL, RecordKind};

use crate::elf::{Elf, Pclntab, ThreadLocals};
use crate::inspect::doctor::Finding;
use crate::inspect::doctor::languages::LanguageExports;
use crate::proc::{self, Mapping};
use crate::record::name::contexts;
use crate::symbol::{DebugFiles, ElfFile, NamesKnown};

/// The number of modules that a finding names.
const NAMED_MAX: usize = 4;

/// The properties of one module.
#[derive(Debug, Default)]
struct ModuleFacts {
    path: String,
    is_readable: bool,
    has_lines: bool,
    has_symbols: bool,
    has_tables: bool,
    /// Whether it refers to OpenTelemetry's variable that points to a thread's context.
    has_records: bool,
    is_of_musl: bool,
    languages: LanguageExports,
}

/// Examines the files of the target's code.
pub(super) fn findings(pid: i32, mappings: &[Mapping]) -> Vec<Finding> {
    let owner = proc::status(pid).map_or(0, |status| status.euid);
    let debug_files = Arc::new(DebugFiles::of(pid, owner, false));
    let mut seen = Vec::new();
    let mut modules = Vec::new();
    let is_generated = |it: &&Mapping| it.exec && (it.inode == 0 || it.is_shared_memory());
    for mapping in mappings.iter().filter(|it| it.exec && !is_generated(it)) {
        let file = (mapping.device, mapping.inode);
        // Segments of shared memory are not files.
        if !seen.contains(&file) && !mapping.is_segment() {
            seen.push(file);
            modules.push(read_module(pid, mapping, &debug_files));
        }
    }
    let names = |fits: fn(&&ModuleFacts) -> bool| {
        modules.iter().filter(fits).map(|module| module.path.clone()).collect::<Vec<_>>()
    };
    let unreadable = names(|module| !module.is_readable);
    let bare = names(|module| module.is_readable && !module.has_tables);
    let nameless = names(|module| module.is_readable && !module.has_symbols);
    let with_lines = names(|module| module.has_lines).len();
    let count = modules.len();
    let is_of_musl = modules.iter().any(|module| module.is_of_musl);
    let vector = if is_of_musl { RecordKind::Musl } else { RecordKind::Glibc };
    let generated = mappings.iter().filter(is_generated);
    let generated: Vec<_> = generated.map(|mapping| mapping.start..mapping.end).collect();
    let languages =
        modules.iter().flat_map(|module| module.languages.findings(pid, vector, &generated));
    let mut findings = vec![
        missing("modules", &unreadable, format!("{count}, all readable"), "cannot be read: "),
        missing("unwind tables", &bare, "in every module".to_owned(), "without any: "),
        missing(
            "symbols",
            &nameless,
            format!("of every module; lines of {with_lines} of {count}"),
            "only exported names in: ",
        ),
        spans(mappings, &names(|module| module.has_records)),
    ];
    findings.extend(languages);
    findings
}

/// Says which sources provide the spans of threads.
fn spans(mappings: &[Mapping], with_records: &[String]) -> Finding {
    let tables = mappings.iter().filter(|mapping| contexts::is_named_table(mapping)).count();
    let by_tables = (tables > 0).then(|| format!("by {tables} of traceprof's tables"));
    let named = with_records.join(", ");
    let by_records = (!with_records.is_empty()).then(|| format!("by OpenTelemetry in {named}"));
    let sources: Vec<String> = by_tables.into_iter().chain(by_records).collect();
    match sources.is_empty() {
        true => Finding::fine("spans", "none so far"),
        false => Finding::fine("spans", format!("set {}", sources.join(" and "))),
    }
}

fn missing(subject: &str, without: &[String], fine: String, lead: &str) -> Finding {
    if without.is_empty() {
        return Finding::fine(subject, fine);
    }
    let named = without.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let rest = without.len().saturating_sub(NAMED_MAX);
    let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    let remedy = (subject == "symbols").then(|| match without {
        [first, ..] => format!("debuginfod-find debuginfo {first}"),
        [] => String::new(),
    });
    Finding::limit(subject, format!("{lead}{named}{more}"), remedy)
}

fn read_module(pid: i32, mapping: &Mapping, debug_files: &Arc<DebugFiles>) -> ModuleFacts {
    let path = mapping.path.to_string_lossy().into_owned();
    let absent = |path| ModuleFacts { path, ..ModuleFacts::default() };
    let Ok(descriptor) = proc::open_mapping(pid, mapping) else { return absent(path) };
    let Ok(bytes) = proc::map_file(&descriptor) else { return absent(path) };
    let Ok(elf) = Elf::parse(&bytes) else { return absent(path) };
    let has = |name: &str| elf.section(name).is_some();
    let has_tables = elf.eh_frame_hdr().is_some()
        || has(".eh_frame")
        || has(".debug_frame")
        || Pclntab::find(&elf).is_some();
    let build_id = elf.build_id().map(<[u8]>::to_vec).unwrap_or_default();
    let file = ElfFile::new(descriptor, path.clone(), build_id);
    let names = NamesKnown::of(&file.with_debug_files(Arc::clone(debug_files)));
    let (has_lines, has_symbols) = (names.lines, names.functions);
    let has_records = !ThreadLocals::of(&elf).ways_to(RECORD_SYMBOL).is_empty();
    let languages = LanguageExports::of(mapping, &bytes, &elf, &path);
    ModuleFacts {
        path,
        is_readable: true,
        has_lines,
        has_symbols,
        has_tables,
        has_records,
        is_of_musl: elf.is_of_musl(),
        languages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::doctor::Severity;

    #[test]
    fn this_program_has_names_lines_and_tables() {
        let own = std::process::id() as i32;
        let mappings = proc::mappings(own).unwrap();
        let program = std::env::current_exe().unwrap();
        let mapping = mappings.iter().find(|m| m.exec && *m.path == *program).unwrap();
        let module = read_module(own, mapping, &Arc::default());
        assert!(module.is_readable && module.has_symbols && module.has_tables, "{module:?}");
        let all = findings(own, &mappings);
        assert_eq!(all.len(), 4);
        assert_eq!(all[1].state, Severity::Fine, "{all:?}");
    }

    #[test]
    fn the_sources_of_spans_are_named() {
        let mapping = |path: &str| Mapping { path: path.into(), ..Mapping::default() };
        let seen = |mappings: &[Mapping], records: &[&str]| {
            let records: Vec<String> = records.iter().map(|it| (*it).to_owned()).collect();
            spans(mappings, &records).seen
        };
        let tables = [mapping("/memfd:traceprof_context_v1"), mapping("/memfd:other")];
        assert_eq!(seen(&tables[1..], &[]), "none so far");
        assert_eq!(seen(&tables, &[]), "set by 1 of traceprof's tables");
        let both = "set by 1 of traceprof's tables and by OpenTelemetry in /lib/sdk.so";
        assert_eq!(seen(&tables, &["/lib/sdk.so"]), both);
    }

    #[test]
    fn modules_without_data_are_named_up_to_a_number() {
        let names: Vec<String> = (0..6).map(|number| format!("/lib/{number}.so")).collect();
        let finding = missing("unwind tables", &names, String::new(), "without any: ");
        assert_eq!(
            finding.seen,
            "without any: /lib/0.so, /lib/1.so, /lib/2.so, /lib/3.so and 2 more"
        );
        assert_eq!((finding.state, finding.remedy), (Severity::Limit, None));
    }
}
