//! End-to-end scenarios: real processes, real clients, real kills. Each prints `ok`, `FAILED` or `skipped` with its name.

mod agent;
mod agent_orders;
mod agent_three;
mod attach;
mod attach_postgresql;
mod blocks;
mod clones;
mod cold;
mod damaged;
mod data_keys;
mod diff;
mod etcd;
mod failover;
mod faults;
mod fills;
mod flush;
mod idle;
mod images;
mod keys;
mod lagging;
mod loaded;
mod members;
mod memory;
mod moves;
mod outage;
mod owners;
mod pair;
mod paused;
mod power;
mod recover;
mod recover_postgresql;
mod rollback;
mod rolling;
mod rotten;
mod scrub;
mod set_delete;
mod space;
mod standby;
mod stores;
mod stores_change;
mod storm;
mod tls;
mod tools;
mod two_sites;
mod unreadable;
mod verified;
mod volumes;
mod waits;
mod wan;
mod wiped;
mod witness;

use crate::binary::{Build, root};
use crate::cluster::{Cluster, Options};
use crate::room;
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::times::Times;
use crate::verify::{missing, scenario_dir};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a person can turn.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Scenarios to run; all of them if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The long form: two minutes without S3, more rounds
    #[arg(long)]
    long: bool,
    /// A program of an older build, for `rolling-upgrade`
    #[arg(long, env = "HOLDFAST_OLDER_BIN", value_name = "PATH")]
    older_bin: Option<PathBuf>,
    #[command(flatten)]
    pub build: Build,
}

/// What a scenario is given.
struct Lab {
    bin: PathBuf,
    dir: PathBuf,
    long: bool,
    /// A program of an older build, where one was given.
    older: Option<PathBuf>,
}

