//! Addresses of files (`file://`).

/// Returns the path in the address of a file, and other names as they are.
pub fn path_of(name: &str) -> String {
    let path = name.strip_prefix("file://").filter(|path| path.starts_with('/'));
    path.and_then(decoded).unwrap_or_else(|| name.to_owned())
}

/// Replaces each `%` with two hexadecimal digits by the byte that they stand for. `None` if the
/// result is not UTF-8.
pub fn decoded(encoded: &str) -> Option<String> {
    String::from_utf8(decoded_bytes(encoded.as_bytes())).ok()
}

fn decoded_bytes(mut encoded: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded.len());
    while let Some((first, rest)) = encoded.split_first() {
        let digits = rest.first_chunk::<2>().filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| {
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            is_hex.then(|| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
        });
        bytes.push(byte.unwrap_or(*first));
        encoded = rest.get(if byte.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn addresses_of_files_are_paths() {
        let cases = [
            ("file:///a/b.mjs", "/a/b.mjs"),
            ("file:///a%20b/gr%C3%B6%c3%9Fe.mjs", "/a b/größe.mjs"),
            ("file:///100%/%2x", "/100%/%2x"),
            ("file:///%ff", "file:///%ff"),
            ("file://host/a", "file://host/a"),
            ("node:internal/fs", "node:internal/fs"),
            ("/a%20b.js", "/a%20b.js"),
            ("", ""),
        ];
        for (name, path) in cases {
            assert_eq!(path_of(name), path);
        }
    }
}
