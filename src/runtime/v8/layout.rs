//! Where the fields of V8's objects are, in each version.
//!
//! All offsets are in bytes from the address of the object, which is one less than a reference to
//! it.
//!
//! # Invariants
//! - An offset that a version exports to debuggers, and that this module has as well, is the same
//!   in both.

use std::ops::RangeInclusive;

use traceprof_abi::runtime::v8::{
    ABSENT, BYTECODES_SLOT, CONTEXT_SLOT, FUNCTION_SLOT, OFFSET_SLOT, V8Layout,
};

use super::constants::V8Constants;
use super::version::V8Version;

/// Maximum offset of a field.
const OFFSET_MAX: i32 = 1 << 10;

/// The instance types of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeapTypes {
    pub(super) functions: RangeInclusive<u16>,
    pub(super) shared: u16,
    pub(super) code: u16,
    /// What precedes instructions: an object of its own, or the code itself.
    pub(super) stream: u16,
    pub(super) script: u16,
    pub(super) scope_info: u16,
    pub(super) bytecodes: u16,
    pub(super) interpreter_data: u16,
    pub(super) debug_info: u16,
    pub(super) map: u16,
    pub(super) uncompiled: RangeInclusive<u16>,
}

/// What all functions from one piece of source code share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedFields {
    pub(super) data: u64,
    pub(super) name: u64,
    pub(super) script: u64,
    pub(super) literal: u64,
    pub(super) unique: Option<u64>,
    /// The flags, if they tell functions that have no name but are called by their kind.
    pub(super) kind: Option<u64>,
}

/// Where the first instruction of code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeStart {
    /// At this offset.
    Inside(u64),
    /// At the address in a field.
    Field(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CodeObjectFields {
    pub(super) start: CodeStart,
    pub(super) size: u64,
    pub(super) flags: u64,
    /// What is needed to deoptimize, or the bytecodes of baseline code.
    pub(super) deopt: u64,
    /// The table of source positions, or of bytecodes of baseline code.
    pub(super) positions: u64,
}

/// The kinds of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CodeKinds {
    pub(super) mask: u32,
    pub(super) interpreted: u32,
    pub(super) baseline: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BytecodesFields {
    pub(super) positions: u64,
    /// The first bytecode. The offsets in frames count from a reference to the object.
    pub(super) data: u64,
}

/// Indices in what is needed to deoptimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeoptIndices {
    pub(super) inlined_count: u64,
    pub(super) literals: u64,
    pub(super) shared: u64,
    /// Whether there is an object between.
    pub(super) is_wrapped: bool,
    pub(super) inlining: u64,
    /// The offset of the code that leaves optimized code.
    pub(super) exits: u64,
}

/// Indices among the words of what a scope says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScopeIndices {
    pub(super) local_count: u64,
    pub(super) first_local: u64,
    /// The index of the start in the source, if it is fixed.
    pub(super) positions: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScriptFields {
    pub(super) source: u64,
    pub(super) name: u64,
    pub(super) line_offset: u64,
    pub(super) column_offset: u64,
    pub(super) line_ends: u64,
    pub(super) id: u64,
    pub(super) eval_shared: u64,
    pub(super) eval_position: u64,
    pub(super) source_url: u64,
    /// The source map that the script names.
    pub(super) map_url: u64,
}

/// The layout of the objects of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectLayout {
    pub(super) types: HeapTypes,
    /// From a map to its instance type.
    pub(super) instance_type: u64,
    pub(super) function_shared: u64,
    pub(super) shared: SharedFields,
    pub(super) code: CodeObjectFields,
    pub(super) kinds: CodeKinds,
    pub(super) bytecodes: BytecodesFields,
    pub(super) deopt: DeoptIndices,
    pub(super) scope: ScopeIndices,
    pub(super) script: ScriptFields,
}

/// What versions do not export, or not all of them.
struct KnownLayout {
    code: CodeObjectFields,
    baseline: u32,
    bytecodes_positions: u64,
    scope: ScopeIndices,
    has_unique: bool,
    /// Whether the deoptimization data has an array of protected literals in front of the others.
    has_protected_literals: bool,
}

const NO_FIXED_POSITIONS: ScopeIndices =
    ScopeIndices { local_count: 2, first_local: 3, positions: None };

