//! The layout of the structures of one machine: all offsets and sizes that are read.
//!
//! Each offset comes from the machine's own tables. The version decides only which of the known
//! ways to store something a machine has.

use super::tables::{Field, Missing, Tables};

/// Maximum size of the structure of a heap of code. Machines have 300 bytes.
const HEAP_LEN_MAX: u64 = 4096;

/// The structures of a machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineLayout {
    pub(super) heaps: HeapLayout,
    pub(super) blob: BlobLayout,
    pub(super) compiled: CompiledLayout,
    pub(super) method: MethodLayout,
    pub(super) class: ClassLayout,
    pub(super) thread: ThreadLayout,
    pub(super) monitor_object: Field,
}

/// The heaps of code.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeapLayout {
    /// Where the pointer to the array of heaps is, or to the only heap.
    pub(super) heaps: u64,
    /// Length and elements of the array of heaps. `None` for a machine with one heap.
    pub(super) array: Option<(Field, Field)>,
    /// The size of the structure of a heap, if it is a possible one.
    pub(super) heap_len: Option<usize>,
    /// The start of the committed part, its end, and the end of the reserved part.
    pub(super) low: Field,
    pub(super) high: Field,
    pub(super) reserved_end: Field,
    /// The start of the segment map.
    pub(super) segment_map: Field,
    pub(super) segment_shift: Field,
    /// The size of the header of a block.
    pub(super) header_len: u64,
    pub(super) block_len: Field,
    pub(super) is_used: Field,
}

/// What every blob of code has.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobLayout {
    pub(super) name: Field,
    pub(super) len: Field,
    pub(super) code_start: Place,
    pub(super) code_end: Place,
    /// Number of words, with the return address.
    pub(super) frame_size: Field,
    /// Offset from the start of the code.
    pub(super) frame_complete: Field,
}

/// A position in memory, as a structure stores it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// As a pointer.
    Pointer(Field),
    /// As an offset from the start of the structure.
    Offset(Field),
}

impl Place {
    /// Makes a place by the width of its field.
    fn of(field: Field) -> Self {
        if field.end() - field.at == 8 { Self::Pointer(field) } else { Self::Offset(field) }
    }
}

/// What a compiled method has besides.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompiledLayout {
    pub(super) method: Field,
    pub(super) compile_id: Field,
    pub(super) level: Field,
    /// The bytecode at which it is entered, -1 for its start.
    pub(super) entry_bci: Field,
    pub(super) deopt_handlers: [Place; 2],
    /// Where its stubs begin, as an offset from the start of the structure.
    pub(super) stubs: Option<Field>,
    pub(super) debug: DebugLayout,
    /// The table of positions: size of an entry, and what it has.
    pub(super) position_len: u64,
    pub(super) position_pc: Field,
    pub(super) position_scope: Field,
}

/// Where the debug information of compiled code is: the table of positions, the scopes, and the
/// methods that scopes refer to.
#[derive(Debug, Clone, Copy)]
pub(super) enum DebugLayout {
    /// In the blob itself, one behind the other: methods, scopes, positions.
    Inside { methods: Field, scopes: Place, positions: Field, positions_end: Field },
    /// In memory of its own: positions, then scopes, and methods behind the relocations.
    Outside {
        data: Field,
        data_len: Field,
        positions: Field,
        scopes: Field,
        mutable: Field,
        mutable_len: Field,
        relocation_len: Field,
    },
}

/// Methods with their names and lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct MethodLayout {
    pub(super) constant: Field,
    pub(super) pool: Field,
    /// Number of words of the constant part, whose bytecodes follow the structure.
    pub(super) words: Field,
    pub(super) header_len: u64,
    pub(super) flags: Field,
    pub(super) has_lines: u64,
    pub(super) code_len: Field,
    pub(super) name: Field,
    pub(super) signature: Field,
    pub(super) pool_len: Field,
    pub(super) pool_class: Field,
    /// The size of the pool's structure, which its slots follow.
    pub(super) pool_header_len: u64,
    pub(super) symbol_len: Field,
    pub(super) symbol_text: u64,
    /// The slot of the source file's name.
    pub(super) source: SourceSlot,
}

