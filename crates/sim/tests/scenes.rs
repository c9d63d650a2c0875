//! Scenes of the simulation, its checks with a bug put in, and determinism: a fixed number of runs on simulated time,
//! so it does not matter how quickly they run. (`seeds.rs` runs for a fixed time.)

#[path = "run/tier.rs"]
mod tier;

use std::process::{Command, Output};
use tier::{Tier, tier};

/// Seeds of a scene in the gate. The worlds of a scene are the same in each run, so the long run plays more of them.
const IN_GATE: u64 = 2;

/// Number of seeds in the search for a bug, from seed 1 on. The seed that shows a bug changes with any change of the
/// code.
const SEARCHED: &str = "96";

/// Bugs of a host with an agent, seconds of faults in which a seed shows each, and the messages. An agent that hangs
/// keeps neither a lease (WATCHDOG-W1) nor its own limit (WATCHDOG-W2).
const AGENTS_BUGS: [(&str, &str, &[&str]); 6] = [
    ("never-stops", "4", &["AGENT-A3: ", "WATCHDOG-W1: ", "WATCHDOG-W2: "]),
    ("takes-unasked", "4", &["HOSTS-T1: "]),
    ("no-watchdog", "8", &["WATCHDOG-W1: ", "WATCHDOG-W2: "]),
    ("skips-commits", "4", &["LEDGER-L1 "]),
    ("told-unflushed", "4", &["LEDGER-L1 "]),
    ("slow-hosts", "20", &["AGENT-A3: "]),
];

/// Bugs between an attached set and its gateways, and the messages of the first seed that shows each.
const ATTACHED_BUGS: [(&str, &[&str]); 3] = [
    ("replays-answered", &["R3: ", "R1, R4: "]),
    ("answered-when-sent", &["R3: ", "R1, R4: "]),
    ("goes-on-fenced", &["R1, R2: ", "R1, R4: "]),
];

/// Bugs that only a set of several stores can have, and the messages of the first seed that shows each.
const BUGS: [(&str, &[&str]); 2] = [("slot-forgotten", &["SIMSTORE-D1: "]), ("no-repair", &["SIMSTORE-D3: "])];

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-sim")).args(args).output().expect("starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Determinism first: otherwise no seed can be repeated.
#[test]
fn one_seed_twice_is_the_same_to_the_byte() {
    // Mostly one store; three stores; attached.
    for (seed, more, shows) in [
        ("3", "", "= draws "),
        ("7", "", "= draws "),
        ("7", "--several", "1 sets of several stores"),
        ("7", "--attach --full", "alpha has read everything"),
        ("7", "--agents", " has recovered up to commit "),
        // Of another shape.
        ("4", "", "3 sets more"),
    ] {
        let words = ["one", "--verbose", "--length", "6", "--seed", seed].into_iter().chain(more.split_whitespace());
        let words: Vec<&str> = words.collect();
        let runs = [(); 2].map(|()| sim(&words));
        let [first, second] = [0, 1].map(|run| text(&runs[run]));
        let lines = first.lines().zip(second.lines());
        let differ = lines.enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(differ, None, "seed {seed} {more}: the first line that differs");
        assert_eq!(first, second, "seed {seed} {more}");
        assert!(first.contains("= draws "), "seed {seed}: a log without fingerprints proves nothing:\n{first}");
        assert!(first.contains(shows), "seed {seed} {more}: expected {shows:?}\n{first}");
        // Two early failures are equal too, and prove little.
        assert!(runs.iter().all(|run| run.status.success()), "seed {seed} {more}: a run failed\n{first}");
    }
    let [one, other] = ["3", "7"].map(|seed| {
        let run = sim(&["one", "--verbose", "--length", "1", "--seed", seed]);
        assert!(run.status.success(), "seed {seed}: a run failed\n{}", text(&run));
        text(&run)
    });
    assert_ne!(one, other);
}

/// The checks on several stores detect their bugs.
#[test]
fn several_stores_with_a_bug_fail() {
    for (bug, rules) in BUGS {
        shows("--several", bug, "4", rules);
    }
}

/// One of the first seeds shows a bug, with one of these messages.
fn shows(modes: &str, bug: &str, length: &str, rules: &[&str]) {
    let words = ["many", modes, "--quiet", "--jobs", "2", "--length", length, "--broken", bug, "--seeds", SEARCHED];
    let run = sim(&words);
    let text = text(&run);
    let said = rules.iter().any(|rule| text.contains(&format!("FAILED: {rule}")));
    assert!(!run.status.success() && said, "{bug}, seeds 1 to {SEARCHED}: expected one of {rules:?}\n{text}");
}

