//! The guard over a device of memory, which is held to the same contract as the kernel's:
//! HOLDFAST_TEST_WATCHDOG=/dev/watchdog asks that one, on a machine that may be reset.

use super::super::device::Device;
use super::super::{Sign, Signs};
use super::*;
use holdfast_types::MonoTime;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const TTL_MS: u64 = 3000;

/// A watchdog of memory, by a clock of its own.
#[derive(Debug, Default)]
struct Memory {
    now_ns: u64,
    /// Open, and so counting: when it fires.
    fires_ns: Option<u64>,
    timeout_s: u32,
    /// It takes no shorter timeout.
    least_s: u32,
    /// It takes so much less than it is asked for.
    short_s: u32,
    fired: bool,
    missing: bool,
    opened: u32,
}

#[derive(Clone, Debug, Default)]
struct Fake(Arc<Mutex<Memory>>);

impl Fake {
    fn of<T>(&self, see: impl FnOnce(&mut Memory) -> T) -> T {
        see(&mut self.0.lock().unwrap())
    }

    fn pass(&self, ns: u64) {
        self.of(|dog| {
            dog.now_ns += ns;
            dog.fired |= dog.fires_ns.is_some_and(|at| at <= dog.now_ns);
        });
    }
}

impl Kennel for Fake {
    fn open(&self) -> Result<Box<dyn Dog>, String> {
        self.of(|dog| {
            if dog.missing || dog.fires_ns.is_some() {
                return Err("/dev/watchdog: busy".to_string());
            }
            // The default of a driver.
            dog.timeout_s = 60;
            dog.fires_ns = Some(dog.now_ns + 60 * S);
            dog.opened += 1;
            Ok(())
        })?;
        Ok(Box::new(self.clone()))
    }
}

impl Dog for Fake {
    fn set_timeout(&mut self, seconds: u32) -> Result<u32, String> {
        self.of(|dog| {
            dog.timeout_s = seconds.saturating_sub(dog.short_s).max(dog.least_s);
            dog.fires_ns = Some(dog.now_ns + u64::from(dog.timeout_s) * S);
            Ok(dog.timeout_s)
        })
    }

    fn feed(&mut self) -> Result<(), String> {
        self.of(|dog| dog.fires_ns = Some(dog.now_ns + u64::from(dog.timeout_s) * S));
        Ok(())
    }

    fn let_go(self: Box<Self>) -> Result<(), String> {
        self.of(|dog| dog.fires_ns = None);
        Ok(())
    }
}

impl Guard<Device> {
    /// For the helper's tests: with a device that was opened, and fires after so many seconds without a feed. The
    /// machine's own is never opened.
    pub(in crate::watchdog) fn opened(run_dir: &Path, dog: Box<dyn Dog>, timeout: u32) -> Self {
        let mut guard = Self::new(run_dir, Some(Device("/nonexistent/watchdog".into())));
        guard.open = Some(Open { dog, timeout, asked: timeout });
        guard
    }
}

/// Properties that the guard expects of any device.
fn holds(kennel: &impl Kennel, wait: impl Fn(u64)) {
    let mut dog = kennel.open().unwrap();
    assert!(kennel.open().is_err(), "one at a time");
    assert_eq!(dog.set_timeout(3), Ok(3));
    assert_eq!(dog.set_timeout(2), Ok(2));
    for _ in 0..3 {
        wait(S);
        dog.feed().unwrap();
    }
    dog.let_go().unwrap();
    // It no longer counts: this process is not reset.
    wait(4 * S);
    let dog = kennel.open().unwrap();
    dog.let_go().unwrap();
}

#[test]
fn a_device_of_memory_is_as_a_device_is() {
    let fake = Fake::default();
    holds(&fake, |ns| fake.pass(ns));
    assert!(!fake.of(|dog| dog.fired));
}

#[test]
fn the_machines_device_is_as_a_device_is() {
    let Some(path) = std::env::var_os("HOLDFAST_TEST_WATCHDOG") else {
        holdfast_testkit::skipped("HOLDFAST_TEST_WATCHDOG=/dev/watchdog uses the watchdog of this machine");
        return;
    };
    holds(&Device(path.into()), |ns| std::thread::sleep(std::time::Duration::from_nanos(ns)));
}

