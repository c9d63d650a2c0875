use super::*;
use proptest::prelude::*;

fn with(roster: &Roster, gateway: &str, knows: u32) -> Roster {
    roster.with(gateway, knows).unwrap()
}

#[test]
fn a_pair_is_at_what_both_builds_know_once_both_have_said_so() {
    let a = with(&Roster::default(), "a", 8);
    assert_eq!(a.level, FIRST_LEVEL, "PAIR-P6: the level of the other gateway's build is unknown");
    assert_eq!(with(&a, "a", 9).level, FIRST_LEVEL, "the same gateway again is no second one");
    let both = with(&a, "b", 9);
    assert_eq!(both.level, 8);
    assert_eq!(with(&both, "b", 9), both, "a repeated report leaves the roster unchanged");
    assert_eq!(with(&both, "a", 9).level, 9, "an absent gateway counts with its last report");
    // Back to an older build, as long as nothing is written that it cannot read.
    let back = with(&both, "b", 8);
    assert_eq!(with(&back, "a", 9).level, 8);
}

#[test]
fn an_older_build_than_the_pair_needs_is_refused() {
    let both = with(&with(&Roster::default(), "a", 9), "b", 9);
    let refused = both.with("b", 8).unwrap_err();
    assert_eq!(refused, NotEnrolled::TooOld { gateway: "b".into(), found: 8, expected: 9 });
    assert_eq!(
        refused.to_string(),
        "gateway b runs a build that knows feature level 8, and the pair is at 9: start it with a newer build"
    );
}

#[test]
fn gateways_of_before_hold_the_level_back_and_are_bounded() {
    let mut roster = with(&with(&Roster::default(), "a", 8), "b", 8);
    assert_eq!(with(&with(&roster, "a", 9), "c", 9).level, 8, "b may be absent only for now");
    for n in roster.gateways.len()..ROSTER_MAX {
        roster = with(&roster, &format!("g{n}"), 8);
    }
    let refused = roster.with("one-more", 8);
    assert_eq!(refused, Err(NotEnrolled::TooMany { found: ROSTER_MAX + 1 }));
    assert_eq!(with(&roster, "a", 8), roster, "its members stay");
}

proptest! {
    /// PAIR-P6 against stores in which each gateway writes up to the roster's level: a gateway that is let in can read
    /// everything there, and so can those let in before, with the build that they reported last.
    #[test]
    fn whoever_is_let_in_reads_what_the_others_wrote(
        steps in proptest::collection::vec((0_usize..3, 1_u32..12, any::<bool>()), 1..80),
    ) {
        let (mut roster, mut written) = (Roster::default(), FIRST_LEVEL);
        for (gateway, knows, writes) in steps {
            match roster.with(["a", "b", "c"][gateway], knows) {
                Ok(next) => {
                    prop_assert!(knows >= written, "let in with {knows}, and {written} is there");
                    prop_assert!(next.level >= roster.level);
                    roster = next;
                    if writes {
                        written = roster.level;
                    }
                }
                Err(refused) => prop_assert!(knows < roster.level, "{refused}"),
            }
            for (name, knows) in &roster.gateways {
                prop_assert!(*knows >= written, "{name} knows {knows}, and {written} is there");
            }
        }
    }
}
