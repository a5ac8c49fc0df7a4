//! A recording, from attach to detach.