/// Returns what is known of a version.
fn known(version: V8Version) -> Option<KnownLayout> {
    let fields = |start, size, flags, deopt, positions| CodeObjectFields {
        start,
        size,
        flags,
        deopt,
        positions,
    };
    Some(match version {
        V8Version::V10_2 => KnownLayout {
            code: fields(CodeStart::Inside(128), 40, 48, 16, 24),
            baseline: 11,
            bytecodes_positions: 32,
            scope: NO_FIXED_POSITIONS,
            has_unique: false,
            has_protected_literals: false,
        },
        V8Version::V11_3 => KnownLayout {
            code: fields(CodeStart::Field(40), 56, 48, 16, 24),
            baseline: 11,
            bytecodes_positions: 32,
            scope: NO_FIXED_POSITIONS,
            has_unique: false,
            has_protected_literals: false,
        },
        V8Version::V12_4 => KnownLayout {
            code: fields(CodeStart::Field(40), 52, 48, 8, 16),
            baseline: 10,
            bytecodes_positions: 24,
            scope: NO_FIXED_POSITIONS,
            has_unique: true,
            has_protected_literals: false,
        },
        V8Version::V13_6 => KnownLayout {
            code: fields(CodeStart::Field(40), 56, 52, 8, 16),
            baseline: 10,
            bytecodes_positions: 24,
            scope: ScopeIndices { local_count: 2, first_local: 5, positions: Some(3) },
            has_unique: true,
            has_protected_literals: true,
        },
        _ => return None,
    })
}

/// The reason why a layout is not known, for the user.
type Refused = String;

/// Reads constants that must be there.
struct WantedConstants<'c, 'a>(&'c V8Constants<'a>);

impl WantedConstants<'_, '_> {
    /// Returns a constant.
    fn constant(&self, name: &str) -> Result<i32, Refused> {
        self.0.get(name).ok_or_else(|| format!("does not describe {name}"))
    }

    /// Returns the offset of a field, given by the possible beginnings of the constant's name.
    fn offset(&self, names: &[&str]) -> Result<u64, Refused> {
        let found = names.iter().find_map(|name| self.0.field(&format!("class_{name}")));
        match found.filter(|offset| (0..OFFSET_MAX).contains(offset)) {
            Some(offset) => Ok(offset as u64),
            None => Err(format!("does not describe {}", names.join(" or "))),
        }
    }

    /// Returns the instance type of a class.
    fn kind(&self, class: &str) -> Result<u16, Refused> {
        let found = self.0.field(&format!("type_{class}"));
        let found = found.and_then(|kind| u16::try_from(kind).ok());
        found.ok_or_else(|| format!("does not describe the type of {class}"))
    }

    /// Compares what a version exports, if it does, with what is known of it.
    fn is_as_known(&self, class_field: &str, known: u64) -> Result<(), Refused> {
        match self.0.field(&format!("class_{class_field}")) {
            Some(offset) if i64::from(offset) != known as i64 => {
                Err(format!("has {class_field} at another place than its release"))
            }
            _ => Ok(()),
        }
    }
}

impl ObjectLayout {
    /// Makes the layout of a version from its constants.
    pub(super) fn of(version: V8Version, constants: &V8Constants<'_>) -> Result<Self, Refused> {
        let known = known(version).ok_or("is not supported (10.2, 11.3, 12.4 and 13.6 are)")?;
        let wanted = WantedConstants(constants);
        check_words(&wanted)?;
        check_frames(&wanted)?;
        check_strings(&wanted)?;
        let types = types(version, &wanted)?;
        let flags = wanted.offset(&["SharedFunctionInfo__flags"])?;
        let layout = Self {
            instance_type: wanted.offset(&["Map__instance_type"])?,
            function_shared: wanted.offset(&["JSFunction__shared"])?,
            shared: SharedFields {
                // The first field of the object, in every version.
                data: 8,
                name: wanted.offset(&["SharedFunctionInfo__name_or_scope_info"])?,
                script: wanted.offset(&[
                    "SharedFunctionInfo__script_or_debug_info",
                    "SharedFunctionInfo__script",
                ])?,
                literal: flags + 4,
                unique: known.has_unique.then_some(flags + 8),
                kind: known.has_unique.then_some(flags),
            },
            code: known.code,
            kinds: CodeKinds {
                mask: wanted.constant("CodeKindFieldMask")? as u32,
                interpreted: wanted.constant("CodeKindInterpretedFunction")? as u32,
                baseline: wanted.constant("CodeKindBaseline")? as u32,
            },
            bytecodes: BytecodesFields {
                positions: known.bytecodes_positions,
                data: wanted.offset(&["BytecodeArray__data"])?,
            },
            deopt: deopt(&wanted, known.has_protected_literals)?,
            scope: known.scope,
            script: script(&wanted)?,
            types,
        };
        layout.check(&wanted, &known)?;
        Ok(layout)
    }

