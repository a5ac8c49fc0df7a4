//! The one ELF reader: pure over `&[u8]`.