/// A named scenario.
struct Scenario {
    name: &'static str,
    /// What it shows, in one line.
    shows: &'static str,
    needs: &'static [&'static str],
    run: fn(&Lab) -> Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "flush-kill-all",
        shows: "write + FLUSH for 20 s, SIGKILL of all gateways: each acknowledged pair is there (R1)",
        needs: &[],
        run: flush::run,
    },
    Scenario {
        name: "fio-verify-failover",
        shows: "fio --verify=crc32c is clean, also after a failover in the middle of a verify run",
        needs: &["fio"],
        run: verified::run,
    },
    Scenario {
        name: "clients",
        shows: "nbdinfo, nbdcopy, nbdsh, qemu-io, qemu-img convert and compare work and agree",
        needs: &["nbdinfo", "nbdcopy", "nbdsh", "qemu-io", "qemu-img"],
        run: tools::run,
    },
    Scenario {
        name: "s3-outage",
        shows: "S3 stopped under load: no client error; the backlog drains afterwards (R8)",
        needs: &["versitygw"],
        run: outage::run,
    },
    Scenario {
        name: "s3-faults",
        shows: "S3 that throttles, hangs, breaks, lies, is full, refuses and wants new keys, under load and a takeover: no client error, nothing lost or left over (R8)",
        needs: &["versitygw"],
        run: faults::run,
    },
    Scenario {
        name: "stores",
        shows: "one of three S3 servers killed under load: no client error, checkpoints go on, it catches up; another is emptied, and counts again (R8)",
        needs: &["versitygw"],
        run: stores::run,
    },
    Scenario {
        name: "stores-lost",
        shows: "all gateways and disks lost: recovered from three S3 servers with any one of them missing (R4, R8)",
        needs: &["versitygw"],
        run: stores::run_lost,
    },
    Scenario {
        name: "stores-change",
        shows: "a set's stores are changed under load: filled through a kill, a dead one replaced, drained, abandoned; recovery finds the new ones (R1, R4, R8)",
        needs: &["versitygw"],
        run: stores_change::run,
    },
    Scenario {
        name: "idle",
        shows: "an idle set asks next to nothing of its store; the first answer after that is preceded by a look at the head (H1)",
        needs: &["versitygw"],
        run: idle::run,
    },
    Scenario {
        name: "cold-reads",
        shows: "a reader in order or in steps does not wait for one answer of the store after the other; scattered reads cost no request more; CACHE works; a warm follower takes over warm",
        needs: &["versitygw", "nbdsh"],
        run: cold::run,
    },
    Scenario {
        name: "journal-fills",
        shows: "S3 away until the journal is nearly full: writers slow down along a curve, none sees an error (R8)",
        needs: &["versitygw"],
        run: fills::run,
    },
    Scenario {
        name: "two-owners",
        shows: "while B holds the lease, each write of A is refused, and B's data stays (R2)",
        needs: &[],
        run: owners::run,
    },
    Scenario {
        name: "come-and-go",
        shows: "plain connections that leave and arrive at once: none is closed with another's lease",
        needs: &[],
        run: storm::run,
    },
    Scenario {
        name: "moves",
        shows: "switchover and failover under load: connections close unanswered, nothing is lost (R1, R8)",
        needs: &[],
        run: moves::run,
    },
    Scenario {
        name: "attach-failover",
        shows: "users of `holdfast attach` see no error through kills, pauses and moves, and only errors once fenced (R1, R2, R8)",
        needs: &["fio"],
        run: attach::run,
    },
    Scenario {
        name: "paused-gateway",
        shows: "SIGSTOP past the lease, then SIGCONT: no stale read, no late write (R2, R3, R6)",
        needs: &[],
        run: paused::run,
    },
    Scenario {
        name: "wiped-disk",
        shows: "a gateway whose disk was wiped comes back as a new member under load and carries a quorum",
        needs: &[],
        run: wiped::run,
    },
    Scenario {
        name: "lagging",
        shows: "a follower stands still for twice what the journals hold: the others go on, it comes back by a state snapshot and carries a quorum (R1)",
        needs: &[],
        run: lagging::run,
    },
    Scenario {
        name: "members",
        shows: "a gateway is added, each is drained and restarted, one replaced, one removed: attached users see no error (R1, R8)",
        needs: &[],
        run: members::run,
    },
    Scenario {
        name: "witness",
        shows: "two gateways and a witness: one is killed, the other serves; the witness never does",
        needs: &[],
        run: witness::run,
    },
    Scenario {
        name: "wan",
        shows: "gateways 80 ms apart: a write takes a round trip, nobody is elected without need, a kill and a planned move are followed (R1, R8)",
        needs: &[],
        run: wan::run,
    },
    Scenario {
        name: "damaged",
        shows: "a follower's journal is damaged where it was synced: named, healed from its peers, a voter again (R9)",
        needs: &[],
        run: damaged::run,
    },
    Scenario {
        name: "rotten",
        shows: "a record rots under the gateway that serves: the read is answered by another one, right; the first ends and is healed (R9)",
        needs: &[],
        run: rotten::run,
    },
    Scenario {
        name: "recover",
        shows: "all gateways and disks lost: rebuilt from S3 up to the printed index; what comes back later serves nothing (R4)",
        needs: &["versitygw"],
        run: recover::run,
    },
    Scenario {
        name: "recover-postgresql",
        shows: "PostgreSQL, all gateways and disks lost: recovered, it opens, and its ledger is complete up to the printed moment (R4)",
        needs: &["versitygw", "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: recover_postgresql::run,
    },
    Scenario {
        name: "keys",
        shows: "the cluster key changed under load, through a kill; then the new key alone recovers the set, the old one opens nothing (R10)",
        needs: &[],
        run: keys::run,
    },
    Scenario {
        name: "data-keys",
        shows: "a set's data key changed under load, through a late gateway and a kill; kept for a snapshot, then gone; no object is under the old one (R10)",
        needs: &[],
        run: data_keys::run,
    },
    Scenario {
        name: "etcd",
        shows: "a real etcd is told of each grant, also after it was dead or silent; no grant waits for it, nothing newer or foreign is replaced",
        needs: etcd::NEEDS,
        run: etcd::run,
    },
    Scenario {
        name: "etcd-pair",
        shows: "two gateways with an etcd in place of a third voter: killed, stopped, cut off, etcd killed, S3 stopped: what was flushed is there, nobody stale answers",
        needs: pair::NEEDS,
        run: pair::run,
    },
    Scenario {
        name: "agent-pair",
        shows: "PostgreSQL on two hosts over such a pair: the gateway that serves is killed, PostgreSQL is primary again over the other one, no commit is lost",
        needs: pair::NEEDS_AGENTS,
        run: pair::run_agents,
    },
    Scenario {
        name: "scrub",
        shows: "a flipped byte of an object, of the set or of a snapshot alone, is found by the background reading and named (R9)",
        needs: &[],
        run: scrub::run,
    },
    Scenario {
        name: "waits",
        shows: "reads of a damaged object wait, everything else of the attached host goes on, and nothing is reconnected (R8, R9)",
        needs: &[],
        run: waits::run,
    },
    Scenario {
        name: "agent-takeover",
        shows: "two PostgreSQL hosts behind HAProxy and PgBouncer: one killed, a switchover, an agent that hangs: the other takes over, no commit is lost",
        needs: agent::NEEDS,
        run: agent::run,
    },
    Scenario {
        name: "agent-xfs",
        shows: "the same on XFS, with PostgreSQL started and stopped by the host's own commands",
        needs: agent::NEEDS_XFS,
        run: agent::run_xfs,
    },
    Scenario {
        name: "agent-orders",
        shows: "PostgreSQL killed, then hung, and restarted in its place; a pause; a switchover at a time; a forced failover; each health check's answer; `holdfast watch` through it",
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_orders::run,
    },
    Scenario {
        name: "agent-three",
        shows: "three PostgreSQL hosts: the one of higher priority takes over, one with nofailover never does, flapping delay and takeovers per hour hold, a switchover to the third, manual mode",
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"],
        run: agent_three::run,
    },
    Scenario {
        name: "two-sites",
        shows: "PostgreSQL at two sites: one is lost, the other is promoted, no acknowledged commit is lost; back, it is no second primary, and follows",
        needs: &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: two_sites::run,
    },
    Scenario {
        name: "standby",
        shows: "a read-only PostgreSQL on a local copy of a snapshot: consistent, renewed, through a gateway's death, and the primary does not notice",
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"],
        run: standby::run,
    },
    Scenario {
        name: "tls",
        shows: "TLS between gateways and at the admin door: works through a kill, and nobody else gets a word (R10)",
        needs: &["qemu-io"],
        run: tls::run,
    },
    Scenario {
        name: "unreadable",
        shows: "journals, snapshots, cache and objects show nothing of what was written (R10)",
        needs: &[],
        run: unreadable::run,
    },
    Scenario {
        name: "space",
        shows: "the store settles near the live size; a snapshot stays what it was and frees its own; a paused leader deletes nothing",
        needs: &[],
        run: space::run,
    },
    Scenario {
        name: "rollback",
        shows: "a set becomes one of its snapshots, through a kill as well; who used it goes on only under a new epoch (R4, R6)",
        needs: &[],
        run: rollback::run,
    },
    Scenario {
        name: "snapshot-diff",
        shows: "volumes are written, trimmed, resized, exchanged, deleted and made anew between two snapshots: images of one become those of the other, both ways (R4)",
        needs: &[],
        run: diff::run,
    },
    Scenario {
        name: "clones",
        shows: "a set is cloned: both are written, the snapshot goes, objects are deleted, all gateways die, all disks are lost: each shows its own (R4)",
        needs: &[],
        run: clones::run,
    },
    Scenario {
        name: "volumes",
        shows: "volumes grow, shrink, are renamed and deleted under load and through a kill; the others are whole, the space comes back (R1, R8)",
        needs: &[],
        run: volumes::run,
    },
    Scenario {
        name: "set-delete",
        shows: "a set is deleted while a gateway is away, and while its own one dies: key, objects, files on all disks go, its name is free, the other set is whole (R10)",
        needs: &[],
        run: set_delete::run,
    },
    Scenario {
        name: "import-export",
        shows: "a sparse image in and out again through kills of the command and of a gateway: the same digest (R1); qcow2 as documented",
        needs: &["sha256sum", "qemu-img", "qemu-nbd", "nbdcopy"],
        run: images::run,
    },
    Scenario {
        name: "attach-postgresql",
        shows: "pgbench on ext4 on `holdfast attach`: gateways are killed, and PostgreSQL sees no error",
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: attach_postgresql::run,
    },
    Scenario {
        name: "rolling-postgresql",
        shows: "each gateway is drained, restarted and undrained under pgbench: PostgreSQL sees no error, no commit is lost (R1, R8)",
        needs: &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::run,
    },
    Scenario {
        name: "rolling-upgrade",
        shows: "the same with a newer program for each: first one, and back; then all; the older one is refused from then on (R1, R8)",
        needs: &[OLDER, "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"],
        run: rolling::upgrade,
    },
    Scenario {
        name: "power-cuts",
        shows: "the power goes under PostgreSQL and all gateways, their disks lose what was not synced: ledger, file system and tables are whole (R1)",
        needs: power::NEEDS,
        run: power::run_few,
    },
    Scenario {
        name: "first-cut",
        shows: "the power goes on a machine that was just set up: the names of its new folders are there, and what was flushed (R1)",
        needs: &[],
        run: power::first_cut,
    },
    Scenario {
        name: "failover",
        shows: "behind HAProxy: host killed, switchover, gateway killed, host cut off, region lost: no commit is lost, the cut-off host cannot write",
        needs: failover::NEEDS,
        run: failover::run,
    },
    Scenario {
        name: "memory",
        shows: "random 8 KiB writes all over a 1 TiB volume: every gateway stays below 1 GiB resident",
        needs: &["fio"],
        run: memory::run,
    },
];

