//! `traceprof stacks --json`: one JSON object in one line.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use crate::inspect::stacks::{NamedFrame, ProcessStacks, SleepingCall, ThreadStack, ThreadWork};
use crate::view::text::escape::json_escaped;
use crate::view::{RootId, SpanId};

/// Writes the object.
pub(super) fn write(found: &ProcessStacks, out: &mut dyn Write) -> io::Result<()> {
    let words = found.command_line.iter().map(|word| word.to_string_lossy());
    let all = json!({
        "pid": found.pid,
        "command_line": words.collect::<Vec<_>>(),
        "longest_stop_ns": found.longest_stop_ns(),
        "threads": found.threads.iter().map(thread_json).collect::<Vec<_>>(),
        "withheld": found.withheld,
        "notices": found.notices,
    });
    writeln!(out, "{}", json_escaped(&all.to_string()))
}

fn thread_json(thread: &ThreadStack) -> Json {
    let kernel = thread.seen.kernel.as_ref();
    json!({
        "tid": thread.tid,
        "name": thread.runtime_name.as_ref().unwrap_or(&thread.seen.name),
        "comm": thread.seen.name,
        "state": thread.seen.state.to_string(),
        "work": thread.work.as_ref().map(work_json),
        "holds": thread.lock,
        "compiles": thread.compiles,
        "call": thread.call.as_ref().map(call_json),
        "wait_channel": thread.wait_channel,
        "kernel": kernel.and_then(|it| it.as_ref().ok()),
        "no_kernel": kernel.and_then(|it| it.as_ref().err()),
        "frames": thread.frames.iter().map(frame_json).collect::<Vec<_>>(),
        "end": thread.end.map(|end| end.name()),
        "no_stack": thread.missed,
        "stopped_ns": thread.stopped_ns,
    })
}

fn work_json(work: &ThreadWork) -> Json {
    let tags = work.tags.iter().map(|(name, value)| (name.clone(), Json::from(value.as_str())));
    json!({
        "span": (work.span != 0).then(|| SpanId(work.span).to_string()),
        "root_span": (work.root_span != 0).then(|| RootId(work.root_span).to_string()),
        "tags": tags.collect::<serde_json::Map<_, _>>(),
    })
}

fn call_json(call: &SleepingCall) -> Json {
    json!({ "number": call.number, "name": call.name, "args": call.args, "told": call.described })
}

fn frame_json(frame: &NamedFrame) -> Json {
    let (module, svma) = frame.module.as_ref().map(|(path, svma)| (path, svma)).unzip();
    let (file, line) = frame.source.as_ref().map(|(file, line)| (file, line)).unzip();
    json!({
        "address": frame.avma,
        "function": frame.function,
        "module": module,
        "svma": svma,
        "file": file,
        "line": line.filter(|line| **line != 0),
        "kind": frame.kind.name(),
        "inlined": frame.inlined,
        "read_later": frame.late,
    })
}