/// Where the slot of the name of a source file is.
#[derive(Debug, Clone, Copy)]
pub(super) enum SourceSlot {
    Class(Field),
    Pool(Field),
}

/// Classes and their fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClassLayout {
    pub(super) name: Field,
    pub(super) parent: Field,
    pub(super) pool: Field,
    pub(super) fields: ClassFields,
    pub(super) array_len: Field,
    pub(super) shorts: u64,
    pub(super) bytes: u64,
}

/// How a class stores its fields.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClassFields {
    /// As an array with six numbers of two bytes each, and the number of fields.
    Array { array: Field, count: Field },
    /// As numbers of variable length.
    Stream(Field),
}

/// Threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadLayout {
    pub(super) list: JavaThreadList,
    pub(super) os_thread: Field,
    pub(super) tid: Field,
    /// The thread's id in the C library.
    pub(super) pointer: Option<Field>,
    pub(super) object: Field,
    /// Whether fields for objects hold a handle of the object.
    pub(super) has_handles: bool,
    pub(super) virtual_thread: Option<Field>,
    pub(super) pending_monitor: Field,
    pub(super) waiting_monitor: Field,
    /// Which code the thread runs, and the numbers for it.
    pub(super) running: Field,
    pub(super) running_numbers: RunningCodeNumbers,
    /// `None` if the machine does not describe its compilers.
    pub(super) compiling: Option<CompilingLayout>,
}

/// The numbers that a machine has for the code that a thread runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningCodeNumbers {
    pub(super) native: u64,
    pub(super) machine: u64,
    pub(super) waits: u64,
    pub(super) java: u64,
}

/// Where a compiler's thread has its task: the compilation, its task, and the method.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompilingLayout {
    pub(super) compilation: Field,
    pub(super) task: Field,
    pub(super) method: Field,
}

/// How a machine keeps its threads.
#[derive(Debug, Clone, Copy)]
pub(super) enum JavaThreadList {
    /// Where the pointer to the first one is, and the pointer to the next one in each.
    Linked { first: u64, next: Field },
    /// Where the pointer to the list is, its length, and the pointer to its elements.
    Array { list: u64, len: Field, threads: Field },
}

impl MachineLayout {
    /// Looks up all fields of a machine of this version.
    pub(super) fn of(tables: &Tables, version: u8) -> Result<Self, Missing> {
        Ok(Self {
            heaps: HeapLayout::of(tables)?,
            blob: BlobLayout::of(tables)?,
            compiled: CompiledLayout::of(tables)?,
            method: MethodLayout::of(tables)?,
            class: ClassLayout::of(tables)?,
            thread: ThreadLayout::of(tables, version)?,
            monitor_object: tables.field(&["ObjectMonitor::_object"])?,
        })
    }
}

/// Returns the field of a structure that is a field of another one.
fn within(outer: Field, inner: Field) -> Field {
    inner.behind(outer.at)
}

impl HeapLayout {
    fn of(tables: &Tables) -> Result<Self, Missing> {
        let array = match tables.address(&["CodeCache::_heap"]) {
            Ok(_) => None,
            Err(_) => Some((
                tables.field(&["GrowableArrayBase::_len", "GenericGrowableArray::_len"])?,
                tables.field(&["GrowableArray<int>::_data"])?,
            )),
        };
        let memory = tables.field(&["CodeHeap::_memory"])?;
        let low = tables.field(&["VirtualSpace::_low"])?;
        let header = tables.field(&["HeapBlock::_header"])?;
        Ok(Self {
            heaps: tables.address(&["CodeCache::_heap", "CodeCache::_heaps"])?,
            array,
            heap_len: tables
                .size("CodeHeap")
                .ok()
                .filter(|len| *len <= HEAP_LEN_MAX)
                .map(|len| len as usize),
            low: within(memory, low),
            high: within(memory, tables.field(&["VirtualSpace::_high"])?),
            reserved_end: within(memory, tables.field(&["VirtualSpace::_high_boundary"])?),
            segment_map: within(tables.field(&["CodeHeap::_segmap"])?, low),
            segment_shift: tables.field(&["CodeHeap::_log2_segment_size"])?,
            header_len: tables.size("HeapBlock")?,
            block_len: within(header, tables.field(&["HeapBlock::Header::_length"])?),
            is_used: within(header, tables.field(&["HeapBlock::Header::_used"])?),
        })
    }
}

