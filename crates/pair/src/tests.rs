//! An authority with the real clock; the rule itself is tested in `control`.

use super::*;
use holdfast_control::pair::Durability;
use holdfast_raft::boot_now;

fn authority(sent: MonoTime) -> Authority {
    let id = TenureId::new(7, "/holdfast/pairs/db/seat", 40);
    Authority::begin(id, Durability::Flush, vec!["s3://b/p".into()], sent, Duration::from_secs(60))
}

#[test]
fn a_set_of_the_pair_lies_where_the_other_gateway_looks() {
    let authority = authority(boot_now());
    assert_eq!(authority.check_store("s3://b/p"), Ok(()));
    let why = authority.check_store("s3://b/other").unwrap_err();
    assert!(why.contains("found s3://b/other, expected one of pair.stores (s3://b/p)"), "{why}");
}

#[test]
fn a_tenure_that_was_asked_for_long_ago_answers_nothing() {
    let now = boot_now();
    assert_eq!(authority(now).may_answer(), Ok(()));
    let old = authority(MonoTime(now.0.saturating_sub(45_000_000_000)));
    assert_eq!(old.may_answer(), Err(Ended::Overdue), "PAIR-P1");
    old.renewed(boot_now(), Duration::from_secs(60));
    assert_eq!(old.may_answer(), Err(Ended::Overdue), "PAIR-P2");
}

#[test]
fn the_other_gateway_gets_its_chance_after_a_failure() {
    let config = GatewayConfig { data_dir: "/nonexistent".into(), ..GatewayConfig::example() };
    let mut pair = Pair::new(config).unwrap();
    let mut after = |ended, told| {
        pair.after(ended, told).map(|after| match after {
            After::Stopped => "stopped".to_string(),
            After::Again(pause) => format!("again after {pause:?}"),
        })
    };
    let slow = || PairError::Slow { limit: Duration::from_secs(60), last: "store: down".into() };
    assert_eq!(after(None, false).unwrap(), "again after 0ns");
    assert_eq!(after(Some(Ok(PairError::Over(Ended::Overdue))), false).unwrap(), "again after 0ns");
    assert_eq!(after(Some(Ok(slow())), false).unwrap(), "again after 10s");
    // Each tenure raises the sets' heads, which have a limited number of generations.
    assert_eq!(after(Some(Ok(slow())), false).unwrap(), "again after 20s");
    assert_eq!(after(Some(Ok(slow())), true).unwrap(), "stopped");
    for _ in 0..20 {
        after(Some(Ok(slow())), false).unwrap();
    }
    assert_eq!(after(Some(Ok(slow())), false).unwrap(), "again after 600s");
    assert_eq!(after(None, false).unwrap(), "again after 0ns");
    assert_eq!(after(Some(Ok(slow())), false).unwrap(), "again after 10s");
    // An error that no other tenure would avoid: the process ends with it.
    after(Some(Err(NodeError::Refused("no disk".into()).into())), false).unwrap_err();
}

/// PAIR-P2: only a folder that is known to be absent is none.
#[test]
fn a_tenure_that_cannot_be_looked_at_may_have_been_before() {
    let dir = tempfile::tempdir().unwrap();
    let tenure = dir.path().join("tenures").join("a1");
    assert_eq!(used_before(&tenure), None);
    std::fs::create_dir_all(&tenure).unwrap();
    assert!(used_before(&tenure).unwrap().contains("a1 is there"));
    // Root may enter every folder: a file in its place is refused to it, too.
    std::fs::remove_dir_all(dir.path().join("tenures")).unwrap();
    std::fs::write(dir.path().join("tenures"), "").unwrap();
    let why = used_before(&tenure).unwrap();
    assert!(why.contains("cannot be looked at"), "{why}");
}

/// Not at a takeover, when it may be too late.
#[tokio::test]
async fn a_gateway_without_its_key_does_not_stand_by() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = GatewayConfig { data_dir: dir.path().into(), ..GatewayConfig::example() };
    config.key.file = Some(dir.path().join("none"));
    let running = run_until(config.clone(), Live::new(config, 0), CancellationToken::new());
    let run = tokio::time::timeout(Duration::from_secs(60), running);
    let error = run.await.expect("it does not wait for the seat").unwrap_err().to_string();
    assert!(error.contains("none: No such file"), "{error}");
}
