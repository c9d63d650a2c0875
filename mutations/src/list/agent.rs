//! When a PostgreSQL host takes the lease, and for how long PostgreSQL may run under it.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const MACHINE: &str = "crates/agent/src/machine.rs";
const TAKEOVER: &str = "crates/agent/src/machine/takeover.rs";
const DRIVERS: &str = "crates/agent/src/drivers.rs";

const STORIES: Test = lib(Layer::Story, "holdfast-agent", &["machine::story_tests::"]);
const LOOKS: Test = lib(Layer::Unit, "holdfast-agent", &["drivers::tests::"]);
const PROCESSES: Test = lib(Layer::Unit, "holdfast-agent", &["process::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "lease-as-long-as-anothers",
        bug: "an agent takes the length of another host's lease for its own: PostgreSQL runs after its lease has ended",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: MACHINE,
            old: "            if *owner == self.policy.name {\n                // Only our own",
            new: "            if true {\n                // Only our own",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "failed-takeovers-use-the-hour-up",
        bug: "a takeover that never started PostgreSQL counts toward the limit per hour: then no host takes over",
        rule: "AGENT-A8",
        edits: &[Edit {
            file: TAKEOVER,
            old: "        self.takeover.counts = true;",
            new: "        self.takeover.within_hour.push_back(now);",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "takeovers-count-nothing",
        bug: "a set whose PostgreSQL starts on no host moves between its hosts for ever",
        rule: "AGENT-A8",
        edits: &[Edit {
            file: TAKEOVER,
            old: "            self.takeover.within_hour.push_back(now);",
            new: "            self.takeover.within_hour.clear();",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "lease-without-the-required-watchdog",
        bug: "a host that requires a watchdog and has no watchdog device takes and releases the lease again and again",
        rule: "AGENT-A7",
        edits: &[Edit { file: DRIVERS, old: "_ if !self.watchdog_required => Ok(()),", new: "_ if true => Ok(())," }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "lease-beside-a-hung-import",
        bug: "a host whose pool import hangs in the kernel takes and releases the lease again and again",
        rule: "R8",
        edits: &[Edit { file: DRIVERS, old: "match self.hangs.as_str() {", new: "match \"\" {" }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "start-command-waited-for",
        bug: "the agent waits for a start command that ends only when PostgreSQL is ready: after a long recovery the start counts as failed, and PostgreSQL is killed",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/database/commands.rs",
            old: "                Err(_) if self.runs()? => return Ok(()),\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["drivers::database::tests::a_start_that_waits"])],
        smoke: false,
    },
    Mutation {
        name: "devices-of-a-killed-attach-left",
        bug: "a primary whose attach was killed leaves its devices in the kernel: processes that use them hang, and the host cannot take over again",
        rule: "AGENT-A2",
        edits: &[Edit {
            file: MACHINE,
            old: "            _ => self.fence(now, reason, out),",
            new: "            _ => {\n                self.present.attached = false;\n                self.fence(now, reason, out);\n            }",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "one-process-hides-all",
        bug: "if one process of the host cannot be inspected, PostgreSQL's processes get no SIGKILL",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/process/postgres.rs",
            old: "        let Looked { found, missed } = look_in(proc, of);",
            new: "        let Looked { mut found, missed } = look_in(proc, of);\n        if missed.is_some() {\n            found.clear();\n        }",
        }],
        tests: &[PROCESSES],
        smoke: false,
    },
    Mutation {
        name: "container-taken-for-ours",
        bug: "the PostgreSQL of a container, whose data directory has the same path, is killed",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/process/postgres.rs",
            old: "Ok(Seen::Server) if !is_elsewhere(proc, pid, data) => {",
            new: "Ok(Seen::Server) => {",
        }],
        tests: &[PROCESSES],
        smoke: false,
    },
    Mutation {
        name: "mount-with-a-blank-not-seen",
        bug: "a file system mounted at a path with a space counts as not mounted: its device is removed while in use",
        rule: "AGENT-A2",
        edits: &[Edit {
            file: "crates/host/src/mounts.rs",
            old: "        at: PathBuf::from(OsString::from_vec(unescaped(fields.get(4)?))),",
            new: "        at: PathBuf::from(OsString::from_vec(fields.get(4)?.to_vec())),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-host", &["mounts::"])],
        smoke: false,
    },
    Mutation {
        name: "started-off-the-set",
        bug: "PostgreSQL is started with its WAL on a disk of the host: acknowledged commits are lost with the host",
        rule: "ONSET-L1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/placement.rs",
            old: "            if is_link && !scratch::NAMES",
            new: "            if false && is_link && !scratch::NAMES",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["drivers::placement::"])],
        smoke: false,
    },
    Mutation {
        name: "switchover-that-resets",
        bug: "one process that has the pool open turns a planned switchover into fencing, and on ZFS into a reboot of the machine",
        rule: "AGENT-A9",
        edits: &[Edit {
            file: "crates/agent/src/machine/step_down.rs",
            old: "            (Then::HandedOver { to, .. }, Step::Export) if in_use => {",
            new: "            (Then::HandedOver { to, .. }, Step::Export) if in_use && false => {",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "commands-from-loopback",
        bug: "any user of the host can give the agent commands over loopback",
        rule: "HEALTH-H2",
        edits: &[Edit {
            file: "crates/agent/src/http/door.rs",
            old: "        if who == Asker::Local {\n",
            new: "        if who == Asker::Local || matches!(who, Asker::Remote(from) if from.ip().is_loopback()) {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["commands_are_for_the_socket_or_the_token"])],
        smoke: false,
    },
    Mutation {
        name: "run-dir-of-everybody",
        bug: "the agent uses a directory in which everybody may make files, such as /tmp, and takes it for itself",
        rule: "LOCAL-L1",
        edits: &[Edit {
            file: "crates/agent/src/run_dir.rs",
            old: "if found.mode() & STICKY != 0 || !is_agents(dir, lock)? {",
            new: "if !is_agents(dir, lock)? {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_directory_that_others_need_is_refused_and_stays_as_it_is"])],
        smoke: false,
    },
    Mutation {
        name: "data-of-another-user",
        bug: "an agent begins on a data directory of another user than database.user: a PostgreSQL that runs there is not found",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/process/server.rs",
            old: "(!self.may_run_as(owner)).then_some(owner)",
            new: "(!self.may_run_as(owner)).then_some(owner).filter(|owner| *owner == u32::MAX)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["data_of_another_user_is_refused_before_its_server_is_missed"])],
        smoke: false,
    },
    Mutation {
        name: "log-device-off-the-set",
        bug: "PostgreSQL is started on a ZFS pool whose log device is a disk of the host: the last commits are lost with the host",
        rule: "ONSET-L3",
        edits: &[Edit {
            file: "crates/agent/src/drivers/placement/vdevs.rs",
            old: "needed(vdevs).filter(|vdev| disks.below(&vdev.path) == Stands::Elsewhere);",
            new: "needed(vdevs).filter(|vdev| vdev.class == Class::Data && disks.below(&vdev.path) == Stands::Elsewhere);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["each_device_of_the_pool_that_holds_data_is_on_the_set"])],
        smoke: false,
    },
    Mutation {
        name: "btrfs-by-one-device",
        bug: "a Btrfs file system over several devices counts as the set's if the one device that the table of mounts names is",
        rule: "ONSET-L1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/placement/disks.rs",
            old: "if mount.kind == \"btrfs\" { self.of_btrfs(&name) }",
            new: "if mount.kind.is_empty() { self.of_btrfs(&name) }",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["each_device_of_a_btrfs_file_system_is_the_sets"])],
        smoke: false,
    },
    Mutation {
        name: "xfs-log-off-the-set",
        bug: "PostgreSQL is started on an XFS whose log is on a disk of the host: the file system is lost with the host",
        rule: "ONSET-L1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/placement.rs",
            old: "is_mounted(mount) && self.disks.have_further(mount);",
            new: "is_mounted(mount);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["each_device_of_an_xfs_is_the_sets"])],
        smoke: false,
    },
    Mutation {
        name: "taken-port-ends-the-agent",
        bug: "an agent that is restarted beside PostgreSQL ends because another program has its port",
        rule: "LISTEN-L3",
        edits: &[Edit {
            file: "crates/agent/src/listen.rs",
            old: "    if is_first(host).await { Err(error) }",
            new: "    if host.found().await.is_ok() { Err(error) }",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &["a_port_that_is_taken_ends_only_an_agent_that_has_nothing_to_do"],
        )],
        smoke: false,
    },
    Mutation {
        name: "unwritable-history-ends-the-agent",
        bug: "an agent that is restarted beside PostgreSQL ends because its history cannot be written",
        rule: "LISTEN-L3",
        edits: &[Edit {
            file: "crates/agent/src/run.rs",
            old: "            Ok(History::unwritable(dir))",
            new: "            Err(dir_error(dir)(error))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["an_agent_with_something_to_do_goes_on_without_its_history"])],
        smoke: false,
    },
    Mutation {
        name: "unwritten-lines-forgotten",
        bug: "lines of the history that the disk did not take are never written",
        rule: "LISTEN-L3",
        edits: &[Edit {
            file: "crates/agent/src/history/writer.rs",
            old: "        if wrote {\n",
            new: "        if wrote || !lines.is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["lines_that_the_disk_did_not_take_are_written_later"])],
        smoke: false,
    },
    Mutation {
        name: "panic-of-a-question-is-lost",
        bug: "a panic in a question to a gateway counts as no answer: the agent goes on with a broken invariant",
        rule: "R11",
        edits: &[Edit {
            file: "crates/agent/src/cluster.rs",
            old: "Ok(panic) => std::panic::resume_unwind(panic),",
            new: "Ok(_) => continue,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_panic_in_a_question_goes_on_to_the_agent"])],
        smoke: false,
    },
    Mutation {
        name: "archiver-not-waited-for",
        bug: "a switchover is refused because an archiver, which ends by itself, is at its last segments",
        rule: "AGENT-A9",
        edits: &[Edit {
            file: "crates/agent/src/drivers/pool/export.rs",
            old: " && system.openers(config).await.all_leave() {",
            new: " && system.openers(config).await.all().is_empty() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_pool_whose_users_all_end_by_themselves_is_waited_for"])],
        smoke: false,
    },
    Mutation {
        name: "tmpfs-keeps-the-pool",
        bug: "a tmpfs on pg_stat_tmp keeps the pool from being exported: each switchover is refused",
        rule: "AGENT-A9",
        edits: &[Edit {
            file: "crates/agent/src/drivers/pool/export.rs",
            old: "    let mut done = match unmount_scratch(system, config, &table, limit).await {",
            new: "    let mut done = match Ok(()) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_tmpfs_for_statistics_is_unmounted_with_the_pool"])],
        smoke: false,
    },
    Mutation {
        name: "datasets-stay-unmounted",
        bug: "PostgreSQL is started again over a dataset that the refused export has unmounted",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/pool/export.rs",
            old: "            mount_again_by(system, before).await;\n            let users",
            new: "            let users",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &["what_a_failed_export_unmounted_is_mounted_before_the_next_start"],
        )],
        smoke: false,
    },
    Mutation {
        name: "schedule-dropped-at-once",
        bug: "a scheduled switchover is dropped because of an obstacle that goes away by itself",
        rule: "TIMED-T3",
        edits: &[Edit {
            file: "crates/agent/src/schedule.rs",
            old: "Some(obstacle) if obstacle.transient => Due::Waits,",
            new: "Some(obstacle) if obstacle.transient && obstacle.why.is_empty() => Due::Waits,",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &["an_obstacle_that_may_go_away_is_waited_for_and_named_in_the_end"],
        )],
        smoke: false,
    },
    Mutation {
        name: "any-error-of-zpool-means-no-pool",
        bug: "a zpool that fails without a look counts as a pool that is not there: its device is removed under it",
        rule: "OWN-P1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/zfs/vdevs.rs",
            old: "        Some(_) if says_absent(&listed.err) => Ok(false),",
            new: "        Some(_) => Ok(false),",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &[
                "only_the_words_no_such_pool_mean_that_there_is_none",
                "a_pool_that_zpool_did_not_look_for_may_be_imported",
            ],
        )],
        smoke: false,
    },
    Mutation {
        name: "unread-note-means-no-pool",
        bug: "a note of the agent's own pool that cannot be read counts as none: the pool counts as somebody else's, and its device is removed under it",
        rule: "OWN-P1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/ownership.rs",
            old: "        Err(error) => return unread(&error),\n",
            new: "        Err(_) => return Noted::No,\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &["a_pool_is_absent_only_if_zpool_says_so_and_its_note_only_if_it_is_not_there"],
        )],
        smoke: false,
    },
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
];