impl BlobLayout {
    fn of(tables: &Tables) -> Result<Self, Missing> {
        Ok(Self {
            name: tables.field(&["CodeBlob::_name"])?,
            len: tables.field(&["CodeBlob::_size"])?,
            code_start: Place::of(
                tables.field(&["CodeBlob::_code_begin", "CodeBlob::_code_offset"])?,
            ),
            code_end: Place::of(tables.field(&["CodeBlob::_code_end", "CodeBlob::_data_offset"])?),
            frame_size: tables.field(&["CodeBlob::_frame_size"])?,
            frame_complete: tables.field(&["CodeBlob::_frame_complete_offset"])?,
        })
    }
}

impl CompiledLayout {
    fn of(tables: &Tables) -> Result<Self, Missing> {
        let debug = match tables.optional("nmethod::_immutable_data") {
            Some(data) => DebugLayout::Outside {
                data,
                data_len: tables.field(&["nmethod::_immutable_data_size"])?,
                positions: tables.field(&["nmethod::_scopes_pcs_offset"])?,
                scopes: tables.field(&["nmethod::_scopes_data_offset"])?,
                mutable: tables.field(&["CodeBlob::_mutable_data"])?,
                mutable_len: tables.field(&["CodeBlob::_mutable_data_size"])?,
                relocation_len: tables.field(&["CodeBlob::_relocation_size"])?,
            },
            None => DebugLayout::Inside {
                methods: tables.field(&["nmethod::_metadata_offset"])?,
                scopes: Place::of(tables.field(&[
                    "CompiledMethod::_scopes_data_begin",
                    "nmethod::_scopes_data_offset",
                ])?),
                positions: tables.field(&["nmethod::_scopes_pcs_offset"])?,
                positions_end: tables.field(&["nmethod::_dependencies_offset"])?,
            },
        };
        Ok(Self {
            method: tables.field(&["nmethod::_method", "CompiledMethod::_method"])?,
            compile_id: tables.field(&["nmethod::_compile_id"])?,
            level: Field::byte(tables.field(&["nmethod::_comp_level"])?.at),
            entry_bci: tables.field(&["nmethod::_entry_bci"])?,
            deopt_handlers: [
                Place::of(tables.field(&[
                    "CompiledMethod::_deopt_handler_begin",
                    "nmethod::_deoptimize_offset",
                    "nmethod::_deopt_handler_offset",
                ])?),
                Place::of(tables.field(&[
                    "CompiledMethod::_deopt_mh_handler_begin",
                    "nmethod::_deoptimize_mh_offset",
                    "nmethod::_deopt_mh_handler_offset",
                ])?),
            ],
            stubs: tables.optional("nmethod::_stub_offset"),
            debug,
            position_len: tables.size("PcDesc")?,
            position_pc: tables.field(&["PcDesc::_pc_offset"])?,
            position_scope: tables.field(&["PcDesc::_scope_decode_offset"])?,
        })
    }
}

