//! Engines without a process, for tests: the constants that each version exports.

use super::bytecode_sizes::BytecodeSizes;
use super::constants::V8Constants;
use super::layout::ObjectLayout;
use super::machine::V8Machine;
use super::script::KnownLines;
use super::version::V8Version;

/// What all versions export alike. The instance types are those of one version.
const COMMON: &[(&str, i32)] = &[
    ("TaggedSize", 8),
    ("SmiShiftSize", 31),
    ("SmiValueShift", 1),
    ("HeapObjectTag", 1),
    ("HeapObjectTagMask", 3),
    ("SmiTag", 0),
    ("SmiTagMask", 1),
    ("off_fp_context", -8),
    ("off_fp_function", -16),
    ("off_fp_bytecode_array", -32),
    ("off_fp_bytecode_offset", -40),
    ("IsNotStringMask", -128),
    ("StringRepresentationMask", 7),
    ("StringEncodingMask", 8),
    ("OneByteStringTag", 8),
    ("SeqStringTag", 0),
    ("ConsStringTag", 1),
    ("ExternalStringTag", 2),
    ("SlicedStringTag", 3),
    ("ThinStringTag", 5),
    ("CodeKindFieldMask", 15),
    ("class_Map__instance_type__uint16_t", 12),
    ("scopeinfo_idx_ncontextlocals", 2),
    ("type_JSFunction__JS_FUNCTION_TYPE", 2066),
    ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", 262),
    ("type_Code__CODE_TYPE", 245),
    ("type_InstructionStream__INSTRUCTION_STREAM_TYPE", 252),
    ("type_Script__SCRIPT_TYPE", 167),
    ("type_ScopeInfo__SCOPE_INFO_TYPE", 261),
    ("type_BytecodeArray__BYTECODE_ARRAY_TYPE", 191),
    ("type_InterpreterData__INTERPRETER_DATA_TYPE", 159),
    ("type_DebugInfo__DEBUG_INFO_TYPE", 153),
    ("type_Map__MAP_TYPE", 255),
    ("type_UncompiledDataWithPreparseData__T", 220),
    ("type_UncompiledDataWithoutPreparseData__T", 222),
];

/// What versions export each in its own way: where functions have what they share, and that its
/// name, its script and its flags; the first bytecode, the kinds of code, the first variable of a
/// scope.
fn of_version(version: V8Version) -> Vec<(&'static str, i32)> {
    let [shared, name, script, flags, data, interpreted, baseline, first] = match version {
        V8Version::V10_2 => [24, 16, 32, 48, 56, 10, 11, 3],
        V8Version::V11_3 => [24, 16, 32, 48, 54, 10, 11, 3],
        V8Version::V12_4 => [32, 16, 32, 48, 64, 9, 10, 3],
        _ => [32, 24, 40, 56, 64, 9, 10, 5],
    };
    vec![
        ("class_JSFunction__shared__SharedFunctionInfo", shared),
        ("class_SharedFunctionInfo__name_or_scope_info__Object", name),
        ("class_SharedFunctionInfo__script__Tagged_HeapObject_", script),
        ("class_SharedFunctionInfo__flags__int", flags),
        ("class_BytecodeArray__data__uintptr_t", data),
        ("CodeKindInterpretedFunction", interpreted),
        ("CodeKindBaseline", baseline),
        ("scopeinfo_idx_first_vars", first),
    ]
}

/// Returns the layout of a version, some of whose constants are replaced.
pub(super) fn layout(
    version: V8Version,
    replaced: &[(&'static str, i32)],
) -> Result<ObjectLayout, String> {
    let all = [COMMON, &of_version(version), replaced].concat();
    ObjectLayout::of(version, &V8Constants::for_test(&all))
}

impl V8Machine {
    /// Makes an engine of each version.
    pub(in crate::runtime) fn for_test() -> Vec<Self> {
        let versions = V8Version::SUPPORTED.into_iter();
        versions.filter_map(|version| Self::of_layout(layout(version, &[]).ok()?)).collect()
    }

    fn of_layout(heap: ObjectLayout) -> Option<Self> {
        Some(Self {
            label: "an engine".to_owned(),
            layout: heap.for_handlers(),
            is_labelled: true,
            is_proven: false,
            heap,
            // The first bytecodes are prefixes, and all have operands of one, two or four bytes.
            sizes: BytecodeSizes::for_test(&[[2; 16], [3; 16], [5; 16]].concat()),
            trampolines: vec![24],
            lines: KnownLines::default(),
        })
    }
}
