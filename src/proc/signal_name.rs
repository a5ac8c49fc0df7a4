//! The names of signals.

use nix::sys::signal::Signal;

/// Returns the name of a signal, such as SIGTRAP. Real-time signals have numbers only.
pub fn signal_name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("real-time signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_usual_names() {
        for (signal, name) in
            [(libc::SIGTRAP, "SIGTRAP"), (libc::SIGPROF, "SIGPROF"), (40, "real-time signal 40")]
        {
            assert_eq!(signal_name(signal), name);
        }
    }
}