    /// Checks what versions export against what is known of them.
    fn check(&self, wanted: &WantedConstants<'_, '_>, known: &KnownLayout) -> Result<(), Refused> {
        let code = self.code;
        if let CodeStart::Field(start) = code.start {
            wanted.is_as_known("Code__instruction_start", start)?;
        }
        wanted.is_as_known("Code__instruction_size", code.size)?;
        wanted.is_as_known("Code__flags", code.flags)?;
        wanted.is_as_known("Code__deoptimization_data", code.deopt)?;
        wanted.is_as_known("Code__source_position_table", code.positions)?;
        wanted.is_as_known("SharedFunctionInfo__function_data", self.shared.data)?;
        let scope = self.scope;
        let is_scope = wanted.constant("scopeinfo_idx_ncontextlocals")? as u64 == scope.local_count
            && wanted.constant("scopeinfo_idx_first_vars")? as u64 == scope.first_local;
        if !is_scope || self.kinds.baseline != known.baseline || self.kinds.mask != 15 {
            return Err("has other scopes or kinds of code than its release".to_owned());
        }
        Ok(())
    }

    /// Returns the layout for handlers.
    pub(super) fn for_handlers(&self) -> V8Layout {
        let small = |offset: u64| u16::try_from(offset).unwrap_or(ABSENT);
        V8Layout {
            function_first: *self.types.functions.start(),
            function_last: *self.types.functions.end(),
            shared_type: self.types.shared,
            bytecodes_type: self.types.bytecodes,
            map_instance_type: small(self.instance_type),
            function_shared: small(self.function_shared),
            shared_script: small(self.shared.script),
            shared_literal: small(self.shared.literal),
            shared_unique: self.shared.unique.map_or(ABSENT, small),
            script_id: small(self.script.id),
            reserved: [0; 2],
        }
    }
}

/// Checks how references and small integers are stored.
fn check_words(wanted: &WantedConstants<'_, '_>) -> Result<(), Refused> {
    let words = [("TaggedSize", 8), ("SmiShiftSize", 31), ("SmiValueShift", 1)];
    let tags = [("HeapObjectTag", 1), ("HeapObjectTagMask", 3), ("SmiTag", 0), ("SmiTagMask", 1)];
    for (name, value) in words.into_iter().chain(tags) {
        // Not all versions have all of them.
        if wanted.0.get(name).is_some_and(|it| it != value) {
            return Err("with compressed references is not supported".to_owned());
        }
    }
    Ok(())
}

/// Checks where frames have their functions.
fn check_frames(wanted: &WantedConstants<'_, '_>) -> Result<(), Refused> {
    let slots = [
        ("off_fp_context", CONTEXT_SLOT),
        ("off_fp_function", FUNCTION_SLOT),
        ("off_fp_bytecode_array", BYTECODES_SLOT),
        ("off_fp_bytecode_offset", OFFSET_SLOT),
    ];
    for (name, slot) in slots {
        if i64::from(wanted.constant(name)?) != slot {
            return Err("has other frames than its release".to_owned());
        }
    }
    Ok(())
}

/// Checks how strings are stored: [`super::strings`] has these numbers.
fn check_strings(wanted: &WantedConstants<'_, '_>) -> Result<(), Refused> {
    let tags = [
        ("IsNotStringMask", -128),
        ("StringRepresentationMask", 7),
        ("StringEncodingMask", 8),
        ("OneByteStringTag", 8),
        ("SeqStringTag", 0),
        ("ConsStringTag", 1),
        ("ExternalStringTag", 2),
        ("SlicedStringTag", 3),
        ("ThinStringTag", 5),
    ];
    for (name, value) in tags {
        let found = wanted.constant(name)?;
        // One version has the mask without its sign.
        if found != value && (name, found & 0xffff) != ("IsNotStringMask", 0xff80) {
            return Err("has other strings than its release".to_owned());
        }
    }
    let fields = [
        ("String__length", 12),
        ("SeqOneByteString__chars", 16),
        ("SeqTwoByteString__chars", 16),
        ("ConsString__first", 16),
        ("ConsString__second", 24),
        ("SlicedString__parent", 16),
        ("SlicedString__offset", 24),
        ("ThinString__actual", 16),
        ("ExternalString__resource", 16),
    ];
    fields.into_iter().try_for_each(|(name, offset)| wanted.is_as_known(name, offset))
}

