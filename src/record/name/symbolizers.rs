//! The symbolizer threads, which divide the modules among them.
//!
//! A parser of debug information cannot move between threads. So all queries of a file go to the
//! same thread, which reuses what it has parsed. All processes of a recording share the threads.
//!
//! # Invariants
//! - Every query is answered, whatever the module's file contains.
//! - The caller does not wait: answers arrive in any order, as soon as they are ready.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use crate::record::batch::kernel_functions::FoundFunction;
use crate::record::name::kernel_functions::KernelFunctions;
use crate::record::target::modules::LoadedModule;
use crate::symbol::{ElfFile, Resolved, Symbolizer};

/// The largest number of threads: more would only wait for the disk, or for the writer.
const THREADS_MAX: usize = 4;

/// The reported source of names of a module whose file is unreadable or invalid.
const NOT_READ: &str = "nowhere: its file could not be read or kept open";

/// A query of the names of addresses in one module, and later its answer.
#[derive(Default)]
pub(crate) struct SymbolQuery {
    /// The number that the caller gave to the query.
    pub(crate) question: u64,
    /// The module; `None` for addresses outside all modules.
    pub(crate) module: Option<Arc<LoadedModule>>,
    /// Whether the addresses are the kernel's.
    pub(crate) is_kernel: bool,
    /// SVMAs, or addresses in the kernel, each once.
    pub(crate) svmas: Vec<u64>,
    /// The names of the addresses; empty if nothing is known about the module.
    pub(crate) resolved: Vec<Resolved>,
    /// The functions of addresses in the kernel.
    pub(crate) functions: Vec<Option<FoundFunction>>,
    /// The source of the module's names, if known.
    pub(crate) source: Option<String>,
}

impl SymbolQuery {
    /// Removes duplicate addresses.
    pub(crate) fn deduplicated(mut self) -> Self {
        self.svmas.sort_unstable();
        self.svmas.dedup();
        self
    }

    fn number(&self) -> Option<u32> {
        self.module.as_ref().map(|module| module.index)
    }

    /// Returns a number that is equal for equal files, and selects the thread.
    fn file_key(&self) -> u64 {
        let elf = self.module.as_ref().and_then(|module| module.elf.as_ref());
        elf.map_or_else(|| self.number().map_or(0, u64::from), ElfFile::hash)
    }

    fn resolve(&mut self, (symbolizer, kernel): &mut (Symbolizer, KernelFunctions)) {
        if self.is_kernel {
            self.functions = kernel.find(&self.svmas);
            return;
        }
        let elf = self.module.as_ref().and_then(|module| module.elf.as_ref());
        if let Some(elf) = elf {
            self.resolved = symbolizer.resolve(elf, &self.svmas);
            self.source = symbolizer.source(elf);
        } else if self.module.is_some() {
            self.source = Some(NOT_READ.to_owned());
        }
    }
}

/// An answered query, or a panic, which is a bug of the recorder: panics of parsers are contained.
pub(crate) type SymbolAnswer = std::thread::Result<SymbolQuery>;

/// A caller of the symbolizers.
struct QueryCaller {
    /// Receives each answer, and returns false once no more answers are wanted.
    answer: Box<dyn Fn(SymbolAnswer) -> bool + Send + Sync>,
    /// Whether `answer` has returned false.
    is_gone: AtomicBool,
}

type QueuedQuery = (SymbolQuery, Arc<QueryCaller>);

/// The symbolizer threads, which exit once this value is dropped and all queries are answered.
pub(crate) struct SymbolizerPool {
    threads: Vec<Sender<QueuedQuery>>,
}

/// One caller's access to the threads.
pub(crate) struct Symbolizers {
    pool: Arc<SymbolizerPool>,
    caller: Arc<QueryCaller>,
}

impl SymbolizerPool {
    /// Starts as many threads as there are cores, up to a limit.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores.min(THREADS_MAX))
    }

    /// Starts at least one thread.
    fn with_threads(count: usize) -> io::Result<Arc<Self>> {
        let resolve = || {
            let mut sources = (Symbolizer::new(), KernelFunctions::default());
            move |wanted: &mut SymbolQuery| wanted.resolve(&mut sources)
        };
        let threads = (0..count.max(1)).map(|number| worker(number, resolve));
        Ok(Arc::new(Self { threads: threads.collect::<io::Result<_>>()? }))
    }
}

impl Symbolizers {
    /// Starts new threads; `answer` receives the answers, and returns false once no more are
    /// wanted.
    pub(crate) fn start(
        answer: impl Fn(SymbolAnswer) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self::over(SymbolizerPool::start()?, answer))
    }

    /// Makes a caller of these threads.
    pub(crate) fn over(
        pool: Arc<SymbolizerPool>,
        answer: impl Fn(SymbolAnswer) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (answer, is_gone) = (Box::new(answer), AtomicBool::new(false));
        Self { pool, caller: Arc::new(QueryCaller { answer, is_gone }) }
    }

    /// Starts one thread that finds names with this function.
    #[cfg(test)]
    pub(crate) fn with_resolver(
        mut resolve: impl FnMut(&mut SymbolQuery) + Send + 'static,
        answer: impl Fn(SymbolAnswer) -> bool + Send + Sync + 'static,
    ) -> Self {
        let resolver = move || move |wanted: &mut SymbolQuery| resolve(wanted);
        Self::over(Arc::new(SymbolizerPool { threads: vec![worker(0, resolver).unwrap()] }), answer)
    }

    /// Requests the names of a module's addresses.
    pub(crate) fn ask(&self, wanted: SymbolQuery) {
        let threads = &self.pool.threads;
        let number = wanted.file_key() % threads.len() as u64;
        // A thread that has exited has reported the reason.
        let _ = threads[number as usize].send((wanted, Arc::clone(&self.caller)));
    }
}