#[test]
fn what_is_no_watchdog_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let why = |path: PathBuf| Device(path).open().err().unwrap();
    assert!(why(dir.path().join("watchdog")).contains("modprobe softdog"));
    // A file takes every byte and no ioctl.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let said = why(file);
    assert!(said.contains("WDIOC_GETSUPPORT") && said.contains("expected a watchdog device"), "{said}");
}

struct Lab {
    fake: Fake,
    guard: Guard<Fake>,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(fake: Fake) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::new(dir.path(), Some(fake.clone()));
        Self { fake, guard, dir }
    }

    /// Time goes by in the helper's steps, under this wish.
    fn go(&mut self, ms: u64, wish: Wish) {
        for _ in 0..ms / 20 {
            let now = self.fake.of(|dog| dog.now_ns);
            self.guard.look(now, wish);
            self.fake.pass(20_000_000);
        }
    }

    fn fired(&self) -> bool {
        self.fake.of(|dog| dog.fired)
    }
}

fn wish(until_ns: Option<u64>) -> Wish {
    Wish { wanted: true, ttl_ms: TTL_MS, until_ns }
}

#[test]
fn its_timeout_is_two_thirds_of_a_lease() {
    for (ttl_ms, seconds) in [(1500, 1), (2999, 1), (3000, 2), (10_000, 6), (30_000, 20)] {
        assert_eq!(timeout_s(ttl_ms), Ok(seconds), "{ttl_ms}");
    }
    assert!(timeout_s(1499).unwrap_err().contains("expected 1500 ms at least"));
    assert!(timeout_s(0).is_err());
}

/// GUARD-G1: whatever the age of the last renewal is, it fires before the lease ends, and not before PostgreSQL had the
/// time that AGENT-A3 gives it.
#[test]
fn it_fires_before_the_lease_ends_for_others_and_not_early() {
    for renewals in 1..20_u64 {
        let mut lab = Lab::new(Fake::default());
        lab.go(500, wish(None));
        let mut until = 0;
        for _ in 0..renewals {
            // A renewal each third of a lease.
            until = lab.fake.of(|dog| dog.now_ns) + TTL_MS * 1_000_000;
            lab.go(1000, wish(Some(until)));
        }
        assert!(!lab.fired(), "renewed in time");
        // No renewal any more, and nobody stops PostgreSQL.
        while !lab.fired() {
            lab.go(20, wish(Some(until)));
        }
        let now = lab.fake.of(|dog| dog.now_ns);
        assert!(now <= until, "{} ms after the lease ended", (now.saturating_sub(until)) / 1_000_000);
        assert!(until - now <= 150_000_000, "{} ms early", (until - now) / 1_000_000);
    }
}

/// GUARD-G1, at the helper's own pace: the last feed is not left to a look that comes long before its time.
#[test]
fn it_fires_some_70_ms_ahead_of_the_end_and_no_earlier() {
    for phase_ms in (0..100).step_by(5) {
        let mut lab = Lab::new(Fake::default());
        lab.guard.look(0, wish(None));
        let until = TTL_MS * 1_000_000 + phase_ms * 1_000_000;
        while !lab.fired() {
            let now = lab.fake.of(|dog| dog.now_ns);
            lab.guard.look(now, wish(Some(until)));
            let urgent = lab.guard.is_urgent(now, wish(Some(until)));
            lab.fake.pass(if urgent { 20_000_000 } else { u64::from(LOOK_PAUSE.subsec_nanos()) });
        }
        let at = lab.fake.of(|dog| dog.fires_ns).unwrap();
        assert!(at <= until, "phase {phase_ms} ms: {} ms after the lease ended", (at - until) / 1_000_000);
        assert!(until - at <= 70_000_000, "phase {phase_ms} ms: {} ms early", (until - at) / 1_000_000);
    }
}

