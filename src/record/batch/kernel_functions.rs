//! Functions of the kernel, as it names them.

/// A function of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FoundFunction {
    /// The name.
    pub(crate) name: String,
    /// The kernel's module; `None` for the kernel itself.
    pub(crate) module: Option<String>,
}

/// Functions in which threads sleep, that a batch is the first to use: the words of their frames,
/// and the functions.
pub(crate) type NewKernelFunctions = Vec<(u64, FoundFunction)>;
