//! Lease of a set: grants, renewals, releases, and the check of each write entry (SET-S1 to SET-S4, SET-S10).

use super::command::{Admit, Judged, REQUESTS_REMEMBERED, SetAnswer, TTL_MS_MAX, TTL_MS_MIN};
use super::refusal::SetRefusal;
use super::state::{EARLIER_TOKENS_MAX, Lease, SetState};
use holdfast_types::{Epoch, LogId, MemberId, Owner, RequestId, Token, WriteSeq};

/// The parts of a new lease.
pub(super) struct Grant<'a> {
    pub owner: &'a Owner,
    pub gateway: MemberId,
    pub token: Token,
    pub earlier_tokens: Vec<Token>,
    pub ttl_ms: u32,
    pub request: RequestId,
    pub plain: bool,
    pub since_unix_ms: u64,
}

// SET-S10: a late copy of a request is never granted again. Each later grant that keeps its token has a place among the
// earlier ones, and is among the requests that are remembered.
const _: () = assert!(EARLIER_TOKENS_MAX <= REQUESTS_REMEMBERED);

impl SetState {
    /// R2 for the write entry `id`: decides, counts it, and renews the lease. The caller applies the data only on
    /// [`Admit::Apply`].
    pub fn admit_write(&mut self, id: LogId, epoch: Epoch, seq: WriteSeq) -> Admit {
        // Decided before any change: a refused entry must leave no trace, not even a renewal.
        let current = self.lease.as_ref().map(|lease| lease.epoch);
        holdfast_reached::reached!("lease: a write of an epoch that is over", current != Some(epoch));
        if current != Some(epoch) {
            return Admit::Refused(SetRefusal::WrongEpoch { found: epoch, current });
        }
        let expected = WriteSeq(self.last_seq.0.saturating_add(1));
        if seq.0 == 0 || seq > expected {
            holdfast_reached::reached!("lease: a write whose number leaves a gap");
            return Admit::Refused(SetRefusal::SeqGap { found: seq, expected });
        }
        if let Err(refusal) = self.use_lease(id, epoch) {
            return Admit::Refused(refusal);
        }
        if seq < expected {
            holdfast_reached::reached!("lease: a write arrives a second time");
            return Admit::Duplicate;
        }
        self.last_seq = seq;
        self.last_change = id.index;
        Admit::Apply
    }

    pub(super) fn acquire(
        &mut self,
        id: LogId,
        grant: Grant<'_>,
        judged: Option<Judged>,
        force: bool,
    ) -> Result<SetAnswer, SetRefusal> {
        if !(TTL_MS_MIN..=TTL_MS_MAX).contains(&grant.ttl_ms) {
            return Err(SetRefusal::TtlRefused { found_ms: grant.ttl_ms, min_ms: TTL_MS_MIN, max_ms: TTL_MS_MAX });
        }
        if let Some(lease) = &self.lease {
            if lease.request == grant.request && lease.owner == *grant.owner {
                holdfast_reached::reached!("lease: the present grant is asked for again");
                return Ok(SetAnswer::Granted(lease.clone()));
            }
            // SET-S4: compared with what the judge saw. A renewal in between overrides the judgement.
            let expired = judged.is_some_and(|j| j.epoch == lease.epoch && j.renewed == lease.renewed);
            holdfast_reached::reached!(
                "lease: the owner renewed after it was judged expired",
                judged.is_some() && !expired
            );
            holdfast_reached::reached!("lease: an expired lease is taken over", expired);
            if !expired && !force {
                holdfast_reached::reached!("lease: the set is held by another owner");
                return Err(held(lease));
            }
            if lease.opens(grant.token) {
                holdfast_reached::reached!("lease: a grant is asked for with a known token");
                return Err(SetRefusal::TokenReused);
            }
        }
        self.check_not_granted_before(grant.request)?;
        Ok(self.grant(id, grant))
    }

