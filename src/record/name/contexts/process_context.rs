//! The process context of OpenTelemetry (OTEP 4719), including the names of record attributes.
//!
//! # Invariants
//! - At most [`PAYLOAD_MAX`] bytes of a target are read, and no length in them is trusted.
//! - Bytes that the application changes while they are read are dropped.

use crate::proc::Mapping;

/// The prefixes of the name of a process context's mapping.
///
/// The kernel shows one of them, depending on whether it supports memory files and named mappings.
const MAPPINGS: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX"];
const SIGNATURE: &[u8; 8] = b"OTEL_CTX";
const VERSION: u32 = 2;
const HEADER: usize = 32;
/// The longest payload that is read, in bytes; published payloads have some hundred bytes.
const PAYLOAD_MAX: usize = 64 << 10;
/// The number of attempts to read a process context that the application keeps changing.
const ATTEMPTS: usize = 5;
/// The largest number of keys: their numbers are bytes.
const KEYS_MAX: usize = 256;

/// The key of the attribute with the version of the records' content.
pub(super) const SCHEMA: &str = "threadlocal.schema_version";
/// The key of the attribute with the names of record attributes by their numbers.
pub(super) const KEYS: &str = "threadlocal.attribute_key_map";

/// An attribute's value as text; maps and bytes are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContextAttributeValue {
    /// One value.
    One(String),
    /// A list of values; elements that are not text or numbers are empty.
    List(Vec<String>),
}

/// The process context of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessContext {
    /// The time of publication by the application's clock, in nanoseconds; never 0.
    pub(super) published_at_ns: u64,
    /// The attributes in order.
    pub(super) attributes: Vec<(String, ContextAttributeValue)>,
}

impl ProcessContext {
    /// Returns the value of the last attribute with this name and a single value.
    pub(super) fn one(&self, name: &str) -> Option<&str> {
        self.attributes.iter().rev().find_map(|(key, value)| match value {
            ContextAttributeValue::One(text) if key == name => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns the names of record attributes by their numbers.
    pub(super) fn keys(&self) -> &[String] {
        let found = self.attributes.iter().rev().find_map(|(key, value)| match value {
            ContextAttributeValue::List(texts) if key == KEYS => Some(texts.as_slice()),
            _ => None,
        });
        let keys = found.unwrap_or_default();
        &keys[..keys.len().min(KEYS_MAX)]
    }
}

/// Returns whether a mapping has the name of a process context.
pub(super) fn is_process_context(mapping: &Mapping) -> bool {
    let name = mapping.path.as_encoded_bytes();
    mapping.read && MAPPINGS.iter().any(|it| name.starts_with(it.as_bytes()))
}

/// The reason why no process context was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoContext {
    /// The memory contains something else, another version, or a payload that is too long.
    Unusable,
    /// The application is changing it, and it may be read later.
    Changing,
}

/// The header of a process context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ContextHeader {
    payload_len: u32,
    published_at_ns: u64,
    payload_avma: u64,
}

impl ContextHeader {
    fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [signature, sizes, published, payload] = words else { return None };
        let sizes = u64::from_le_bytes(*sizes);
        (signature == SIGNATURE && sizes as u32 == VERSION).then_some(Self {
            payload_len: (sizes >> 32) as u32,
            published_at_ns: u64::from_le_bytes(*published),
            payload_avma: u64::from_le_bytes(*payload),
        })
    }
}