/// The chore: set up, run, count.
///
/// # Errors
/// When a scenario failed or is not known.
pub fn chore(args: &Args) -> Result<()> {
    setup::setup(For::Tests)?;
    let mut times = Times::begin();
    let count = run(args, &mut times)?;
    times.say();
    count.close()
}

/// Runs the scenarios asked for, and notes how long each took.
///
/// # Errors
/// When `holdfast` does not build, or a name is not known.
pub fn run(args: &Args, times: &mut Times) -> Result<Count> {
    for name in &args.names {
        let all: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        anyhow::ensure!(all.contains(&name.as_str()), "no scenario {name:?}; there are: {}", all.join(", "));
    }
    let bin = args.build.binary("dev")?;
    let older = args.older_bin.as_ref().map(|bin| bin.canonicalize().with_context(|| bin.display().to_string()));
    let older = older.transpose()?;
    step("End-to-end scenarios");
    let mut count = Count::default();
    let chosen = SCENARIOS.iter().filter(|s| args.names.is_empty() || args.names.iter().any(|n| n == s.name));
    let chosen: Vec<&Scenario> = chosen.collect();
    let mut done = Vec::new();
    for &scenario in &chosen {
        if done.contains(&scenario.name) {
            continue;
        }
        if let Some(why) = lacking(scenario.needs, args) {
            count.skip(scenario.name, &why);
            continue;
        }
        let beside = beside(scenario.name, &chosen).filter(|other| lacking(other.needs, args).is_none());
        let play = |scenario: &Scenario| one(scenario, &bin, older.as_deref(), args.long);
        let (ran, other) = std::thread::scope(|scope| {
            let other = beside.map(|other| scope.spawn(move || held(|| play(other))));
            (play(scenario), other.map(|other| other.join()))
        });
        judge(scenario, ran?, args, &mut count, times);
        if let (Some(scenario), Some(other)) = (beside, other) {
            let (ran, said) =
                other.map_err(|_| anyhow::anyhow!("the thread of scenario {} panicked", scenario.name))?;
            said.iter().for_each(line);
            judge(scenario, ran?, args, &mut count, times);
            done.push(scenario.name);
        }
    }
    Ok(count)
}