    /// SET-S10: no caller waits for the answer to a copy of a request whose grant is over. Granting it would take the
    /// set from its present owner, or give it to an owner that does not know.
    fn check_not_granted_before(&self, request: RequestId) -> Result<(), SetRefusal> {
        if self.granted_requests.contains(&request) {
            holdfast_reached::reached!("lease: a late copy of a request whose grant is over");
            return Err(SetRefusal::RequestEnded { epoch: self.epoch });
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one command")]
    pub(super) fn continue_lease(
        &mut self,
        id: LogId,
        owner: &Owner,
        gateway: MemberId,
        token: Token,
        new_token: Token,
        request: RequestId,
        at_unix_ms: u64,
    ) -> Result<SetAnswer, SetRefusal> {
        holdfast_reached::reached!("lease: a continuation of a set that is free", self.lease.is_none());
        let Some(lease) = &self.lease else { return Err(SetRefusal::NotHeld { last_epoch: self.epoch }) };
        if lease.owner != *owner {
            holdfast_reached::reached!("lease: another owner wants to continue it");
            return Err(held(lease));
        }
        if lease.plain {
            holdfast_reached::reached!("lease: a plain export is to be continued");
            return Err(SetRefusal::NotContinuable { epoch: lease.epoch });
        }
        if lease.request == request {
            holdfast_reached::reached!("lease: a continuation is asked for again");
            return Ok(SetAnswer::Granted(lease.clone()));
        }
        if !lease.opens(token) {
            holdfast_reached::reached!("lease: a stale token wants to continue it");
            return Err(SetRefusal::StaleToken {
                epoch: lease.epoch,
                gateway: lease.gateway,
                since_unix_ms: lease.since_unix_ms,
            });
        }
        if lease.opens(new_token) {
            holdfast_reached::reached!("lease: a continuation with a known token");
            return Err(SetRefusal::TokenReused);
        }
        holdfast_reached::reached!("lease: continued with an earlier token", token != lease.token);
        let (ttl_ms, earlier_tokens) = (lease.ttl_ms, lease.tokens_after(token));
        // SET-S10: a copy of a request that another one overtook. Or there is no room for one more unused token.
        //     Nothing is granted anew, and no token is dropped. The caller has shown that the lease is its own, and may
        //     have waited all the time: a refusal would end its devices for good. It gets the present grant.
        if self.granted_requests.contains(&request) || earlier_tokens.len() > EARLIER_TOKENS_MAX {
            holdfast_reached::reached!("lease: a continuation gets the present grant");
            return Ok(SetAnswer::Granted(lease.clone()));
        }
        Ok(self.grant(
            id,
            Grant {
                owner,
                gateway,
                token: new_token,
                earlier_tokens,
                ttl_ms,
                request,
                plain: false,
                since_unix_ms: at_unix_ms,
            },
        ))
    }

    fn grant(&mut self, id: LogId, grant: Grant<'_>) -> SetAnswer {
        let epoch = Epoch(self.base_epoch.0.saturating_add(id.index.0));
        assert!(
            epoch > self.epoch,
            "R6: the epoch must grow: found a grant of {epoch}, expected more than {}",
            self.epoch
        );
        let lease = Lease {
            owner: grant.owner.clone(),
            gateway: grant.gateway,
            epoch,
            token: grant.token,
            earlier_tokens: grant.earlier_tokens,
            ttl_ms: grant.ttl_ms,
            request: grant.request,
            granted: id.index,
            renewed: id.index,
            plain: grant.plain,
            since_unix_ms: grant.since_unix_ms,
        };
        self.keep_place(grant.owner);
        self.epoch = epoch;
        self.last_seq = WriteSeq(0);
        if self.granted_requests.len() >= REQUESTS_REMEMBERED {
            self.granted_requests.pop_front();
        }
        self.granted_requests.push_back(lease.request);
        self.lease = Some(lease.clone());
        SetAnswer::Granted(lease)
    }

    /// The owner showed itself under `epoch`: renews, and ends the life of the tokens before (SET-S3).
    pub(super) fn use_lease(&mut self, id: LogId, epoch: Epoch) -> Result<(), SetRefusal> {
        match &mut self.lease {
            Some(lease) if lease.epoch == epoch => {
                lease.renewed = id.index;
                lease.earlier_tokens.clear();
                Ok(())
            }
            other => Err(SetRefusal::WrongEpoch { found: epoch, current: other.as_ref().map(|lease| lease.epoch) }),
        }
    }

    pub(super) fn release(&mut self, epoch: Epoch, token: Option<Token>) -> Result<SetAnswer, SetRefusal> {
        let Some(lease) = &self.lease else {
            holdfast_reached::reached!("lease: released a second time, or by a stranger");
            // The last grant was released before: an earlier copy of this request (R12).
            let again = epoch == self.epoch && epoch != self.base_epoch;
            let refusal = SetRefusal::WrongEpoch { found: epoch, current: None };
            return if again { Ok(SetAnswer::Released) } else { Err(refusal) };
        };
        holdfast_reached::reached!("lease: a release of an epoch that is over", lease.epoch != epoch);
        if lease.epoch != epoch {
            return Err(SetRefusal::WrongEpoch { found: epoch, current: Some(lease.epoch) });
        }
        if token.is_some_and(|token| !lease.opens(token)) {
            holdfast_reached::reached!("lease: a release with a stale token");
            return Err(SetRefusal::StaleToken {
                epoch: lease.epoch,
                gateway: lease.gateway,
                since_unix_ms: lease.since_unix_ms,
            });
        }
        self.lease = None;
        self.owner_at = None;
        Ok(SetAnswer::Released)
    }
}

pub(super) fn held(lease: &Lease) -> SetRefusal {
    SetRefusal::Held {
        owner: lease.owner.clone(),
        gateway: lease.gateway,
        epoch: lease.epoch,
        since_unix_ms: lease.since_unix_ms,
        plain: lease.plain,
    }
}
