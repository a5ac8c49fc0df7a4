//! Finds the names of the kernel's functions for a symbolizer thread.

use std::time::{Duration, Instant};

use crate::proc::{KernelModules, KernelSymbols};
use crate::record::batch::kernel_functions::FoundFunction;

/// The pause before the list is read again for an address without a name: the kernel makes code,
/// too. It doubles with each reading, since some code is never listed.
const AGAIN: Duration = Duration::from_secs(10);

/// The symbols, once an address was asked for.
#[derive(Debug, Default)]
pub(crate) struct KernelFunctions(Option<ReadSymbols>);

#[derive(Debug)]
struct ReadSymbols {
    symbols: KernelSymbols,
    /// The loaded modules at that time.
    modules: KernelModules,
    read: Instant,
    again: Duration,
}

impl ReadSymbols {
    fn read(again: Duration) -> Self {
        // Before the symbols: those of a module that comes in between are missing only once.
        let modules = KernelModules::read();
        // Without a list, no address has a name.
        let symbols = KernelSymbols::read(&modules).unwrap_or_default();
        Self { symbols, modules, read: Instant::now(), again }
    }
}

impl KernelFunctions {
    /// Returns the functions of these addresses, `None` for one that has no name.
    pub(crate) fn find(&mut self, avmas: &[u64]) -> Vec<Option<FoundFunction>> {
        let is_current = |known: &ReadSymbols| known.modules == KernelModules::read();
        if !self.0.as_ref().is_some_and(is_current) {
            self.0 = Some(ReadSymbols::read(AGAIN));
        }
        let known = self.0.get_or_insert_with(|| ReadSymbols::read(AGAIN));
        let found = look_up(&known.symbols, avmas);
        if found.iter().all(Option::is_some) || known.read.elapsed() < known.again {
            return found;
        }
        *known = ReadSymbols::read(known.again.saturating_mul(2));
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