#[test]
fn a_host_whose_postgresql_was_stopped_in_time_is_not_reset() {
    let mut lab = Lab::new(Fake::default());
    lab.go(100, wish(None));
    let until = lab.fake.of(|dog| dog.now_ns) + TTL_MS * 1_000_000;
    // AGENT-A3: told to stop 300 ms ahead of the end, gone 200 ms later.
    lab.go(2900, wish(Some(until)));
    lab.go(20_000, wish(None));
    assert!(!lab.fired());
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(2)));
    // Let go of with a clean step down, and only then.
    lab.go(100, Wish { wanted: false, ..wish(Some(u64::MAX)) });
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(2)), "GUARD-G3: PostgreSQL may be there");
    lab.go(100, Wish { wanted: false, ..wish(None) });
    assert_eq!(Shown::read(lab.dir.path()), None);
    lab.go(10_000, Wish { wanted: false, ..wish(None) });
    assert!(!lab.fired());
}

#[test]
fn a_device_that_cannot_be_had_or_set_is_told_and_left() {
    let fake = Fake::default();
    fake.of(|dog| dog.missing = true);
    let mut lab = Lab::new(fake);
    lab.go(100, wish(None));
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Refused("/dev/watchdog: busy".into())));
    // It is there after all: tried once a second.
    lab.fake.of(|dog| dog.missing = false);
    lab.go(2000, wish(None));
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(2)));
    assert_eq!(lab.fake.of(|dog| dog.opened), 1);
    // One that takes no timeout as short as that.
    let fake = Fake::default();
    fake.of(|dog| dog.least_s = 5);
    let mut lab = Lab::new(fake);
    lab.go(100, wish(None));
    let Some(Shown::Refused(why)) = Shown::read(lab.dir.path()) else { panic!("it was taken") };
    assert!(why.contains("found a timeout of 5 s, expected 2 s at most"), "{why}");
    assert_eq!(lab.fake.of(|dog| dog.fires_ns), None, "let go of at once");
    // Leases that are too short for any.
    let mut lab = Lab::new(Fake::default());
    lab.go(100, Wish { ttl_ms: 1000, ..wish(None) });
    assert_eq!(lab.fake.of(|dog| dog.opened), 0);
    assert!(matches!(Shown::read(lab.dir.path()), Some(Shown::Refused(why)) if why.contains("1500 ms")));
}

#[test]
fn leases_that_become_shorter_shorten_the_timeout() {
    let mut lab = Lab::new(Fake::default());
    lab.go(100, Wish { ttl_ms: 10_000, ..wish(None) });
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(6)));
    lab.go(2000, wish(None));
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(2)));
    assert_eq!(lab.fake.of(|dog| dog.timeout_s), 2);
}

/// GUARD-G1: to set the timeout feeds it too. A device that took less than it was asked for was asked again each
/// second, whatever the lease was.
#[test]
fn a_device_that_takes_less_than_it_is_asked_for_fires_as_any_other() {
    let fake = Fake::default();
    fake.of(|dog| dog.short_s = 1);
    let mut lab = Lab::new(fake);
    let wish = |until_ns| Wish { ttl_ms: 10_000, ..wish(until_ns) };
    lab.go(100, wish(None));
    assert_eq!(Shown::read(lab.dir.path()), Some(Shown::Armed(5)));
    let until = lab.fake.of(|dog| dog.now_ns) + 10 * S;
    lab.go(10_000, wish(Some(until)));
    assert!(lab.fired(), "the lease has ended, and it counts on: {:?}", lab.fake);
}

/// GUARD-G1: a helper that was killed leaves the device counting. The next one does not stop that near the end of a
/// lease, by opening the device.
#[test]
fn a_device_is_not_opened_when_the_lease_is_about_to_end() {
    let mut lab = Lab::new(Fake::default());
    let until = lab.fake.of(|dog| dog.now_ns) + 1_900_000_000;
    lab.go(1800, wish(Some(until)));
    assert_eq!(lab.fake.of(|dog| dog.opened), 0, "it would fire after the end of the lease");
    let renewed = lab.fake.of(|dog| dog.now_ns) + TTL_MS * 1_000_000;
    lab.go(100, wish(Some(renewed)));
    assert_eq!((lab.fake.of(|dog| dog.opened), Shown::read(lab.dir.path())), (1, Some(Shown::Armed(2))));
}

