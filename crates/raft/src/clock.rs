//! The clocks of leases. Two kinds of time are counted (R3), each by the clock whose error does no harm:
//!
//! - What others have promised to this gateway (a read lease, a seat, a look at a head), on CLOCK_BOOTTIME: it runs
//!   while the machine sleeps, so no lease outlives a suspend.
//! - What this gateway has promised to others (to vote for nobody else, the vote embargo, a period of grace), on
//!   CLOCK_MONOTONIC. It stands still in a suspend, so a promise is kept for longer than it was given for. It does not
//!   follow a boot clock that leaps ahead either: that looks like a suspend, and perhaps no time has passed. openraft
//!   counts nothing else, so this is its clock. Tokio's timers run on it, too.
//!
//! Neither goes back in this process, even if the machine's does: see [`SteadyClock`].

use futures_util::future::{Either, Ready, ready};
use holdfast_types::sync::LockExt;
use holdfast_types::{MonoTime, Reading, SteadyClock};
use openraft::OptionalSend;
use openraft::async_runtime::AsyncRuntime;
use openraft::async_runtime::Instant;
use openraft::impls::TokioRuntime;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The clocks of a simulation.
static REPLACED: OnceLock<fn() -> Clocks> = OnceLock::new();

/// What this process has read of CLOCK_BOOTTIME.
static STEADY: Mutex<SteadyClock> = Mutex::new(SteadyClock::new());

/// Like `STEADY`, of CLOCK_MONOTONIC.
static STEADY_MONOTONIC: Mutex<SteadyClock> = Mutex::new(SteadyClock::new());

/// A sleep of at most this does not sleep. openraft's forwarder of completed writes waits a microsecond after each, to
/// tell of several at once. Tokio's timer rounds that up to a whole millisecond, for which an acknowledgement waits.
/// Not more than that microsecond: openraft's tick sleeps until a moment and does not expect to wake before.
const TOO_SHORT: Duration = Duration::from_micros(1);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// CLOCK_BOOTTIME, as the process reads it.
    pub boot: Reading,
    /// CLOCK_MONOTONIC.
    pub monotonic: MonoTime,
}

/// Replaces the clocks for the life of the process, for a simulation (ADR 0017). A second call changes nothing.
pub fn replace_clocks(clocks: fn() -> Clocks) {
    if REPLACED.set(clocks).is_err() {
        tracing::error!("the clocks can be replaced only once");
    }
}

fn read(clock: rustix::time::ClockId) -> MonoTime {
    let t = rustix::time::clock_gettime(clock);
    let secs = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    MonoTime(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Now on CLOCK_BOOTTIME. If that goes back, this goes on from where it was: see [`SteadyClock`].
///
/// For timers, and for the moment from which a promise to this gateway counts. The promise itself is judged by
/// [`boot_reading`]; what this gateway promises, by [`promise_now`].
pub fn boot_now() -> MonoTime {
    boot_reading().now
}

/// Now on CLOCK_BOOTTIME, and from when on time that was promised to this gateway counts (R3).
pub fn boot_reading() -> Reading {
    match REPLACED.get() {
        None => steady(&STEADY, rustix::time::ClockId::Boottime),
        Some(clocks) => clocks().boot,
    }
}

/// Now, for what this gateway has promised to others (R3): on CLOCK_MONOTONIC, from where it was if that goes back. A
/// moment of this clock MUST NOT be compared with one of [`boot_now`].
pub fn promise_now() -> MonoTime {
    match REPLACED.get() {
        None => steady(&STEADY_MONOTONIC, rustix::time::ClockId::Monotonic).now,
        Some(clocks) => clocks().monotonic,
    }
}

fn steady(clock: &Mutex<SteadyClock>, id: rustix::time::ClockId) -> Reading {
    // The machine's clock is read under the lock: else a thread could hand over its reading late, which would look as
    // if the clock had gone back.
    let mut clock = clock.locked();
    clock.read(read(id))
}

/// Now on CLOCK_MONOTONIC, which stops in a suspend: a growing difference to [`boot_now`] raises clock suspicion.
pub fn monotonic_now() -> MonoTime {
    match REPLACED.get() {
        None => read(rustix::time::ClockId::Monotonic),
        Some(clocks) => clocks().monotonic,
    }
}

/// A moment of [`promise_now`], in openraft's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PromiseInstant(pub(crate) MonoTime);

impl Instant for PromiseInstant {
    fn now() -> Self {
        Self(promise_now())
    }
}

impl Add<Duration> for PromiseInstant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d))
    }
}

impl AddAssign<Duration> for PromiseInstant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for PromiseInstant {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Self(MonoTime(self.0.0.saturating_sub(nanos)))
    }
}

impl SubAssign<Duration> for PromiseInstant {
    fn sub_assign(&mut self, d: Duration) {
        *self = *self - d;
    }
}

impl Sub<PromiseInstant> for PromiseInstant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_since(earlier.0)
    }
}

/// Tokio with [`PromiseInstant`]: tokio does the sleeping, only the clock is ours.
#[derive(Debug)]
pub struct PromiseRuntime(TokioRuntime);

impl AsyncRuntime for PromiseRuntime {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = tokio::task::JoinHandle<T>;
    type Sleep = Either<Ready<()>, tokio::time::Sleep>;
    type Instant = PromiseInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        tokio::task::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Either::Right(tokio::time::sleep(duration))
    }

    /// Ready at once if that is [`TOO_SHORT`]. Not in a simulation: there no time passes while anything runs, so what
    /// wakes early and sleeps again would never end.
    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        let left = deadline - PromiseInstant::now();
        if left <= TOO_SHORT && REPLACED.get().is_none() { Either::Left(ready(())) } else { Self::sleep(left) }
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        tokio::time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        tokio::time::timeout(deadline - PromiseInstant::now(), future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn time_moves_forward_and_never_underflows() {
        let a = PromiseInstant::now();
        let b = a + Duration::from_secs(1);
        assert_eq!(b - a, Duration::from_secs(1));
        assert_eq!(a - b, Duration::ZERO);
        assert!(PromiseInstant::now() >= a);
    }

    /// Without a runtime: nothing here may ask for a timer.
    #[test]
    fn a_sleep_shorter_than_a_timer_can_be_is_none() {
        let left = PromiseInstant::now() + TOO_SHORT;
        assert_eq!(PromiseRuntime::sleep_until(left).now_or_never(), Some(()));
        assert_eq!(PromiseRuntime::sleep_until(PromiseInstant(MonoTime(0))).now_or_never(), Some(()), "long past");
    }

    #[tokio::test]
    async fn a_longer_sleep_is_one() {
        let later = PromiseInstant::now() + Duration::from_secs(3600);
        assert_eq!(PromiseRuntime::sleep_until(later).now_or_never(), None);
    }
}
