//! How `holdfast watch` ends. The scenario `agent-orders` shows its output during a failover.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Nobody listens at this address.
const NOWHERE: &str = "127.0.0.1:1";

#[test]
fn each_signal_that_asks_for_its_end_ends_it_with_0() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut watch = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .env_clear()
            .args(["watch", "--api", NOWHERE, "--timeout", "100ms", "--every", "10ms", "--output", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(watch.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let said: Value = serde_json::from_str(&first).unwrap();
        assert!(said["seen"]["error"].as_str().is_some_and(|why| !why.is_empty()), "{signal:?}: {first}");
        kill_process(Pid::from_child(&watch), signal).unwrap();
        assert_eq!(watch.wait().unwrap().code(), Some(0), "{signal:?}");
    }
}
