//! One client: reads and writes registers on the volume at the serving gateway, and records the answers.
//!
//! A register is a range of the volume that is only read and written as a whole: single sectors, four adjacent sectors,
//! blocks of 4 KiB, and a range of 64 KiB. Every five seconds all clients move to new registers, so that each has a
//! short history. Sometimes they read old ones.

use super::access::{Access, Grant};
use super::history::{History, Kind, Op, Outcome};
use super::seed::Seeded;
use crate::gateways::{GATEWAYS, name, nbd};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The set's volume as an export.
const EXPORT: &str = "chaos/vol1";

/// Number of clients.
pub const CLIENTS: u64 = 5;

/// How long each waits for an answer. Some must still be waiting when a paused gateway continues.
const PATIENCE_S: [u64; CLIENTS as usize] = [1, 2, 4, 8, 8];

/// How long to wait for a connection to be opened.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a laggard uses its old grant after a newer one was made.
const LAG: Duration = Duration::from_secs(3);

/// How long all clients work on the same registers.
pub const WINDOW_S: u64 = 5;

/// Size of a window in bytes.
pub const WINDOW_BYTES: u64 = 256 << 10;

/// A deliberate error of this program, which must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lie {
    /// A client records an older value than it read
    StaleRead,
    /// A client records a write as successful that it never sent
    LostWrite,
}

/// One in this many operations of the lying client is a lie.
const LIE_ONE_IN: u64 = 25;

/// State that the clients share.
pub struct Work<'a> {
    pub seed: u64,
    pub history: &'a History,
    pub access: &'a Access,
    pub stop: &'a AtomicBool,
    pub lie: Option<Lie>,
}

/// A range that is read and written as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Register {
    pub offset: u64,
    pub len: u32,
}

impl Register {
    /// Its name in the history.
    pub fn key(&self) -> String {
        format!("{}+{}", self.offset, self.len)
    }
}

/// The registers of a window.
pub fn registers(window: u64) -> [Register; 8] {
    let at = |offset: u64, len: u32| Register { offset: window * WINDOW_BYTES + offset, len };
    [
        // Four sectors of one block: a write to one must not affect the others.
        at(0, 512),
        at(512, 512),
        at(1024, 512),
        at(1536, 512),
        at(8192, 4096),
        at(12288, 4096),
        at(65536, 65536),
        at(200 << 10, 512),
    ]
}

/// The window at a given time.
pub fn window_at(now: u64) -> u64 {
    now / (WINDOW_S * 1_000_000_000)
}

