//! All scenarios, in the order in which they run.

#[cfg(test)]
use super::Upto;
use super::{OLDER, Scenario, Tier};
use super::{
    agent, agent_orders, agent_three, attach, attach_postgresql, clones, cold, damaged, data_keys, diff, etcd,
    failover, faults, fills, flush, idle, images, keys, lagging, members, memory, moves, nearest, outage, owners, pair,
    paused, power, recover, recover_postgresql, rollback, rolling, rotten, scrub, set_delete, space, standby, stores,
    stores_change, storm, tls, tools, two_sites, unreadable, verified, volumes, waits, wan, wiped, witness,
};

/// Those that run two at a time, before all others. Each has a folder, ports and servers of its own, and nothing else of the machine: no device, mount or network namespace.
/// None judges how long an answer takes, how much gets done in a time, or that no connection is closed: what they wait for has half a minute or more, and where an election comes in between, as on a
/// full machine it may, they look again.
/// Alone they leave half of two processors idle: they wait for elections, leases, checkpoints and each other's silence.
pub(super) const IN_COMPANY: &[&str] = &[
    "clients",
    "stores-lost",
    "idle",
    "cold-reads",
    "two-owners",
    "moves",
    "wiped-disk",
    "rotten",
    "recover",
    "keys",
    "data-keys",
    "scrub",
    "tls",
    "unreadable",
    "space",
    "rollback",
    "snapshot-diff",
    "clones",
    "volumes",
    "set-delete",
    "import-export",
];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "flush-kill-all",
        shows: "write + FLUSH for 20 s, SIGKILL of all gateways: each acknowledged pair is there (R1)",
        tier: Tier::Quick("R1 in its simplest form, on real processes and disks"),
        needs: &[],
        run: flush::run,
    },
    Scenario {
        name: "fio-verify-failover",
        shows: "fio --verify=crc32c is clean, also after a failover in the middle of a verify run",
        tier: Tier::Long("R1 and R5 under fio; the gate has chaos, which judges every block, and flush-kill-all"),
        needs: &["fio"],
        run: verified::run,
    },
    Scenario {
        name: "clients",
        shows: "nbdinfo, nbdcopy, nbdsh, qemu-io, qemu-img convert and compare work and agree",
        tier: Tier::Quick("the protocol with clients that are not ours"),
        needs: &["nbdinfo", "nbdcopy", "nbdsh", "qemu-io", "qemu-img"],
        run: tools::run,
    },
    Scenario {
        name: "s3-outage",
        shows: "S3 stopped under load: no client error; the backlog drains afterwards (R8)",
        tier: Tier::Gate("R8: an outage of the store under load"),
        needs: &["versitygw"],
        run: outage::run,
    },
    Scenario {
        name: "s3-faults",
        shows: "S3 that throttles, hangs, breaks, lies, is full, refuses and wants new keys, under load and a takeover: no client error, nothing lost or left over (R8)",
        tier: Tier::Gate("R8, R9, R12: the only scenario with a store that lies; it also repeats requests"),
        needs: &["versitygw"],
        run: faults::run,
    },
    Scenario {
        name: "stores",
        shows: "one of three S3 servers killed under load: no client error, checkpoints go on, it catches up; another is emptied, and counts again (R8)",
        tier: Tier::Long(
            "R8 with three stores; the gate has stores-lost, and the simulation runs seeds with several stores",
        ),
        needs: &["versitygw"],
        run: stores::run,
    },
    Scenario {
        name: "nearest-store",
        shows: "of three S3 servers reads go to a near one, and to another when that becomes slow or silent; no read fails (R8)",
        tier: Tier::Long("latency of reads from several stores, no rule; R8 is covered by s3-faults and stores-lost"),
        needs: &["versitygw"],
        run: nearest::run,
    },
    Scenario {
        name: "stores-lost",
        shows: "all gateways and disks lost: recovered from three S3 servers with any one of them missing (R4, R8)",
        tier: Tier::Gate("R4, R8: recovery from any two of three stores"),
        needs: &["versitygw"],
        run: stores::run_lost,
    },
    Scenario {
        name: "stores-change",
        shows: "a set's stores are changed under load: filled through a kill, a dead one replaced, drained, abandoned; recovery finds the new ones (R1, R4, R8)",
        tier: Tier::Long(
            "more than a minute; the simulation plays the same move of stores under faults (scene moved-stores)",
        ),
        needs: &["versitygw"],
        run: stores_change::run,
    },
    Scenario {
        name: "idle",
        shows: "an idle set asks next to nothing of its store; the first answer after that is preceded by a look at the head (H1)",
        tier: Tier::Gate("H1: the first answer after a silence; short, and runs beside another"),
        needs: &["versitygw"],
        run: idle::run,
    },
    Scenario {
        name: "cold-reads",
        shows: "a reader in order or in steps does not wait for one answer of the store after the other; scattered reads cost no request more; CACHE works; a warm follower takes over warm",
        tier: Tier::Long("requests and read-ahead, no rule; the cache has tests of its own"),
        needs: &["versitygw", "nbdsh"],
        run: cold::run,
    },
    Scenario {
        name: "journal-fills",
        shows: "S3 away until the journal is nearly full: writers slow down along a curve, none sees an error (R8)",
        tier: Tier::Long("R8 up to a full journal; the gate has s3-outage, and the simulation fills disks (--full)"),
        needs: &["versitygw"],
        run: fills::run,
    },
    Scenario {
        name: "two-owners",
        shows: "while B holds the lease, each write of A is refused, and B's data stays (R2)",
        tier: Tier::Quick("R2: a stale owner is refused"),
        needs: &[],
        run: owners::run,
    },
    Scenario {
        name: "come-and-go",
        shows: "plain connections that leave and arrive at once: none is closed with another's lease",
        tier: Tier::Long("a storm of connections; two-owners and chaos check the owner of each connection"),
        needs: &[],
        run: storm::run,
    },
    Scenario {
        name: "moves",
        shows: "switchover and failover under load: connections close unanswered, nothing is lost (R1, R8)",
        tier: Tier::Quick("R1, R8: switchover and failover under load"),
        needs: &[],
        run: moves::run,
    },
    Scenario {
        name: "attach-failover",
        shows: "users of `holdfast attach` see no error through kills, pauses and moves, and only errors once fenced (R1, R2, R8)",
        tier: Tier::Gate("R1, R2, R8 as an attached host sees them, fencing included"),
        needs: &["fio"],
        run: attach::run,
    },
    Scenario {
        name: "paused-gateway",
        shows: "SIGSTOP past the lease, then SIGCONT: no stale read, no late write (R2, R3, R6)",
        tier: Tier::Gate("R2, R3, R6: a leader that stands still past its lease"),
        needs: &[],
        run: paused::run,
    },
    Scenario {
        name: "wiped-disk",
        shows: "a gateway whose disk was wiped comes back as a new member under load and carries a quorum",
        tier: Tier::Gate("a gateway with an empty disk comes back by a snapshot and carries a quorum"),
        needs: &[],
        run: wiped::run,
    },
    Scenario {
        name: "lagging",
        shows: "a follower stands still for twice what the journals hold: the others go on, it comes back by a state snapshot and carries a quorum (R1)",
        tier: Tier::Long("a follower that comes back by a snapshot; the gate has wiped-disk for that"),
        needs: &[],
        run: lagging::run,
    },
    Scenario {
        name: "members",
        shows: "a gateway is added, each is drained and restarted, one replaced, one removed: attached users see no error (R1, R8)",
        tier: Tier::Gate("R1, R8: members added, drained, replaced, removed under an attached host"),
        needs: &[],
        run: members::run,
    },
    Scenario {
        name: "witness",
        shows: "two gateways and a witness: one is killed, the other serves; the witness never does",
        tier: Tier::Gate("two gateways and a witness; nothing else in the gate runs one"),
        needs: &[],
        run: witness::run,
    },
    Scenario {
        name: "wan",
        shows: "gateways 80 ms apart: a write takes a round trip, nobody is elected without need, a kill and a planned move are followed (R1, R8)",
        tier: Tier::Long("80 ms between gateways; elections and moves without the delay are in moves"),
        needs: &[],
        run: wan::run,
    },
    Scenario {
        name: "damaged",
        shows: "a follower's journal is damaged where it was synced: named, healed from its peers, a voter again (R9)",
        tier: Tier::Gate("R9: a damaged journal is named at the start and healed"),
        needs: &[],
        run: damaged::run,
    },
    Scenario {
        name: "rotten",
        shows: "a record rots under the gateway that serves: the read is answered by another one, right; the first ends and is healed (R9)",
        tier: Tier::Gate("R9: a damaged record under the gateway that serves"),
        needs: &[],
        run: rotten::run,
    },
    Scenario {
        name: "recover",
        shows: "all gateways and disks lost: rebuilt from S3 up to the printed index; what comes back later serves nothing (R4)",
        tier: Tier::Gate("R4, R6: everything lost but the store"),
        needs: &["versitygw"],
        run: recover::run,
    },
    Scenario {
        name: "recover-postgresql",
        shows: "PostgreSQL, all gateways and disks lost: recovered, it opens, and its ledger is complete up to the printed moment (R4)",
        tier: Tier::Gate("R4 with a database: the promise that users know"),
        needs: &["versitygw", "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: recover_postgresql::run,
    },
    Scenario {
        name: "keys",
        shows: "the cluster key changed under load, through a kill; then the new key alone recovers the set, the old one opens nothing (R10)",
        tier: Tier::Gate("R10: the cluster key is changed under load"),
        needs: &[],
        run: keys::run,
    },
    Scenario {
        name: "data-keys",
        shows: "a set's data key changed under load, through a late gateway and a kill; kept for a snapshot, then gone; no object is under the old one (R10)",
        tier: Tier::Gate("R10: a data key is changed under load"),
        needs: &[],
        run: data_keys::run,
    },
    Scenario {
        name: "etcd",
        shows: "a real etcd is told of each grant, also after it was dead or silent; no grant waits for it, nothing newer or foreign is replaced",
        tier: Tier::Long("grants told to an etcd; the gate has etcd-pair, which depends on the same records"),
        needs: etcd::NEEDS,
        run: etcd::run,
    },
    Scenario {
        name: "etcd-pair",
        shows: "two gateways with an etcd in place of a third voter: killed, stopped, cut off, etcd killed, S3 stopped: what was flushed is there, nobody stale answers",
        tier: Tier::Gate("R1, R2, R6 of a pair with an etcd in place of a third voter"),
        needs: pair::NEEDS,
        run: pair::run,
    },
    Scenario {
        name: "agent-pair",
        shows: "PostgreSQL on two hosts over such a pair: the gateway that serves is killed, PostgreSQL is primary again over the other one, no commit is lost",
        tier: Tier::Long("PostgreSQL over a pair; the gate has etcd-pair and agent-takeover"),
        needs: pair::NEEDS_AGENTS,
        run: pair::run_agents,
    },
    Scenario {
        name: "scrub",
        shows: "a flipped byte of an object, of the set, of a snapshot or of a clone's root alone, is found by the background reading and named (R9)",
        tier: Tier::Gate("R9: damaged objects are found by the background reading"),
        needs: &[],
        run: scrub::run,
    },
    Scenario {
        name: "waits",
        shows: "reads of a damaged object wait, everything else of the attached host goes on, and nothing is reconnected (R8, R9)",
        tier: Tier::Long("waiting reads of a damaged object; R8 and R9 are covered by s3-faults and scrub"),
        needs: &[],
        run: waits::run,
    },
    Scenario {
        name: "agent-takeover",
        shows: "two PostgreSQL hosts behind HAProxy and PgBouncer: one killed, a switchover, an agent that hangs: the other takes over, no commit is lost",
        tier: Tier::Gate("R1, R2, R6: PostgreSQL on two hosts, as most users run it"),
        needs: agent::NEEDS,
        run: agent::run,
    },
    Scenario {
        name: "agent-xfs",
        shows: "the same on XFS, with PostgreSQL started and stopped by the host's own commands",
        tier: Tier::Long("the same as agent-takeover on another file system"),
        needs: agent::NEEDS_XFS,
        run: agent::run_xfs,
    },
    Scenario {
        name: "agent-orders",
        shows: "PostgreSQL killed, then hung, and restarted in its place; a pause; a switchover at a time; a forced failover; each health check's answer; `holdfast watch` through it",
        tier: Tier::Long(
            "orders to an agent; the simulation has hosts with agents, agent-takeover has the kill and the switchover",
        ),
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_orders::run,
    },
    Scenario {
        name: "agent-three",
        shows: "three PostgreSQL hosts: the one of higher priority takes over, one with nofailover never does, flapping delay and takeovers per hour hold, a switchover to the third, manual mode",
        tier: Tier::Long(
            "three hosts; agent-takeover has two, and the unit tests of the agent have priorities and flapping",
        ),
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_three::run,
    },
    Scenario {
        name: "two-sites",
        shows: "PostgreSQL at two sites: one is lost, the other is promoted, no acknowledged commit is lost; back, it is no second primary, and follows",
        tier: Tier::Long("more than a minute; R1 and R2 of promotion are those of agent-takeover and recover"),
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: two_sites::run,
    },
    Scenario {
        name: "standby",
        shows: "a read-only PostgreSQL on a local copy of a snapshot: consistent, renewed, through a gateway's death, and the primary does not notice",
        tier: Tier::Long("more than a minute; no rule of the primary depends on it, and the copies have unit tests"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: standby::run,
    },
    Scenario {
        name: "tls",
        shows: "TLS between gateways and at the admin door: works through a kill, and nobody else gets a word (R10)",
        tier: Tier::Gate("R10 on the wire"),
        needs: &["qemu-io"],
        run: tls::run,
    },
    Scenario {
        name: "unreadable",
        shows: "journals, snapshots, cache and objects show nothing of what was written (R10)",
        tier: Tier::Gate("R10 on disks and in the store"),
        needs: &[],
        run: unreadable::run,
    },
    Scenario {
        name: "space",
        shows: "the store settles near the live size; a snapshot stays what it was and frees its own; a paused leader deletes nothing",
        tier: Tier::Gate("R7: what is deleted, and what a paused leader must not delete"),
        needs: &[],
        run: space::run,
    },
    Scenario {
        name: "rollback",
        shows: "a set becomes one of its snapshots, through a kill as well; who used it goes on only under a new epoch (R4, R6)",
        tier: Tier::Gate("R4, R6: a set becomes one of its snapshots"),
        needs: &[],
        run: rollback::run,
    },
    Scenario {
        name: "snapshot-diff",
        shows: "volumes are written, trimmed, resized, exchanged, deleted and made anew between two snapshots: images of one become those of the other, both ways (R4)",
        tier: Tier::Gate("R4: differences between snapshots, carried out"),
        needs: &[],
        run: diff::run,
    },
    Scenario {
        name: "clones",
        shows: "a set is cloned: both are written, the snapshot goes, objects are deleted, all gateways die, all disks are lost: each shows its own (R4)",
        tier: Tier::Gate("R4, R7: a clone keeps its objects"),
        needs: &[],
        run: clones::run,
    },
    Scenario {
        name: "volumes",
        shows: "volumes grow, shrink, are renamed and deleted under load and through a kill; the others are whole, the space comes back (R1, R8)",
        tier: Tier::Gate("R1, R8: volumes grow, shrink and go under load"),
        needs: &[],
        run: volumes::run,
    },
    Scenario {
        name: "set-delete",
        shows: "a set is deleted while a gateway is away, and while its own one dies: key, objects, files on all disks go, its name is free, the other set is whole (R10)",
        tier: Tier::Gate("R7, R10: a deleted set leaves nothing behind, and takes nothing of others"),
        needs: &[],
        run: set_delete::run,
    },
    Scenario {
        name: "import-export",
        shows: "a sparse image in and out again through kills of the command and of a gateway: the same digest (R1); qcow2 as documented",
        tier: Tier::Gate("R1, R12: an import that is killed goes on, and no block is lost"),
        needs: &["sha256sum", "qemu-img", "qemu-nbd", "nbdcopy"],
        run: images::run,
    },
    Scenario {
        name: "attach-postgresql",
        shows: "pgbench on ext4 on `holdfast attach`: gateways are killed, and PostgreSQL sees no error",
        tier: Tier::Long("attach-failover with PostgreSQL in place of fio"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: attach_postgresql::run,
    },
    Scenario {
        name: "rolling-postgresql",
        shows: "each gateway is drained, restarted and undrained under pgbench: PostgreSQL sees no error, no commit is lost (R1, R8)",
        tier: Tier::Long("more than a minute; the gate drains and restarts each gateway in members"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::run,
    },
    Scenario {
        name: "rolling-upgrade",
        shows: "the same with a newer program for each: first one, and back; then all; the older one is refused from then on (R1, R8)",
        tier: Tier::Long(
            "an upgrade between two programs; needs an older one. The gate has the golden formats among the cargo tests",
        ),
        needs: &[OLDER, "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::upgrade,
    },
    Scenario {
        name: "power-cuts",
        shows: "the power goes under PostgreSQL and all gateways, their disks lose what was not synced: ledger, file system and tables are whole (R1)",
        tier: Tier::Long(
            "more than a minute; the gate has first-cut, and the journal has crash tests on disks that lose what was not synced",
        ),
        needs: power::NEEDS,
        run: power::run_few,
    },
    Scenario {
        name: "first-cut",
        shows: "the power goes on a machine that was just set up: the names of its new folders are there, and what was flushed (R1)",
        tier: Tier::Gate("R1 at a power cut: names and blocks that were not synced are gone"),
        needs: &[],
        run: power::first_cut,
    },
    Scenario {
        name: "failover",
        shows: "behind HAProxy: host killed, switchover, gateway killed, host cut off, region lost: no commit is lost, the cut-off host cannot write",
        tier: Tier::Long(
            "agent-takeover with a cut-off host and a lost region; the gate has agent-takeover, two-owners and etcd-pair",
        ),
        needs: failover::NEEDS,
        run: failover::run,
    },
    Scenario {
        name: "memory",
        shows: "random 8 KiB writes all over a 1 TiB volume: every gateway stays below 1 GiB resident",
        tier: Tier::Long("half a minute; a bound of memory, no rule"),
        needs: &["fio"],
        run: memory::run,
    },
];

/// Where the gate tests each rule of docs/GLOSSARY.md: scenarios, which are looked up in the list above, and other parts.
#[cfg(test)]
const RULES: [(&str, &[&str], &str); 12] = [
    ("R1", &["flush-kill-all", "moves", "first-cut", "etcd-pair"], "simulation, chaos, journal's crash tests"),
    ("R2", &["two-owners", "paused-gateway", "attach-failover"], "simulation, chaos"),
    ("R3", &["paused-gateway"], "simulation, chaos (Porcupine)"),
    ("R4", &["recover", "stores-lost", "rollback", "snapshot-diff", "clones"], "histories"),
    ("R5", &[], "chaos (nothing torn or misplaced), log's tests on simulated disks"),
    ("R6", &["paused-gateway", "recover", "rollback"], "simulation"),
    ("R7", &["space", "clones", "set-delete"], "histories"),
    ("R8", &["s3-outage", "s3-faults", "members"], "simulation"),
    ("R9", &["damaged", "rotten", "scrub", "s3-faults"], "journal's corruption tests"),
    ("R10", &["keys", "data-keys", "tls", "unreadable"], ""),
    ("R11", &[], "unit tests of raft and of the gateway; every scenario reads the logs of its processes"),
    ("R12", &["s3-faults", "import-export"], "simulation, chaos (unknown outcomes)"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_test_in_the_gate() {
        for (at, (rule, scenarios, elsewhere)) in RULES.iter().enumerate() {
            assert_eq!(*rule, format!("R{}", at + 1));
            assert!(!scenarios.is_empty() || !elsewhere.is_empty(), "{rule}: nothing in the gate tests it");
            for name in *scenarios {
                let scenario = SCENARIOS.iter().find(|scenario| scenario.name == *name);
                let scenario = scenario.unwrap_or_else(|| panic!("{rule}: no scenario {name}"));
                assert!(scenario.tier.is_in(Upto::Gate), "{rule}: {name} is not in the gate");
            }
        }
    }

    #[test]
    fn the_gate_is_a_part_and_each_scenario_says_why_it_is_where_it_is() {
        let gate = SCENARIOS.iter().filter(|scenario| scenario.tier.is_in(Upto::Gate)).count();
        assert!((25..=35).contains(&gate), "{gate} scenarios in the gate: 40 minutes have room for some 32");
        assert!(SCENARIOS.iter().all(|scenario| !scenario.tier.why().is_empty()));
    }
}
