//! Decides which of a set's lists of stores counts while they are changed (ADR 0018). Each list has a head of its own,
//! under its own name.
//!
//! ```text
//!   head of list c      … ─▶ H ─▶ last value: "list c+1, which begins with H" ─▶ the same without H
//!   head of list c+1                    └─────────▶ H ─▶ …
//! ```
//! LIST-L1  A list ends with a last value in place of its head. That is an ordinary swap, from exactly the head that
//!     the caller has checked. Nothing more is decided in that list, and every reader finds the last value.
//! LIST-L2  The next list's head begins with the bytes in the last value. Only a process that has seen the last value
//!     decided writes them there, as a swap on nothing. So all writers write the same bytes, and only once, and the
//!     next list begins with what the previous list has decided. Before the last value is written, every store of the
//!     next list has an entry, so that w of them are enough to begin.
//! LIST-L3  Once the next list's head exists, H is removed from the last value: H holds the set's wrapped keys and is
//!     no longer needed.
//! LIST-L4  An object counts once each list has it at its own quorum, and is deleted in all lists. Once the first list
//!     is known to have ended, the next one alone decides, and nothing more is deleted in the first.
//!
//! The two registers share nothing, so each keeps its own rules (QUORUM-Q1 to QUORUM-Q3), and their quorums need not
//! meet. The next list is never taken from a store's word: it is compared with what group 0 or a person has said.

use super::state::{Quorum, Register};
use crate::error::{Cause, Disposition, Op, StoreError};
use crate::{Object, Version, keys};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use holdfast_types::SetId;
use sha2::{Digest, Sha256};
use std::sync::atomic::Ordering;

const MAGIC: &[u8; 4] = b"HFM\x01";
/// Magic, length of the text, whether a head follows.
const HEAD_BYTES: usize = 4 + 4 + 1;
const TOKEN_BYTES: usize = 16;
const SUM_BYTES: usize = 16;

/// Maximum number of times that one call reads both heads: again only if another process ended or began a list in
/// between.
const LOOKS_MAX: u32 = 4;

/// The last value of a list's head.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moved {
    /// The next list.
    to: String,
    /// The first value of the next list's head; `None` once it has begun.
    head: Option<Bytes>,
}

impl Moved {
    /// As an object. `token` is drawn for each call, so no two objects have the same bytes.
    fn encode(&self, token: u128) -> Bytes {
        let head = self.head.as_deref().unwrap_or_default();
        let mut out = BytesMut::with_capacity(HEAD_BYTES + self.to.len() + head.len() + TOKEN_BYTES + SUM_BYTES);
        out.put_slice(MAGIC);
        let to_bytes = u32::try_from(self.to.len()).expect("group 0 takes no longer text than STORE_URL_BYTES_MAX");
        out.put_u32_le(to_bytes);
        out.put_u8(u8::from(self.head.is_some()));
        out.put_slice(self.to.as_bytes());
        out.put_slice(head);
        out.put_u128_le(token);
        let sum = Sha256::digest(&out);
        out.put_slice(&sum[..SUM_BYTES]);
        out.freeze()
    }

    /// Parses the output of [`Moved::encode`]. `None` for anything else: a head, whose own seal shows whether it is
    /// intact.
    fn decode(object: &Bytes) -> Option<Self> {
        let body_bytes = object.len().checked_sub(SUM_BYTES)?;
        let (body, sum) = object.split_at(body_bytes);
        if !body.starts_with(MAGIC) || Sha256::digest(body)[..SUM_BYTES] != *sum {
            return None;
        }
        let to_bytes = u32::from_le_bytes(body.get(4..8)?.try_into().ok()?) as usize;
        let has_head = *body.get(8)?;
        let head_at = HEAD_BYTES.checked_add(to_bytes)?;
        let head_end = body_bytes.checked_sub(TOKEN_BYTES).filter(|end| *end >= head_at)?;
        let to = String::from_utf8(body.get(HEAD_BYTES..head_at)?.to_vec()).ok()?;
        Some(Self { to, head: (has_head == 1).then(|| object.slice(head_at..head_end)) })
    }
}

/// The next list, if this object in place of the head is the last value of a list that was left (LIST-L1).
pub fn moved_to(object: &Bytes) -> Option<String> {
    Moved::decode(object).map(|moved| moved.to)
}

/// Which list of stores is valid.
enum Counts<'a> {
    /// The current list, and its head; `None`: it has none.
    First(Option<Object>),
    /// The next one: it has begun, with this head or an earlier one.
    Next(&'a Register, Object),
}

/// The result of reading both lists.
enum Both<'a> {
    /// One of them counts.
    Counts(Counts<'a>),
    /// The first has ended with this, and the next has no head, or an error.
    Moved(Object, Option<StoreError>),
}

impl Quorum {
    fn first(&self) -> &Register {
        &self.registers[0]
    }

