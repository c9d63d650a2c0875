//! Replaces the two sources of randomness and time in a process: `getrandom` and `clock_gettime`.
//!
//! This binary's symbols take precedence over libc's, for the standard library and every crate. So keys of hash tables,
//! the generators of `rand` (election timeouts, tokens, object names, back-off), `Instant` and `SystemTime` (with
//! tokio's timers) follow from the seed and the scheduler, without changes in any of them. Before [`begin`] both are
//! the machine's own.

// C ABI symbols with pointers from their callers need `unsafe`. The rest of this crate has none.
#![allow(unsafe_code)]

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ACTIVE: AtomicBool = AtomicBool::new(false);
static ENTROPY: AtomicU64 = AtomicU64::new(0);
static DRAWS: AtomicU64 = AtomicU64::new(0);
static NOW_NANOS: AtomicU64 = AtomicU64::new(0);
/// Suspended time of the current machine in nanoseconds: counted by CLOCK_BOOTTIME, not by CLOCK_MONOTONIC.
static ASLEEP_NANOS: AtomicU64 = AtomicU64::new(0);
/// By how much its CLOCK_BOOTTIME leapt, in nanoseconds; negative: back.
static LEAPT_NANOS: AtomicI64 = AtomicI64::new(0);
/// Offset of its wall clock in nanoseconds; negative: backward.
static WALL_NANOS: AtomicI64 = AtomicI64::new(0);

/// The simulated wall clock at time 0, in Unix seconds.
const WALL_SECONDS: u64 = 1_800_000_000;
/// Simulated monotonic clocks at time 0, in seconds: as if long up, so that subtractions stay above zero.
const UP_SECONDS: u64 = 100_000;

/// From now on randomness follows from `seed`, and time changes only by [`set_now`].
pub fn begin(seed: u64) {
    ENTROPY.store(seed, Relaxed);
    ACTIVE.store(true, Relaxed);
}

/// Both are the machine's own again.
pub fn end() {
    ACTIVE.store(false, Relaxed);
}

/// Sets the clocks of the next process, in nanoseconds since time 0.
pub fn set_now(nanos: u64) {
    NOW_NANOS.store(nanos, Relaxed);
}

/// Sets offset of the wall clock, suspended time, and by how much the boot clock leapt, of the next process, in
/// nanoseconds.
pub fn set_apart(wall: i64, asleep: u64, leapt: i64) {
    WALL_NANOS.store(wall, Relaxed);
    ASLEEP_NANOS.store(asleep, Relaxed);
    LEAPT_NANOS.store(leapt, Relaxed);
}

/// The last value of [`set_now`].
pub fn now() -> u64 {
    NOW_NANOS.load(Relaxed)
}

/// The simulated CLOCK_BOOTTIME, in nanoseconds.
pub fn boot() -> u64 {
    (now() + UP_SECONDS * 1_000_000_000).saturating_add_signed(LEAPT_NANOS.load(Relaxed))
}

/// The simulated CLOCK_MONOTONIC, in nanoseconds: without suspended time.
pub fn monotonic() -> u64 {
    (now() + UP_SECONDS * 1_000_000_000).saturating_sub(ASLEEP_NANOS.load(Relaxed))
}

/// The wall clock, likewise, since 1970.
pub fn wall() -> u64 {
    (now() + WALL_SECONDS * 1_000_000_000).saturating_add_signed(WALL_NANOS.load(Relaxed))
}

/// Number of draws: differs if two runs differ.
pub fn draws() -> u64 {
    DRAWS.load(Relaxed)
}

fn draw() -> u64 {
    DRAWS.fetch_add(1, Relaxed);
    crate::rng::mix(ENTROPY.fetch_add(crate::rng::STEP, Relaxed).wrapping_add(crate::rng::STEP))
}

/// Like getrandom(2); flags are ignored.
///
/// # Safety
/// `buffer` points to `len` writable bytes, or `len` is 0.
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

/// Like clock_gettime(2): wall clock (0, 5); the real CPU times (2, 3); 7 with suspended time; all others monotonic.
///
/// # Safety
/// `to` points to a writable timespec.
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

/// Asks the kernel, not libc, which would call this function.
fn machine(clock: rustix::time::ClockId) -> (i64, i64) {
    let time = rustix::time::clock_gettime(clock);
    (time.tv_sec, time.tv_nsec)
}
