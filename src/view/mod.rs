//! Pure views of a loaded trace.