/// Scenarios of which the second runs beside the first. Each has a folder, ports and servers of its own, and neither has anything else of the machine: no device, mount or
/// network namespace. And each mostly waits: the first for stores that are silent, and for a former life to have noticed its end; the second for half a minute in which nothing is
/// to happen, and it looks again where an election came into that. Neither judges how long an answer takes.
const BESIDE: [(&str, &str); 1] = [("stores-lost", "idle")];

/// What of these runs beside the one of that name.
fn beside<'a>(name: &str, chosen: &[&'a Scenario]) -> Option<&'a Scenario> {
    let (_, other) = BESIDE.iter().find(|(first, _)| *first == name)?;
    chosen.iter().copied().find(|scenario| scenario.name == *other)
}

/// What a scenario came to.
struct Ran {
    result: Result<()>,
    took: Duration,
    dir: PathBuf,
}

fn one(scenario: &Scenario, bin: &Path, older: Option<&Path>, long: bool) -> Result<Ran> {
    step(format!("{}: {}", scenario.name, scenario.shows));
    let begun = Instant::now();
    let (bin, dir) = (bin.to_path_buf(), scenario_dir(scenario.name)?);
    let lab = Lab { bin, dir, long, older: older.map(Path::to_path_buf) };
    let result = (scenario.run)(&lab).with_context(|| format!("logs in {}", lab.dir.display()));
    let took = begun.elapsed();
    note(format!("{:.0} s", took.as_secs_f64()));
    Ok(Ran { result, took, dir: lab.dir })
}

