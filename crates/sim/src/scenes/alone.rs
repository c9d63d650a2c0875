//! Scene: all gateways but one leave, and others join it again. Alone it needs nobody to confirm that it leads; from
//! the moment in which it has company it does (R3).

use crate::host::name;
use crate::members::Wish;
use crate::rng::Rng;
use crate::world::World;
use anyhow::{Context, Result};
use holdfast_control::cluster::Standing;
use holdfast_types::MemberId;

/// Gateways that join the last one.
const JOIN: usize = 2;

impl World {
    /// See the module.
    pub(super) fn alone(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 14);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let stays = self.leader().context("no leader")?;
        let leave = self.members_but(stays);
        for host in leave {
            let member = self.places[host].context("a member")?;
            self.until(120_000, "a member has left", |w| {
                let standing = w.cluster().and_then(|state| Some(state.members.get(&MemberId(member))?.standing));
                if standing == Some(Standing::Active) {
                    w.want(&mut rng, Wish::Leave { member, force: true });
                }
                w.places[host].is_none()
            })?;
        }
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        self.note(format!("{} is alone", name(stays)));
        self.works("writes and reads of one gateway")?;
        let join: Vec<usize> = (0..self.hosts.len()).filter(|host| *host != stays).take(JOIN).collect();
        for host in join {
            self.until(120_000, "a gateway has joined", |w| {
                if w.places[host].is_none() {
                    w.want(&mut rng, Wish::Join { host, replaces: 0 });
                }
                w.places[host].is_some() && w.members_missing().is_none()
            })?;
        }
        self.works("writes and reads in company")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
