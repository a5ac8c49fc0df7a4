//! Metadata: a key and a typed value.
//!
//! # Invariants
//! - Lists nest at most [`MAX_NESTING`] deep, and are decoded without recursion.

use super::bytes::{Cursor, ParseResult, put_u32, put_u64, to_modified_utf8};
use super::{MAX_TEXT_BYTES, TraceError, Value};

/// The maximum nesting of lists.
pub(super) const MAX_NESTING: usize = 16;

const UNSIGNED: u8 = 1;
const TEXT: u8 = 2;
const LIST: u8 = 3;

/// Refuses metadata that the format cannot hold.
pub(super) fn check(key: &str, value: &Value) -> Result<(), TraceError> {
    let limit = |what, limit: usize| Err(TraceError::LimitExceeded { what, limit: limit as u64 });
    let mut total = key.len();
    let mut level = vec![value];
    for _ in 0..=MAX_NESTING {
        let mut next = Vec::new();
        for value in level {
            total += 9;
            match value {
                Value::Unsigned(_) => {}
                Value::Text(text) => total += text.len(),
                Value::List(values) => next.extend(values),
            }
        }
        // Modified UTF-8 is at most twice as long as UTF-8.
        if total > MAX_TEXT_BYTES / 2 {
            return limit("the size of a metadata value", MAX_TEXT_BYTES / 2);
        }
        if next.is_empty() {
            return Ok(());
        }
        level = next;
    }
    limit("the nesting of a metadata value", MAX_NESTING)
}

/// Appends a key and a value, which must have passed [`check`].
pub(super) fn encode(out: &mut Vec<u8>, key: &str, value: &Value) {
    put_text(out, key);
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Unsigned(number) => {
                out.push(UNSIGNED);
                put_u64(out, *number);
            }
            Value::Text(text) => {
                out.push(TEXT);
                put_text(out, text);
            }
            Value::List(values) => {
                out.push(LIST);
                put_u32(out, values.len() as u32);
                rest.extend(values.iter().rev());
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let bytes = to_modified_utf8(text);
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(&bytes);
}

/// Reads a key and a value.
pub(super) fn decode(cursor: &mut Cursor<'_>) -> ParseResult<(String, Value)> {
    let key_len = cursor.u32()? as usize;
    let key = cursor.text(key_len)?;
    // The open lists, each with the number of its missing values.
    let mut open: Vec<(u32, Vec<Value>)> = Vec::new();
    loop {
        let mut value = match cursor.u8()? {
            UNSIGNED => Value::Unsigned(cursor.u64()?),
            TEXT => {
                let len = cursor.u32()? as usize;
                Value::Text(cursor.text(len)?)
            }
            LIST => {
                let count = cursor.u32()?;
                if open.len() == MAX_NESTING {
                    return cursor.fail("lists are nested too deep");
                }
                if count > 0 {
                    open.push((count, Vec::new()));
                    continue;
                }
                Value::List(Vec::new())
            }
            _ => return cursor.fail("a metadata value has an unknown type"),
        };
        loop {
            let Some((missing, values)) = open.last_mut() else { return Ok((key, value)) };
            values.push(value);
            *missing -= 1;
            if *missing > 0 {
                break;
            }
            value = Value::List(open.pop().map(|(_, values)| values).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Unsigned(7), |value, _| {
            Value::List(vec![value, Value::Text("x\0".into()), Value::List(Vec::new())])
        })
    }

    #[test]
    fn values_survive_up_to_the_nesting_limit() {
        for depth in 0..=MAX_NESTING - 1 {
            let value = nested(depth);
            check("key", &value).unwrap();
            let mut out = Vec::new();
            encode(&mut out, "key", &value);
            assert_eq!(decode(&mut Cursor::new(&out)), Ok(("key".into(), value)));
        }
        assert!(check("key", &nested(MAX_NESTING + 1)).is_err());
        let mut out = Vec::new();
        encode(&mut out, "key", &nested(MAX_NESTING + 1));
        assert!(decode(&mut Cursor::new(&out)).is_err());
    }

    #[test]
    fn a_false_count_allocates_nothing() {
        let mut out = Vec::new();
        put_text(&mut out, "");
        out.extend_from_slice(&[LIST, 0xff, 0xff, 0xff, 0xff]);
        assert!(decode(&mut Cursor::new(&out)).is_err());
    }
}
