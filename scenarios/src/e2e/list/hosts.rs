//! Scenarios of hosts with agents that run something other than PostgreSQL.

use super::super::{Scenario, Tier, service};

pub(super) const AGENT_SERVICE: Scenario = Scenario {
    name: "agent-service",
    shows: "a service other than PostgreSQL on two hosts: its host is killed, a switchover, it no longer answers, an agent hangs: each time it serves again, and nothing that it acknowledged is lost",
    tier: Tier::Long(
        "four moves and restarts take more than half a minute; the gate has stories and property tests of a service, tests with real control groups, and agent-takeover",
    ),
    needs: service::NEEDS,
    run: service::run,
};