/// Reads the process context at an address; returns `None` if it has not changed since `known_ns`.
///
/// `read` reads the target's memory, and returns the number of bytes that it could read.
pub(super) fn read(
    avma: u64,
    known_ns: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> usize,
) -> Result<Option<ProcessContext>, NoContext> {
    let mut header = || {
        let mut bytes = [0; HEADER];
        let is_whole = read(avma, &mut bytes) == HEADER;
        let header =
            ContextHeader::parse(&bytes).filter(|_| is_whole).ok_or(NoContext::Unusable)?;
        let mut payload = Vec::new();
        if header.published_at_ns != 0 && header.published_at_ns != known_ns {
            let len = usize::try_from(header.payload_len).unwrap_or(usize::MAX);
            if len > PAYLOAD_MAX {
                return Err(NoContext::Unusable);
            }
            payload.resize(len, 0);
            let got = read(header.payload_avma, &mut payload);
            payload.truncate(got);
        }
        Ok((header, payload))
    };
    for _ in 0..ATTEMPTS {
        let (before, payload) = header()?;
        if before.published_at_ns == 0 {
            continue;
        }
        if before.published_at_ns == known_ns {
            return Ok(None);
        }
        let (after, _) = header()?;
        if after == before && payload.len() == before.payload_len as usize {
            let attributes = decode(&payload);
            return Ok(Some(ProcessContext {
                published_at_ns: before.published_at_ns,
                attributes,
            }));
        }
    }
    Err(NoContext::Changing)
}

/// A field of a protobuf message.
enum ProtobufField<'a> {
    /// A number, or eight bytes.
    Number(u64),
    /// Bytes with a length, or four bytes.
    Bytes(&'a [u8]),
}

/// The numbered fields of a protobuf message, up to the first damaged field.
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn read(&mut self) -> Option<(u64, ProtobufField<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => ProtobufField::Number(self.varint()?),
            1 => ProtobufField::Number(u64::from_le_bytes(*self.take(8)?.first_chunk()?)),
            2 => {
                let len = self.varint()?;
                ProtobufField::Bytes(self.take(len)?)
            }
            5 => ProtobufField::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = (u64, ProtobufField<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        field
    }
}

/// Field numbers of `KeyValue`, and of the messages that contain attributes.
const KEY: u64 = 1;
const VALUE: u64 = 2;
/// Field numbers of `AnyValue`.
const TEXT: u64 = 1;
const FLAG: u64 = 2;
const INTEGER: u64 = 3;
const DOUBLE: u64 = 4;
const ARRAY: u64 = 5;

/// Decodes the attributes of a `ProcessContext` message, or of a `Resource`, which was published
/// earlier.
///
/// A `ProcessContext` has a resource with attributes in field 1 and more attributes in field 2. A
/// `Resource` has attributes in field 1.
fn decode(payload: &[u8]) -> Vec<(String, ContextAttributeValue)> {
    let mut attributes = Vec::new();
    for (number, field) in ProtobufFields(payload) {
        let (1 | 2, ProtobufField::Bytes(bytes)) = (number, field) else { continue };
        // The second field of a resource is a number, if present.
        if ProtobufFields(bytes)
            .any(|(number, field)| number == VALUE && matches!(field, ProtobufField::Bytes(_)))
        {
            attributes.extend(key_value(bytes));
        } else if number == 1 {
            let inner = ProtobufFields(bytes).filter_map(|(number, field)| match field {
                ProtobufField::Bytes(bytes) if number == 1 => key_value(bytes),
                _ => None,
            });
            attributes.extend(inner);
        }
    }
    attributes
}

fn key_value(bytes: &[u8]) -> Option<(String, ContextAttributeValue)> {
    let (mut key, mut value) = (None, None);
    for (number, field) in ProtobufFields(bytes) {
        match (number, field) {
            (KEY, ProtobufField::Bytes(bytes)) => key = Some(text(bytes)),
            (VALUE, ProtobufField::Bytes(bytes)) => value = any_value(bytes),
            _ => {}
        }
    }
    Some((key?, value?))
}

fn any_value(bytes: &[u8]) -> Option<ContextAttributeValue> {
    // The last field of a choice counts.
    match ProtobufFields(bytes).last()? {
        (ARRAY, ProtobufField::Bytes(array)) => {
            let values = ProtobufFields(array).filter_map(|(number, field)| match field {
                ProtobufField::Bytes(value) if number == 1 => Some(ProtobufFields(value).last()),
                _ => None,
            });
            let texts = values.map(|last| last.and_then(scalar).unwrap_or_default());
            Some(ContextAttributeValue::List(texts.collect()))
        }
        last => scalar(last).map(ContextAttributeValue::One),
    }
}

