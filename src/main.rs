//! Entry point of the command.

fn main() {}
