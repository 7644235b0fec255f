//! A disk in memory that fails as disks do: calls that fail, syncs that forget, power that goes.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redb::{BackendError, StorageBackend};

/// What survives a power loss, or does not, as one.
const SECTOR: usize = 512;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One call fails and has changed nothing.
    Error,
    /// One call, and every call after it, fails.
    Dead,
    /// Half of a write is done, and it fails; so does a sync, of which half was done.
    Torn,
    /// One call fails, and what no sync has kept until then never will be, although it is read
    /// back until the machine starts again.
    Forgets,
    /// The machine stops. Of what no sync has kept, any sectors may be on the disk.
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

/// The disk. Cloning gives another handle.
#[derive(Clone, Debug)]
pub(crate) struct FaultyDisk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What is read.
    seen: Vec<u8>,
    /// What no power loss takes away.
    kept: Vec<u8>,
    /// Since the last sync.
    unsynced: Vec<Change>,
    calls: u64,
    /// What goes wrong at which call.
    fault: Option<(u64, Fault)>,
    /// Every call fails.
    dead: bool,
    closed: bool,
    random: fastrand::Rng,
}

impl FaultyDisk {
    /// A disk that holds `image` and never fails.
    pub(crate) fn new(image: Vec<u8>) -> Self {
        Self::failing(image, None, 0)
    }

    /// A disk on which the call of that number, from 1, goes wrong.
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

    /// How many calls there were.
    pub(crate) fn calls(&self) -> u64 {
        self.0.state.lock().calls
    }

    /// Waits until the database has let go of it, and gives what is on the disk then: all of it
    /// after a restart of the process, less after one of the machine.
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

    /// What no power loss takes away.
    pub(crate) fn kept(&self) -> Vec<u8> {
        self.0.state.lock().kept.clone()
    }

    /// From now on, the call after so many others goes wrong.
    pub(crate) fn arm(&self, after: u64, fault: Fault) {
        let mut state = self.0.state.lock();
        state.fault = Some((state.calls + 1 + after, fault));
    }

    /// What has not gone wrong yet does not any more.
    pub(crate) fn disarm(&self) {
        let mut state = self.0.state.lock();
        let calls = state.calls;
        state.fault.take_if(|(call, _)| calls < *call);
    }

    /// The process ends here and now, or the whole `machine`. Gives what is on the disk then;
    /// whoever still holds this one cannot use it any more.
    pub(crate) fn crash(&self, machine: bool) -> Vec<u8> {
        let mut state = self.0.state.lock();
        if machine || matches!(state.fault, Some((_, Fault::PowerLoss | Fault::Forgets))) {
            state.lose_power();
        }
        state.dead = true;
        state.seen.clone()
    }

    /// Counts a call. Gives what goes wrong with it.
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
    /// The machine starts again: what is read is what was kept, and some of the rest.
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

/// The pieces of a write that are whole sectors of the disk, or its ends.
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
