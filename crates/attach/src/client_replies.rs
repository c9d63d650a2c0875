//! The replies to one client. Its reader, its writer and the machine share them.

use crate::machine::{Reply, Ticket};
use crate::outbox::Outgoing;
use holdfast_nbd::server::ReplyQueue;
use holdfast_nbd::{Errno, HeaderStyle};

/// State that a client's reader, its writer and the answers share.
#[derive(Debug)]
pub(crate) struct ClientReplies {
    pub(crate) queue: ReplyQueue,
    /// Number of its unanswered requests.
    pub(crate) open: usize,
    /// It sends nothing more.
    pub(crate) leaving: bool,
    /// It is not read from, because it does not take its answers.
    pub(crate) clogged: bool,
}

impl Outgoing for ClientReplies {
    type Queue = ReplyQueue;

    fn queue(&mut self) -> &mut ReplyQueue {
        &mut self.queue
    }

    fn over(&self) -> bool {
        self.leaving && self.open == 0
    }
}

impl ClientReplies {
    pub(crate) fn new(style: HeaderStyle) -> Self {
        Self { queue: ReplyQueue::new(style), open: 0, leaving: false, clogged: false }
    }

    /// Bytes of answers that are not sent yet.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// Notes one more unanswered request.
    pub(crate) fn take(&mut self) {
        self.open += 1;
    }

    /// Notes that it sends nothing more.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Queues the answer to one of its requests.
    pub(crate) fn answer(&mut self, ticket: &Ticket, outcome: Result<Reply, Errno>) {
        self.open = self.open.saturating_sub(1);
        match outcome {
            Ok(Reply::Done) => self.queue.ok(ticket.to),
            Ok(Reply::Read(parts)) => self.queue.read(ticket.to, parts, ticket.narrow),
            Ok(Reply::Status(extents)) => self.queue.block_status(ticket.to, ticket.len, &extents, ticket.narrow),
            Err(errno) => self.queue.error(ticket.to, errno),
        }
    }
}
