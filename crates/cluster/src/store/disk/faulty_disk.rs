//! A disk in memory that fails as disks do: failed calls, syncs that lose writes, power loss.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redb::{BackendError, StorageBackend};

/// Unit in bytes that survives a power loss as a whole, or not at all.
const SECTOR: usize = 512;

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One call fails and changes nothing.
    Error,
    /// One call and all calls after it fail.
    Dead,
    /// Half of a write is done, and it fails. A sync fails after half of its changes.
    Torn,
    /// One call fails, and all unsynced changes are lost, although reads return them until the
    /// machine restarts.
    Forgets,
    /// The machine stops. Any sectors of the unsynced changes may be on the disk.
    PowerLoss,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] = [
        Self::Error,
        Self::Dead,
        Self::Torn,
        Self::Forgets,
        Self::PowerLoss,
    ];
}

#[derive(Clone, Debug)]
enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct FaultyDisk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bytes that reads return.
    seen: Vec<u8>,
    /// Bytes that survive a power loss.
    kept: Vec<u8>,
    /// Changes since the last sync.
    unsynced: Vec<Change>,
    calls: u64,
    /// The fault and the number of the call that it strikes.
    fault: Option<(u64, Fault)>,
    /// Every call fails.
    dead: bool,
    closed: bool,
    random: fastrand::Rng,
}

impl FaultyDisk {
    /// Returns a disk with the contents `image` that never fails.
    pub(crate) fn new(image: Vec<u8>) -> Self {
        Self::failing(image, None, 0)
    }

    /// Returns a disk on which the call with the given number, counted from 1, fails.
    pub(crate) fn failing(image: Vec<u8>, fault: Option<(u64, Fault)>, seed: u64) -> Self {
        let state = State {
            seen: image.clone(),
            kept: image,
            unsynced: Vec::new(),
            calls: 0,
            fault,
            dead: false,
            closed: false,
            random: fastrand::Rng::with_seed(seed),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            closed: Condvar::new(),
        }))
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> u64 {
        self.0.state.lock().calls
    }

    /// Waits until the database has closed the disk, and returns its contents: all of them after a
    /// restart of the process, fewer after one of the machine.
    pub(crate) fn into_image(self) -> Vec<u8> {
        let mut state = self.0.state.lock();
        while !state.closed {
            let waited = self.0.closed.wait_for(&mut state, Duration::from_secs(60));
            assert!(!waited.timed_out(), "the database lets go of its file");
        }
        let machine = match state.fault {
            Some((_, Fault::PowerLoss | Fault::Forgets)) => true,
            _ => state.random.bool(),
        };
        if machine {
            state.lose_power();
        }
        std::mem::take(&mut state.seen)
    }

    /// Returns the bytes that survive a power loss.
    pub(crate) fn kept(&self) -> Vec<u8> {
        self.0.state.lock().kept.clone()
    }

    /// Fails the call after `after` other calls.
    pub(crate) fn arm(&self, after: u64, fault: Fault) {
        let mut state = self.0.state.lock();
        state.fault = Some((state.calls + 1 + after, fault));
    }

    /// Removes a fault that has not happened yet.
    pub(crate) fn disarm(&self) {
        let mut state = self.0.state.lock();
        let calls = state.calls;
        state.fault.take_if(|(call, _)| calls < *call);
    }

    /// Ends the process, or the whole `machine`, and returns the contents of the disk. Later calls
    /// on this handle fail.
    pub(crate) fn crash(&self, machine: bool) -> Vec<u8> {
        let mut state = self.0.state.lock();
        if machine || matches!(state.fault, Some((_, Fault::PowerLoss | Fault::Forgets))) {
            state.lose_power();
        }
        state.dead = true;
        state.seen.clone()
    }

    /// Counts a call, and returns its fault.
    fn call(&self) -> io::Result<(parking_lot::MutexGuard<'_, State>, Option<Fault>)> {
        let mut state = self.0.state.lock();
        if state.dead {
            return Err(failed());
        }
        state.calls += 1;
        let now = state.fault.filter(|(call, _)| *call == state.calls);
        let fault = now.map(|(_, fault)| fault);
        match fault {
            Some(Fault::PowerLoss) => {
                state.lose_power();
                state.dead = true;
                Err(failed())
            }
            Some(Fault::Dead) => {
                state.dead = true;
                Err(failed())
            }
            Some(Fault::Error) => Err(failed()),
            Some(Fault::Forgets) => {
                state.unsynced.clear();
                Err(failed())
            }
            Some(Fault::Torn) | None => Ok((state, fault)),
        }
    }
}

impl State {
    /// Restarts the machine: reads return the synced bytes and some of the unsynced changes.
    fn lose_power(&mut self) {
        let share = [0.0, 0.5, 0.9, 1.0][self.random.usize(..4)];
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Length(length) => {
                    if self.random.f64() < share {
                        self.kept.resize(length as usize, 0);
                    }
                }
                Change::Write(offset, bytes) => {
                    for (start, end) in sectors(offset as usize, bytes.len()) {
                        if self.random.f64() < share {
                            put(&mut self.kept, offset as usize + start, &bytes[start..end]);
                        }
                    }
                }
            }
        }
        self.seen = self.kept.clone();
    }

    fn keep(&mut self, count: usize) {
        for change in self.unsynced.drain(..count) {
            match change {
                Change::Length(length) => self.kept.resize(length as usize, 0),
                Change::Write(offset, bytes) => put(&mut self.kept, offset as usize, &bytes),
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        put(&mut self.seen, offset as usize, data);
        self.unsynced.push(Change::Write(offset, data.to_vec()));
    }
}

/// Splits a write at the sector boundaries of the disk.
fn sectors(offset: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = (SECTOR - offset % SECTOR).min(length);
    let rest = (first..length).step_by(SECTOR);
    let rest = rest.map(move |start| (start, (start + SECTOR).min(length)));
    std::iter::once((0, first)).chain(rest)
}

fn put(image: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(data);
}

fn failed() -> io::Error {
    io::Error::other("the disk fails by plan")
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, fault) = self.call()?;
        let from = offset as usize;
        let bytes = state.seen.get(from..from + out.len());
        let bytes = bytes.filter(|_| fault.is_none());
        out.copy_from_slice(bytes.ok_or_else(failed)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let (mut state, fault) = self.call()?;
        if fault.is_some() {
            return Err(failed());
        }
        state.seen.resize(length as usize, 0);
        state.unsynced.push(Change::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, fault) = self.call()?;
        let count = state.unsynced.len();
        if fault.is_some() {
            state.keep(count / 2);
            return Err(failed());
        }
        state.keep(count);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut state, fault) = self.call()?;
        if fault.is_some() {
            state.write(offset, &data[..data.len() / 2]);
            return Err(failed());
        }
        state.write(offset, data);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.state.lock().closed = true;
        self.0.closed.notify_all();
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }
}