fn types(version: V8Version, wanted: &WantedConstants<'_, '_>) -> Result<HeapTypes, Refused> {
    /// Number of instance types of functions behind the first one, where they are not exported:
    /// constructors of eleven kinds of arrays and of three other classes, and of the program's.
    const FUNCTION_TYPES: u16 = 15;
    let first = wanted.kind("JSFunction")?;
    let exported = |name: &str| wanted.0.get(name).and_then(|it| u16::try_from(it).ok());
    let functions = exported("FirstJSFunctionType").unwrap_or(first)
        ..=exported("LastJSFunctionType").unwrap_or(first.saturating_add(FUNCTION_TYPES));
    let uncompiled = [
        "UncompiledDataWithPreparseData",
        "UncompiledDataWithPreparseDataAndJob",
        "UncompiledDataWithoutPreparseData",
        "UncompiledDataWithoutPreparseDataWithJob",
    ];
    let uncompiled: Vec<u16> = uncompiled.iter().filter_map(|it| wanted.kind(it).ok()).collect();
    let least = uncompiled.iter().min().copied();
    let greatest = uncompiled.iter().max().copied();
    let code = wanted.kind("Code")?;
    let is_one = version == V8Version::V10_2;
    Ok(HeapTypes {
        functions,
        shared: wanted.kind("SharedFunctionInfo")?,
        code,
        stream: if is_one { code } else { wanted.kind("InstructionStream")? },
        script: wanted.kind("Script")?,
        scope_info: wanted.kind("ScopeInfo")?,
        bytecodes: wanted.kind("BytecodeArray")?,
        interpreter_data: wanted.kind("InterpreterData")?,
        debug_info: wanted.kind("DebugInfo")?,
        map: wanted.kind("Map")?,
        uncompiled: least.ok_or("does not describe functions that are not compiled")?
            ..=greatest.unwrap_or_default(),
    })
}

fn deopt(wanted: &WantedConstants<'_, '_>, has_protected: bool) -> Result<DeoptIndices, Refused> {
    let known = |name: &str, known: u64| match wanted.0.get(name) {
        Some(index) if index as u64 != known => {
            Err(format!("has {name} at another place than its release"))
        }
        _ => Ok(known),
    };
    let more = u64::from(has_protected);
    Ok(DeoptIndices {
        inlined_count: known("DeoptimizationDataInlinedFunctionCountIndex", 1)?,
        literals: known("DeoptimizationDataLiteralArrayIndex", 2 + more)?,
        shared: match has_protected {
            true => known("DeoptimizationDataWrappedSharedFunctionInfoIndex", 7)?,
            false => known("DeoptimizationDataSharedFunctionInfoIndex", 6)?,
        },
        is_wrapped: has_protected,
        inlining: known("DeoptimizationDataInliningPositionsIndex", 7 + more)?,
        exits: 8 + more,
    })
}

fn script(wanted: &WantedConstants<'_, '_>) -> Result<ScriptFields, Refused> {
    // A field in front of it that not all versions have.
    let is_longer = wanted.0.field("class_Script__compiled_lazy_function_positions").is_some();
    let known = ScriptFields {
        source: 8,
        name: 16,
        line_offset: 24,
        column_offset: 32,
        line_ends: 56,
        id: 64,
        eval_shared: 72,
        eval_position: 80,
        source_url: if is_longer { 112 } else { 104 },
        map_url: if is_longer { 120 } else { 112 },
    };
    wanted.is_as_known("Script__source", known.source)?;
    wanted.is_as_known("Script__name", known.name)?;
    wanted.is_as_known("Script__line_ends", known.line_ends)?;
    wanted.is_as_known("Script__eval_from_shared_or_wrapped_arguments", known.eval_shared)?;
    wanted.is_as_known("Script__eval_from_position", known.eval_position)?;
    Ok(known)
}
