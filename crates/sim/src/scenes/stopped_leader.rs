//! Scene: the gateway that leads the set is asked to stop under load. Another one leads while the first still runs and
//! sends heartbeats: nobody's election timeout has passed. Then the first is gone, and the owner goes on (R1, R8).
//!
//! Then the next leader is asked to stop just after another one died, which it still believes to be there: a third one
//! leads before it is gone.

use crate::host::name;
use crate::world::World;
use anyhow::{Context, Result, bail, ensure};
use holdfast_gateway::node::{HAND_OVER_LIMIT, Handed};
use holdfast_types::MemberId;

impl World {
    /// See the module.
    pub(super) fn stopped_leader(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        let at = self.leader().context("no leader")?;
        let (node, set) = (self.node(at).context("no node")?, self.set(at).context("no set")?);
        let handed = self.call(at, 30_000, async move { node.hand_over_all(HAND_OVER_LIMIT).await })?;
        self.note(format!("{} is asked to stop, and hands over: {handed:?}", name(at)));
        let of_set = handed.into_iter().find(|(group, _)| *group == set.id).map(|(_, handed)| handed);
        let Some(Handed::To(to)) = of_set else {
            bail!("R8: the set waits for an election: {of_set:?}");
        };
        ensure!(self.places[at].map(MemberId) != Some(to), "it was handed to the gateway that stops");
        ensure!(set.leads().is_none(), "R6: {} leads on", name(at));
        drop(set);
        let now = self.now;
        self.hosts[at].kill(now);
        self.works("writes and reads at the next gateway")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[at].start(now, rtt)?;
        self.note(format!("{} starts again", name(at)));
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.works("writes and reads after it")?;
        self.stopped_with_a_dead_heir()?;
        self.power_and_read_back()
    }

    fn stopped_with_a_dead_heir(&mut self) -> Result<()> {
        self.busy = false;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        let at = self.leader().context("no leader")?;
        let (node, set) = (self.node(at).context("no node")?, self.set(at).context("no set")?);
        // Of those that have equally much it is the first that is asked first.
        let dead = self.members_but(at).first().copied().context("no other member")?;
        let now = self.now;
        self.hosts[dead].kill(now);
        let handed = self.call(at, 60_000, async move { node.hand_over_all(HAND_OVER_LIMIT).await })?;
        self.note(format!("{} dies, and {} hands over: {handed:?}", name(dead), name(at)));
        let of_set = handed.into_iter().find(|(group, _)| *group == set.id).map(|(_, handed)| handed);
        let Some(Handed::To(to)) = of_set else {
            bail!("R8: it did not wait until another one leads: {of_set:?}");
        };
        ensure!(![at, dead].iter().any(|not| self.places[*not].map(MemberId) == Some(to)), "handed to {to}");
        drop(set);
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[dead].start(now, rtt)?;
        self.busy = true;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.works("writes and reads at the third gateway")
    }
}
