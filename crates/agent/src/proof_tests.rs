use super::*;
use proptest::prelude::*;

const TOKEN: &str = "secret";
const NOW: MonoTime = MonoTime(1_000_000_000_000);

fn after(wait: Duration) -> MonoTime {
    NOW.saturating_add(wait)
}

/// Whether a command with this header is carried out.
fn taken(challenges: &Challenges, header: &str, now: MonoTime) -> Result<bool, Stale> {
    challenges.check(TOKEN, header, ("/claim", b"{}"), now).map(|proof| proof.is_some())
}

/// PROOF-P1.
#[test]
fn a_challenge_is_good_once_for_a_while_and_for_one_process() {
    let challenges = Challenges::default();
    let sent = || Proof::new(TOKEN, &challenges.give(NOW), "/claim", "{}").unwrap().0;
    let last = after(CHALLENGE_LIFE.saturating_sub(Duration::from_nanos(1)));
    let header = sent();
    assert_eq!(taken(&challenges, &header, NOW), Ok(true));
    assert!(taken(&challenges, &header, NOW).is_err(), "again");
    assert!(taken(&challenges, &header, last).is_err(), "again, at the last moment");
    assert!(taken(&challenges, &header, after(CHALLENGE_LIFE)).is_err(), "and when it is forgotten");
    assert_eq!(taken(&challenges, &sent(), last), Ok(true));
    assert!(taken(&challenges, &sent(), after(CHALLENGE_LIFE)).is_err(), "too late");
    assert!(taken(&Challenges::default(), &sent(), NOW).is_err(), "the agent was restarted");
    let made_up = format!("{:016x}{:032x}{:064x}", NOW.0, 1, 1);
    let header = Proof::new(TOKEN, &made_up, "/claim", "{}").unwrap().0;
    assert!(taken(&challenges, &header, NOW).is_err(), "nobody gave it");
}

#[test]
fn what_is_no_proof_by_this_token_is_none_and_uses_nothing_up() {
    let challenges = Challenges::default();
    let challenge = challenges.give(NOW);
    let proof = |token: &str, path: &str, body: &str| Proof::new(token, &challenge, path, body).unwrap().0;
    let right = proof(TOKEN, "/claim", "{}");
    for wrong in [
        proof("secrex", "/claim", "{}"),
        proof(TOKEN, "/pause", "{}"),
        proof(TOKEN, "/claim", "{ }"),
        right.replace("Holdfast", "Bearer"),
        format!("{right} "),
        format!("{right}00"),
        right[..right.len() - 1].into(),
        right[..right.len() - 64].into(),
        "Holdfast ".into(),
        "Bearer secret".into(),
        String::new(),
    ] {
        assert_eq!(taken(&challenges, &wrong, NOW), Ok(false), "{wrong}");
    }
    assert!(challenges.used.locked().is_empty(), "PROOF-P2");
    assert_eq!(taken(&challenges, &right, NOW), Ok(true));
    assert!(!right.contains(TOKEN));
}

/// PROOF-P2.
#[test]
fn a_bounded_number_is_remembered_and_for_a_bounded_time() {
    let challenges = Challenges::default();
    let sent = |at| Proof::new(TOKEN, &challenges.give(at), "/claim", "{}").unwrap().0;
    for _ in 0..USED_MAX {
        assert_eq!(taken(&challenges, &sent(NOW), NOW), Ok(true));
    }
    assert!(taken(&challenges, &sent(NOW), NOW).is_err());
    let later = after(CHALLENGE_LIFE);
    assert_eq!(taken(&challenges, &sent(later), later), Ok(true));
    assert_eq!(challenges.used.locked().len(), 1);
}

/// It goes into a header of our own request.
#[test]
fn a_challenge_of_anybody_is_looked_at_before_it_is_used() {
    for bad in ["1\r\nX: y", "1 2", "xyz", &"1".repeat(CHALLENGE_BYTES_MAX + 1)] {
        assert!(Proof::new(TOKEN, bad, "/claim", "{}").is_none(), "{bad:?}");
    }
}

proptest! {
    /// PROOF-P3: no other answer, and not the answer to another command.
    #[test]
    fn an_answer_proves_itself_alone(code in 200u16..600, body in ".{0,40}", other in ".{0,40}") {
        let challenges = Challenges::default();
        let challenge = challenges.give(NOW);
        let (header, proof) = Proof::new(TOKEN, &challenge, "/claim", "{}").unwrap();
        let seen = challenges.check(TOKEN, &header, ("/claim", b"{}"), NOW).unwrap().unwrap();
        let given = seen.of_answer(TOKEN, code, &body);
        prop_assert!(proof.is_answered(TOKEN, code, &body, Some(&given)));
        prop_assert!(!proof.is_answered(TOKEN, code + 1, &body, Some(&given)));
        prop_assert!(!proof.is_answered("secrex", code, &body, Some(&given)));
        prop_assert!(!proof.is_answered(TOKEN, code, &body, None));
        prop_assert_eq!(proof.is_answered(TOKEN, code, &other, Some(&given)), body == other);
        let (_, again) = Proof::new(TOKEN, &challenge, "/claim", "{}").unwrap();
        prop_assert!(!again.is_answered(TOKEN, code, &body, Some(&given)), "a recorded answer");
    }
}
