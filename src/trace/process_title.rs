//! The titles of processes: what a program writes into its own command line to say what it does.
//!
//! PostgreSQL, nginx, Redis, PHP-FPM and sshd do this, and all that use `setproctitle`. The
//! kernel's name of their processes is mostly that of the program, the same for all of them.

use std::collections::BTreeMap;

use super::{Metadata, Thread, Value};

/// Returns the title in a command line, if it is one: a single word with a blank, and no path.
///
/// The command that a session of PostgreSQL executes at the moment is left out.
pub fn process_title<'a>(command_line: &[&'a str]) -> Option<&'a str> {
    let [title] = command_line else { return None };
    let title: &'a str = title.trim_end();
    if title.starts_with(['/', '.']) || !title.contains(' ') {
        return None;
    }
    let session = title.strip_prefix("postgres: ").and_then(|_| session_of(title));
    Some(session.unwrap_or(title))
}

/// Returns a title of PostgreSQL up to the client's address: `user database [local]` or `user
/// database 10.0.0.1(4711)`.
fn session_of(title: &str) -> Option<&str> {
    let mut end = 0;
    for word in title.split(' ') {
        end += word.len();
        let port = word.strip_suffix(')').and_then(|word| word.rsplit_once('('));
        let is_port = |(_, port): (&str, &str)| port.parse::<u16>().is_ok();
        if word == "[local]" || port.is_some_and(is_port) {
            return title.get(..end);
        }
        end += 1;
    }
    None
}

/// Names the first thread of each recorded process that has a title by it: a program seldom names
/// that thread in another way.
pub(super) fn name_first_threads<'a>(
    threads: impl Iterator<Item = &'a mut Thread>,
    metadata: &Metadata,
) {
    let titles = titles(metadata);
    for thread in threads.filter(|thread| thread.tid == thread.pid) {
        if let Some(title) = titles.get(&thread.pid) {
            thread.runtime_name.get_or_insert_with(|| title.clone());
        }
    }
}

/// Returns the titles of the recorded processes that have one.
fn titles(metadata: &Metadata) -> BTreeMap<u32, String> {
    let mut titles = BTreeMap::new();
    let mut add = |pid: Option<&Value>, command_line: Option<&Value>| {
        let (Some(Value::Unsigned(pid)), Some(Value::List(words))) = (pid, command_line) else {
            return;
        };
        let words = words.iter().filter_map(|word| match word {
            Value::Text(word) => Some(word.as_str()),
            _ => None,
        });
        let title = process_title(&words.collect::<Vec<_>>()).map(str::to_owned);
        let pid = u32::try_from(*pid).ok();
        titles.extend(pid.zip(title));
    };
    add(metadata.get("pid"), metadata.get("command_line"));
    for (key, value) in metadata {
        let number = key.strip_prefix("process.").map(str::parse::<u64>);
        if let (Some(Ok(_)), Value::List(fields)) = (number, value) {
            add(fields.first(), fields.get(3));
        }
    }
    titles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_word_with_blanks() {
        for (title, expected) in [
            ("postgres: checkpointer ", "postgres: checkpointer"),
            ("postgres: amy shop [local] idle in transaction", "postgres: amy shop [local]"),
            (
                "postgres: main: amy shop ::1(5432) UPDATE waiting",
                "postgres: main: amy shop ::1(5432)",
            ),
            ("postgres: autovacuum worker shop", "postgres: autovacuum worker shop"),
            ("nginx: worker process", "nginx: worker process"),
            ("redis-server *:6379", "redis-server *:6379"),
            ("php-fpm: pool www (3)", "php-fpm: pool www (3)"),
        ] {
            assert_eq!(process_title(&[title]), Some(expected));
        }
        for words in [
            &["redis-server"][..],
            &["/opt/my program/bin/server"],
            &["./my program"],
            &["postgres", "-D", "/var/lib/postgresql"],
            &["sh", "-c", "sleep 1"],
            &[],
        ] {
            assert_eq!(process_title(words), None, "{words:?}");
        }
    }

    #[test]
    fn titles_are_of_the_processes_in_the_metadata() {
        let text = |text: &str| Value::Text(text.to_owned());
        let process = |pid, title: &str| {
            let words = Value::List(vec![text(title)]);
            Value::List(vec![Value::Unsigned(pid), Value::Unsigned(1), text("postgres"), words])
        };
        let metadata = Metadata::from([
            ("pid".to_owned(), Value::Unsigned(7)),
            ("command_line".to_owned(), Value::List(vec![text("redis-server *:1")])),
            ("process.1".to_owned(), process(8, "postgres: walwriter ")),
            ("process.2".to_owned(), process(9, "postgres")),
            ("process.1.executed.1".to_owned(), process(10, "no process")),
            ("process.3".to_owned(), Value::List(vec![Value::Unsigned(11)])),
        ]);
        let expected = [(7, "redis-server *:1"), (8, "postgres: walwriter")];
        assert_eq!(titles(&metadata), expected.map(|(pid, it)| (pid, it.to_owned())).into());
    }
}
