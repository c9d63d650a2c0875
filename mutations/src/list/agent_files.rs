//! What the agent of a PostgreSQL host keeps on its disk: the history, a pause, a scheduled switchover; moments that
//! its processes tell one another in files.

use crate::bug::{Edit, Layer, Mutation, lib};

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "history-waited-for",
        bug: "the agent's task waits for the disk of its history: a busy disk keeps its signs of life away, and the watchdog ends a healthy PostgreSQL",
        rule: "TASK-N4",
        edits: &[Edit {
            file: "crates/agent/src/history/writer.rs",
            old: "        if self.beside {\n",
            new: "        if self.beside && self.shared.path.as_os_str().is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["nobody_waits_for_a_disk_that_hangs"])],
        smoke: false,
    },
    Mutation {
        name: "rewritten-before-a-sign-of-life",
        bug: "an agent that begins waits until the disk has its long history anew, before its first sign of life: the watchdog ends a healthy PostgreSQL",
        rule: "TASK-N4",
        edits: &[Edit {
            file: "crates/agent/src/history.rs",
            old: "        Ok(Self { lines, writer: Arc::new(Writer::new(path, file, anew)) })\n",
            new: "        Ok(Self { lines, writer: Arc::new(Writer::new(path, file, anew)) }.at_once())\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["nobody_waits_until_a_history_is_written_anew"])],
        smoke: false,
    },
    Mutation {
        name: "reboot-before-the-history",
        bug: "the lines that say why a machine was rebooted are lost with the reboot",
        rule: "TASK-N4",
        edits: &[Edit {
            file: "crates/agent/src/run.rs",
            old: "                self.history_is_written();\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_reboot_waits_for_the_history"])],
        smoke: false,
    },
    Mutation {
        name: "paused-without-the-disk",
        bug: "a pause is answered although the disk did not take it: a later agent starts PostgreSQL under the hands of a person",
        rule: "TASK-N5",
        edits: &[Edit {
            file: "crates/agent/src/pause.rs",
            old: "        Err(error) if error.kind() == ErrorKind::AlreadyExists => (File::open(path)?, false),",
            new: "        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_pause_that_the_disk_does_not_take_is_refused"])],
        smoke: false,
    },
    Mutation {
        name: "resumed-without-the-disk",
        bug: "the end of a pause is answered although its directory did not sync: a loss of power pauses the host again, and it takes nothing over",
        rule: "TASK-N5",
        edits: &[Edit {
            file: "crates/agent/src/pause.rs",
            old: "    let synced = sync(path);\n",
            new: "    let synced = sync(path).or(Ok(()));\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_directory_that_does_not_sync_leaves_a_pause_as_it_was"])],
        smoke: false,
    },
    Mutation {
        name: "refused-schedule-carried-out",
        bug: "a scheduled switchover that was refused, since its directory did not sync, is carried out by the next agent",
        rule: "R12",
        edits: &[Edit {
            file: "crates/agent/src/schedule.rs",
            old: "        if synced.is_err() {\n",
            new: "        if synced.is_err() && self.path.as_os_str().is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_directory_that_does_not_sync_leaves_the_schedule_as_it_was"])],
        smoke: false,
    },
    Mutation {
        name: "unread-pause-is-none",
        bug: "a pause that cannot be read counts as none: the agent starts PostgreSQL under the hands of a person",
        rule: "AGENT-A4",
        edits: &[Edit {
            file: "crates/agent/src/run.rs",
            old: "pause::was(&pause::file_in(&config.dir))",
            new: "pause::file_in(&config.dir).exists()",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_pause_that_cannot_be_read_is_one"])],
        smoke: false,
    },
    Mutation {
        name: "renewal-gets-younger",
        bug: "the machine's clock goes back, and a lease that was renewed before looks as if it was renewed later: PostgreSQL runs for longer than its lease",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/clock.rs",
            old: "        let (_, told) = known.unwrap_or((at, new));\n",
            new: "        let _ = known;\n        let told = new;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_moment_of_before_the_clock_went_back_gets_no_later"])],
        smoke: false,
    },
    Mutation {
        name: "renewal-to-come-counts",
        bug: "the machine's clock goes back before the agent has read a renewal: once the clock is there again, that renewal looks young, and PostgreSQL runs without a lease",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/clock.rs",
            old: "at <= machine.saturating_add(SteadyClock::JITTER_NS))\n",
            new: "at <= machine || SteadyClock::JITTER_NS > 0)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_moment_of_before_the_clock_went_back_that_is_read"])],
        smoke: false,
    },
    Mutation {
        name: "pool-imported-from-anywhere",
        bug: "no device of the set is known, and ZFS searches every disk of the host: a pool of the same name that is somebody else's is imported by force",
        rule: "OWN-P1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/zfs.rs",
            old: "        if devices.is_empty() {\n",
            new: "        if devices.is_empty() && name.is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["without_a_device_no_pool_is_looked_for"])],
        smoke: false,
    },
    Mutation {
        name: "earlier-job-not-waited-for",
        bug: "the lease ends while a start of PostgreSQL hangs on a disk of the host: the stop finds no process and is done, and PostgreSQL is started after it",
        rule: "TASK-N2",
        edits: &[Edit {
            file: "crates/agent/src/run/jobs.rs",
            old: "            if alive.alone(EARLIER_LIMIT).await {\n",
            new: "            if alive.alone(EARLIER_LIMIT).await || what == For::Release {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_stop_is_done_only_once_an_earlier_start_has_ended"])],
        smoke: false,
    },
    Mutation {
        name: "kill-waits-for-a-thread",
        bug: "a SIGKILL of PostgreSQL at the end of its lease waits for a thread of the runtime, and all of them hang on names of peers that are asked for",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/drivers/database.rs",
            old: "        process::kill_postgres_here(&self.processes, KILL_LIMIT).await\n",
            new: "        let processes = self.processes.clone();\n        let killed = tokio::task::spawn_blocking(move || process::kill_postgres(&processes, KILL_LIMIT));\n        killed.await.map_err(|error| error.to_string())?\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_kill_does_not_wait_for_threads_that_hang"])],
        smoke: false,
    },
    Mutation {
        name: "watchdog-device-opened-too-late",
        bug: "a helper that begins near the end of a lease opens the watchdog device that an earlier one left counting: it counts anew, and fires after the lease",
        rule: "GUARD-G1",
        edits: &[Edit {
            file: "crates/agent/src/watchdog/guard.rs",
            old: "            (None, true) if now_ns >= self.retry_ns && may_set(now_ns, wish) => {\n",
            new: "            (None, true) if now_ns >= self.retry_ns => {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_device_is_not_opened_when_the_lease_is_about_to_end"])],
        smoke: false,
    },
    Mutation {
        name: "watchdog-timeout-set-too-late",
        bug: "the watchdog device gets another timeout near the end of a lease, which feeds it: it fires after the lease",
        rule: "GUARD-G1",
        edits: &[Edit {
            file: "crates/agent/src/watchdog/guard.rs",
            old: "                    && may_set(now_ns, wish)\n                    && timeout_s",
            new: "                    && timeout_s",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_timeout_is_not_set_when_the_lease_is_about_to_end"])],
        smoke: false,
    },
    Mutation {
        name: "helper-guesses-the-lease",
        bug: "the watchdog's helper takes attach's lease for as long as the agent's settings say, not as attach says: PostgreSQL runs for longer than its lease",
        rule: "WATCHDOG-W1",
        edits: &[Edit {
            file: "crates/agent/src/watchdog.rs",
            old: "status.lease_ttl_ms.filter(|ttl_ms| *ttl_ms > 0)",
            new: "None.filter(|ttl_ms: &u64| *ttl_ms > 0)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["the_lease_lasts_from_its_renewal_by_the_clock_of_leases"])],
        smoke: false,
    },
    Mutation {
        name: "import-given-up-is-nobodys",
        bug: "an import that was killed goes on in the kernel, and its pool counts as somebody else's: the host is ready for the next takeover, and has that pool over a device that is gone",
        rule: "OWN-P1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/ownership.rs",
            old: "        (not, Noted::No) if !begun.is_empty() => ",
            new: "        (not, Noted::No) if begun.len() > 1_000 => ",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_pool_whose_import_was_given_up_may_be_there"])],
        smoke: false,
    },
];
