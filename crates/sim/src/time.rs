//! A machine's time: its clock, and until when the machine is stopped or asleep.

use crate::libc;
use crate::sync::lock;
use holdfast_types::{MonoTime, Reading, SteadyClock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What each machine's process has read of its boot clock, as a process keeps it outside of simulations.
static READ: Mutex<Vec<SteadyClock>> = Mutex::new(Vec::new());
/// The machine whose clock is the current one.
static ENTERED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The clock of leases of the current machine's process.
pub fn reading() -> Reading {
    let boot = MonoTime(libc::boot());
    match lock(&READ).get_mut(ENTERED.load(Relaxed)) {
        Some(clock) => clock.read(boot),
        None => boot.into(),
    }
}

/// A machine's clock: runs evenly, but at another rate than others.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// At time 0, in nanoseconds.
    pub offset: u64,
    /// Rate in millionths; negative: slow.
    pub drift_ppm: i64,
    /// Offset of the wall clock in nanoseconds; negative: backward.
    pub wall: i64,
    /// Time that the machine was suspended, in nanoseconds of its own.
    pub asleep: u64,
    /// By how much its boot clock leapt, in nanoseconds; negative: back.
    pub leapt: i64,
}

impl Clock {
    /// Its wall clock is right, and the machine was never suspended.
    pub fn new(offset: u64, drift_ppm: i64) -> Self {
        Self { offset, drift_ppm, wall: 0, asleep: 0, leapt: 0 }
    }

    /// Its reading at `now` of the world.
    pub fn at(&self, now: u64) -> u64 {
        let gained = i128::from(now) * i128::from(self.drift_ppm) / 1_000_000;
        u64::try_from(i128::from(self.offset) + i128::from(now) + gained).unwrap_or(0)
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct MachineTime {
    pub clock: Clock,
    /// Its place in [`READ`].
    place: usize,
    /// Not run before this time of the world. 0: neither stopped nor asleep.
    stopped_until: u64,
    sleeps_until: u64,
}

impl MachineTime {
    pub fn new(clock: Clock) -> Self {
        let mut read = lock(&READ);
        read.push(SteadyClock::new());
        Self { clock, place: read.len() - 1, stopped_until: 0, sleeps_until: 0 }
    }

    /// Another process begins: it has read no clock yet.
    pub fn begin(&self) {
        lock(&READ)[self.place] = SteadyClock::new();
    }

    /// Makes the machine's clock the current one, until another machine's is.
    pub fn enter(&self, now: u64) {
        libc::set_now(self.clock.at(now));
        libc::set_apart(self.clock.wall, self.clock.asleep, self.clock.leapt);
        ENTERED.store(self.place, Relaxed);
    }

    /// Its boot clock leaps by `ms` milliseconds, as after a move of a virtual machine or by a fault of its hypervisor.
    /// Negative: back. Its other clocks do not.
    pub fn leap(&mut self, ms: i64) {
        self.clock.leapt += ms * 1_000_000;
    }

    /// Stops the machine, as by SIGSTOP or a hypervisor; its clocks continue.
    pub fn stop(&mut self, until: u64) {
        self.stopped_until = until;
    }

    /// Suspends the machine from `now` to `until`: only its wall clock and boot clock continue (a closed lid, a
    /// suspended VM).
    pub fn suspend(&mut self, now: u64, until: u64) {
        (self.stopped_until, self.sleeps_until) = (until, until);
        self.clock.asleep += self.clock.at(until) - self.clock.at(now);
    }

    /// Resumes it at once, if it is stopped or suspended.
    pub fn wake(&mut self, now: u64) {
        if self.sleeps_until > now {
            self.clock.asleep -= self.clock.at(self.sleeps_until) - self.clock.at(now);
        }
        self.forget();
    }

    /// It is neither stopped nor asleep, as a machine without power. Its clock stays as it is.
    pub fn forget(&mut self) {
        (self.stopped_until, self.sleeps_until) = (0, 0);
    }

    /// Whether it is stopped or suspended.
    pub fn is_stopped(&self, now: u64) -> bool {
        self.stopped_until > now
    }

    /// Whether it was stopped or suspended until now; true once.
    pub fn goes_on(&mut self, now: u64) -> bool {
        let over = self.stopped_until != 0 && !self.is_stopped(now);
        if over {
            self.forget();
        }
        over
    }
}
