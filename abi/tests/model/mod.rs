//! Runs a model of lock-free steps with the real code, and with mistakes that the model must catch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use traceprof_abi::sync::planted::{Mistake, plant};

/// A planted mistake affects all threads, so models run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Checks that the model holds, and fails with each of the mistakes. Without a bound on
/// preemptions, loom runs all interleavings, with all values that a load may see.
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
