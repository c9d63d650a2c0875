//! The table of unanswered requests, in the order in which they came.

use super::{Moment, Ticket};
use bytes::Bytes;
use holdfast_nbd::client::{CommandOut, RequestOut};
use std::collections::{BTreeMap, VecDeque};

/// Limit of unanswered requests per volume. At the limit, clients are not read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests.
    pub requests: usize,
    /// Bytes of them: payloads of writes and lengths of reads.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 1024, bytes: 64 << 20 }
    }
}

/// A request as a client made it, without its cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Recipient of the answer.
    pub ticket: Ticket,
    /// First byte.
    pub offset: u64,
    /// The operation.
    pub command: CommandOut,
    /// Payload of a write.
    pub data: Bytes,
}

impl Intake {
    /// It changes data.
    pub(crate) fn changes(&self) -> bool {
        matches!(self.command, CommandOut::Write { .. } | CommandOut::Zero { .. } | CommandOut::Trim { .. })
    }

    /// It matters only to its client: it changes nothing.
    fn only_asks(&self) -> bool {
        matches!(self.command, CommandOut::Read { .. } | CommandOut::BlockStatus { .. } | CommandOut::Cache)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.ticket.len)
    }

    fn cost(&self) -> u64 {
        match self.command {
            CommandOut::Read { .. } => self.ticket.len,
            _ => self.data.len() as u64,
        }
    }
}

/// One unanswered request.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) volume: usize,
    pub(super) intake: Intake,
    /// Incarnation in which it was sent last; `None`: not sent yet.
    pub(super) sent: Option<u64>,
    /// When it was sent last, else when it came.
    pub(super) since: Moment,
    /// When it came. Sending it again does not change this, so a request that cannot be answered is recognized through
    /// any number of reconnects.
    pub(super) came: Moment,
}

impl Entry {
    pub(super) fn out(&self, number: u64) -> RequestOut {
        let Intake { offset, command, ticket, .. } = self.intake;
        RequestOut { cookie: number, offset, len: ticket.len, command }
    }
}

#[derive(Debug, Default)]
struct Volume {
    count: usize,
    bytes: u64,
    /// Ranges of unanswered writes that may be sent, by their first byte. They never overlap (ATTACH-M1).
    writes: BTreeMap<u64, u64>,
    /// Writes that wait for an overlapping one, oldest first.
    held: VecDeque<u64>,
}

impl Volume {
    fn overlaps(&self, offset: u64, end: u64) -> bool {
        self.writes.range(..end).next_back().is_some_and(|(_, other)| *other > offset)
    }
}

/// Unanswered requests of a set.
#[derive(Debug)]
pub(super) struct Table {
    bounds: Bounds,
    next: u64,
    entries: BTreeMap<u64, Entry>,
    volumes: Vec<Volume>,
}

