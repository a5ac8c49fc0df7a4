//! The kernel's symbols, read in another way than the recorder does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::read_to_string;

/// The names in `/proc/kallsyms`, by address and by name.
pub(super) struct Kallsyms {
    by_address: BTreeMap<u64, BTreeSet<String>>,
    by_name: HashMap<String, u64>,
}

impl Kallsyms {
    /// Reads the names, or returns why recordings cannot show functions of the kernel.
    pub(super) fn read() -> Result<Self, String> {
        let text = read_to_string("/proc/kallsyms").unwrap_or_default();
        let (mut by_address, mut by_name) =
            (BTreeMap::<u64, BTreeSet<String>>::new(), HashMap::new());
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let (Some(address), Some(name)) = (address.filter(|it| *it > 1 << 60), words.nth(1))
            else {
                continue;
            };
            by_address.entry(address).or_default().insert(name.to_owned());
            by_name.entry(name.to_owned()).or_insert(address);
        }
        if by_name.is_empty() {
            return Err("/proc/kallsyms: it shows no addresses here".to_owned());
        }
        Ok(Self { by_address, by_name })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the first of all names that the function has: tools choose different ones.
    pub(super) fn first_name<'n>(&'n self, name: &'n str) -> &'n str {
        let names = self.by_name.get(name).and_then(|address| self.by_address.get(address));
        names.and_then(|names| names.first()).map_or(name, String::as_str)
    }
}