/// GUARD-G1: an agent that adopts PostgreSQL learns of leases of another length near the end of one.
#[test]
fn a_timeout_is_not_set_when_the_lease_is_about_to_end() {
    let mut lab = Lab::new(Fake::default());
    lab.go(100, wish(None));
    let until = lab.fake.of(|dog| dog.now_ns) + 2_500_000_000;
    lab.go(1500, wish(Some(until)));
    lab.go(1000, Wish { ttl_ms: 10_000, ..wish(Some(until)) });
    assert!(lab.fired(), "the lease has ended, and it counts on: {:?}", lab.fake);
}

#[test]
fn what_is_shown_is_read_again() {
    for shown in [Shown::Armed(2), Shown::Refused("no device: a b".into())] {
        assert_eq!(Shown::parse(&shown.text()), Some(shown));
    }
    assert_eq!(Shown::parse("armed 2"), None, "cut short");
    assert_eq!(Shown::parse("armed 2\n\n\n"), Some(Shown::Armed(2)), "in the space of a longer one");
    assert_eq!(Shown::parse(OFF), None);
}

/// The agent writes its signs at the same time. Seen in a virtual machine: a file of both lost the helper's report for
/// as long as it lived.
#[test]
fn the_helpers_report_has_its_own_file() {
    let dir = tempfile::tempdir().unwrap();
    // Both wrote to this file once. As a directory it refuses every write.
    std::fs::create_dir(dir.path().join("watchdog.new")).unwrap();
    let at = Some(MonoTime(1));
    Signs::new(dir.path()).give(Sign { at, may_run_until: Some(MonoTime(2)), ttl_ms: TTL_MS, guarded: true });
    assert!(dir.path().join("watchdog").is_file());
    let mut guard = Guard::new(dir.path(), Some(Fake::default()));
    guard.look(S, Wish { wanted: true, ttl_ms: TTL_MS, until_ns: Some(u64::MAX) });
    assert_eq!(Shown::read(dir.path()), Some(Shown::Armed(2)));
}

#[test]
fn what_could_not_be_shown_is_shown_later() {
    let dir = tempfile::tempdir().unwrap();
    let in_its_way = dir.path().join("watchdog.device.next");
    std::fs::create_dir(&in_its_way).unwrap();
    let mut guard = Guard::new(dir.path(), Some(Fake::default()));
    let wish = Wish { wanted: true, ttl_ms: TTL_MS, until_ns: Some(u64::MAX) };
    guard.look(S, wish);
    assert_eq!(Shown::read(dir.path()), None);
    std::fs::remove_dir(&in_its_way).unwrap();
    guard.look(2 * S, wish);
    assert_eq!(Shown::read(dir.path()), Some(Shown::Armed(2)));
}

/// REWRITE-F2: an agent waits for the state before it starts PostgreSQL, and took a full /run for a helper that does
/// not answer.
#[test]
fn the_state_is_shown_on_a_full_file_system() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(SHOWN), "armed 9\n").unwrap();
    let mut guard = Guard::new(dir.path(), Some(Fake::default()));
    assert_eq!(Shown::read(dir.path()), None, "it is of an earlier helper");
    // No new file can be made.
    std::fs::create_dir(dir.path().join("watchdog.device.next")).unwrap();
    for round in 1..6 {
        guard.look(4 * round * S, Wish { wanted: true, ttl_ms: TTL_MS, until_ns: Some(u64::MAX) });
        assert_eq!(Shown::read(dir.path()), Some(Shown::Armed(2)), "round {round}");
        guard.look((4 * round + 2) * S, Wish { wanted: false, ttl_ms: TTL_MS, until_ns: None });
        assert_eq!(Shown::read(dir.path()), None, "round {round}");
    }
}
