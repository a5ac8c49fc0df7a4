//! Names for addresses.
