//! The complete contents of a trace, one object or index cell per line, as text or as JSON.
//!
//! Invariant: a line has the same parts in both forms, so that users can search one form for what
//! they see in the other.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::trace::{FieldValue, IndexCell, Object, dump_index, dump_objects, index_path};
use crate::view::select::error::ViewError;
use crate::view::text::escape::{escaped, json_escaped};

/// The form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpFormat {
    /// `offset kind name=value ...`.
    Text,
    /// JSON Lines.
    Json,
}

/// Writes the objects of the data file at `path`, then the cells of its index. Returns whether
/// there is an index.
pub fn write(path: &Path, form: DumpFormat, out: &mut dyn Write) -> Result<bool, ViewError> {
    for object in dump_objects(path)? {
        let object = object?;
        match form {
            DumpFormat::Text => object_text(&object, out)?,
            DumpFormat::Json => json_line(&object_json(&object), out)?,
        }
    }
    let index = index_path(path);
    // A dangling symbolic link exists.
    if std::fs::symlink_metadata(&index).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(false);
    }
    for cell in dump_index(&index)? {
        let cell = cell?;
        match form {
            DumpFormat::Text => cell_text(&cell, out)?,
            DumpFormat::Json => json_line(&cell_json(&cell), out)?,
        }
    }
    Ok(true)
}

fn object_text(object: &Object, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{:#012x} {}", object.offset, object.kind)?;
    for (name, value) in &object.fields {
        write!(out, " {name}=")?;
        value_text(value, out)?;
    }
    writeln!(out)
}

fn value_text(value: &FieldValue, out: &mut dyn Write) -> io::Result<()> {
    match value {
        FieldValue::Unsigned(number) => write!(out, "{number}"),
        FieldValue::Signed(number) => write!(out, "{number}"),
        FieldValue::Text(text) => {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            write!(out, "\"{}\"", escaped(&quoted))
        }
        FieldValue::Bytes(bytes) => {
            write!(out, "0x")?;
            bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
        }
        FieldValue::List(values) => {
            write!(out, "[")?;
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    write!(out, ", ")?;
                }
                value_text(value, out)?;
            }
            write!(out, "]")
        }
    }
}

fn cell_text(cell: &IndexCell, out: &mut dyn Write) -> io::Result<()> {
    let IndexCell { kind, kind_name, id, start, end } = cell;
    writeln!(out, "index {kind_name} kind={kind} id={id} start={start} end={end}")
}

fn object_json(object: &Object) -> Json {
    let fields: Map<String, Json> =
        object.fields.iter().map(|(name, value)| ((*name).to_owned(), value_json(value))).collect();
    json!({ "file": "data", "offset": object.offset, "kind": object.kind, "fields": fields })
}

fn value_json(value: &FieldValue) -> Json {
    match value {
        FieldValue::Unsigned(number) => json!(number),
        FieldValue::Signed(number) => json!(number),
        FieldValue::Text(text) => json!(text),
        FieldValue::Bytes(bytes) => {
            json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        FieldValue::List(values) => values.iter().map(value_json).collect(),
    }
}

fn cell_json(cell: &IndexCell) -> Json {
    json!({
        "file": "index",
        "kind": cell.kind_name,
        "number": cell.kind,
        "id": cell.id,
        "start": cell.start,
        "end": cell.end,
    })
}

fn json_line(json: &Json, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", json_escaped(&json.to_string()))
}
