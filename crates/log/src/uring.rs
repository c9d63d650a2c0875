//! Durable writes by io_uring: begun by one thread, and no thread waits for them.
//!
//! One write at a time. Its buffer and its file belong to the ring from [`Ring::begin`] until [`Ring::ended`] has told
//! the end, for the kernel reads them meanwhile. What was written in part is continued; any error is that of the sync,
//! and final (JOURNAL-J2).
#![expect(unsafe_code, reason = "io_uring is given addresses, and epoll a descriptor")]

use crate::dsync::write_dsync;
use holdfast_journal::{AlignedBuf, BLOCK_BYTES, Ended};
use holdfast_types::sync::LockExt;
use io_uring::{Builder, IoUring, opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One request at a time; the kernel wants a power of two.
const ENTRIES: u32 = 2;
/// How often the kernel may refuse to take a write (usually no memory) until that counts as failed.
const REFUSALS_MAX: u32 = 500;
/// Interval between these attempts.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// A ring, and the write that is under way in it.
pub(crate) struct Ring {
    fd: RawFd,
    state: Mutex<State>,
}

struct State {
    ring: IoUring,
    flight: Option<Flight>,
    /// Writes begun so far.
    begun: u64,
}

struct Flight {
    /// The kernel's answer names it.
    number: u64,
    data: AlignedBuf,
    file: Arc<File>,
    offset: u64,
    /// Bytes that are durable.
    done: usize,
    by: By,
}

/// Who writes what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The kernel, at once or by a thread of its own, as it finds best.
    Kernel,
    /// A thread of the kernel: it was refused from here, once.
    KernelThread,
    /// Whoever waits for the end, without the ring: the kernel has refused it again. It cancels what needs a thread
    /// that it cannot begin, at a limit of tasks; ours is there already. That says nothing of the disk (LOG-L2).
    Waiter,
}

impl By {
    /// Who tries it after a refusal.
    fn next(self) -> By {
        match self {
            By::Kernel => By::KernelThread,
            By::KernelThread | By::Waiter => By::Waiter,
        }
    }
}

impl Ring {
    /// A new ring.
    ///
    /// # Errors
    /// The kernel's: it is too old, or io_uring is forbidden (seccomp, `kernel.io_uring_disabled`).
    pub fn open() -> io::Result<Ring> {
        let mut builder: Builder = IoUring::builder();
        // The end does not interrupt the thread that began the write; it is told when that thread next enters the
        // kernel, or sleeps there. With the one worker of a gateway, nobody could look at it earlier.
        builder.setup_coop_taskrun();
        let ring = match builder.build(ENTRIES) {
            // Before Linux 5.19.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => IoUring::new(ENTRIES),
            built => built,
        }?;
        Ok(Ring { fd: ring.as_raw_fd(), state: Mutex::new(State { ring, flight: None, begun: 0 }) })
    }

    /// Writes a block of zeroes to the beginning of `file` and waits for it.
    ///
    /// # Errors
    /// The kernel's: such writes do not work here.
    pub fn try_out(&self, file: &File) -> io::Result<()> {
        self.begin(&Arc::new(file.try_clone()?), AlignedBuf::zeroed(BLOCK_BYTES), 0);
        self.ended(true).map_or_else(|| Err(io::Error::other("the write is lost")), |(_, result)| result)
    }

    /// Begins to write `data` to `file` at `offset`, durably (RWF_DSYNC).
    ///
    /// The kernel may cancel a write whose thread has ended, or for which it has no thread: then it is asked for again,
    /// once. After that whoever waits for the end writes it ([`Ring::is_stuck`]).
    pub fn begin(&self, file: &Arc<File>, data: AlignedBuf, offset: u64) {
        let mut state = self.state.locked();
        assert!(state.flight.is_none(), "JOURNAL-J1: a write behind one that is under way");
        state.begun += 1;
        let number = state.begun;
        state.flight = Some(Flight { number, data, file: file.clone(), offset, done: 0, by: By::Kernel });
        state.request();
    }

    /// The end of the write that was begun; told once. `None` while it is under way, and if there is none. `wait`:
    /// waits for it.
    pub fn ended(&self, wait: bool) -> Option<Ended> {
        let mut state = self.state.locked();
        let mut refusals = 0;
        loop {
            state.flight.as_ref()?;
            let ended = state.look().or_else(|| if wait { state.write_out() } else { None });
            if let Some(result) = ended {
                let flight = state.flight.take()?;
                return Some((flight.data, result));
            }
            if !wait {
                return None;
            }
            let Err(error) = state.ring.submit_and_wait(1) else { continue };
            refusals += 1;
            // What the kernel has taken may still reach the disk: that has to be waited for, however long it takes.
            if state.is_stuck() && (refusals > REFUSALS_MAX || !may_pass(&error)) {
                return Some(state.abandon(error));
            }
            if error.kind() != io::ErrorKind::Interrupted {
                std::thread::sleep(REFUSAL_PAUSE);
            }
        }
    }

