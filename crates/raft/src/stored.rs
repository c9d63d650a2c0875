//! The disk's word to an append of a peer: a follower answers once its disk has the append, without the way back
//! through openraft's core (ADR 0072).
//!
//! ```text
//!   Appender ─▶ entries, a ticket on the last ─▶ openraft's core ─▶ LogStore::append ─▶ journal
//!      ▲                                            │ refused, or                         │ durable
//!      │                                            ▼ nothing new                         ▼
//!      ├───────── the core's answer ◀───── the ticket is dropped               Tickets::settle tells it
//!      └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - **STORED-T1** A ticket travels inside of the request that it was made for. openraft's core hands entries to the
//!   log store only if it has accepted their request: its vote is not below this member's, and the position before its
//!   entries matches. A vote that the request has raised is on the disk by then. A copy of an entry has no ticket.
//! - **STORED-T2** A ticket is told after the journal has called back without an error for its append, or for a later
//!   one of the group. That append and everything before it are durable then (R1, LOG-L1). After an error none is told
//!   (R9).
//! - **STORED-T3** A ticket that is dropped says nothing. The core's answer counts then, as it does for a request
//!   without a ticket.

use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::sync::Mutex;
use tokio::sync::oneshot;

/// Comes along with the last entry of an append.
pub(crate) struct Ticket(oneshot::Sender<()>);

/// Becomes `Ok` once the ticket was told, and an error once it was dropped.
pub(crate) type Told = oneshot::Receiver<()>;

/// A ticket, and what waits for it.
pub(crate) fn ticket() -> (Ticket, Told) {
    let (sender, told) = oneshot::channel();
    (Ticket(sender), told)
}

/// The tickets of one group whose appends wait for the journal. Each belongs to a job in the journal's queue, so they
/// are bounded as that queue is.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Number of the last append.
    last: u64,
    /// With the numbers of their appends, in that order.
    tickets: VecDeque<(u64, Ticket)>,
}

impl Tickets {
    /// The number of an append that is about to go to the journal, and carries these tickets. The caller MUST hand
    /// appends to the journal in the order of their numbers.
    pub(crate) fn begin(&self, tickets: Vec<Ticket>) -> u64 {
        let mut waiting = self.0.locked();
        waiting.last += 1;
        let number = waiting.last;
        waiting.tickets.extend(tickets.into_iter().map(|ticket| (number, ticket)));
        number
    }

    /// The journal has called back for the append of this number. It speaks for all earlier ones too.
    pub(crate) fn settle(&self, number: u64, durable: bool) {
        let settled: Vec<(u64, Ticket)> = {
            let mut waiting = self.0.locked();
            let count = waiting.tickets.partition_point(|(of, _)| *of <= number);
            waiting.tickets.drain(..count).collect()
        };
        if durable {
            for (_, Ticket(sender)) in settled {
                // Nobody may wait any more.
                let _ = sender.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    /// `Some(true)` if the ticket was told, `Some(false)` if it was dropped.
    fn said(told: &mut Told) -> Option<bool> {
        match told.try_recv() {
            Ok(()) => Some(true),
            Err(TryRecvError::Closed) => Some(false),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// STORED-T2, for each way to make batches of six appends, and each batch from which on the journal fails. The
    /// journal calls back for the last append of a batch that is durable, and for each one of a batch that is not.
    #[test]
    fn tickets_are_told_with_their_appends() {
        const APPENDS: u64 = 6;
        for cuts in 0_u64..1 << (APPENDS - 1) {
            let ends: Vec<u64> = (1..=APPENDS).filter(|n| *n == APPENDS || cuts & (1 << (*n - 1)) != 0).collect();
            for sound in 0..=ends.len() {
                let (tickets, mut asked) = (Tickets::default(), Vec::new());
                for n in 1..=APPENDS {
                    // openraft may make one append of several, and some carry none.
                    let (carried, told): (Vec<Ticket>, Vec<Told>) = (0..n % 3).map(|_| ticket()).unzip();
                    assert_eq!(tickets.begin(carried), n);
                    asked.extend(told.into_iter().map(|told| (n, told, None::<bool>)));
                }
                let mut first = 1;
                for (at, end) in ends.iter().copied().enumerate() {
                    if at < sound {
                        tickets.settle(end, true);
                    } else {
                        (first..=end).for_each(|n| tickets.settle(n, false));
                    }
                    first = end + 1;
                    let durable = ends[..sound.min(at + 1)].last().copied().unwrap_or(0);
                    for (n, told, word) in &mut asked {
                        *word = word.or_else(|| said(told));
                        let expected = (*n <= end).then_some(*n <= durable);
                        assert_eq!(*word, expected, "append {n} of batches that end at {ends:?}, {sound} sound");
                    }
                }
                assert!(tickets.0.locked().tickets.is_empty());
            }
        }
    }
}