fn judge(scenario: &Scenario, ran: Ran, args: &Args, count: &mut Count, times: &mut Times) {
    times.single(scenario.name, ran.took);
    // What failed on its own is there to be looked into; in a run of everything it would take the room of those that follow.
    let looked_into = ran.result.is_err() && !args.names.is_empty();
    count.check(scenario.name, ran.result);
    if !looked_into && let Err(e) = room::thin_out(&ran.dir) {
        note(format!("not tidied up: {e:#}"));
    }
    room::say_free(root());
}

/// Among what a scenario needs: not a program, but network namespaces with bridge, links and packet rules.
const NAMESPACES: &str = "network namespaces";

/// The same: a program of an older build.
const OLDER: &str = "an older build";

fn lacking(needs: &[&'static str], args: &Args) -> Option<String> {
    let programs: Vec<&str> = needs.iter().copied().filter(|need| ![NAMESPACES, OLDER].contains(need)).collect();
    let spaces = || needs.contains(&NAMESPACES).then(crate::net::why_not).flatten();
    let older = || {
        let none = needs.contains(&OLDER) && args.older_bin.is_none();
        none.then(|| "no program of an older build was given (--older-bin PATH)".to_owned())
    };
    missing(&programs).or_else(spaces).or_else(older)
}

/// How long a takeover may last before a scenario calls it failed.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

impl Lab {
    /// Three gateways on a fresh folder with the embedded store.
    fn cluster(&self, size: &str) -> Result<Cluster> {
        self.cluster_with(size, None, Vec::new())
    }

    /// On a store, with no checkpoint but those that are asked for.
    fn cluster_quiet(&self, size: &str, store: String, env: Vec<(String, String)>) -> Result<Cluster> {
        self.cluster_as(size, Some(store), &["upload.interval_ms=3600000", "upload.bytes=1GiB"], env)
    }

    fn cluster_with(&self, size: &str, store: Option<String>, env: Vec<(String, String)>) -> Result<Cluster> {
        self.cluster_as(size, store, &[], env)
    }

    /// With settings of every gateway.
    fn cluster_as(
        &self,
        size: &str,
        store: Option<String>,
        settings: &[&str],
        env: Vec<(String, String)>,
    ) -> Result<Cluster> {
        let (bin, dir) = (self.bin.clone(), self.dir.join("cluster"));
        let settings = settings.iter().copied().map(String::from).collect();
        Cluster::start(Options { bin, dir, gateways: 3, store, size: size.into(), settings, env })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Scenario {
        SCENARIOS.iter().find(|scenario| scenario.name == name).expect(name)
    }

    #[test]
    fn what_runs_beside_another_is_chosen_comes_later_and_has_none_beside_it() {
        let all: Vec<&Scenario> = SCENARIOS.iter().collect();
        let at = |name: &str| all.iter().position(|scenario| scenario.name == name).expect(name);
        for (first, second) in BESIDE {
            assert_eq!(beside(first, &all).map(|other| other.name), Some(second));
            assert!(beside(first, &[named(first)]).is_none(), "{second} was not chosen");
            assert!(at(first) < at(second), "{second} would run twice");
            assert!(beside(second, &all).is_none(), "{second} is run by itself");
        }
    }

    #[test]
    fn scenarios_that_run_at_the_same_time_share_nothing_of_the_machine() {
        for scenario in BESIDE.iter().flat_map(|(first, second)| [named(first), named(second)]) {
            // What mounts, makes devices or namespaces names the programs that do.
            assert_eq!(scenario.needs, ["versitygw"], "{}", scenario.name);
        }
    }
}
