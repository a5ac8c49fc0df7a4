//! The sockets of a network namespace, by their inodes, from the tables in `/proc/PID/net`.
//!
//! # Invariants
//! - Whoever opens a local socket chooses its name: any bytes are ordinary input.
//! - Tables are read up to a limit: a machine may have very many connections.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Most bytes of a table that are read: some fifty thousand sockets.
const TABLE_MAX: u64 = 8 << 20;
/// `TCP_LISTEN` of the kernel.
const LISTENING: u64 = 10;

/// The names of sockets, by their inodes.
pub(super) type Sockets = HashMap<u64, Arc<str>>;

/// Reads the socket tables that a process sees. An unreadable table counts as empty.
pub(super) fn sockets(pid: i32) -> Sockets {
    let read = |name: &str| {
        let mut bytes = Vec::new();
        let file = File::open(format!("/proc/{pid}/net/{name}"));
        // The part before an error is valid, as is the part before the limit.
        let _ = file.and_then(|file| file.take(TABLE_MAX).read_to_end(&mut bytes));
        bytes
    };
    let mut found = Sockets::new();
    for (kind, names) in [("tcp", ["tcp", "tcp6"]), ("udp", ["udp", "udp6"])] {
        // Connections to a server of one family may be listed with the other family.
        let tables = names.map(read);
        found.extend(internet(kind, &[&tables[0], &tables[1]]));
    }
    found.extend(local(&read("unix")));
    found
}

/// A line in a table of an internet protocol.
struct SocketLine {
    own: SocketAddr,
    peer: SocketAddr,
    state: u64,
    inode: u64,
}

/// Names sockets as in `tcp 127.0.0.1:80 <- 127.0.0.1:4000`. The arrow shows who connected to whom,
/// as far as the listening sockets reveal it.
fn internet(kind: &str, tables: &[&[u8]]) -> Vec<(u64, Arc<str>)> {
    let lines: Vec<SocketLine> =
        tables.iter().flat_map(|table| rows(table).filter_map(parse_line)).collect();
    let is_listening = |line: &&SocketLine| kind == "tcp" && line.state == LISTENING;
    let servers: HashSet<u16> = lines.iter().filter(is_listening).map(|it| it.own.port()).collect();
    let named = |line: &SocketLine| {
        let SocketLine { own, peer, .. } = line;
        let is_served = servers.contains(&own.port());
        let text = match peer.port() {
            _ if is_listening(&line) => format!("socket {kind} {own} (listening)"),
            0 => format!("socket {kind} {own}"),
            _ if is_served => format!("socket {kind} {own} <- {peer}"),
            _ => format!("socket {kind} {own} -> {peer}"),
        };
        (line.inode, Arc::from(text))
    };
    lines.iter().map(named).collect()
}

/// Iterates over all rows of a table but its header.
fn rows(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.split(|&byte| byte == b'\n').skip(1)
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode ...`
fn parse_line(line: &[u8]) -> Option<SocketLine> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(1);
    let (own, peer) = (address(words.next()?)?, address(words.next()?)?);
    let state = u64::from_str_radix(words.next()?, 16).ok()?;
    // A socket without any descriptor has no inode.
    let inode = words.nth(5)?.parse().ok().filter(|&inode| inode != 0)?;
    Some(SocketLine { own, peer, state, inode })
}

/// Parses `0100007F:1F90`: the words of the address as they are in memory, each printed as a
/// number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Parses `Num RefCount Protocol Flags Type St Inode Path`; the path may contain anything, or be
/// missing.
fn local(table: &[u8]) -> Vec<(u64, Arc<str>)> {
    let named = rows(table).filter_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut rest = &*line;
        let mut word = || {
            let (word, behind) =
                rest.trim_ascii_start().split_once(' ').unwrap_or((rest.trim(), ""));
            rest = behind;
            word
        };
        let inode = (0..7).map(|_| word()).last()?.parse().ok()?;
        let text =
            if rest.is_empty() { "socket unix".to_owned() } else { format!("socket unix {rest}") };
        Some((inode, Arc::from(text)))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &[u8] =
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
        \x20  0: 00000000:07E8 00000000:0000 0A \
          00000000:00000000 00:00000000 00000000     0        0 1131 1 0\n\
        \x20  1: 0100007F:07E8 0200007F:D431 01 \
          00000000:00000000 00:00000000 00000000  1000        0 7 1 0\n\
        \x20  2: 0100007F:C350 0100007F:0050 01 \
          00000000:00000000 00:00000000 00000000  1000        0 8 1 0\n\
        \x20  3: 0100007F:C351 0100007F:0050 06 \
          00000000:00000000 03:00000000 00000000     0        0 0 3 0\n\
        nonsense\n";

    fn of(all: &[(u64, Arc<str>)], inode: u64) -> Option<&str> {
        all.iter().find(|(found, _)| *found == inode).map(|(_, text)| &**text)
    }

    #[test]
    fn connections_show_who_connected_to_whom() {
        let all = internet("tcp", &[TCP]);
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(of(&all, 1131), Some("socket tcp 0.0.0.0:2024 (listening)"));
        assert_eq!(of(&all, 7), Some("socket tcp 127.0.0.1:2024 <- 127.0.0.2:54321"));
        assert_eq!(of(&all, 8), Some("socket tcp 127.0.0.1:50000 -> 127.0.0.1:80"));
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(address(text).map(|it| it.to_string()).as_deref(), expected, "{text}");
        };
        check("0100007F:1F90", Some("127.0.0.1:8080"));
        check("00000000000000000000000001000000:0050", Some("[::1]:80"));
        check("0000000000000000FFFF00000100007F:0050", Some("127.0.0.1:80"));
        for wrong in
            ["", ":", "0100007F", "0100007:1", "0100007G:1", "0100007F:12345", "\u{e9}00007F:1"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn local_sockets_have_names_of_any_kind() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000082d00110: 00000003 00000000 00000000 0001 03 813457\n\
            0000000082d00111: 00000002 00000000 00010000 0001 01    17 /run/a b\xff\n\
            0000000082d00112: 00000002 00000000 00010000 0001 01 18 @abstract\n\
            1 2 3\n\n";
        let all = local(table);
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(of(&all, 813_457), Some("socket unix"));
        assert_eq!(of(&all, 17), Some("socket unix /run/a b\u{fffd}"));
        assert_eq!(of(&all, 18), Some("socket unix @abstract"));
    }

    #[test]
    fn damaged_tables_are_ordinary_input() {
        let mut random = 0x5DEE_CE66_D5EE_D001_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 16) as usize % below
        };
        for _ in 0..20_000 {
            let mut table = TCP.to_vec();
            for _ in 0..1 + next(8) {
                let at = next(table.len());
                table[at] = next(256) as u8;
            }
            table.truncate(1 + next(table.len()));
            assert!(internet("tcp", &[&table]).len() <= 5);
            assert!(local(&table).len() <= table.len());
        }
    }
}
