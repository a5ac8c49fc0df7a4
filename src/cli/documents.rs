//! The manual pages and completion scripts, generated from the definition of the command line.

use std::fs;
use std::io::{self, Write};

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::arguments::{CompletionsArguments, ManArguments, definition};
use super::completion;
use super::examples::EXAMPLES;
use super::exit::{CommandFailure, ExitCode, OF_PROGRAM};
use super::known_limits::{KnownLimit, LIMITS, UNTRIED};
use super::output::Destination;

/// The pages that are written by hand, with their sections.
const WRITTEN: [(&str, u8); 18] = [
    ("data", 5),
    ("comparison", 7),
    ("engines", 7),
    ("exports", 7),
    ("hung-process", 7),
    ("limits", 7),
    ("long-recordings", 7),
    ("measurements", 7),
    ("permissions", 7),
    ("proofs", 7),
    ("recording", 7),
    ("runtimes", 7),
    ("safety", 7),
    ("spans", 7),
    ("threads", 7),
    ("traces", 7),
    ("views", 7),
    ("wall-clock", 7),
];

/// A generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its path in the repository.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// All manual pages and completion scripts.
pub fn documents() -> io::Result<Vec<Document>> {
    let mut documents = manual()?;
    for (shell, path) in [
        (Shell::Bash, "completions/traceprof.bash"),
        (Shell::Zsh, "completions/_traceprof"),
        (Shell::Fish, "completions/traceprof.fish"),
    ] {
        documents.push(Document { path: path.to_owned(), bytes: completion::script(shell)? });
    }
    Ok(documents)
}

/// Prints the completion script of a shell.
pub(super) fn completions(arguments: &CompletionsArguments) -> Result<(), CommandFailure> {
    let script = completion::script(arguments.shell)
        .map_err(|error| CommandFailure::new(ExitCode::Usage, error))?;
    Destination::Standard.write(|out| out.write_all(&script).map_err(super::output::unwritable))
}

/// Writes the manual pages.
pub(super) fn man(arguments: &ManArguments) -> Result<(), CommandFailure> {
    let write = || -> anyhow::Result<()> {
        for page in manual()? {
            let name = page.path.rsplit('/').next().unwrap_or(&page.path);
            let path = arguments.directory.join(name);
            fs::write(&path, &page.bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    };
    write().map_err(|error| CommandFailure::new(ExitCode::Output, error))
}

/// The definition without hidden subcommands, which the generator would include.
fn visible() -> Command {
    let whole = definition();
    let shown: Vec<Command> =
        whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    Command::new("traceprof")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .long_about(whole.get_long_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommands(shown)
}

fn manual() -> io::Result<Vec<Document>> {
    let mut root = visible();
    root.build();
    let actions: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
    let mut pages = vec![page(&root, "traceprof", &["record", "print"], &actions)?];
    for command in root.get_subcommands() {
        let action = command.get_name();
        pages.push(page(command, &format!("traceprof-{action}"), &[action], &actions)?);
    }
    Ok(pages)
}

fn page(command: &Command, name: &str, examples: &[&str], all: &[&str]) -> io::Result<Document> {
    let source = format!("traceprof {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name).source(source).manual("traceprof manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    write_synopsis(&mut page, command)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    write_examples(&mut page, examples)?;
    write_limits(&mut page, "LIMITS", &LIMITS, examples)?;
    write_limits(&mut page, "NOT TRIED", &UNTRIED, examples)?;
    write_exit_status(&mut page)?;
    write_see_also(&mut page, name, all)?;
    Ok(Document { path: format!("man/{name}.1"), bytes: without_repeats(page) })
}

/// Drops the two lines that the generator repeats in every section.
fn without_repeats(page: Vec<u8>) -> Vec<u8> {
    let quote = |line: &[u8]| line.starts_with(b".ie ") || line.starts_with(b".el ");
    let lines = page.split_inclusive(|byte| *byte == b'\n').enumerate();
    let kept = lines.filter(|(number, line)| *number < 2 || !quote(line));
    kept.flat_map(|(_, line)| line.iter().copied()).collect()
}

fn write_synopsis(page: &mut Vec<u8>, command: &Command) -> io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    writeln!(page, ".SH SYNOPSIS\n.nf")?;
    for line in usage.trim_start_matches("Usage:").lines() {
        writeln!(page, "{}", roff(line.trim()))?;
    }
    writeln!(page, ".fi")
}

fn write_examples(page: &mut Vec<u8>, actions: &[&str]) -> io::Result<()> {
    writeln!(page, ".SH EXAMPLES")?;
    for example in EXAMPLES.iter().filter(|example| actions.contains(&example.action)) {
        let (purpose, line) = (roff(example.purpose), roff(example.line));
        writeln!(page, ".PP\n{purpose}:\n.PP\n.RS 4\n.nf\n{line}\n.fi\n.RE")?;
    }
    Ok(())
}

/// The limits of one subcommand; the page of the whole command has none.
fn write_limits(
    page: &mut Vec<u8>,
    title: &str,
    all: &[KnownLimit],
    actions: &[&str],
) -> io::Result<()> {
    let &[action] = actions else { return Ok(()) };
    let mut limits = all.iter().filter(|limit| limit.actions.contains(&action)).peekable();
    if limits.peek().is_some() {
        writeln!(page, ".SH \"{title}\"")?;
    }
    for limit in limits {
        writeln!(page, ".TP\n.B {}\n{}", roff(limit.subject), roff(limit.text))?;
    }
    Ok(())
}

fn write_exit_status(page: &mut Vec<u8>) -> io::Result<()> {
    writeln!(page, ".SH \"EXIT STATUS\"")?;
    for code in ExitCode::ALL {
        writeln!(page, ".TP\n.B {}\n{}", code.number(), roff(code.meaning()))?;
    }
    writeln!(page, ".PP\n{}", roff(OF_PROGRAM))
}

fn write_see_also(page: &mut Vec<u8>, name: &str, actions: &[&str]) -> io::Result<()> {
    let mut others = vec!["traceprof".to_owned()];
    others.extend(actions.iter().map(|action| format!("traceprof-{action}")));
    others.retain(|other| other != name);
    let mut others: Vec<String> =
        others.iter().map(|other| format!("\\fB{}\\fR(1)", roff(other))).collect();
    // The page of all actions lists them all; those of the actions lead to it.
    let written = if name == "traceprof" { &WRITTEN[..] } else { &WRITTEN[..1] };
    others.extend(
        written
            .iter()
            .map(|(name, section)| format!("\\fBtraceprof\\-{}\\fR({section})", roff(name))),
    );
    writeln!(page, ".SH \"SEE ALSO\"\n{}", others.join(",\n"))
}

/// Escapes text for roff.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.as_bytes().first() {
        Some(b'.' | b'\'') => format!("\\&{text}"),
        _ => text,
    }
}

/// The long options of every visible subcommand, by the name of its page.
pub fn long_options() -> Vec<(String, Vec<String>)> {
    // `help` has no page of its own.
    let mut root = visible();
    root.build();
    let of = |command: &Command| {
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        options.filter_map(|option| option.get_long()).map(str::to_owned).collect()
    };
    root.get_subcommands()
        .map(|command| (format!("traceprof-{}", command.get_name()), of(command)))
        .collect()
}
