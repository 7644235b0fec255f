//! Ports for nodes that are started, stopped and started again.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Below those that the system gives to whoever asks for any: no connection of this machine takes
/// one meanwhile.
const FIRST: u16 = 10_000;
/// Ports that a process of tests has for itself.
const BLOCK: u16 = 1_000;
const BLOCKS: u16 = 22;
/// Of one port to the next; those between are for who wants several in a row.
const STEP: u16 = 4;

/// The ports of this process. A port is given once: a node that is stopped finds its own free when
/// it is started again.
struct Ports {
    /// Locked files: each says to other processes that a block is taken, until this one ends.
    claims: Vec<File>,
    next: u16,
    end: u16,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports {
    claims: Vec::new(),
    next: 0,
    end: 0,
});

/// A port that is free, and that neither another process of tests nor a connection of this machine
/// takes while its node is down. The next three are nobody else's either.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    let mut ports = PORTS.lock().expect("it panics when there is none left");
    loop {
        if ports.next == ports.end {
            let (claim, first) = claim().expect("a block of ports that no other tests have");
            ports.claims.push(claim);
            (ports.next, ports.end) = (first, first + BLOCK);
        }
        let port = ports.next;
        ports.next += STEP;
        // Programs that are no tests may have some of them.
        let mut row = (port..port + STEP).map(|port| TcpListener::bind(("127.0.0.1", port)));
        if row.all(|bound| bound.is_ok()) {
            return port;
        }
    }
}

/// Takes a block that no process has.
fn claim() -> Option<(File, u16)> {
    let blocks = (0..BLOCKS).map(|block| FIRST + block * BLOCK);
    let mut claims = blocks.filter_map(|first| Some((lock(first)?, first)));
    claims.next()
}

/// `None` where another process, or another user, has the block.
fn lock(first: u16) -> Option<File> {
    let path = std::env::temp_dir().join(format!("volley-tests-ports-{first}.lock"));
    let file = File::options().create(true).append(true).open(path).ok()?;
    file.try_lock().is_ok().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_each_has_three_behind_it() {
        let ports: Vec<_> = (0..300).map(|_| free_port()).collect();
        assert!(ports.iter().all(|port| port % STEP == 0));
        let mut once = ports.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ports.len());
        // What this process has, none has.
        let mut blocks = ports.iter().map(|port| port - port % BLOCK);
        assert!(blocks.all(|first| lock(first).is_none()));
    }
}
