//! The threads that symbolize: new addresses are split over them by module.
//!
//! A parser of debug information stays with the thread that made it (it cannot be handed on), so a file
//! always goes to the same one, and what was parsed of it is used for the next question: of whichever
//! process of a recording, as they all have the same threads.
//!
//! # Invariants
//! - Every question is answered, whatever the module's file holds.
//! - Who asks does not wait: answers come when they are there, in any order.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use super::modules::LoadedModule;
use crate::symbol::{ElfFile, Resolved, Symbolizer};

/// More threads than this wait for the disk, or for the writer.
const THREADS_MAX: usize = 4;

/// Where the names come from of a module that could not be opened, or makes no sense.
const NOT_READ: &str = "nowhere: its file could not be read";

/// Addresses of one module, and their names.
#[derive(Default)]
pub(super) struct Wanted {
    /// The number of the question, for who asks.
    pub(super) question: u64,
    /// The module; `None` for addresses outside of all.
    pub(super) module: Option<Arc<LoadedModule>>,
    /// SVMAs, each once.
    pub(super) svmas: Vec<u64>,
    /// What they resolve to; empty if nothing is known of the module.
    pub(super) resolved: Vec<Resolved>,
    /// Where the module's names come from, if that is known.
    pub(super) source: Option<String>,
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

    /// The same for the same file.
    fn place(&self) -> u64 {
        let elf = self.module.as_ref().and_then(|module| module.elf.as_ref());
        elf.map_or_else(|| self.number().map_or(0, u64::from), ElfFile::hash)
    }

    fn resolve(&mut self, symbolizer: &mut Symbolizer) {
        let elf = self.module.as_ref().and_then(|module| module.elf.as_ref());
        if let Some(elf) = elf {
            self.resolved = symbolizer.resolve(elf, &self.svmas);
            self.source = symbolizer.source(elf);
        } else if self.module.is_some() {
            self.source = Some(NOT_READ.to_owned());
        }
    }
}

/// A question with its answer. It is a panic only by a mistake of ours: parsers' are contained.
pub(super) type Answer = std::thread::Result<Wanted>;

/// Who asks.
struct Asker {
    /// Takes the answers; false if nobody waits for them any more.
    answer: Box<dyn Fn(Answer) -> bool + Send + Sync>,
    /// It has said so.
    is_gone: AtomicBool,
}

type Question = (Wanted, Arc<Asker>);

/// The threads, for all who ask. They end after the value, when each has answered what it was asked.
pub(super) struct Pool {
    threads: Vec<Sender<Question>>,
}

/// The way to them of one who asks.
pub(super) struct Symbolizers {
    pool: Arc<Pool>,
    asker: Arc<Asker>,
}

impl Pool {
    /// As many as there are cores, up to a few.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores.min(THREADS_MAX))
    }

    /// At least one.
    fn with_threads(count: usize) -> io::Result<Arc<Self>> {
        let resolve = || {
            let mut symbolizer = Symbolizer::new();
            move |wanted: &mut Wanted| wanted.resolve(&mut symbolizer)
        };
        let threads = (0..count.max(1)).map(|number| worker(number, resolve));
        Ok(Arc::new(Self { threads: threads.collect::<io::Result<_>>()? }))
    }
}

impl Symbolizers {
    /// With threads of its own. `answer` takes the answers; false if nobody waits for them any more.
    pub(super) fn start(
        answer: impl Fn(Answer) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self::over(Pool::start()?, answer))
    }

    /// With these threads.
    pub(super) fn over(
        pool: Arc<Pool>,
        answer: impl Fn(Answer) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (answer, is_gone) = (Box::new(answer), AtomicBool::new(false));
        Self { pool, asker: Arc::new(Asker { answer, is_gone }) }
    }

    /// One thread that finds names in another way.
    #[cfg(test)]
    pub(super) fn with_resolver(
        mut resolve: impl FnMut(&mut Wanted) + Send + 'static,
        answer: impl Fn(Answer) -> bool + Send + Sync + 'static,
    ) -> Self {
        let resolver = move || move |wanted: &mut Wanted| resolve(wanted);
        Self::over(Arc::new(Pool { threads: vec![worker(0, resolver).unwrap()] }), answer)
    }

    /// Asks for the names of a module's addresses.
    pub(super) fn ask(&self, wanted: Wanted) {
        let threads = &self.pool.threads;
        let number = wanted.place() % threads.len() as u64;
        // A thread that is gone has said why.
        let _ = threads[number as usize].send((wanted, Arc::clone(&self.asker)));
    }
}