impl MethodLayout {
    fn of(tables: &Tables) -> Result<Self, Missing> {
        let has_lines = tables.constant(&[
            "ConstMethod::_has_linenumber_table",
            "ConstMethodFlags::_misc_has_linenumber_table",
        ])?;
        let source = match tables.optional("ConstantPool::_source_file_name_index") {
            Some(slot) => SourceSlot::Pool(slot),
            None => SourceSlot::Class(tables.field(&["InstanceKlass::_source_file_name_index"])?),
        };
        Ok(Self {
            constant: tables.field(&["Method::_constMethod"])?,
            pool: tables.field(&["ConstMethod::_constants"])?,
            words: tables.field(&["ConstMethod::_constMethod_size"])?,
            header_len: tables.size("ConstMethod")?,
            flags: tables.field(&["ConstMethod::_flags", "ConstMethod::_flags._flags"])?,
            has_lines: has_lines as u64,
            code_len: tables.field(&["ConstMethod::_code_size"])?,
            name: tables.field(&["ConstMethod::_name_index"])?,
            signature: tables.field(&["ConstMethod::_signature_index"])?,
            pool_len: tables.field(&["ConstantPool::_length"])?,
            pool_class: tables.field(&["ConstantPool::_pool_holder"])?,
            pool_header_len: tables.size("ConstantPool")?,
            symbol_len: tables.field(&["Symbol::_length"])?,
            symbol_text: tables.field(&["Symbol::_body"])?.at,
            source,
        })
    }
}

impl ClassLayout {
    fn of(tables: &Tables) -> Result<Self, Missing> {
        let fields = match tables.optional("InstanceKlass::_fieldinfo_stream") {
            Some(stream) => ClassFields::Stream(stream),
            None => ClassFields::Array {
                array: tables.field(&["InstanceKlass::_fields"])?,
                count: tables.field(&["InstanceKlass::_java_fields_count"])?,
            },
        };
        Ok(Self {
            name: tables.field(&["Klass::_name"])?,
            parent: tables.field(&["Klass::_super"])?,
            pool: tables.field(&["InstanceKlass::_constants"])?,
            fields,
            array_len: tables.field(&["Array<int>::_length"])?,
            shorts: tables.field(&["Array<u2>::_data"])?.at,
            bytes: tables.field(&["Array<u1>::_data"])?.at,
        })
    }
}

impl ThreadLayout {
    fn of(tables: &Tables, version: u8) -> Result<Self, Missing> {
        let list = match tables.address(&["ThreadsSMRSupport::_java_thread_list"]) {
            Ok(list) => JavaThreadList::Array {
                list,
                len: tables.field(&["ThreadsList::_length"])?,
                threads: tables.field(&["ThreadsList::_threads"])?,
            },
            Err(_) => JavaThreadList::Linked {
                first: tables.address(&["Threads::_thread_list"])?,
                next: tables.field(&["JavaThread::_next"])?,
            },
        };
        let number = |name| tables.constant(&[name]).map(|it| it as u64);
        let running_numbers = RunningCodeNumbers {
            native: number("_thread_in_native")?,
            machine: number("_thread_in_vm")?,
            waits: number("_thread_blocked")?,
            java: number("_thread_in_Java")?,
        };
        Ok(Self {
            list,
            os_thread: tables.field(&["JavaThread::_osthread", "Thread::_osthread"])?,
            tid: tables.field(&["OSThread::_thread_id"])?,
            pointer: tables.optional("OSThread::_pthread_id"),
            object: tables.field(&["JavaThread::_threadObj"])?,
            has_handles: version >= 17,
            virtual_thread: tables.optional("JavaThread::_vthread"),
            pending_monitor: tables.field(&[
                "JavaThread::_current_pending_monitor",
                "Thread::_current_pending_monitor",
            ])?,
            waiting_monitor: tables.field(&[
                "JavaThread::_current_waiting_monitor",
                "Thread::_current_waiting_monitor",
            ])?,
            running: tables.field(&["JavaThread::_thread_state"])?,
            running_numbers,
            compiling: CompilingLayout::of(tables),
        })
    }
}

impl CompilingLayout {
    fn of(tables: &Tables) -> Option<Self> {
        Some(Self {
            compilation: tables.optional("CompilerThread::_env")?,
            task: tables.optional("ciEnv::_task")?,
            method: tables.optional("CompileTask::_method")?,
        })
    }
}