/// Starts a thread that answers queries until no callers are left; the thread makes the resolver
/// itself.
fn worker<R: FnMut(&mut SymbolQuery)>(
    number: usize,
    resolver: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Sender<QueuedQuery>> {
    let (ask, asked) = channel::<QueuedQuery>();
    let work = move || {
        let mut resolve = resolver();
        for (mut wanted, caller) in asked {
            // Relaxed, both: at worst the thread makes one answer that is not wanted.
            if caller.is_gone.load(Ordering::Relaxed) {
                continue;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| resolve(&mut wanted)));
            let is_over = outcome.is_err();
            let is_wanted = (caller.answer)(outcome.map(|()| wanted));
            caller.is_gone.store(!is_wanted, Ordering::Relaxed);
            if is_over {
                return;
            }
        }
    };
    Builder::new().name(format!("symbolizer {number}")).spawn(work)?;
    Ok(ask)
}

/// Resolves all addresses, with the modules in parallel, and waits for the answers.
///
/// The answers are in the order of the modules' numbers.
pub(crate) fn resolve(
    wanted: impl IntoIterator<Item = SymbolQuery>,
) -> io::Result<Vec<SymbolQuery>> {
    let (answer, answers) = channel();
    let symbolizers = Symbolizers::start(move |it| answer.send(it).is_ok())?;
    wanted.into_iter().for_each(|wanted| symbolizers.ask(wanted));
    Ok(in_order(symbolizers, answers))
}

fn in_order(symbolizers: Symbolizers, answers: Receiver<SymbolAnswer>) -> Vec<SymbolQuery> {
    // The threads exit, and the channel of answers closes with the last thread.
    drop(symbolizers);
    let answers = answers.into_iter().map(|it| it.unwrap_or_else(|panic| resume_unwind(panic)));
    let mut done: Vec<SymbolQuery> = answers.collect();
    done.sort_by_key(SymbolQuery::number);
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
        // A position-independent program starts at 0, wherever it is mapped.
        let mappings = crate::proc::mappings(std::process::id() as i32).unwrap();
        let base = mappings.iter().find(|it| it.path.as_os_str() == own).unwrap().start;
        let svmas: Vec<u64> = (0..50).map(|step| address - base + step * 64).collect();
        let ask = |threads: usize| {
            let (answer, answers) = channel();
            let answer = move |it| answer.send(it).is_ok();
            let symbolizers =
                Symbolizers::over(SymbolizerPool::with_threads(threads).unwrap(), answer);
            // Twice, so that the second query reuses what was parsed.
            for question in 0..2 {
                for module in modules.iter().rev() {
                    let (module, svmas) = (Some(Arc::clone(module)), svmas.clone());
                    symbolizers.ask(SymbolQuery {
                        question,
                        module,
                        svmas,
                        ..SymbolQuery::default()
                    });
                }
            }
            let mut found = in_order(symbolizers, answers);
            found.retain(|it| it.question == 1);
            let names = |wanted: &SymbolQuery| {
                let name = |it: &Resolved| it.function.as_ref().map(|it| it.name.clone());
                wanted.resolved.iter().map(name).collect::<Vec<_>>()
            };
            assert_eq!(
                found.iter().filter_map(SymbolQuery::number).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4, 5]
            );
            found.iter().map(names).collect::<Vec<_>>()
        };
        let one = ask(1);
        assert!(one[0].iter().any(Option::is_some), "{one:?}");
        assert_eq!(one, ask(3));
    }

    #[test]
    fn each_caller_gets_its_own_answers_and_a_dropped_caller_costs_no_time() {
        let (asked, count) = channel();
        let resolver = || move |wanted: &mut SymbolQuery| asked.send(wanted.question).unwrap();
        let pool = Arc::new(SymbolizerPool { threads: vec![worker(0, resolver).unwrap()] });
        let (answer, answers) = channel();
        let caller = |takes: bool| {
            let answer = answer.clone();
            Symbolizers::over(Arc::clone(&pool), move |it| takes && answer.send(it).is_ok())
        };
        let (one, gone, other) = (caller(true), caller(false), caller(true));
        for (symbolizers, questions) in [(&one, 10..12), (&gone, 20..23), (&other, 30..31)] {
            questions.for_each(|question| {
                symbolizers.ask(SymbolQuery { question, ..SymbolQuery::default() });
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
        let resolve = |wanted: &mut SymbolQuery| assert!(wanted.question < 2, "the third");
        let symbolizers = Symbolizers::with_resolver(resolve, answer);
        for question in 0..4 {
            symbolizers.ask(SymbolQuery { question, ..SymbolQuery::default() });
        }
        drop(symbolizers);
        let answers: Vec<SymbolAnswer> = answers.into_iter().collect();
        let outcomes: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(outcomes, [true, true, false]);
    }
}