/// A thread that answers until nobody asks. What it finds names with is made there.
fn worker<R: FnMut(&mut Wanted)>(
    number: usize,
    resolver: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Sender<Question>> {
    let (ask, asked) = channel::<Question>();
    let work = move || {
        let mut resolve = resolver();
        for (mut wanted, asker) in asked {
            // Relaxed, both: one answer more is made for nobody at worst.
            if asker.is_gone.load(Ordering::Relaxed) {
                continue;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| resolve(&mut wanted)));
            let is_over = outcome.is_err();
            let is_heard = (asker.answer)(outcome.map(|()| wanted));
            asker.is_gone.store(!is_heard, Ordering::Relaxed);
            if is_over {
                return;
            }
        }
    };
    Builder::new().name(format!("symbolizer {number}")).spawn(work)?;
    Ok(ask)
}

/// Resolves all addresses, those of several modules at the same time, and waits for it. The answers
/// are in the order of the modules' numbers.
pub(super) fn resolve(wanted: impl IntoIterator<Item = Wanted>) -> io::Result<Vec<Wanted>> {
    let (answer, answers) = channel();
    let symbolizers = Symbolizers::start(move |it| answer.send(it).is_ok())?;
    wanted.into_iter().for_each(|wanted| symbolizers.ask(wanted));
    Ok(in_order(symbolizers, answers))
}

fn in_order(symbolizers: Symbolizers, answers: Receiver<Answer>) -> Vec<Wanted> {
    // The threads end, and with the last one the answers.
    drop(symbolizers);
    let answers = answers.into_iter().map(|it| it.unwrap_or_else(|panic| resume_unwind(panic)));
    let mut done: Vec<Wanted> = answers.collect();
    done.sort_by_key(Wanted::number);
    done
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;

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
            let (answer, answers) = channel();
            let answer = move |it| answer.send(it).is_ok();
            let symbolizers = Symbolizers::over(Pool::with_threads(threads).unwrap(), answer);
            // Twice: what was parsed is used again.
            for question in 0..2 {
                for module in modules.iter().rev() {
                    let (module, svmas) = (Some(Arc::clone(module)), svmas.clone());
                    symbolizers.ask(Wanted { question, module, svmas, ..Wanted::default() });
                }
            }
            let mut found = in_order(symbolizers, answers);
            found.retain(|it| it.question == 1);
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

    #[test]
    fn each_who_asks_gets_its_own_answers_and_one_who_is_gone_takes_no_others_time() {
        let (asked, count) = channel();
        let resolver = || move |wanted: &mut Wanted| asked.send(wanted.question).unwrap();
        let pool = Arc::new(Pool { threads: vec![worker(0, resolver).unwrap()] });
        let (answer, answers) = channel();
        let way = |takes: bool| {
            let answer = answer.clone();
            Symbolizers::over(Arc::clone(&pool), move |it| takes && answer.send(it).is_ok())
        };
        let (one, gone, other) = (way(true), way(false), way(true));
        for (symbolizers, questions) in [(&one, 10..12), (&gone, 20..23), (&other, 30..31)] {
            questions.for_each(|question| {
                symbolizers.ask(Wanted { question, ..Wanted::default() });
            });
        }
        drop((one, gone, other, pool, answer));
        let answers: Vec<u64> = answers.into_iter().map(|it| it.unwrap().question).collect();
        assert_eq!(answers, [10, 11, 30]);
        assert_eq!(count.into_iter().collect::<Vec<_>>(), [10, 11, 20, 30]);
    }

    #[test]
    fn a_panic_is_an_answer() {
        let (answer, answers) = channel();
        let answer = move |it| answer.send(it).is_ok();
        let resolve = |wanted: &mut Wanted| assert!(wanted.question < 2, "the third");
        let symbolizers = Symbolizers::with_resolver(resolve, answer);
        for question in 0..4 {
            symbolizers.ask(Wanted { question, ..Wanted::default() });
        }
        drop(symbolizers);
        let answers: Vec<Answer> = answers.into_iter().collect();
        let outcomes: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(outcomes, [true, true, false]);
    }
}
