//! The resource of a process by the semantic conventions of OpenTelemetry: the program and the
//! host.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Word;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::trace::Value;
use crate::view::profile::processes;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::recording_info::{RecordingInfo, words};
use crate::view::text::escape::escaped;

/// The prefix of metadata that a process published about itself.
const PUBLISHED: &str = "otel.";
const SERVICE: &str = "service.name";
/// The attributes that the recorder sets, whatever the process published.
const OURS: [&str; 7] = [PID, EXECUTABLE, COMMAND, COMMAND_ARGS, COMMAND_LINE, HOST, OS];
const PID: &str = "process.pid";
const EXECUTABLE: &str = "process.executable.name";
const COMMAND: &str = "process.command";
const COMMAND_ARGS: &str = "process.command_args";
const COMMAND_LINE: &str = "process.command_line";
const HOST: &str = "host.name";
const OS: &str = "os.type";

/// Returns the resource of a process.
pub(super) fn of_process(pid: i64, profile: &Profile) -> Resource {
    let recording = &profile.recording;
    let mut attributes = vec![attribute(PID, Word::IntValue(pid))];
    attributes.extend(published(recording));
    let command_line = command_line(pid, recording);
    let executable = executable(pid, profile, command_line.first().copied());
    if !attributes.iter().any(|it| it.key == SERVICE) {
        // The conventions name unknown services like this.
        let name = executable.as_ref().map_or_else(
            || "unknown_service".to_owned(),
            |executable| format!("unknown_service:{executable}"),
        );
        attributes.push(attribute(SERVICE, Word::StringValue(name)));
    }
    if let Some(executable) = executable {
        attributes.push(attribute(EXECUTABLE, Word::StringValue(executable)));
    }
    if let Some(command) = command_line.first() {
        let args = command_line.iter().map(|word| text(word)).collect();
        attributes.push(attribute(COMMAND, text(command)));
        attributes.push(attribute(COMMAND_ARGS, list(args)));
        attributes.push(attribute(COMMAND_LINE, text(&command_line.join(" "))));
    }
    if let Some(host) = recording.text("host") {
        attributes.push(attribute(HOST, text(host)));
    }
    attributes.push(attribute(OS, Word::StringValue("linux".to_owned())));
    Resource { attributes, ..Resource::default() }
}

/// Returns the attributes that the process published. With several processes it is unknown which
/// one published them.
fn published(recording: &RecordingInfo) -> Vec<KeyValue> {
    if !recording.processes().is_empty() {
        return Vec::new();
    }
    let own = recording.metadata.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(PUBLISHED)?;
        let value = match value {
            Value::Text(said) => text(said),
            Value::List(_) => list(words(value).into_iter().map(text).collect()),
            _ => return None,
        };
        (!OURS.contains(&name)).then(|| attribute(&escaped(name), value))
    });
    own.collect()
}

/// Returns the words of a process's command line, if the trace has them.
fn command_line(pid: i64, recording: &RecordingInfo) -> Vec<&str> {
    let listed = recording.processes();
    if let Some(process) = listed.into_iter().rfind(|it| i64::try_from(it.pid) == Ok(pid)) {
        return process.command_line;
    }
    // An unlisted process is the process that the user named.
    let is_asked = recording.number("pid").is_some_and(|asked| i64::try_from(asked) == Ok(pid));
    let line = recording.metadata.get("command_line").filter(|_| is_asked);
    line.map(words).unwrap_or_default()
}

/// Returns the file name of a process's program: the last one that it executed, else the one in its
/// command line.
///
/// The kernel's name is the name of the first thread, which many programs change, so it is the last
/// resort.
fn executable(pid: i64, profile: &Profile, command: Option<&str>) -> Option<String> {
    let recording = &profile.recording;
    let file = executed(pid, recording).and_then(file_name).or_else(|| command.and_then(program));
    let name = match file {
        Some(file) => file,
        None => {
            let threads = profile.threads.iter().map(|profile| &profile.thread);
            let names = processes::names(threads, recording);
            u64::try_from(pid).ok().and_then(|pid| names.get(&pid).copied())?
        }
    };
    (!name.is_empty()).then(|| escaped(name).into_owned())
}

/// Returns the file of the last program that a process executed and that was sampled.
fn executed(pid: i64, recording: &RecordingInfo) -> Option<&str> {
    let asked = recording.number("pid");
    let is_it = |of: Option<u64>| of.or(asked).is_some_and(|of| i64::try_from(of) == Ok(pid));
    let mut programs = recording.executed().into_iter();
    let last = programs.rfind(|it| it.not_sampled.is_none() && is_it(it.pid))?;
    // This is the recorder's text for a name that it could not read.
    Some(last.name).filter(|name| *name != "[unknown]")
}

/// Returns the file name in the first word of a command line, unless the word is a title that the
/// process set, such as `nginx: master process`.
fn program(word: &str) -> Option<&str> {
    // Some processes write their complete command line into one word.
    let path = word.split(" -").next().unwrap_or(word);
    let is_title = path.contains(": ")
        || path.ends_with(':')
        || (path.contains(' ') && !path.starts_with('/'));
    // A login shell is `-bash`.
    file_name(path.strip_prefix('-').unwrap_or(path)).filter(|_| !is_title)
}

fn file_name(path: &str) -> Option<&str> {
    // The kernel marks a replaced file this way.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

fn text(said: &str) -> Word {
    Word::StringValue(escaped(said).into_owned())
}

fn list(words: Vec<Word>) -> Word {
    let values = words.into_iter().map(|word| AnyValue { value: Some(word) }).collect();
    Word::ArrayValue(ArrayValue { values })
}

fn attribute(key: &str, value: Word) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_no_program() {
        for (word, name) in [
            ("/usr/bin/node", Some("node")),
            ("node", Some("node")),
            ("-bash", Some("bash")),
            ("/opt/My App/bin/app", Some("app")),
            ("/usr/lib/chromium/chromium --type=renderer --lang=a/b", Some("chromium")),
            ("nginx: master process /usr/sbin/nginx", None),
            ("/usr/sbin/php-fpm: pool www", None),
            ("[celeryd: celery@host:MainProcess] -active- (worker)", None),
            ("celery worker", None),
            ("sshd: ", None),
            ("postgres:", None),
            ("", None),
            ("/", None),
        ] {
            assert_eq!(program(word), name, "{word}");
        }
    }
}
