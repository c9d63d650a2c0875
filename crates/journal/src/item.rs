//! A record on its way into the journal.

use crate::Op;
use crate::format::{Kind, RecordHeader, record_bytes};
use crate::index::{Change, Place};
use bytes::Bytes;
use holdfast_types::{GroupId, LogId, LogIndex, Term};

/// A record about to be written.
pub(crate) struct Item {
    pub kind: Kind,
    pub carried: bool,
    pub group: GroupId,
    pub id: LogId,
    pub payload: Bytes,
}

/// A batch that the disk is writing.
pub(crate) struct Flight {
    pub items: Vec<Item>,
    pub places: Vec<Place>,
    /// Offset behind it.
    pub end: u64,
}

impl Item {
    pub fn of(op: &Op) -> Item {
        let item = |kind, group: GroupId, id, payload| Item { kind, carried: false, group, id, payload };
        match op {
            Op::Entry { group, id, payload } => item(Kind::Entry, *group, *id, payload.clone()),
            Op::Vote { group, payload } => item(Kind::Vote, *group, LogId::default(), payload.clone()),
            Op::Truncate { group, from } => {
                item(Kind::Truncate, *group, LogId { term: Term(0), index: LogIndex(*from) }, Bytes::new())
            }
            Op::Purge { group, upto } => item(Kind::Purge, *group, *upto, Bytes::new()),
            Op::Committed { group, id } => item(Kind::Committed, *group, *id, Bytes::new()),
            Op::DropGroup { group } => item(Kind::DropGroup, *group, LogId::default(), Bytes::new()),
        }
    }

    pub fn bytes(&self) -> usize {
        record_bytes(self.payload.len())
    }

    pub fn change(&self) -> Change {
        let header = RecordHeader {
            kind: self.kind,
            carried: self.carried,
            group: self.group,
            id: self.id,
            len: self.payload.len() as u32,
            given: 0,
            offset: 0,
        };
        header.change(&self.payload)
    }
}

impl RecordHeader {
    /// The change of its group's index by the record.
    pub(crate) fn change(&self, payload: &Bytes) -> Change {
        match self.kind {
            Kind::Entry if self.carried => Change::Carried { id: self.id, len: self.len },
            Kind::Entry => Change::Entry { id: self.id, len: self.len },
            Kind::Vote => Change::Vote(payload.clone()),
            Kind::Truncate => Change::Truncate { from: self.id.index.0 },
            Kind::Purge => Change::Purge { upto: self.id },
            Kind::Committed => Change::Committed { id: self.id },
            Kind::DropGroup => Change::Drop,
        }
    }
}
