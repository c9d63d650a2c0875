//! The two doors through which chance and time come into a process, taken over: `getrandom` and `clock_gettime`.
//!
//! The symbols of this binary come before those of libc, for the standard library and for every crate. So the keys of hash tables, the
//! generators of `rand` (election timeouts, tokens, object names, back-off), `Instant` and `SystemTime` (tokio's timers with them) follow from
//! the seed and from the scheduler, without a seam in any of them. Before [`begin`] both are the machine's own.

// Symbols of C's ABI, and memory that callers of C's ABI hand over: not to be had without. Nothing else in this crate is unsafe.
#![allow(unsafe_code)]

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ACTIVE: AtomicBool = AtomicBool::new(false);
static ENTROPY: AtomicU64 = AtomicU64::new(0);
static DRAWS: AtomicU64 = AtomicU64::new(0);
static NOW_NANOS: AtomicU64 = AtomicU64::new(0);
/// How long the machine that runs now has slept, in nanoseconds: CLOCK_BOOTTIME knows it, CLOCK_MONOTONIC does not.
static ASLEEP_NANOS: AtomicU64 = AtomicU64::new(0);
/// By how much its wall clock was set forward (backward, where negative), in nanoseconds.
static WALL_NANOS: AtomicI64 = AtomicI64::new(0);

/// The simulated wall clock at time 0, in Unix seconds.
const WALL_SECONDS: u64 = 1_800_000_000;
/// The simulated monotonic clocks at time 0, in seconds: a machine that has been up for a while, so that subtractions stay above zero.
const UP_SECONDS: u64 = 100_000;

/// From now on chance follows from `seed`, and time stands still but for [`set_now`].
pub fn begin(seed: u64) {
    ENTROPY.store(seed, Relaxed);
    ACTIVE.store(true, Relaxed);
}

/// Both are the machine's own again.
pub fn end() {
    ACTIVE.store(false, Relaxed);
}

/// What the clocks of whoever runs next say, in nanoseconds since time 0.
pub fn set_now(nanos: u64) {
    NOW_NANOS.store(nanos, Relaxed);
}

/// By how much the wall clock of whoever runs next is off, and how long its machine has slept, in nanoseconds.
pub fn set_apart(wall: i64, asleep: u64) {
    WALL_NANOS.store(wall, Relaxed);
    ASLEEP_NANOS.store(asleep, Relaxed);
}

/// What [`set_now`] said last.
pub fn now() -> u64 {
    NOW_NANOS.load(Relaxed)
}

/// CLOCK_BOOTTIME as the simulated clocks say it, in nanoseconds.
pub fn boot() -> u64 {
    now() + UP_SECONDS * 1_000_000_000
}

/// CLOCK_MONOTONIC, likewise: it stood still while the machine slept.
pub fn monotonic() -> u64 {
    boot().saturating_sub(ASLEEP_NANOS.load(Relaxed))
}

/// The wall clock, likewise, since 1970.
pub fn wall() -> u64 {
    (now() + WALL_SECONDS * 1_000_000_000).saturating_add_signed(WALL_NANOS.load(Relaxed))
}

/// How often chance was asked: differs where two runs differ.
pub fn draws() -> u64 {
    DRAWS.load(Relaxed)
}

fn draw() -> u64 {
    DRAWS.fetch_add(1, Relaxed);
    crate::rng::mix(ENTROPY.fetch_add(crate::rng::STEP, Relaxed).wrapping_add(crate::rng::STEP))
}

/// As getrandom(2); flags are not looked at.
///
/// # Safety
/// `buffer` points to `len` bytes that may be written, or `len` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
    if ACTIVE.load(Relaxed) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = draw().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    } else if std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(buffer)).is_err() {
        return -1;
    }
    isize::try_from(len).unwrap_or(-1)
}

/// `struct timespec` of a 64-bit machine.
#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

/// As clock_gettime(2): wall clock (0, 5), the processor times (2, 3) as they are, 7 with the time asleep, all others monotonic.
///
/// # Safety
/// `to` points to a timespec that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: i32, to: *mut Timespec) -> i32 {
    let (seconds, nanos) = match (ACTIVE.load(Relaxed), clock) {
        (true, 0 | 5) => whole(wall()),
        (true, 1 | 4 | 6) => whole(monotonic()),
        (true, 7) => whole(boot()),
        (_, 0 | 5) => machine(rustix::time::ClockId::Realtime),
        (_, 2) => machine(rustix::time::ClockId::ProcessCPUTime),
        (_, 3) => machine(rustix::time::ClockId::ThreadCPUTime),
        (_, 7) => machine(rustix::time::ClockId::Boottime),
        (..) => machine(rustix::time::ClockId::Monotonic),
    };
    // SAFETY: the caller's promise.
    unsafe { to.write(Timespec { seconds, nanos }) };
    0
}

fn whole(nanos: u64) -> (i64, i64) {
    ((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as i64)
}

/// Asks the kernel, not libc: that would be this very function.
fn machine(clock: rustix::time::ClockId) -> (i64, i64) {
    let time = rustix::time::clock_gettime(clock);
    (time.tv_sec, time.tv_nsec)
}
