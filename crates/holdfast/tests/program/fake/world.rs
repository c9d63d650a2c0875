//! What the world is made of, and how tests change it.

use super::Shared;
use holdfast_api::v1;
use std::collections::BTreeMap;

/// How a gateway behaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mood {
    /// Works normally.
    #[default]
    Well,
    /// Accepts connections and calls, and never answers, as after SIGSTOP.
    Silent,
    /// First refuses so many calls as busy.
    Busy(u32),
    /// Executes so many changes and answers that the outcome is unknown.
    Forgets(u32),
    /// Executes one change and answers it; then all gateways are silent.
    Last,
    /// Refuses without naming the leader.
    NoHint,
    /// Reports a wrong name of itself.
    Hint(String),
}

pub struct Gateway {
    pub name: String,
    pub api: String,
    pub nbd: String,
    pub disk: String,
    pub cluster_id: String,
    pub member: u64,
    pub initialised: bool,
    pub mood: Mood,
}

#[derive(Default)]
pub struct Set {
    pub id: u64,
    pub store: String,
    pub volumes: Vec<v1::Volume>,
    pub snapshots: Vec<v1::Snapshot>,
    pub leader: usize,
    pub term: u64,
    pub epoch: u64,
    pub lease: Option<(v1::Lease, String)>,
    pub done: BTreeMap<String, v1::GrantReply>,
}

/// A plan with all gateways of the world.
pub fn plan(world: &Shared, sets: &str) -> String {
    let world = world.lock().unwrap();
    let gateway = |gateway: &Gateway| {
        format!("[[gateways]]\nname = {:?}\nregion = \"eu\"\napi = {:?}\n", gateway.name, gateway.api)
    };
    world.gateways.iter().map(gateway).collect::<String>() + sets
}
