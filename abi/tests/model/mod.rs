//! Runs a model of lock-free steps as the code is, and with mistakes that it must catch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use traceprof_abi::sync::planted::{Mistake, plant};

/// What is planted is planted for all threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The model holds, and does not hold with any of the mistakes. Without a bound on preemptions: all
/// interleavings, and all values that a load may see.
pub(crate) fn check(preemption_bound: Option<usize>, mistakes: &[Mistake], model: fn()) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
    let run = || {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemption_bound;
        builder.check(model);
    };
    plant(Mistake::None);
    run();
    for mistake in mistakes {
        plant(*mistake);
        let caught = catch_unwind(AssertUnwindSafe(run)).is_err();
        plant(Mistake::None);
        assert!(caught, "the model does not catch {mistake:?}");
    }
}