    /// Whether the kernel has not taken the request, or has refused it twice: its end will not be told before somebody
    /// waits for it. False while somebody does; never waits itself.
    pub fn is_stuck(&self) -> bool {
        self.state.try_lock().is_ok_and(|mut state| state.is_stuck())
    }
}

/// Whether the kernel may take a request later that it has refused with `error`.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | OutOfMemory | ResourceBusy | WouldBlock)
}

/// What the kernel's answer means.
#[derive(Debug)]
enum Verdict {
    Ended(io::Result<()>),
    /// So many bytes are durable; the others are still to be written.
    Short(usize),
    /// It was not done, or ended early: the same bytes may be written again, at the same place. A thread of the kernel
    /// may wait where the asking one must not, and ours needs none of the kernel's.
    Refused,
}

/// The meaning of `result` (bytes, or an error number below 0) for a write of `left` bytes.
fn judged(result: i32, left: usize) -> Verdict {
    match usize::try_from(result) {
        Ok(0) => Verdict::Ended(Err(io::Error::from(io::ErrorKind::WriteZero))),
        Ok(written) if written >= left => Verdict::Ended(Ok(())),
        Ok(written) => Verdict::Short(written),
        Err(_) => {
            let error = io::Error::from_raw_os_error(result.saturating_neg());
            // Cancelled: the thread that began it has ended, or the kernel has no thread for it.
            let refused = [Errno::INTR, Errno::AGAIN, Errno::CANCELED].map(Errno::raw_os_error);
            let refused = refused.contains(&result.saturating_neg());
            if refused { Verdict::Refused } else { Verdict::Ended(Err(error)) }
        }
    }
}

impl State {
    /// Asks the kernel to write what is left.
    fn request(&mut self) {
        self.queue();
        // If the kernel takes it now, or not (`Ring::is_stuck`).
        let _ = self.ring.submit();
    }

    /// Puts the request for what is left where the kernel finds it.
    fn queue(&mut self) {
        let Some(flight) = self.flight.as_ref().filter(|flight| flight.by != By::Waiter) else { return };
        let left = &flight.data[flight.done..];
        let flags = if flight.by == By::KernelThread { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let write = opcode::Write::new(types::Fd(flight.file.as_raw_fd()), left.as_ptr(), left.len() as u32)
            .offset(flight.offset + flight.done as u64)
            .rw_flags(ReadWriteFlags::DSYNC.bits() as i32)
            .build()
            .flags(flags)
            .user_data(flight.number);
        // SAFETY: the flight owns the buffer and the file. Both leave it only after the kernel has said that the write
        // has ended; if that is never heard, they are never freed. Nobody changes the buffer meanwhile.
        let pushed = unsafe { self.ring.submission().push(&write) };
        assert!(pushed.is_ok(), "one request at a time fits");
    }

    fn is_stuck(&mut self) -> bool {
        let waits = self.flight.as_ref().is_some_and(|flight| flight.by == By::Waiter);
        waits || !self.ring.submission().is_empty()
    }

    /// Writes what the kernel has refused twice, and waits for the disk. `None` if it has not.
    fn write_out(&self) -> Option<io::Result<()>> {
        let flight = self.flight.as_ref().filter(|flight| flight.by == By::Waiter)?;
        Some(write_dsync(&flight.file, &flight.data[flight.done..], flight.offset + flight.done as u64))
    }

    /// The result, if the kernel has ended the write.
    fn look(&mut self) -> Option<io::Result<()>> {
        let answer = self.ring.completion().next()?;
        let flight = self.flight.as_mut()?;
        assert_eq!(answer.user_data(), flight.number, "R1: the end of another write");
        let left = flight.data.len() - flight.done;
        match judged(answer.result(), left) {
            Verdict::Ended(result) => return Some(result),
            Verdict::Short(written) => flight.done += written,
            Verdict::Refused => flight.by = flight.by.next(),
        }
        self.request();
        None
    }

    /// Gives up a write that the kernel has not taken. Nobody may ask the kernel for anything in this ring any more,
    /// for it would find the request there: the journal has failed.
    fn abandon(&mut self, error: io::Error) -> Ended {
        self.leak();
        (AlignedBuf::default(), Err(error))
    }

    /// The kernel may still read the buffer, or find the request, so the buffer is never freed.
    fn leak(&mut self) {
        if let Some(flight) = self.flight.take() {
            std::mem::forget(flight);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.leak();
    }
}

/// The descriptor of a ring, open as long as this lives.
struct Polled(Arc<Ring>);

impl AsRawFd for Polled {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

/// Tells a task that a write has ended.
pub(crate) struct Ends(AsyncFd<Polled>);

impl Ends {
    /// For the ends of the writes of `ring`. The caller is a task of a runtime with I/O.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(ring: Arc<Ring>) -> io::Result<Ends> {
        // SAFETY: `Polled` always gives the same descriptor, and its ring keeps it open.
        let registered = unsafe { AsyncFd::register_with_interest(Polled(ring), Interest::READABLE) };
        Ok(Ends(registered?))
    }

    /// Waits until a write may have ended: [`Ring::ended`] says whether it has.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn next(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        // Before anybody looks: a later end makes it ready again.
        ready.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
