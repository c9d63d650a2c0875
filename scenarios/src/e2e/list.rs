//! All scenarios, in the order in which they run.

#[cfg(test)]
use super::Upto;
use super::{OLDER, Scenario, Tier};
use super::{
    agent, agent_orders, agent_three, attach, attach_postgresql, clones, cold, csi, damaged, dashboards, data_keys,
    dev_secure, diff, etcd, failover, faults, fills, flush, follows, hostile, idle, images, keys, lagging, members,
    memory, moves, nbd_tls, nearest, no_plaintext, outage, owners, page, pair, patroni, paused, place, placing, power,
    recover, recover_postgresql, rollback, rolling, rotten, scrub, set_delete, space, standby, stores, stores_change,
    storm, timing, tls, to_tls, tools, two_sites, unreadable, verified, volumes, waits, wan, wiped, witness,
};

/// Scenarios that run two at a time, before all others. Each has its own folder, ports and servers, and uses no device,
/// mount or network namespace. None of them checks latency, throughput, or that no connection is closed. Their waits
/// have limits of half a minute or more, and they retry after an election, which may happen on a busy machine. One
/// alone would leave half of two CPUs idle, because it waits for elections, leases, checkpoints and timeouts.
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
    "nbd-tls",
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
        shows: "a client writes and flushes for 20 s, then all gateways are killed: every acknowledged write is there after a restart (R1)",
        tier: Tier::Quick("R1 in its simplest form, with real processes and disks"),
        needs: &[],
        run: flush::run,
    },
    Scenario {
        name: "fio-verify-failover",
        shows: "fio --verify=crc32c finds no error, also when a failover happens during the verify run",
        tier: Tier::Long("R1 and R5 under fio; the gate has flush-kill-all, and chaos, which checks every block"),
        needs: &["fio"],
        run: verified::run,
    },
    Scenario {
        name: "clients",
        shows: "nbdinfo, nbdcopy, nbdsh, qemu-io, qemu-img convert and qemu-img compare work and read the same data",
        tier: Tier::Quick("the NBD protocol with third-party clients"),
        needs: &["nbdinfo", "nbdcopy", "nbdsh", "qemu-io", "qemu-img"],
        run: tools::run,
    },
    Scenario {
        name: "s3-outage",
        shows: "S3 stops under load: clients see no error, and the backlog is uploaded when S3 is back (R8)",
        tier: Tier::Gate("R8: an outage of the store under load"),
        needs: &["versitygw"],
        run: outage::run,
    },
    Scenario {
        name: "s3-faults",
        shows: "under load and a takeover, S3 throttles, hangs, breaks connections, returns wrong data, is full, denies access and changes its keys: no client error, no data lost, no object left over (R8)",
        tier: Tier::Gate(
            "R8, R9, R12: the only scenario with a store that returns wrong answers; requests are also repeated",
        ),
        needs: &["versitygw"],
        run: faults::run,
    },
    Scenario {
        name: "stores",
        shows: "one of three S3 servers is killed under load: no client error, checkpoints continue, the server catches up; another one loses all objects, gets them again, and counts again (R8)",
        tier: Tier::Long(
            "R8 with three stores; the gate has stores-lost, and the simulation has seeds with several stores",
        ),
        needs: &["versitygw"],
        run: stores::run,
    },
    Scenario {
        name: "nearest-store",
        shows: "with three S3 servers, reads go to the nearest one, and to another when it becomes slow or stops answering; no read fails (R8)",
        tier: Tier::Long("read latency with several stores, no rule; s3-faults and stores-lost cover R8"),
        needs: &["versitygw"],
        run: nearest::run,
    },
    Scenario {
        name: "stores-lost",
        shows: "all gateways and disks are lost: the set is recovered from three S3 servers while any one of them is missing (R4, R8)",
        tier: Tier::Gate("R4, R8: recovery from any two of three stores"),
        needs: &["versitygw"],
        run: stores::run_lost,
    },
    Scenario {
        name: "stores-change",
        shows: "a set's stores are changed under load: new stores are filled while a gateway is killed, a dead store is replaced, a store is drained, a change is cancelled; recovery finds the new stores (R1, R4, R8)",
        tier: Tier::Long(
            "takes more than a minute; the simulation makes the same change of stores under faults (scene moved-stores)",
        ),
        needs: &["versitygw"],
        run: stores_change::run,
    },
    Scenario {
        name: "idle",
        shows: "an idle set sends almost no requests to its store; before its next answer the gateway reads the head object (HEAD-H1)",
        tier: Tier::Gate("HEAD-H1: the first answer after an idle time; short, and runs beside another scenario"),
        needs: &["versitygw"],
        run: idle::run,
    },
    Scenario {
        name: "cold-reads",
        shows: "sequential and strided reads are read ahead and do not wait for one store request after the other; random reads cost no extra request; NBD CACHE works; a follower with a warm cache takes over with it",
        tier: Tier::Long("store requests and read-ahead, no rule; the cache has its own tests"),
        needs: &["versitygw", "nbdsh"],
        run: cold::run,
    },
    Scenario {
        name: "journal-fills",
        shows: "S3 is away until the journal is nearly full: writers slow down gradually, and none sees an error (R8)",
        tier: Tier::Long("R8 up to a full journal; the gate has s3-outage, and the simulation fills disks (--full)"),
        needs: &["versitygw"],
        run: fills::run,
    },
    Scenario {
        name: "two-owners",
        shows: "while B holds the lease, every write of A is rejected, and B's data is unchanged (R2)",
        tier: Tier::Quick("R2: writes of a stale owner are rejected"),
        needs: &[],
        run: owners::run,
    },
    Scenario {
        name: "come-and-go",
        shows: "plain connections end and begin at the same time: none is closed because the lease of another one ends",
        tier: Tier::Long("many connections at once; two-owners and chaos check the owner of each connection"),
        needs: &[],
        run: storm::run,
    },
    Scenario {
        name: "moves",
        shows: "switchover and failover under load: connections close without an error reply, and no data is lost (R1, R8)",
        tier: Tier::Quick("R1, R8: switchover and failover under load"),
        needs: &[],
        run: moves::run,
    },
    Scenario {
        name: "attach-failover",
        shows: "users of `holdfast attach` see no error while gateways are killed and paused and the set is moved; after fencing they see only errors (R1, R2, R8)",
        tier: Tier::Gate("R1, R2, R8 on an attached host, fencing included"),
        needs: &["fio"],
        run: attach::run,
    },
    Scenario {
        name: "paused-gateway",
        shows: "the serving gateway is stopped (SIGSTOP) until its lease has expired, then continued: no stale read, no late write (R2, R3, R6)",
        tier: Tier::Gate("R2, R3, R6: a leader is paused for longer than its lease"),
        needs: &[],
        run: paused::run,
    },
    Scenario {
        name: "wiped-disk",
        shows: "a gateway whose disk was wiped comes back under load as a new member, and then a quorum depends on it",
        tier: Tier::Gate("a gateway with an empty disk gets a state snapshot and then is part of a quorum"),
        needs: &[],
        run: wiped::run,
    },
    Scenario {
        name: "lagging",
        shows: "a follower is stopped until twice the journals' size was written: the others continue, it catches up by a state snapshot, and then a quorum depends on it (R1)",
        tier: Tier::Long("a follower that catches up by a state snapshot; in the gate wiped-disk covers that"),
        needs: &[],
        run: lagging::run,
    },
    Scenario {
        name: "members",
        shows: "a gateway is added, each one is drained and restarted, one is replaced, one is removed: attached users see no error (R1, R8)",
        tier: Tier::Gate("R1, R8: members are added, drained, replaced and removed while a host is attached"),
        needs: &[],
        run: members::run,
    },
    Scenario {
        name: "placing",
        shows: "four gateways in four regions: a set's voters grow with the cluster, leave a drained gateway, follow a changed policy; what cannot be met is refused, what is not met any more is told (R1, R8)",
        tier: Tier::Long(
            "takes about a minute; in the gate, property tests plan for random clusters, and simulated sets move",
        ),
        needs: &[],
        run: placing::run,
    },
    Scenario {
        name: "place",
        shows: "five gateways: each voter of a set moves to another one under an attached host that writes; the gateways that were left have their journal space back, and one comes back (R1, R8)",
        tier: Tier::Long("takes about two minutes; in the gate, simulated sets move under faults"),
        needs: &[],
        run: place::run,
    },
    Scenario {
        name: "witness",
        shows: "two gateways and a witness: one gateway is killed and the other serves; the witness never serves",
        tier: Tier::Gate("two gateways and a witness; no other part of the gate has a witness"),
        needs: &[],
        run: witness::run,
    },
    Scenario {
        name: "wan",
        shows: "with a round trip of 80 ms between gateways, a write takes one round trip, no unneeded election happens, and attached hosts follow after a kill and a planned move (R1, R8)",
        tier: Tier::Long("80 ms between gateways; moves covers elections and moves without the delay"),
        needs: &[],
        run: wan::run,
    },
    Scenario {
        name: "follows",
        shows: "three gateways in three regions, 80 ms apart: leadership comes to the gateway beside the host that uses the set, stays there, and follows the next owner; writers see a pause and no error (R1, R6, R8)",
        tier: Tier::Long("takes some three minutes; the decision has a property test in the gate"),
        needs: &[],
        run: follows::run,
    },
    Scenario {
        name: "timing",
        shows: "with settings for gateways 150 ms apart and gateways on one machine, the set's times follow what is measured: a killed gateway is replaced sooner than the settings allow (ADR 0058)",
        tier: Tier::Long("the decisions have properties and the model in the gate; this one waits for calms"),
        needs: &[],
        run: timing::run,
    },
    Scenario {
        name: "damaged",
        shows: "a synced part of a follower's journal is damaged: the gateway reports where, repairs it from its peers, and votes again (R9)",
        tier: Tier::Gate("R9: a damaged journal is reported at the start and repaired"),
        needs: &[],
        run: damaged::run,
    },
    Scenario {
        name: "rotten",
        shows: "a journal record of the serving gateway is damaged: another gateway answers the read with the right data; the first one exits and is repaired (R9)",
        tier: Tier::Gate("R9: a damaged record on the serving gateway"),
        needs: &[],
        run: rotten::run,
    },
    Scenario {
        name: "recover",
        shows: "all gateways and disks are lost: the set is rebuilt from S3 up to the printed index; old gateways that come back later serve nothing (R4)",
        tier: Tier::Gate("R4, R6: everything is lost except the store"),
        needs: &["versitygw"],
        run: recover::run,
    },
    Scenario {
        name: "recover-postgresql",
        shows: "all gateways and disks are lost under PostgreSQL: after recovery it starts, and all commits up to the printed time are there (R4)",
        tier: Tier::Gate("R4 with a database, as users see it"),
        needs: &["versitygw", "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: recover_postgresql::run,
    },
    Scenario {
        name: "keys",
        shows: "the cluster key is changed under load, from files and an envelope to others, with a gateway killed meanwhile: afterwards the new key alone recovers the set, and the old key decrypts nothing (R10)",
        tier: Tier::Gate("R10: the cluster key is changed under load"),
        needs: &[],
        run: keys::run,
    },
    Scenario {
        name: "data-keys",
        shows: "a set's data key is changed under load, while one gateway is late and one is killed: the old key stays as long as a snapshot needs it and is then deleted, and no object uses it any more (R10)",
        tier: Tier::Gate("R10: a data key is changed under load"),
        needs: &[],
        run: data_keys::run,
    },
    Scenario {
        name: "etcd",
        shows: "each lease grant is written to a real etcd, also after the etcd was dead or silent; no grant waits for the etcd, and no newer or foreign value is overwritten",
        tier: Tier::Long("lease grants written to an etcd; the gate has etcd-pair, which uses the same records"),
        needs: etcd::NEEDS,
        run: etcd::run,
    },
    Scenario {
        name: "etcd-pair",
        shows: "two gateways with an etcd instead of a third voter: gateways are killed, paused and cut off, the etcd is killed, S3 stops: all flushed data is there, and no stale gateway answers",
        tier: Tier::Gate("R1, R2, R6 of a pair with an etcd instead of a third voter"),
        needs: pair::NEEDS,
        run: pair::run,
    },
    Scenario {
        name: "agent-pair",
        shows: "PostgreSQL on two hosts over a pair of gateways with an etcd: the serving gateway is killed, PostgreSQL becomes primary again over the other one, no commit is lost",
        tier: Tier::Long("PostgreSQL over a pair; the gate has etcd-pair and agent-takeover"),
        needs: pair::NEEDS_AGENTS,
        run: pair::run_agents,
    },
    Scenario {
        name: "scrub",
        shows: "one byte is flipped in an object of the set, of a snapshot, or of a clone only: the background scrub finds and names the object (R9)",
        tier: Tier::Gate("R9: the background scrub finds damaged objects"),
        needs: &[],
        run: scrub::run,
    },
    Scenario {
        name: "waits",
        shows: "reads of a damaged object wait; all other requests of the attached host continue, and no connection is lost (R8, R9); a client that takes no answers is given up",
        tier: Tier::Long(
            "waiting reads of a damaged object, and a minute without answers; s3-faults and scrub cover R8 and R9",
        ),
        needs: &[],
        run: waits::run,
    },
    Scenario {
        name: "agent-takeover",
        shows: "two PostgreSQL hosts behind HAProxy and PgBouncer: a host is killed, a switchover, an agent hangs: each time the other host takes over and no commit is lost",
        tier: Tier::Gate("R1, R2, R6: PostgreSQL on two hosts, the usual setup"),
        needs: agent::NEEDS,
        run: agent::run,
    },
    Scenario {
        name: "agent-xfs",
        shows: "like agent-takeover, on XFS, and the agent starts and stops PostgreSQL by commands of the host",
        tier: Tier::Long("like agent-takeover, on another file system"),
        needs: agent::NEEDS_XFS,
        run: agent::run_xfs,
    },
    Scenario {
        name: "agent-orders",
        shows: "PostgreSQL is killed, then hangs, and is restarted on the same host; maintenance pause, a switchover that is refused while a process has the pool open, scheduled switchover, forced failover; answers of each health check; `holdfast watch` shows every change",
        tier: Tier::Long(
            "commands to an agent; the simulation has hosts with agents, agent-takeover covers the kill and the switchover",
        ),
        needs: &["nbdfuse", "unshare", "nsenter", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_orders::run,
    },
    Scenario {
        name: "agent-three",
        shows: "three PostgreSQL hosts: the host with the higher priority takes over, a host with nofailover never does on its own; flapping delay, limit of takeovers per hour, switchover to the third host, manual mode",
        tier: Tier::Long("three hosts; agent-takeover has two, unit tests of the agent cover priorities and flapping"),
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_three::run,
    },
    Scenario {
        name: "patroni",
        shows: "two PostgreSQL hosts seen by programs made for Patroni, unchanged: check_patroni and HAProxy with `OPTIONS /`, before and after a host is killed; the same system identifier, timeline and settings",
        tier: Tier::Long("programs from PyPI; the gate has golden documents, and agent-takeover with HAProxy"),
        needs: patroni::NEEDS,
        run: patroni::run,
    },
    Scenario {
        name: "two-sites",
        shows: "PostgreSQL at two sites: one site is lost and the other is promoted, no acknowledged commit is lost; when the old site is back, it becomes no second primary and follows the new one",
        tier: Tier::Long("takes more than a minute; agent-takeover and recover cover R1 and R2"),
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: two_sites::run,
    },
    Scenario {
        name: "standby",
        shows: "a read-only PostgreSQL on a local copy of a snapshot: it is consistent, is refreshed also while a gateway is killed, and does not affect the primary",
        tier: Tier::Long("takes more than a minute; no rule depends on it, and the snapshot copies have unit tests"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: standby::run,
    },
    Scenario {
        name: "tls",
        shows: "TLS between gateways and on the admin API: service continues when a gateway is killed, and a client without a valid certificate gets no answer (R10)",
        tier: Tier::Gate("R10 on the network"),
        needs: &["qemu-io"],
        run: tls::run,
    },
    Scenario {
        name: "to-tls",
        shows: "a cluster without TLS comes to it under load, one gateway and one step after the other: writes go on, and at the end plain text gets no answer (R10)",
        tier: Tier::Long("nine restarts; unit tests of the doors are in the gate"),
        needs: &[],
        run: to_tls::run,
    },
    Scenario {
        name: "nbd-tls",
        shows: "NBD over TLS with nbdinfo, nbdcopy, nbdkit and qemu-img, with import, export and attach: where it is required, clients in plain text and with other certificates are not served (R10)",
        tier: Tier::Gate("R10 at the NBD port, with clients of others; about ten seconds, beside another scenario"),
        needs: &["nbdinfo", "nbdcopy", "nbdkit", "qemu-img", "qemu-io"],
        run: nbd_tls::run,
    },
    Scenario {
        name: "hostile-short",
        shows: "some hundred hostile clients at each door of a cluster with TLS, beside a writer: no error, no leader lost, memory bounded; commands and a host with a token get in",
        tier: Tier::Gate("the limits of doors with real processes; half a minute"),
        needs: &[],
        run: hostile::run_short,
    },
    Scenario {
        name: "hostile",
        shows: "thousands of hostile clients at every door, without TLS and with it, beside a writer whose p99 is printed: no error, no leader lost, memory bounded; commands, a host with a token and a gateway that restarts get in",
        tier: Tier::Long("two minutes, and figures of a machine that does nothing else; the gate has hostile-short"),
        needs: &[],
        run: hostile::run,
    },
    Scenario {
        name: "unreadable",
        shows: "journals, snapshots, cache files and objects contain no readable user data (R10)",
        tier: Tier::Gate("R10 on disks and in the store"),
        needs: &[],
        run: unreadable::run,
    },
    Scenario {
        name: "space",
        shows: "after many overwrites the store shrinks to about the live size; a snapshot keeps its content and frees its space when deleted; a leader that was paused deletes nothing",
        tier: Tier::Gate("R7: which objects are deleted, and which a paused leader must not delete"),
        needs: &[],
        run: space::run,
    },
    Scenario {
        name: "rollback",
        shows: "a set is rolled back to a snapshot, also while a gateway is killed; old clients can continue only with a new epoch (R4, R6)",
        tier: Tier::Gate("R4, R6: a set is rolled back to a snapshot"),
        needs: &[],
        run: rollback::run,
    },
    Scenario {
        name: "snapshot-diff",
        shows: "between two snapshots, volumes are written, trimmed, resized, swapped, deleted and created again: `snapshot diff` turns an image of one snapshot into the other, in both directions (R4)",
        tier: Tier::Gate("R4: differences between snapshots are applied to images"),
        needs: &[],
        run: diff::run,
    },
    Scenario {
        name: "clones",
        shows: "a set is cloned and both are written; the snapshot is deleted, objects are collected, all gateways are killed, all disks are lost: set and clone each keep their own data (R4)",
        tier: Tier::Gate("R4, R7: a clone keeps its objects"),
        needs: &[],
        run: clones::run,
    },
    Scenario {
        name: "volumes",
        shows: "volumes grow, shrink, are renamed and deleted under load, also while a gateway is killed: other volumes are intact, and the store's space is freed (R1, R8)",
        tier: Tier::Gate("R1, R8: volumes are resized and deleted under load"),
        needs: &[],
        run: volumes::run,
    },
    Scenario {
        name: "set-delete",
        shows: "a set is deleted while a gateway is away, another while its serving gateway is killed: key, objects and files on all disks are deleted, the name is free, the other set is intact (R10)",
        tier: Tier::Gate("R7, R10: a deleted set leaves nothing behind, and other sets lose nothing"),
        needs: &[],
        run: set_delete::run,
    },
    Scenario {
        name: "import-export",
        shows: "a sparse image is imported and exported while the command and a gateway are killed: the digest is the same (R1); qcow2 works as documented",
        tier: Tier::Gate("R1, R12: a killed import resumes, and no block is lost"),
        needs: &["sha256sum", "qemu-img", "qemu-nbd", "nbdcopy"],
        run: images::run,
    },
    Scenario {
        name: "attach-postgresql",
        shows: "pgbench runs on ext4 on `holdfast attach`: gateways are killed, and PostgreSQL sees no error",
        tier: Tier::Long("attach-failover with PostgreSQL instead of fio"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: attach_postgresql::run,
    },
    Scenario {
        name: "rolling-postgresql",
        shows: "each gateway is drained, restarted and undrained under pgbench: PostgreSQL sees no error, no commit is lost (R1, R8)",
        tier: Tier::Long("takes more than a minute; in the gate, members drains and restarts each gateway"),
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::run,
    },
    Scenario {
        name: "rolling-upgrade",
        shows: "like rolling-postgresql, with a newer program: one gateway is upgraded and downgraded, then all are upgraded; from then on the older program is refused (R1, R8)",
        tier: Tier::Long(
            "an upgrade from an older program, which must be given; in the gate, cargo tests check the stored formats against golden files",
        ),
        needs: &[OLDER, "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::upgrade,
    },
    Scenario {
        name: "power-cuts",
        shows: "the power fails under PostgreSQL and all gateways, and their disks lose all data that was not synced: commit ledger, file system and tables are intact (R1)",
        tier: Tier::Long(
            "takes more than a minute; the gate has first-cut, and the journal has crash tests on disks that lose unsynced data",
        ),
        needs: power::NEEDS,
        run: power::run_few,
    },
    Scenario {
        name: "first-cut",
        shows: "the power fails on a machine that was just set up: the new folders and all flushed data are there (R1)",
        tier: Tier::Gate("R1 after a power cut: the disk loses names and blocks that were not synced"),
        needs: &[],
        run: power::first_cut,
    },
    Scenario {
        name: "failover",
        shows: "PostgreSQL behind HAProxy: host killed, switchover, gateway killed, host cut off, region lost: no commit is lost, and the cut-off host cannot write",
        tier: Tier::Long(
            "like agent-takeover, with a cut-off host and a lost region; the gate has agent-takeover, two-owners and etcd-pair",
        ),
        needs: failover::NEEDS,
        run: failover::run,
    },
    Scenario {
        name: "failover-secure",
        shows: "like failover, with everything on that keeps others out: TLS for every client, roles, tokens, allowed stores, audit logs",
        tier: Tier::Long("takes more than a minute; the gate has agent-takeover, tls and nbd-tls"),
        needs: failover::NEEDS,
        run: failover::run_secure,
    },
    Scenario {
        name: "dev-secure",
        shows: "`holdfast dev --secure`: nobody gets in without a certificate, each role does what it may, libnbd writes with a token through TLS, PostgreSQL survives the loss of a gateway and of a host (R1, R10)",
        tier: Tier::Long(
            "about a minute; the gate has tls and nbd-tls, and cargo tests start `dev --secure` and call every RPC with every role",
        ),
        needs: dev_secure::NEEDS,
        run: dev_secure::run,
    },
    Scenario {
        name: "no-plaintext",
        shows: "everything that crosses the network between gateways, hosts, commands and S3 is recorded: in plain text written data, tokens and the set's name are found, in a secured cluster they are not (R10)",
        tier: Tier::Long("takes more than a minute; the gate has tls, nbd-tls and unreadable"),
        needs: no_plaintext::NEEDS,
        run: no_plaintext::run,
    },
    Scenario {
        name: "memory",
        shows: "random 8 KiB writes over a whole 1 TiB volume: every gateway uses less than 1 GiB of resident memory",
        tier: Tier::Long("half a minute; a memory limit, no rule"),
        needs: &["fio"],
        run: memory::run,
    },
    Scenario {
        name: "dashboards",
        shows: "a real Prometheus scrapes three gateways and an agent: each query of the dashboards finds data, no alert fires while all is well, and one for a killed gateway appears",
        tier: Tier::Long(
            "about a minute; a cargo test of the gate holds the names in rules and dashboards to those that exist",
        ),
        needs: dashboards::NEEDS,
        run: dashboards::run,
    },
    Scenario {
        name: "page",
        shows: "the page of each gateway shows gateways, set, owner and snapshot, without scripts and in a headless Chromium, where it stays live; a new owner and a killed gateway are on it; prints where its pictures are",
        tier: Tier::Long("needs a Chromium; cargo tests hold the page to a golden file, and its door to roles"),
        needs: &[page::CHROMIUM],
        run: page::run,
    },
    Scenario {
        name: "csi",
        shows: "csi-sanity passes against the CSI driver and three gateways, with file systems and with block devices, and nothing of its volumes is left",
        tier: Tier::Long("several minutes; unit tests of the gate hold names, sizes, codes, copies and deletions"),
        needs: csi::NEEDS,
        run: csi::run,
    },
    Scenario {
        name: "helm-chart",
        shows: "helm accepts the chart for Kubernetes, renders each part of it, and refuses values that it does not know",
        tier: Tier::Long("seconds, but helm is built from its source first"),
        needs: csi::CHART_NEEDS,
        run: csi::chart,
    },
];

/// Where the gate tests each rule of docs/GLOSSARY.md: scenarios of the list above, and other parts.
#[cfg(test)]
const RULES: [(&str, &[&str], &str); 12] = [
    ("R1", &["flush-kill-all", "moves", "first-cut", "etcd-pair"], "simulation, chaos, journal's crash tests"),
    ("R2", &["two-owners", "paused-gateway", "attach-failover"], "simulation, chaos"),
    ("R3", &["paused-gateway"], "simulation, chaos (Porcupine)"),
    ("R4", &["recover", "stores-lost", "rollback", "snapshot-diff", "clones"], "histories"),
    ("R5", &[], "chaos (no torn or misplaced block), the log's tests on simulated disks"),
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
        assert!((25..=35).contains(&gate), "{gate} scenarios in the gate: in 40 minutes there is time for some 32");
        assert!(SCENARIOS.iter().all(|scenario| !scenario.tier.why().is_empty()));
    }
}
