//! What must hold of the list of scenarios.

use super::super::Upto;
use super::*;

/// Where the gate tests each rule of docs/GLOSSARY.md: scenarios of the list above, and other parts.
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