    async fn look_first(&self, set: SetId) -> Result<Option<Object>, StoreError> {
        let first = self.first();
        match first.look(&first.key(set)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.disposition() == Disposition::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The list that counts, and its head. If a list has ended, the next one is used, and begun if necessary (LIST-L2).
    async fn which(&self, set: SetId) -> Result<Counts<'_>, StoreError> {
        // With one list there is no next one. A caller that does not know the next list learns of it from `moved_to`.
        let Some(next) = self.registers.get(1) else { return Ok(Counts::First(self.look_first(set).await?)) };
        let key = next.key(set);
        for _ in 0..LOOKS_MAX {
            if self.ended.load(Ordering::Acquire) {
                match next.look(&key).await {
                    // The next list's head may have been removed since: what the first list shows decides the meaning.
                    Err(error) if error.disposition() == Disposition::NotFound => {}
                    outcome => return outcome.map(|object| Counts::Next(next, object)),
                }
            }
            let (found, other) = match self.look_both(set, next, &key).await? {
                Both::Counts(counts) => {
                    if matches!(counts, Counts::Next(..)) {
                        self.ended.store(true, Ordering::Release);
                    }
                    return Ok(counts);
                }
                Both::Moved(found, other) => (found, other),
            };
            let Some(moved) = Moved::decode(&found.body) else { return Ok(Counts::First(Some(found))) };
            if moved.to != next.text {
                // The known list was abandoned, and the head went to another one. The caller learns that from the
                // object found.
                return Ok(Counts::First(Some(found)));
            }
            if let Some(error) = other {
                return Err(error);
            }
            let Some(head) = &moved.head else {
                // LIST-L3: the next list had begun before this was written. The read above may have been earlier than
                // that, so read once more.
                let error = match next.look(&key).await {
                    Ok(object) => {
                        self.ended.store(true, Ordering::Release);
                        return Ok(Counts::Next(next, object));
                    }
                    Err(error) => error,
                };
                if error.disposition() != Disposition::NotFound {
                    return Err(error);
                }
                let cause =
                    Cause::text("the old stores say that the new ones have the head, but the new ones have none");
                let hint = "check whether the new stores were emptied, or are other places than before";
                return Err(StoreError::Denied { at: next.at(Op::Get, &key), cause, hint });
            };
            match next.begin_register(&key, head.clone()).await {
                // Another process has begun it, and perhaps written later heads.
                Err(error) if error.disposition() == Disposition::Conflict => {}
                outcome => drop(outcome?),
            }
        }
        let cause = Cause::text("other writers were faster again and again");
        Err(StoreError::Unavailable { at: next.at(Op::Get, &key), attempts: LOOKS_MAX, cause })
    }

    /// Reads both lists at once. A head of the first list that is no last value is an answer by itself: that list had
    /// not ended when this began, whatever the other shows. A head of the next list proves that the first has ended,
    /// whatever happened to its stores since.
    ///
    /// # Errors
    /// It cannot be told.
    async fn look_both<'a>(&self, set: SetId, next: &'a Register, key: &str) -> Result<Both<'a>, StoreError> {
        let (first, other) = (self.look_first(set), next.look(key));
        tokio::pin!(first, other);
        let (mut of_first, mut of_next) = (None, None);
        while of_first.is_none() || of_next.is_none() {
            tokio::select! {
                found = &mut first, if of_first.is_none() => match found {
                    Ok(Some(object)) if Moved::decode(&object.body).is_none() => {
                        return Ok(Both::Counts(Counts::First(Some(object))));
                    }
                    found => of_first = Some(found),
                },
                found = &mut other, if of_next.is_none() => match found {
                    Ok(object) => return Ok(Both::Counts(Counts::Next(next, object))),
                    Err(error) => of_next = Some(Some(error).filter(|e| e.disposition() != Disposition::NotFound)),
                },
            }
        }
        match (of_first.unwrap_or(Ok(None)), of_next.flatten()) {
            (Ok(Some(found)), other) => Ok(Both::Moved(found, other)),
            (Ok(None), None) => Ok(Both::Counts(Counts::First(None))),
            // It may have been emptied after it was left: the other list would show that.
            (Ok(None), Some(error)) | (Err(error), _) => Err(error),
        }
    }

    /// The set's head, in whichever list it is.
    pub(super) async fn look_head(&self, set: SetId) -> Result<Object, StoreError> {
        match self.which(set).await? {
            Counts::First(Some(object)) | Counts::Next(_, object) => Ok(object),
            Counts::First(None) => Err(StoreError::NotFound { at: self.at(Op::Get, &keys::head(set)) }),
        }
    }

    /// Replaces the set's head in the list that counts, if it is `expected`. Never replaces a last value: no caller has
    /// seen its version as that of a head.
    pub(super) async fn swap_head(
        &self,
        set: SetId,
        expected: Option<&Version>,
        body: Bytes,
    ) -> Result<Version, StoreError> {
        for _ in 0..LOOKS_MAX {
            let register = match self.which(set).await? {
                Counts::First(_) => self.first(),
                Counts::Next(next, _) => next,
            };
            let swapped = register.swap_register(&register.key(set), expected, body.clone()).await;
            match swapped {
                // The conflict may be the end of that list, which is no change of the head.
                Err(error) if error.disposition() == Disposition::Conflict && self.has_next(register) => {
                    let moved = matches!(self.which(set).await?, Counts::Next(..));
                    if !moved {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
        let cause = Cause::text("the set's stores were changed again and again");
        Err(StoreError::Unavailable { at: self.at(Op::Swap, &keys::head(set)), attempts: LOOKS_MAX, cause })
    }

    fn has_next(&self, register: &Register) -> bool {
        self.registers.last().is_some_and(|last| last.number != register.number)
    }

    /// LIST-L1, and LIST-L2 right after it: ends the list that counts, if its head is still `expected`, and begins the
    /// next one. If that was done before, the result is the same.
    ///
    /// The caller has made sure that every object that `expected` names is in the next list's stores, and so is every
    /// object that is written from here on (LIST-L4).
    ///
    /// # Errors
    /// Conflict: another head is there. Denied: no change is under way.
    pub fn end_list<'a>(&'a self, set: SetId, expected: &'a Version) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let (first, Some(next)) = (self.first(), self.registers.get(1)) else {
                let cause = Cause::text("no other stores are known");
                return Err(StoreError::Denied {
                    at: self.at(Op::Swap, &keys::head(set)),
                    cause,
                    hint: "begin the change first",
                });
            };
            if let Some(head) = self.look_first(set).await?
                && Moved::decode(&head.body).is_none()
            {
                if head.version != *expected {
                    let (found, expected) = (Some(head.version), Some(expected.clone()));
                    return Err(StoreError::Changed { at: first.at(Op::Swap, &keys::head(set)), found, expected });
                }
                // From here on w of the next list's stores are enough to begin its head (`begin_register`): each has a
                // entry, and a store without one has lost it (QUORUM-Q2).
                next.lay_out_all(&next.key(set)).await?;
                let last = Moved { to: next.text.clone(), head: Some(head.body) };
                first.swap_register(&first.key(set), Some(expected), last.encode(rand::random())).await?;
            }
            match self.which(set).await? {
                Counts::Next(..) => Ok(()),
                Counts::First(_) => {
                    let cause = Cause::text("the list was ended for other stores than these");
                    let hint = "look at the set's stores again";
                    Err(StoreError::Denied { at: first.at(Op::Swap, &keys::head(set)), cause, hint })
                }
            }
        })
    }

    /// Whether the next list's head counts already.
    ///
    /// # Errors
    /// Those of the stores.
    pub fn list_ended(&self, set: SetId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { Ok(matches!(self.which(set).await?, Counts::Next(..))) })
    }

    /// Removes the set's keys from the list that was left (LIST-L3), once the next list's head is there, in all stores
    /// that answer.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn let_go_of_head(&self, set: SetId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let first = self.first();
            if !self.list_ended(set).await? {
                return Ok(());
            }
            for _ in 0..LOOKS_MAX {
                let Some(found) = self.look_first(set).await? else { return Ok(()) };
                let Some(moved) = Moved::decode(&found.body).filter(|moved| moved.head.is_some()) else {
                    return Ok(());
                };
                let last = Moved { head: None, ..moved }.encode(rand::random());
                let key = first.key(set);
                match first.swap_register(&key, Some(&found.version), last).await {
                    Err(error) if error.disposition() == Disposition::Conflict => {}
                    outcome => return outcome.map(drop),
                }
            }
            Ok(())
        })
    }

    /// The keys of these lists' heads: one of them is the set's.
    pub fn head_keys(&self, set: SetId) -> Vec<String> {
        self.registers.iter().map(|register| register.key(set)).collect()
    }

    /// As [`Self::mend_heads`], for the list that was left, if there is one. Returns whether all its stores have its
    /// last value now.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn mend_left_heads(&self, set: SetId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            if self.registers.len() == 1 || !self.list_ended(set).await? {
                return Ok(true);
            }
            let (has_it, mended) = self.first().mend_head(&self.first().key(set)).await;
            mended.map(|()| has_it.iter().all(|has_it| *has_it))
        })
    }

    /// Writes the decided value to every store's part of the set's head. Returns whether all have it now.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn mend_heads(&self, set: SetId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let ended = self.registers.len() > 1 && self.list_ended(set).await?;
            // If an ended list's stores lose their part, that does not matter: w of them are enough, and those have it.
            let Some(register) = self.registers.get(usize::from(ended)) else { return Ok(true) };
            let (has_it, mended) = register.mend_head(&register.key(set)).await;
            for replica in &self.replicas {
                let seat = register.replicas.iter().position(|other| other.index == replica.index);
                replica.head_is_behind(seat.is_some_and(|seat| !has_it[seat]));
            }
            mended.map(|()| has_it.iter().all(|has_it| *has_it))
        })
    }
}

#[cfg(test)]
#[path = "moves_model.rs"]
mod model;
#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
