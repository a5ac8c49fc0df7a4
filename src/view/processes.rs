//! The processes that samples are of, where a recording has several.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::escape::escaped;
use super::export::subject::program;
use super::profile::Profile;
use super::recording::Recording;
use crate::trace::Thread;

/// How many a title names.
const NAMED_MAX: usize = 4;

/// What each process is called by its id, not safe to show yet: as the recorder lists it, else as its
/// first thread.
pub(super) fn names<'a>(
    threads: impl Iterator<Item = &'a Thread>,
    recording: &'a Recording,
) -> BTreeMap<u64, &'a str> {
    let mut names = BTreeMap::new();
    for thread in threads {
        let name = names.entry(u64::from(thread.pid)).or_insert("");
        if thread.tid == thread.pid {
            *name = thread.name.as_str();
        }
    }
    for process in recording.processes() {
        names.insert(process.pid, process.name);
    }
    names
}

/// What tells the processes of a profile apart. All its texts are safe to show.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// By id.
    names: BTreeMap<u64, String>,
    /// Those that have threads in the profile, the heaviest first.
    shown: Vec<u64>,
    /// How many of these have samples.
    sampled: usize,
    /// What was recorded, if it is one.
    program: Option<String>,
}

impl Processes {
    /// Those that the recorder lists, and those of all threads: it does not list any number of them.
    pub(super) fn of(profile: &Profile) -> Self {
        let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
        for profile in &profile.threads {
            let weight = weights.entry(profile.thread.pid.into()).or_default();
            *weight = weight.saturating_add(profile.count.weight);
        }
        let threads = profile.threads.iter().map(|profile| &profile.thread);
        let names = names(threads, &profile.recording).into_iter();
        let names = names.map(|(pid, name)| (pid, escaped(name).into_owned())).collect();
        let sampled = weights.values().filter(|weight| **weight > 0).count();
        let mut shown: Vec<(u64, u64)> = weights.into_iter().collect();
        shown.sort_by_key(|(pid, weight)| (Reverse(*weight), *pid));
        let shown = shown.into_iter().map(|(pid, _)| pid).collect();
        Self { names, shown, sampled, program: program(&profile.recording) }
    }

    /// Whether there are several, so that a thread's name says too little.
    pub(super) fn are_several(&self) -> bool {
        self.names.len() > 1
    }

    /// Whether the profile has samples of several: then stacks alone do not say whose they are.
    pub(super) fn are_several_shown(&self) -> bool {
        self.sampled > 1
    }

    /// What a process is called: of several by its own name.
    pub(super) fn name(&self, pid: u32) -> Option<&str> {
        if !self.are_several() {
            return self.program.as_deref();
        }
        self.names.get(&pid.into()).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The process of a thread, `name/pid`, if there are several.
    pub(super) fn label(&self, pid: u32) -> Option<String> {
        self.are_several().then(|| match self.name(pid) {
            Some(name) => format!("{name}/{pid}"),
            None => format!("process/{pid}"),
        })
    }

    /// A process in one phrase.
    pub(super) fn title(&self, pid: u64) -> String {
        match self.names.get(&pid) {
            Some(name) if !name.is_empty() => format!("{name} ({pid})"),
            _ => format!("process {pid}"),
        }
    }

    /// What the profile is of, in a title; nothing if the trace does not say it.
    pub(super) fn subject(&self) -> Option<String> {
        if !self.are_several() {
            return self.program.clone();
        }
        let named = self.shown.iter().take(NAMED_MAX).map(|pid| self.title(*pid));
        let named: Vec<String> = named.collect();
        let named = named.join(", ");
        match self.shown.len() {
            0 => None,
            1 => Some(named),
            count if count <= NAMED_MAX => Some(format!("{count} processes: {named}")),
            count => Some(format!("{count} processes: {named} and {} more", count - NAMED_MAX)),
        }
    }
}
