//! Scene: all gateways but one are drained, and a witness is to take the place of that one: nobody could serve then, so
//! it is refused.

use crate::world::{MS, World};
use anyhow::{Context, Result, bail, ensure};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_api::{Refusal, RefusalCode};
use holdfast_control::cluster::FEATURE_LEVEL;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::GroupId;

/// The witness's disk.
const DISK: u128 = 7300;

impl World {
    /// See the module.
    pub(super) fn last_gateway(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let members: Vec<u64> = self.places.iter().flatten().copied().collect();
        let (last, others) = members.split_first().context("no member")?;
        for member in others {
            self.drain(*member, true)?;
        }
        self.works("writes and reads at the last gateway that serves")?;
        let gateway = v1::Member {
            id: 0,
            name: "late".into(),
            role: "witness".into(),
            level: FEATURE_LEVEL,
            ..self.member(0, DISK)
        };
        let request_id = holdfast_api::hex128(DISK);
        let request = v1::JoinMemberRequest { gateway: Some(gateway), replaces: *last, request_id };
        let (at, door) = self.door_of_group_0()?;
        let answer = self.call(at, 30_000, async move { door.join_member(tonic::Request::new(request)).await })?;
        match answer {
            Err(status) if Refusal::from_status(&status).map(|r| r.code) == Some(RefusalCode::Precondition) => {
                self.note(format!("refused: {}", status.message()));
            }
            other => bail!("a witness takes the place of the last gateway that serves: {other:?}"),
        }
        let found = self.cluster().map_or(0, |state| state.members.len());
        ensure!(found == members.len(), "found {found} members, expected {}", members.len());
        for member in others {
            self.drain(*member, false)?;
        }
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        self.works("writes and reads once all serve")
    }

    fn door_of_group_0(&mut self) -> Result<(usize, AdminDoor)> {
        self.until(60_000, "a leader of group 0", |w| w.leader_of(GroupId::CLUSTER).is_some())?;
        let at = self.leader_of(GroupId::CLUSTER).context("no leader of group 0")?;
        Ok((at, AdminDoor::new(self.node(at).context("no node")?)))
    }

    /// Asked again until it is granted: the leader of group 0 moves as its gateway is drained.
    fn drain(&mut self, member: u64, drained: bool) -> Result<()> {
        let deadline = self.now + 60_000 * MS;
        loop {
            let (at, door) = self.door_of_group_0()?;
            let request_id = holdfast_api::hex128(DISK + u128::from(2 * member) + u128::from(drained));
            let force = drained;
            let request = v1::DrainMemberRequest { member, drained, request_id, force };
            let answer = self.call(at, 30_000, async move { door.drain_member(tonic::Request::new(request)).await })?;
            let Err(status) = answer else { return Ok(()) };
            ensure!(self.now < deadline, "no progress: m{member} is not drained ({drained}): {}", status.message());
            let next = self.now + 300 * MS;
            self.until(10_000, "a moment", |w| w.now >= next)?;
        }
    }
}