/// The checks on attached sets detect their bugs.
#[test]
fn attached_sets_with_a_bug_fail() {
    for (bug, rules) in ATTACHED_BUGS {
        shows("--attach", bug, "4", rules);
    }
}

/// The checks on hosts with agents detect their bugs.
#[test]
fn agents_with_a_bug_fail() {
    for (bug, length, rules) in AGENTS_BUGS {
        shows("--agents", bug, length, rules);
    }
}

/// A scene: the same course, whatever the seed.
fn scene(name: &str) {
    scenes(name, 2);
}

/// A scene in so many worlds: one for each seed, in the gate at most [`IN_GATE`].
fn scenes(name: &str, seeds: u64) {
    scenes_with(name, seeds, &[]);
}

fn scenes_with(name: &str, seeds: u64, more: &[&str]) {
    let seeds = if tier() == Tier::Gate { seeds.min(IN_GATE) } else { seeds };
    each_of(name, seeds, more);
}

/// A scene that only some worlds allow: all of these seeds, in the gate as well.
fn scenes_of_some_worlds(name: &str, seeds: u64) {
    each_of(name, seeds, &[]);
}

fn each_of(name: &str, seeds: u64, more: &[&str]) {
    for seed in 1..=seeds {
        let seed = seed.to_string();
        let run = sim(&[&["one", "--seed", &seed, "--scene", name], more].concat());
        assert!(run.status.success(), "{}", text(&run));
    }
}

/// Found by seed 200.
#[test]
fn a_gateway_that_was_removed_while_its_group_0_was_damaged_is_told() {
    scene("removed-while-damaged");
}

#[test]
fn a_volume_with_a_damaged_map_page_is_deleted_and_checkpoints_go_on() {
    scene("damaged-page");
}

#[test]
fn of_two_members_that_are_to_leave_in_the_same_moment_one_is_refused() {
    scene("two-leave");
}

#[test]
fn a_failover_that_is_asked_for_again_ends_no_lease_that_was_granted_since() {
    scene("failover-again");
}

#[test]
fn sets_that_are_created_in_calls_that_were_given_up_open() {
    scene("sets-given-up");
}

/// DELETE-D1 to DELETE-D4 of `control::cluster::deletion`, END-E1 and END-E2 of `raft::end_group`, TOMB-T1 and TOMB-T2
/// of the removal.
#[test]
fn of_a_set_that_is_deleted_under_faults_nothing_is_left() {
    scenes("deleted-set", 12);
}

/// END-E1 and END-E3, TOMB-T1 and TOMB-T2: each step is done again.
#[test]
fn of_a_set_whose_deletion_is_cut_short_nothing_is_left() {
    scenes("deletion-cut-short", 4);
}

/// TOMB-T1 for each store: one is down at times, and in the end everything is gone from all.
#[test]
fn of_a_set_in_several_stores_that_is_deleted_nothing_is_left_in_any() {
    scenes_with("deleted-set", 6, &["--several"]);
}

/// CLUSTER-C3, for any number of starts.
#[test]
fn a_machine_that_goes_back_to_an_older_copy_of_its_disk_counts_for_nobody() {
    scenes("restored-disk", 8);
}

/// R12, SET-S3 to SET-S10, CLUSTER-C2 to CLUSTER-C4, DELETE-D2 and DELETE-D3.
#[test]
fn commands_that_come_too_late_are_refused_and_change_nothing() {
    scene("late-commands");
}

/// R9, for what single bits of a journal do not show.
#[test]
fn files_that_are_gone_unreadable_or_rotten_are_found_and_healed() {
    scenes("damaged-disks", 4);
}

/// QUARANTINE-Q3.
#[test]
fn a_readmission_that_is_cut_short_is_asked_for_again() {
    scene("healing-cut-short");
}

#[test]
fn a_witness_does_not_take_the_place_of_the_last_gateway_that_serves() {
    scene("last-gateway");
}

/// QUARANTINE-Q4. Only one world in four has the five members that it takes.
#[test]
fn a_member_that_is_healed_follows_no_leader_of_before_its_removal() {
    scenes_of_some_worlds("old-leader", 12);
}

/// CLUSTER-C3. Three worlds in five have a machine to spare.
#[test]
fn a_copy_of_a_disk_that_starts_beside_its_member_is_refused() {
    scenes_of_some_worlds("copied-disk", 4);
}

