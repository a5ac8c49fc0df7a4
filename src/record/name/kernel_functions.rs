//! Finds the names of the kernel's functions for a symbolizer thread.

use std::time::{Duration, Instant};

use crate::proc::{KernelSymbols, kernel_modules};
use crate::record::batch::kernel_functions::FoundFunction;

/// How long addresses without a name wait for the next reading: the kernel makes code too.
const AGAIN: Duration = Duration::from_secs(10);

/// The symbols, once an address was asked for.
#[derive(Debug, Default)]
pub(crate) struct KernelFunctions(Option<ReadSymbols>);

#[derive(Debug)]
struct ReadSymbols {
    symbols: KernelSymbols,
    /// The loaded modules at that time.
    modules: Vec<u8>,
    read: Instant,
}

impl ReadSymbols {
    fn read() -> Self {
        // Before the symbols: those of a module that comes in between are missing only once.
        let modules = kernel_modules();
        // Without a list, no address has a name.
        let symbols = KernelSymbols::read().unwrap_or_default();
        Self { symbols, modules, read: Instant::now() }
    }
}

impl KernelFunctions {
    /// Returns the functions of these addresses, `None` for one that has no name.
    pub(crate) fn find(&mut self, avmas: &[u64]) -> Vec<Option<FoundFunction>> {
        let is_current = |known: &ReadSymbols| known.modules == kernel_modules();
        if !self.0.as_ref().is_some_and(is_current) {
            self.0 = Some(ReadSymbols::read());
        }
        let known = self.0.get_or_insert_with(ReadSymbols::read);
        let found = look_up(&known.symbols, avmas);
        if found.iter().all(Option::is_some) || known.read.elapsed() < AGAIN {
            return found;
        }
        *known = ReadSymbols::read();
        look_up(&known.symbols, avmas)
    }
}

fn look_up(symbols: &KernelSymbols, avmas: &[u64]) -> Vec<Option<FoundFunction>> {
    let function = |avma: &u64| {
        let found = symbols.find(*avma)?;
        let module = found.module.map(str::to_owned);
        Some(FoundFunction { name: found.name.to_owned(), module })
    };
    avmas.iter().map(function).collect()
}
