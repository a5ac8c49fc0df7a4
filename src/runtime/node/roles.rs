//! The functions that threads of Node.js run.

use object::elf::EM_X86_64;

use crate::elf::{Definitions, Elf};

/// A function that only a file with Node.js offers to others.
const NODE: &str = "node_module_register";

/// What a thread is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadRole {
    /// It runs a worker of the program.
    Worker,
    /// It has this name.
    Named(&'static str),
}

/// The functions, by their symbols. Those of the inspector wait for a signal that starts it, and
/// talk with the debugger.
const ROLES: [(&str, ThreadRole); 10] = [
    (
        "_ZZN4node6worker6Worker11StartThreadERKN2v820FunctionCallbackInfoINS2_5ValueEEEE\
         NUlPvE_4_FUNES8_",
        ThreadRole::Worker,
    ),
    (POOL, ThreadRole::Named("libuv pool")),
    ("_ZN4node12_GLOBAL__N_1L20PlatformWorkerThreadEPv", ThreadRole::Named("V8 platform")),
    (
        "_ZZN4node23WorkerThreadsTaskRunner20DelayedTaskScheduler5StartEvENUlPvE_4_FUNES2_",
        ThreadRole::Named("V8 delayed tasks"),
    ),
    (
        "_ZN4node9inspector12_GLOBAL__N_117StartIoThreadMainEPv",
        ThreadRole::Named("inspector signal"),
    ),
    ("_ZN4node9inspector11InspectorIo10ThreadMainEPv", ThreadRole::Named("inspector")),
    ("_ZN4node8Watchdog3RunEPv", ThreadRole::Named("vm timeout")),
    ("_ZN4node20SigintWatchdogHelper17RunSigintWatchdogEPv", ThreadRole::Named("SIGINT watchdog")),
    ("_ZZN4node7tracing5Agent5StartEvENUlPvE_4_FUNES2_", TRACE_EVENTS),
    ("_ZZN4node7tracing18LegacyTracingAgent5StartEvENUlPvE_4_FUNES2_", TRACE_EVENTS),
];
const TRACE_EVENTS: ThreadRole = ThreadRole::Named("trace events");
/// The function of libuv's pool. C has no namespaces: another file may have one of this name.
const POOL: &str = "worker";

/// Node.js in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeExports {
    /// The addresses (SVMAs) of the functions that threads run. Empty if the file is stripped.
    pub(super) starts: Vec<(u64, ThreadRole)>,
}

impl NodeExports {
    /// Reads a file. `None` if it has no Node.js.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let elf = Elf::parse(bytes).ok().filter(|elf| elf.machine() == EM_X86_64.0)?;
        let names = Definitions::of(&elf);
        names.exported(NODE)?;
        let found = names.own_functions(&ROLES.map(|(name, _)| name));
        let is_only = |index: usize| found.iter().filter(|(it, _)| *it == index).count() == 1;
        let starts = found.iter().filter(|(index, _)| is_only(*index));
        let role = |index: usize| ROLES.get(index).map(|(_, role)| *role);
        let starts = starts.filter_map(|(index, it)| Some((it.svma, role(*index)?)));
        Some(Self { starts: starts.collect() })
    }
}