fn scalar(field: (u64, ProtobufField<'_>)) -> Option<String> {
    match field {
        (TEXT, ProtobufField::Bytes(bytes)) => Some(text(bytes)),
        (FLAG, ProtobufField::Number(number)) => Some((number != 0).to_string()),
        (INTEGER, ProtobufField::Number(number)) => Some((number as i64).to_string()),
        (DOUBLE, ProtobufField::Number(bits)) => Some(f64::from_bits(bits).to_string()),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn bytes_field(number: u64, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn number_field(number: u64, value: u64) -> Vec<u8> {
        [varint(number << 3), varint(value)].concat()
    }

    fn attribute(key: &str, value: &ContextAttributeValue) -> Vec<u8> {
        let any = match value {
            ContextAttributeValue::One(text) => bytes_field(TEXT, text.as_bytes()),
            ContextAttributeValue::List(texts) => {
                let values =
                    texts.iter().map(|it| bytes_field(1, &bytes_field(TEXT, it.as_bytes())));
                bytes_field(ARRAY, &values.flatten().collect::<Vec<u8>>())
            }
        };
        [bytes_field(KEY, key.as_bytes()), bytes_field(VALUE, &any)].concat()
    }

    type AttributeList = Vec<(String, ContextAttributeValue)>;

    fn resource(attributes: &AttributeList) -> Vec<u8> {
        let all = attributes.iter().map(|(key, value)| bytes_field(1, &attribute(key, value)));
        all.flatten().collect()
    }

    /// Makes the bytes of a process context at an address, with the payload right after the header.
    pub(crate) fn published(
        avma: u64,
        attributes: &AttributeList,
        published_at_ns: u64,
    ) -> Vec<u8> {
        let payload = resource(attributes);
        let sizes = (payload.len() as u64) << 32 | u64::from(VERSION);
        let payload_avma = avma + HEADER as u64;
        let words = [sizes, published_at_ns, payload_avma].map(u64::to_le_bytes);
        [SIGNATURE.as_slice(), words.as_flattened(), &payload].concat()
    }

    fn one(key: &str, value: &str) -> (String, ContextAttributeValue) {
        (key.to_owned(), ContextAttributeValue::One(value.to_owned()))
    }

    fn list(key: &str, values: &[&str]) -> (String, ContextAttributeValue) {
        let values = values.iter().map(|it| (*it).to_owned()).collect();
        (key.to_owned(), ContextAttributeValue::List(values))
    }

    fn examples() -> AttributeList {
        vec![
            one("service.name", "shop"),
            one(SCHEMA, "tls_v1"),
            list(KEYS, &["http_route", "user"]),
        ]
    }

    #[test]
    fn both_layouts_are_read() {
        let expected = examples();
        assert_eq!(decode(&resource(&expected)), expected);
        let inner = [resource(&expected[..1].to_vec()), number_field(2, 3)].concat();
        let more = expected[1..].iter().map(|(key, value)| bytes_field(2, &attribute(key, value)));
        let whole = [bytes_field(1, &inner), more.flatten().collect()].concat();
        assert_eq!(decode(&whole), expected);
        let context = ProcessContext { published_at_ns: 1, attributes: decode(&whole) };
        assert_eq!(context.one("service.name"), Some("shop"));
        assert_eq!((context.one(KEYS), context.one("nothing")), (None, None));
        assert_eq!(context.keys(), ["http_route", "user"]);
    }

    #[test]
    fn values_of_each_kind_are_texts() {
        let decoded = |any: &[u8]| {
            let attribute = [bytes_field(KEY, b"k"), bytes_field(VALUE, any)].concat();
            decode(&bytes_field(1, &attribute)).pop().map(|(_, value)| value)
        };
        let text = |text: &str| Some(ContextAttributeValue::One(text.to_owned()));
        assert_eq!(decoded(&number_field(FLAG, 1)), text("true"));
        assert_eq!(decoded(&number_field(INTEGER, -5i64 as u64)), text("-5"));
        let double = [varint(DOUBLE << 3 | 1), 2.5f64.to_bits().to_le_bytes().to_vec()].concat();
        assert_eq!(decoded(&double), text("2.5"));
        assert_eq!(decoded(&bytes_field(7, b"bytes")), None);
        assert_eq!(decoded(&bytes_field(TEXT, b"\xff")), text("\u{fffd}"));
    }

    /// Reads the process context of a target whose memory may change during the reading.
    fn read_from(
        known_ns: u64,
        memory: impl FnMut(u64, &mut [u8]) -> usize,
    ) -> Result<Option<u64>, NoContext> {
        read(0x5000, known_ns, memory).map(|context| context.map(|it| it.published_at_ns))
    }

    fn copy(from: &[u8], avma: u64, into: &mut [u8]) -> usize {
        let from = avma.checked_sub(0x5000).and_then(|at| from.get(at as usize..)).unwrap_or(&[]);
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        len
    }

    #[test]
    fn a_context_that_changes_during_the_reading_is_read_again() {
        let [first, second] = [7, 8].map(|ns| published(0x5000, &examples(), ns));
        let changing = published(0x5000, &examples(), 0);
        assert_eq!(read_from(0, |avma, into| copy(&first, avma, into)), Ok(Some(7)));
        assert_eq!(read_from(7, |avma, into| copy(&first, avma, into)), Ok(None));
        let mut reads = 0;
        let becomes = |avma: u64, into: &mut [u8]| {
            reads += 1;
            copy(if reads <= 2 { &first } else { &second }, avma, into)
        };
        assert_eq!(read_from(0, becomes), Ok(Some(8)));
        let stays = |avma: u64, into: &mut [u8]| copy(&changing, avma, into);
        assert_eq!(read_from(0, stays), Err(NoContext::Changing));
        let mut reads = 0;
        let restless = |avma: u64, into: &mut [u8]| {
            reads += 1;
            copy(&published(0x5000, &examples(), reads), avma, into)
        };
        assert_eq!(read_from(0, restless), Err(NoContext::Changing));
    }

    #[test]
    fn other_content_is_not_read() {
        let whole = published(0x5000, &examples(), 7);
        for (at, byte) in [(0, b'X'), (8, 1), (14, 2)] {
            let mut other = whole.clone();
            other[at] = byte;
            let found = read_from(0, |avma, into| copy(&other, avma, into));
            assert_eq!(found, Err(NoContext::Unusable), "{at}");
        }
        let cut = read_from(0, |avma, into| copy(&whole[..20], avma, into));
        assert_eq!(cut, Err(NoContext::Unusable));
        let cut = read_from(0, |avma, into| copy(&whole[..40], avma, into));
        assert_eq!(cut, Err(NoContext::Changing), "the payload is incomplete");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_to_their_end(payload: Vec<u8>) {
            let bytes: usize = decode(&payload).iter().map(|(key, _)| key.len()).sum();
            // Replacement characters take three bytes.
            prop_assert!(bytes <= payload.len() * 3);
        }

        #[test]
        fn damaged_payloads_only_lose_attributes(at: prop::sample::Index, byte: u8) {
            let mut payload = resource(&examples());
            let place = at.index(payload.len());
            payload[place] = byte;
            prop_assert!(decode(&payload).len() <= payload.len());
        }

        #[test]
        fn attributes_come_back_as_they_were(
            texts in prop::collection::vec(
                ("\\PC{1,20}", prop::collection::vec("\\PC*", 0..4)),
                0..5
            )
        ) {
            let list = |(key, values)| (key, ContextAttributeValue::List(values));
            let attributes: AttributeList = texts.into_iter().map(list).collect();
            prop_assert_eq!(decode(&resource(&attributes)), attributes);
        }
    }
}