/// HEAD-H1.
#[test]
fn a_gateway_that_knows_only_stores_that_were_left_answers_nothing() {
    scenes("left-stores", 3);
}

/// R3, with a quorum of one that grows.
#[test]
fn a_gateway_that_was_alone_serves_with_a_quorum_once_it_has_company() {
    scenes("alone", 3);
}

/// CLUSTER-C3. Three worlds in five have a machine to spare.
#[test]
fn a_gateway_of_another_cluster_gets_no_vote() {
    scenes("other-cluster", 4);
}

/// REVERSION-V1.
#[test]
fn a_log_that_went_backwards_is_noticed_and_healed() {
    scenes("lying-disk", 4);
}

/// MEMBER-M5. Three worlds in five have a machine to spare.
#[test]
fn a_change_of_voters_that_stops_in_the_middle_ends() {
    scenes("between-voters", 6);
}

/// END-E2, and that a state snapshot never goes back.
#[test]
fn a_state_snapshot_without_room_is_saved_later_and_not_after_the_end() {
    scenes("refused-snapshot", 4);
}

/// CLUSTER-C3. Three worlds in five have a machine to spare.
#[test]
fn an_empty_disk_in_the_place_of_a_member_gets_no_vote() {
    scenes("other-disk", 4);
}

/// R9.
#[test]
fn a_record_that_rots_while_its_gateway_runs_is_not_carried_forward() {
    scenes("bad-record", 2);
}

/// R3.
#[test]
fn a_boot_clock_that_goes_back_makes_no_read_lease_longer() {
    scenes("clock-back", 2);
}

/// R3.
#[test]
fn a_boot_clock_that_leaps_ahead_ends_no_promise() {
    scenes("clock-ahead", 2);
}

/// R1.
#[test]
fn a_journal_that_is_closed_on_a_full_disk_acknowledges_nothing_more() {
    scene("closed-full");
}

/// R8: a purge that stands behind what waits for room is written first.
#[test]
fn a_full_disk_gets_room_from_the_purge_behind_what_waits() {
    scenes("purged-full", 3);
}

/// PIECES-S2.
#[test]
fn a_state_snapshot_that_is_damaged_on_its_way_is_sent_again() {
    scenes("damaged-on-the-way", 2);
}

/// R1, R9, JOURNAL-J1.
#[test]
fn a_tail_with_a_gap_where_a_marker_was_is_no_corruption() {
    scenes("torn-marker", 4);
}

/// FOLLOW-F1, FOLLOW-F2.
#[test]
fn leadership_follows_an_owner_and_stays() {
    scenes("followed-owner", 2);
}

/// R8: no election timeout passes, and no write is lost.
#[test]
fn a_leader_that_is_asked_to_stop_hands_over_first() {
    scenes("stopped-leader", 2);
}

/// R3, PLEDGE-P1, PACER-E1.
#[test]
fn times_that_change_end_no_promise() {
    scenes("changed-times", 3);
}

/// R8, HEAD-H1.
#[test]
fn a_lease_is_continued_without_waiting_for_a_late_store() {
    scenes("late-store", 3);
}

/// R8, ATTACH-M5.
#[test]
fn an_attach_that_is_fenced_as_its_connection_ends_stays_fenced() {
    scenes("late-loss", 3);
}

/// END-E1, by the note alone.
#[test]
fn a_group_that_has_begun_to_end_does_not_run_again() {
    scenes("ended-group", 4);
}

/// MOVE-V2, MOVE-V3 and SIMMOVE-W1.
#[test]
fn a_leader_that_was_overtaken_ends_no_list_of_stores() {
    scenes("overtaken-mover", 4);
}

/// R5, and CONN-C3.
#[test]
fn a_client_that_sends_no_data_is_given_up_and_nothing_of_its_write_is_there() {
    scene("stalled-client");
}

/// SIMMOVE-W1 and SIMMOVE-W2, and everything written, with the left stores emptied.
#[test]
fn the_stores_of_a_set_are_changed_while_everything_goes_wrong() {
    scenes("moved-stores", 6);
}

/// VOTERS-V2 to VOTERS-V4: wherever the set is, nothing that was acknowledged is lost, and at most one gateway serves
/// it.
#[test]
fn the_voters_of_a_set_are_moved_while_everything_goes_wrong() {
    scenes("moved-voters", 6);
}
