//! Injection: maps the agent into a stopped thread's process and cures it again.
