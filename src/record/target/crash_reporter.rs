//! Crash reporters that an application contains, known by their modules and symbols.
//!
//! They take over SIGTRAP when they start, restore the earlier action when they stop, and reset
//! SIGTRAP in a crash: a SIGTRAP at that moment ends the program.

use std::io;
use std::path::Path;

use crate::elf::Elf;
use crate::proc::{self, Mapping};

/// Substrings of module names, each with its reporter.
const MODULES: [(&str, &str); 4] = [
    ("crashpad", "Crashpad"),
    ("breakpad", "Breakpad"),
    ("sentry", "Sentry"),
    ("absl_failure_signal_handler", "Abseil"),
];

/// Prefixes and suffixes of symbols, each pair with its reporter.
const SYMBOLS: [(&[u8], &[u8], &str); 5] = [
    (b"_ZN15google_breakpad16ExceptionHandlerC", b"", "Breakpad"),
    (b"_ZN8crashpad14CrashpadClient12StartHandlerE", b"", "Crashpad"),
    (b"sentry_init", b"sentry_init", "Sentry"),
    (b"_ZN4absl27InstallFailureSignalHandlerE", b"", "Abseil"),
    // The name of a release is between prefix and suffix.
    (b"_ZN4absl", b"27InstallFailureSignalHandlerERKNS0_27FailureSignalHandlerOptionsE", "Abseil"),
];

/// The maximum number of bytes of names to search, which takes about a tenth of a second.
const NAMES_MAX: usize = 64 << 20;

/// Returns the crash reporter in a module, if there is one.
pub(crate) fn in_module(pid: i32, mapping: &Mapping) -> Option<&'static str> {
    by_name(Path::new(&mapping.path)).or_else(|| {
        // An unreadable module counts as one without a reporter.
        let names = || -> io::Result<Option<&'static str>> {
            let bytes = proc::map_file(proc::open_mapping(pid, mapping)?)?;
            Ok(by_symbols(&bytes))
        };
        names().ok().flatten()
    })
}

fn by_name(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    MODULES.iter().find(|(part, _)| name.contains(part)).map(|(_, reporter)| *reporter)
}

fn by_symbols(bytes: &[u8]) -> Option<&'static str> {
    let elf = Elf::parse(bytes).ok()?;
    [".dynstr", ".strtab"].into_iter().filter_map(|name| elf.section(name)).find_map(|section| {
        let names = &section.data[..section.data.len().min(NAMES_MAX)];
        names.split(|byte| *byte == 0).find_map(reporter_of)
    })
}

fn reporter_of(symbol: &[u8]) -> Option<&'static str> {
    let fits = |(begin, end, _): &&(&[u8], &[u8], &str)| {
        symbol.starts_with(begin) && symbol.ends_with(end)
    };
    SYMBOLS.iter().find(fits).map(|(_, _, reporter)| *reporter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_symbols_of_reporters_are_known() {
        for (name, expected) in [
            ("/opt/app/libsentry.so.1", Some("Sentry")),
            ("/usr/lib/chromium/chrome_crashpad_handler", Some("Crashpad")),
            ("/usr/lib/libabsl_failure_signal_handler.so.20220623.0.0", Some("Abseil")),
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", None),
            // Only the file name counts: a directory may have such a name by chance.
            ("/srv/sentry/program", None),
        ] {
            assert_eq!(by_name(Path::new(name)), expected, "{name}");
        }
        for (symbol, expected) in [
            (
                "_ZN15google_breakpad16ExceptionHandlerC1ERKNS_18MinidumpDescriptorE",
                Some("Breakpad"),
            ),
            ("sentry_init", Some("Sentry")),
            ("sentry_initialized", None),
            (
                concat!(
                    "_ZN4absl12lts_2022062327InstallFailureSignalHandlerERKNS0_",
                    "27FailureSignalHandlerOptionsE"
                ),
                Some("Abseil"),
            ),
            ("_ZN4absl12lts_2022062313SymbolizeEv", None),
            ("main", None),
        ] {
            assert_eq!(reporter_of(symbol.as_bytes()), expected, "{symbol}");
        }
    }

    #[test]
    fn this_program_has_none() {
        let mappings = proc::mappings(std::process::id() as i32).unwrap();
        let code = mappings.iter().filter(|mapping| mapping.exec && mapping.inode != 0);
        let mut searched = 0;
        for mapping in code {
            let bytes =
                proc::map_file(proc::open_mapping(std::process::id() as i32, mapping).unwrap());
            assert_eq!(by_symbols(&bytes.unwrap()), None, "{}", mapping.path.display());
            searched += 1;
        }
        assert!(searched > 1);
    }
}
