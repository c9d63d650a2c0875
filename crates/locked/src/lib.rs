//! Keys that live long, each in a page of its own that is locked in memory and left out of core dumps (ADR 0047).
//!
//! Owns: one page for each key, its lock in memory, its wiping; switching off the core dumps of a process. Does not
//! own: what a key is for. Depends on: nothing of ours.
//!
//! - **LOCKED-M1** A page is asked to be locked (`mlock`), left out of core dumps (`MADV_DONTDUMP`) and not inherited
//!   by a child (`MADV_DONTFORK`) before a key is written into it. It is wiped before it is given back.
//! - **LOCKED-M2** What the kernel refuses is counted ([`unlocked`]) and is no error: a gateway without a key serves
//!   nobody.
//!
//! A page for each key costs 4 KiB. A gateway has two or three keys, and up to eight for each set. In return every
//! access is an ordinary reference, and no page is shared with memory that somebody else unlocks.

// Pages come from the kernel as addresses. Nothing else here is unsafe.
#![expect(unsafe_code, reason = "mmap, mlock and madvise take addresses")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zeroize::Zeroize;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Pages that the kernel did not lock, or did not leave out of core dumps. Only for a message: it never goes down.
static UNLOCKED: AtomicU64 = AtomicU64::new(0);

/// How many keys of this process were put into pages that can be swapped, or can be in a core dump.
pub fn unlocked() -> u64 {
    UNLOCKED.load(Relaxed)
}

/// A key in a page of its own (LOCKED-M1). Wiped when dropped; never printed.
pub struct LockedKey {
    /// The begin of a page that this value alone has mapped, and unmaps when it is dropped.
    page: NonNull<[u8; KEY_BYTES]>,
}

// SAFETY: the page belongs to this value alone, and is only read between `new` and `drop`.
unsafe impl Send for LockedKey {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for LockedKey {}

impl LockedKey {
    /// Copies `bytes` into a new page. The caller wipes its own copy.
    ///
    /// # Panics
    /// If the kernel has no page left, as every allocation does.
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let len = page_size();
        // SAFETY: a new private mapping at an address that the kernel chooses; no memory of ours is touched.
        let mapped = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let page = mapped.expect("R10: the kernel has no page for a key");
        // SAFETY: the page that was just mapped, whole. None of the three changes its content.
        let refused = unsafe {
            [mlock(page, len), madvise(page, len, Advice::LinuxDontDump), madvise(page, len, Advice::LinuxDontFork)]
        };
        if refused.iter().any(Result::is_err) {
            UNLOCKED.fetch_add(1, Relaxed);
        }
        let mut page = NonNull::new(page.cast::<[u8; KEY_BYTES]>()).expect("R10: the kernel mapped a key at address 0");
        // SAFETY: mapped, writable, aligned to a page, and nobody else has it yet.
        unsafe { page.as_mut() }.copy_from_slice(bytes);
        Self { page }
    }
}

impl Deref for LockedKey {
    type Target = [u8; KEY_BYTES];

    fn deref(&self) -> &[u8; KEY_BYTES] {
        // SAFETY: mapped and initialised in `new`, unmapped in `drop`, and never written in between.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for LockedKey {
    fn drop(&mut self) {
        // SAFETY: the last use of the page; nobody has a reference any more.
        unsafe { self.page.as_mut() }.zeroize();
        // SAFETY: exactly what `new` mapped. Unmapping also unlocks. An error would leave a wiped page behind.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), page_size()) };
    }
}

impl fmt::Debug for LockedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockedKey(***)")
    }
}

/// Switches core dumps of this process off: limit 0 for it and the programs that it starts, and not dumpable. A process
/// that is not dumpable writes no core to a pipe either, and other processes of its user can neither trace it nor read
/// its memory; root can.
///
/// # Errors
/// The kernel's, of the step that it refused. The other step is made as well.
pub fn no_core_dumps() -> io::Result<()> {
    switched_off(Some(0))
}

/// The same for a process that starts a database: the programs that it starts may raise their limit again.
///
/// # Errors
/// As [`no_core_dumps`].
pub fn no_own_core_dumps() -> io::Result<()> {
    switched_off(getrlimit(Resource::Core).maximum)
}

fn switched_off(maximum: Option<u64>) -> io::Result<()> {
    let limit = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
    // Read now: rustix takes it from /proc/self/auxv on kernels before 6.4, which belongs to root from here on. Its
    // panic would end each start of a gateway that does not run as root.
    let _ = page_size();
    let dumpable = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    dumpable.and(limit).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{dumpable_behavior, geteuid};

    /// The lines of /proc/self/smaps for the mapping that has this address.
    fn smaps_of(address: usize) -> String {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("the kernel's table");
        let mut found = String::new();
        let mut here = false;
        for line in text.lines() {
            let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
            let bounds = range.and_then(|(low, high)| {
                Some((usize::from_str_radix(low, 16).ok()?, usize::from_str_radix(high, 16).ok()?))
            });
            if let Some((low, high)) = bounds {
                here = (low..high).contains(&address);
            }
            if here {
                found.push_str(line);
                found.push('\n');
            }
        }
        found
    }

    #[test]
    fn a_key_is_in_a_page_that_is_locked_and_in_no_core_dump() {
        let before = unlocked();
        let key = LockedKey::new(&[7; KEY_BYTES]);
        assert_eq!(*key, [7; KEY_BYTES]);
        assert_eq!(format!("{key:?}"), "LockedKey(***)");
        let smaps = smaps_of(key.as_ptr() as usize);
        let flags = smaps.lines().find(|line| line.starts_with("VmFlags:")).expect("flags").to_string();
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        assert!(has("dd"), "not left out of core dumps: {flags}");
        assert!(has("dc"), "inherited by children: {flags}");
        // A machine may allow no locked page at all; then it is counted.
        assert!(has("lo") || unlocked() > before, "neither locked nor counted: {flags}");
    }

    /// LOCKED-M2: many systems let a user lock 64 KiB, and the seventeenth key is beyond that.
    #[test]
    fn a_key_that_the_kernel_does_not_lock_is_used_and_counted() {
        let limit = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: limit.maximum }).expect("a lower limit");
        let before = unlocked();
        let keys: Vec<LockedKey> = (0..20).map(|byte| LockedKey::new(&[byte; KEY_BYTES])).collect();
        setrlimit(Resource::Memlock, limit).expect("the limit of before");
        assert!(keys.iter().enumerate().all(|(byte, key)| **key == [byte as u8; KEY_BYTES]));
        // Root may lock pages whatever the limit is.
        assert!(geteuid().is_root() || unlocked() >= before + 20, "not counted");
    }

    #[test]
    fn each_key_has_its_own_page() {
        let keys: Vec<LockedKey> = (0..20).map(|byte| LockedKey::new(&[byte; KEY_BYTES])).collect();
        for (byte, key) in keys.iter().enumerate() {
            assert_eq!(**key, [byte as u8; KEY_BYTES]);
            assert_eq!(key.as_ptr() as usize % page_size(), 0);
        }
    }

    /// Of this test's process; it ends soon after.
    #[test]
    fn a_process_can_be_kept_from_dumping_core() {
        let before = getrlimit(Resource::Core).maximum;
        no_own_core_dumps().expect("the kernel allows both");
        assert_eq!(dumpable_behavior().expect("asked"), DumpableBehavior::NotDumpable);
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), before), "what it starts may raise its limit");
        no_core_dumps().expect("the kernel allows both");
        assert_eq!(dumpable_behavior().expect("asked"), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core).maximum, Some(0));
    }
}
