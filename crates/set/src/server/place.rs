//! Where the set's owner stands: said with a request for a grant, then noted in the set's state (SET-S17).

use super::{SetError, SetServer};
use holdfast_control::set::{Lease, SetCommand};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Locality};

impl SetServer {
    /// The owner of the grant `epoch` has said where it stands. It is noted later ([`SetServer::note_place`]): no grant
    /// waits for that. An owner that says nothing keeps the place that it has.
    pub fn owner_stands(&self, epoch: Epoch, at: Option<Locality>) {
        let Some(at) = at else { return };
        let mut place = self.place.locked();
        // Answers to several requests may come in any order.
        if place.as_ref().is_none_or(|(of, _)| *of <= epoch) {
            *place = Some((epoch, at));
        }
    }

    /// Where the owner of this lease stands; `None` if it has not said so.
    pub fn place_of(&self, lease: &Lease) -> Option<Locality> {
        let said = self.said(lease.epoch);
        let noted = || {
            self.host.with(|m| {
                let state = m.state();
                let present = state.lease.as_ref().is_some_and(|present| present.epoch == lease.epoch);
                state.owner_at.clone().filter(|_| present)
            })
        };
        said.or_else(noted)
    }

    fn said(&self, epoch: Epoch) -> Option<Locality> {
        self.place.locked().as_ref().filter(|(of, _)| *of == epoch).map(|(_, at)| at.clone())
    }

    /// What the owner of the present grant has said and the set's state does not say yet.
    fn to_note(&self) -> Option<(Epoch, Locality)> {
        let (epoch, noted) = self.host.with(|m| {
            let state = m.state();
            state.lease.as_ref().map(|lease| (lease.epoch, state.owner_at.clone()))
        })?;
        let at = self.said(epoch)?;
        (noted.as_ref() != Some(&at)).then_some((epoch, at))
    }

    /// Whether [`SetServer::note_place`] has something to do.
    pub fn has_place_to_note(&self) -> bool {
        self.to_note().is_some()
    }

    /// Notes in the set's state where its owner stands, if that is not there yet. To repeat it does no harm.
    ///
    /// # Errors
    /// [`SetError`]. After `Propose(Unknown)` it may have been noted (R12).
    pub async fn note_place(&self) -> Result<(), SetError> {
        let Some((epoch, at)) = self.to_note() else { return Ok(()) };
        self.command("the owner's place", &SetCommand::Locate(epoch, at)).await.map(|_| ())
    }
}
