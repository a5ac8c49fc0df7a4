//! Compiles `.eh_frame` into the tables that the agent steps with.