impl Table {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, next: 1, entries: BTreeMap::new(), volumes: Vec::new() }
    }

    /// Sets the number of volumes. It only grows.
    pub(super) fn set_volumes(&mut self, count: usize) {
        self.volumes.resize_with(count.max(self.volumes.len()), Volume::default);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether clients of `volume` may be read from. An empty table takes one request of any length.
    pub(super) fn has_room(&self, volume: usize) -> bool {
        self.volumes.get(volume).is_some_and(|v| v.count < self.bounds.requests && v.bytes < self.bounds.bytes)
    }

    /// Adds a request. Returns its number, and whether it may be sent now (ATTACH-M1).
    pub(super) fn take(&mut self, now: Moment, volume: usize, intake: Intake) -> (u64, bool) {
        let number = self.next;
        self.next += 1;
        let place = &mut self.volumes[volume];
        place.count += 1;
        place.bytes += intake.cost();
        let mut free = true;
        if intake.changes() {
            holdfast_reached::reached!(
                "table: a zeroing is taken in",
                matches!(intake.command, CommandOut::Zero { .. })
            );
            holdfast_reached::reached!("table: a trim is taken in", matches!(intake.command, CommandOut::Trim { .. }));
            free = place.held.is_empty() && !place.overlaps(intake.offset, intake.end());
            if free {
                place.writes.insert(intake.offset, intake.end());
            } else {
                holdfast_reached::reached!("table: a change waits for one that it overlaps");
                holdfast_reached::reached!(
                    "table: a trim waits for a change that it overlaps",
                    matches!(intake.command, CommandOut::Trim { .. })
                );
                place.held.push_back(number);
            }
        }
        self.entries.insert(number, Entry { volume, intake, sent: None, since: now, came: now });
        (number, free)
    }

    /// Removes an answered request. Appends to `freed` the numbers of those that may be sent because of it.
    pub(super) fn remove(&mut self, number: u64, freed: &mut Vec<u64>) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        let place = &mut self.volumes[entry.volume];
        place.count -= 1;
        place.bytes -= entry.intake.cost();
        if entry.intake.changes() {
            place.writes.remove(&entry.intake.offset);
            while let Some(next) = place.held.front() {
                let Some(waiting) = self.entries.get(next) else { break };
                if place.overlaps(waiting.intake.offset, waiting.intake.end()) {
                    break;
                }
                place.writes.insert(waiting.intake.offset, waiting.intake.end());
                holdfast_reached::reached!("table: a held change may be sent");
                freed.push(*next);
                place.held.pop_front();
            }
        }
        Some(entry)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&number)
    }

    /// Numbers of all requests that may be sent, in their original order.
    pub(super) fn sendable(&self) -> Vec<u64> {
        let held = |number: &u64, entry: &Entry| self.volumes[entry.volume].held.binary_search(number).is_ok();
        self.entries.iter().filter(|(number, entry)| !held(number, entry)).map(|(number, _)| *number).collect()
    }

    /// Numbers of a client's requests that change nothing.
    pub(super) fn asked_only(&self, client: u64) -> Vec<u64> {
        let fits = |entry: &Entry| entry.intake.ticket.client == client && entry.intake.only_asks();
        self.entries.iter().filter(|(_, entry)| fits(entry)).map(|(number, _)| *number).collect()
    }

    /// When the oldest unanswered request was sent, else when it came.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.entries.first_key_value().map(|(_, entry)| entry.since)
    }

    /// When the oldest unanswered request of one volume came.
    pub(super) fn oldest_of(&self, volume: usize) -> Option<Moment> {
        self.entries.values().filter(|entry| entry.volume == volume).map(|entry| entry.came).min()
    }

    /// Removes all requests of one volume (ATTACH-M8).
    pub(super) fn drain_volume(&mut self, volume: usize) -> Vec<Entry> {
        self.volumes[volume] = Volume::default();
        self.entries.extract_if(.., |_, entry| entry.volume == volume).map(|(_, entry)| entry).collect()
    }

    /// Empties the table (ATTACH-M5).
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        for place in &mut self.volumes {
            *place = Volume::default();
        }
        std::mem::take(&mut self.entries).into_values().collect()
    }

    /// Checks ATTACH-M1, and the counts against the entries.
    #[cfg(test)]
    pub(super) fn self_check(&self) {
        for (index, place) in self.volumes.iter().enumerate() {
            let mine: Vec<_> = self.entries.iter().filter(|(_, e)| e.volume == index).collect();
            assert_eq!(place.count, mine.len());
            assert_eq!(place.bytes, mine.iter().map(|(_, e)| e.intake.cost()).sum::<u64>());
            let mut end = 0;
            for (from, to) in &place.writes {
                assert!(*from >= end, "ATTACH-M1: {from} < {end}");
                end = *to;
            }
            let writes = mine.iter().filter(|(_, e)| e.intake.changes()).count();
            assert_eq!(writes, place.writes.len() + place.held.len());
            assert!(place.held.iter().zip(place.held.iter().skip(1)).all(|(a, b)| a < b), "held in order");
        }
    }
}
