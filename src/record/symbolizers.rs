//! The threads that symbolize: a batch's new addresses are split over them by module.
//!
//! A parser of debug information stays with the thread that made it (it cannot be handed on), so a
//! module always goes to the same one, and what was parsed of it is used for the next batch.
//!
//! # Invariants
//! - Every module asked for is answered, whatever its file holds.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::modules::LoadedModule;
use crate::symbol::{Resolved, Symbolizer};

/// More threads than this wait for the disk, or for the writer.
const THREADS_MAX: usize = 4;

/// Addresses of one module, and their names.
#[derive(Default)]
pub(super) struct Wanted {
    /// The module; `None` for addresses outside of all.
    pub(super) module: Option<Arc<LoadedModule>>,
    /// SVMAs, each once.
    pub(super) svmas: Vec<u64>,
    /// What they resolve to; empty if nothing is known of the module.
    pub(super) resolved: Vec<Resolved>,
}

impl Wanted {
    /// The same with each address once.
    pub(super) fn each_once(mut self) -> Self {
        self.svmas.sort_unstable();
        self.svmas.dedup();
        self
    }

    fn number(&self) -> Option<u32> {
        self.module.as_ref().map(|module| module.index)
    }

    fn resolve(&mut self, symbolizer: &mut Symbolizer) {
        let elf = self.module.as_ref().and_then(|module| module.elf.as_ref());
        if let Some(elf) = elf {
            self.resolved = symbolizer.resolve(elf, &self.svmas);
        }
    }
}

/// The threads. They end with the value.
pub(super) struct Symbolizers {
    threads: Vec<Worker>,
}

struct Worker {
    ask: Sender<Wanted>,
    answers: Receiver<Wanted>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let (ask, asked) = channel::<Wanted>();
        let (answer, answers) = channel();
        let work = move || {
            let mut symbolizer = Symbolizer::new();
            for mut wanted in asked {
                wanted.resolve(&mut symbolizer);
                if answer.send(wanted).is_err() {
                    // Nobody waits any more.
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("symbolizer {number}"));
        Ok(Self { ask, answers, thread: Some(thread.spawn(work)?) })
    }

    fn answer(&mut self) -> Option<Wanted> {
        self.answers.recv().ok().or_else(|| {
            // It ends before the channel is closed only by a panic; parsers' are contained, so this
            // one is ours.
            let end = self.thread.take().map(JoinHandle::join);
            if let Some(Err(panic)) = end {
                std::panic::resume_unwind(panic);
            }
            None
        })
    }
}

impl Symbolizers {
    /// As many as there are cores, up to a few.
    pub(super) fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores.min(THREADS_MAX))
    }

    /// At least one.
    fn with_threads(count: usize) -> io::Result<Self> {
        let threads = (0..count.max(1)).map(Worker::start);
        Ok(Self { threads: threads.collect::<io::Result<_>>()? })
    }

    /// Resolves all addresses, those of several modules at the same time. The answers are in the
    /// order of the modules' numbers.
    pub(super) fn resolve(&mut self, wanted: impl IntoIterator<Item = Wanted>) -> Vec<Wanted> {
        let mut open = vec![0; self.threads.len()];
        for wanted in wanted {
            let number = wanted.number().map_or(0, |number| number as usize) % open.len();
            // A thread that is gone is found out below.
            let _ = self.threads[number].ask.send(wanted);
            open[number] += 1;
        }
        let mut done = Vec::new();
        for (worker, open) in self.threads.iter_mut().zip(open) {
            done.extend((0..open).filter_map(|_| worker.answer()));
        }
        done.sort_by_key(Wanted::number);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::symbol::ElfFile;

    fn module(index: u32, path: &str) -> Arc<LoadedModule> {
        let descriptor = OwnedFd::from(File::open(path).unwrap());
        let elf = ElfFile::new(descriptor, path.to_string(), Vec::new());
        Arc::new(LoadedModule::for_test(index, path, elf))
    }

    #[test]
    fn several_threads_find_what_one_finds() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let modules: Vec<_> = (0..6).map(|index| module(index, own)).collect();
        let address = several_threads_find_what_one_finds as fn() as usize as u64;
        // A position-independent program begins at 0, wherever it is mapped.
        let mappings = crate::proc::mappings(std::process::id() as i32).unwrap();
        let base = mappings.iter().find(|it| it.path.as_os_str() == own).unwrap().start;
        let svmas: Vec<u64> = (0..50).map(|step| address - base + step * 64).collect();
        let ask = |threads: usize| {
            let mut symbolizers = Symbolizers::with_threads(threads).unwrap();
            let wanted = |module: &Arc<LoadedModule>| Wanted {
                module: Some(Arc::clone(module)),
                svmas: svmas.clone(),
                ..Wanted::default()
            };
            // Twice: what was parsed is used again.
            symbolizers.resolve(modules.iter().rev().map(wanted));
            let found = symbolizers.resolve(modules.iter().rev().map(wanted));
            let names = |wanted: &Wanted| {
                let name = |it: &Resolved| it.function.as_ref().map(|it| it.name.clone());
                wanted.resolved.iter().map(name).collect::<Vec<_>>()
            };
            assert_eq!(
                found.iter().filter_map(Wanted::number).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4, 5]
            );
            found.iter().map(names).collect::<Vec<_>>()
        };
        let one = ask(1);
        assert!(one[0].iter().any(Option::is_some), "{one:?}");
        assert_eq!(one, ask(3));
    }
}