/// Reads all `registers` as one more client, after the others have ended. Fails when one cannot be read for a minute.
pub fn read_back(work: &Work<'_>, registers: impl Iterator<Item = Register>) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut session = Session::new(work, CLIENTS);
    for register in registers {
        let begun = Instant::now();
        loop {
            session.follow_grant();
            if let Some(mut client) = session.open.take().or_else(|| session.connect())
                && session.read(&mut client, register)
            {
                session.open = Some(client);
                break;
            }
            anyhow::ensure!(begun.elapsed() < LIMIT, "{} cannot be read for {LIMIT:?}", register.key());
            work.access.keep(work.history);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

struct Session<'a> {
    work: &'a Work<'a>,
    number: u64,
    chance: Seeded,
    /// Increased after each unknown outcome: the request may still be executed, so the next one counts as another
    /// client's.
    lives: u64,
    written: u64,
    grant: Grant,
    /// Since when another grant is current.
    outdated: Option<Instant>,
    open: Option<Client>,
    at: usize,
    incarnation: u64,
    seen: BTreeMap<Register, u64>,
}

/// Runs one until told to stop.
pub fn run(work: &Work<'_>, number: u64) {
    let mut session = Session::new(work, number);
    while !work.stop.load(Ordering::Relaxed) {
        session.follow_grant();
        session.step();
        // The rate: high enough for contention, low enough for three gateways and a judge on a small machine.
        let pause = session.chance.between(1, 8);
        std::thread::sleep(Duration::from_millis(pause));
    }
}

impl<'a> Session<'a> {
    fn new(work: &'a Work<'a>, number: u64) -> Self {
        Self {
            work,
            number,
            chance: Seeded::new(work.seed, 1 + number),
            lives: 0,
            written: 0,
            grant: work.access.current(),
            outdated: None,
            open: None,
            at: usize::try_from(number).unwrap_or(0) % GATEWAYS,
            incarnation: 0,
            seen: BTreeMap::new(),
        }
    }

    /// The last two clients keep using their old grant, like a host that does not know of its successor.
    fn laggard(&self) -> bool {
        (CLIENTS - 2..CLIENTS).contains(&self.number)
    }

    fn follow_grant(&mut self) {
        let current = self.work.access.current();
        if current == self.grant {
            self.outdated = None;
            return;
        }
        let since = *self.outdated.get_or_insert_with(Instant::now);
        if !self.laggard() || since.elapsed() > LAG {
            self.grant = current;
            self.outdated = None;
            self.open = None;
        }
    }

    fn step(&mut self) {
        let Some(mut client) = self.open.take().or_else(|| self.connect()) else { return };
        let window = window_at(self.work.history.now());
        let window = if self.chance.chance(5) { self.chance.below(window + 1) } else { window };
        let register = registers(window)[usize::try_from(self.chance.below(8)).unwrap_or(0)];
        let good =
            if self.chance.chance(50) { self.read(&mut client, register) } else { self.write(&mut client, register) };
        if good {
            self.open = Some(client);
        }
    }

    /// One attempt at one gateway; the next attempt uses the next gateway.
    fn connect(&mut self) -> Option<Client> {
        self.incarnation += 1;
        let export = match &self.grant.token {
            None => EXPORT.to_owned(),
            Some(token) => format!("{EXPORT}?token={token}&conn={}&gen={}", self.number, self.incarnation),
        };
        match Client::connect(&Uri { addr: nbd(self.at), export }, CONNECT) {
            Ok(client) => {
                let patience = PATIENCE_S[usize::try_from(self.number).unwrap_or(0) % PATIENCE_S.len()];
                client.set_patience(Duration::from_secs(patience)).ok()?;
                Some(client)
            }
            Err(_) => {
                self.at = (self.at + 1) % GATEWAYS;
                None
            }
        }
    }

    fn write_down(&mut self, kind: Kind, register: Register, value: u64, call: u64, outcome: Outcome) {
        let returned = (outcome != Outcome::Unknown).then(|| self.work.history.now());
        let client = self.number + 1000 * self.lives;
        if outcome == Outcome::Unknown {
            self.lives += 1;
        }
        let (key, via, grant) = (register.key(), name(self.at), self.grant.number);
        self.work.history.push(Op { client, kind, key, value, call, returned, outcome, via, grant });
    }

    fn lies(&mut self, which: Lie) -> bool {
        self.work.lie == Some(which) && self.number == 0 && self.chance.below(LIE_ONE_IN) == 0
    }

    fn read(&mut self, client: &mut Client, register: Register) -> bool {
        let call = self.work.history.now();
        match client.read(register.offset, register.len) {
            Ok(bytes) => {
                let value = match tag_of(&bytes, register.offset) {
                    Ok(tag) => tag,
                    Err(e) => {
                        let what = format!("read of {} via {} at {call}: {e:#}", register.key(), name(self.at));
                        self.work.history.broke(what);
                        return true;
                    }
                };
                let before = self.seen.insert(register, value);
                let stale = before.filter(|b| *b != value && self.lies(Lie::StaleRead));
                self.write_down(Kind::Read, register, stale.unwrap_or(value), call, Outcome::Ok);
                true
            }
            Err(e) => {
                let outcome = self.outcome(&e);
                self.write_down(Kind::Read, register, 0, call, outcome);
                false
            }
        }
    }

    fn write(&mut self, client: &mut Client, register: Register) -> bool {
        self.written += 1;
        let value = (self.number + 1) * 1_000_000_000 + self.written;
        let call = self.work.history.now();
        if self.lies(Lie::LostWrite) {
            self.write_down(Kind::Write, register, value, call, Outcome::Ok);
            return true;
        }
        match client.write(register.offset, &pattern(value, register.offset, register.len as usize)) {
            Ok(()) => {
                self.write_down(Kind::Write, register, value, call, Outcome::Ok);
                true
            }
            Err(e) => {
                let outcome = self.outcome(&e);
                self.write_down(Kind::Write, register, value, call, outcome);
                false
            }
        }
    }

    fn outcome(&self, error: &NbdError) -> Outcome {
        match error {
            // R8: gateways answer so only if another owner holds the set, so the request was not executed.
            NbdError::Errno(_) => Outcome::Fail,
            NbdError::Gone(_) => Outcome::Unknown,
            NbdError::Refused(what) | NbdError::Protocol(what) => {
                self.work.history.broke(format!("client {} via {}: {what}", self.number, name(self.at)));
                Outcome::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_apart() {
        let mut all: Vec<Register> = (0..3).flat_map(registers).collect();
        all.sort();
        for pair in all.windows(2) {
            assert!(pair[0].offset + u64::from(pair[0].len) <= pair[1].offset, "{pair:?}");
        }
        assert!(all.iter().all(|r| r.offset % 512 == 0 && r.len % 512 == 0));
        let last = all.last().map_or(0, |r| r.offset + u64::from(r.len));
        assert!(last <= 3 * WINDOW_BYTES);
    }
}
