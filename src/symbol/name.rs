//! Readable symbol names: demangled, of bounded length, safe to print.
//!
//! Demangling happens here and not in blazesym, because a few hundred hostile bytes can demangle
//! into gigabytes. Both demanglers write into [`BoundedText`], which stops them.

use std::fmt::Write;

use crate::text::{BoundedText, printable};

/// Demangles Rust (legacy and v0) and C++ names. Other names stay as they are.
pub(super) fn readable(raw: &str) -> String {
    let mut out = BoundedText::default();
    let demangled = demangle_rust(raw, &mut out) || {
        out = BoundedText::default();
        demangle_cpp(raw, &mut out)
    };
    if demangled { out.finish() } else { printable(raw) }
}

fn demangle_rust(raw: &str, out: &mut BoundedText) -> bool {
    let Ok(name) = rustc_demangle::try_demangle(raw) else { return false };
    write!(out, "{name:#}").is_ok() || out.is_full()
}

fn demangle_cpp(raw: &str, out: &mut BoundedText) -> bool {
    if !raw.starts_with("_Z") && !raw.starts_with("__Z") {
        return false;
    }
    let Ok(symbol) = cpp_demangle::BorrowedSymbol::new(raw.as_bytes()) else { return false };
    let options = cpp_demangle::DemangleOptions::new();
    symbol.structured_demangle(out, &options).is_ok() || out.is_full()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::LENGTH_MAX;

    fn check(raw: &str, expected: &str) {
        assert_eq!(readable(raw), expected);
    }

    #[test]
    fn rust_legacy_loses_its_hash() {
        check("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt");
    }

    #[test]
    fn rust_v0() {
        check("_RNvC6_123foo3bar", "123foo::bar");
    }

    #[test]
    fn cpp() {
        check("_ZN3foo3barEi", "foo::bar(int)");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back(int&&)",
        );
    }

    #[test]
    fn c_and_malformed_names_stay() {
        for raw in ["main", "_start", "_Z", "_ZN3fo", "_R", "", "f@plt", "größe"] {
            check(raw, raw);
        }
    }

    #[test]
    fn long_name_is_cut() {
        let name = readable(&"ß".repeat(5000));
        assert!(name.len() <= LENGTH_MAX && name.ends_with("ß..."), "{}", name.len());
    }

    /// Each of the fifty levels doubles the output, which without the bound would be 2^50 bytes.
    #[test]
    fn exploding_name_is_cut() {
        let mut raw = String::from("_Z1fI1aE");
        raw.push_str("St4pairI1bS1_E");
        for level in 1..50u32 {
            // Substitution S<level+1>_ names the pair of the previous level.
            let back = base36(level + 1);
            raw.push_str(&format!("St4pairIS{back}_S{back}_E"));
        }
        let started = std::time::Instant::now();
        let name = readable(&raw);
        assert!(name.contains("f<a>") && name.ends_with("..."), "{name}");
        assert!(name.len() <= LENGTH_MAX);
        assert!(started.elapsed().as_secs() < 5);
    }

    fn base36(mut number: u32) -> String {
        let mut digits = Vec::new();
        while number > 0 {
            digits.push(char::from_digit(number % 36, 36).unwrap().to_ascii_uppercase());
            number /= 36;
        }
        digits.iter().rev().collect()
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        check("a\x1b[31mb\nc", "a?[31mb?c");
    }
}
