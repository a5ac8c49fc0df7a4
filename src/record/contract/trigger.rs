//! The conditions under which the ring is saved.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A condition under which the ring is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// The target's CPU usage exceeds this many percent of one processor.
    Cpu(u64),
    /// The target has more threads than this.
    Threads(u64),
    /// This file appears or changes.
    File(PathBuf),
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(percent) => write!(f, "cpu>{percent}%"),
            Self::Threads(count) => write!(f, "threads>{count}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl FromStr for Trigger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected cpu>80%, threads>500 or file:PATH".to_owned();
        if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            return Ok(Self::File(path.into()));
        }
        let (what, limit) = text.split_once('>').ok_or_else(expected)?;
        let limit = limit.trim();
        match what.trim() {
            "cpu" => {
                let number = limit.strip_suffix('%').unwrap_or(limit);
                number.parse().map(Self::Cpu).map_err(|_| expected())
            }
            "threads" => limit.parse().map(Self::Threads).map_err(|_| expected()),
            _ => Err(expected()),
        }
    }
}
