use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const CALM: Duration = Duration::from_secs(60);
const RULES: Rules = Rules { calm: Some(CALM) };
const LONG: Duration = Duration::from_secs(3600);

/// Places of voters and owners in the property.
const PLACES: [&str; 8] = [
    "region=eu",
    "region=eu,zone=a",
    "region=eu,zone=a,host=h1",
    "region=eu,zone=b",
    "region=us",
    "region=us,zone=a",
    "region=us,host=h1",
    "region=ap,zone=a,host=h1",
];

fn place(text: &str) -> Locality {
    text.parse().unwrap()
}

/// Voters 1, 2, … at these places, the first leads, for long; the owner stands at `owner`.
fn view(at: &[&str], owner: &str) -> View {
    let voter = |(id, at): (u64, &&str)| Voter { id: MemberId(id), locality: place(at), serves: true, close: true };
    View {
        me: MemberId(1),
        voters: (1..).zip(at).map(voter).collect(),
        place: Some(place(owner)),
        steady: LONG,
        led: LONG,
        busy: None,
    }
}

#[test]
fn what_a_place_does_not_name_does_not_count() {
    use Nearness::{Elsewhere, Host, Region, Zone};
    for (at, owner, expected) in [
        ("us", "eu", Elsewhere),
        ("region=us,zone=a,host=h1", "region=eu,zone=a,host=h1", Elsewhere),
        ("eu", "eu", Region),
        ("region=eu,zone=a,host=h1", "eu", Region),
        ("eu", "region=eu,zone=a", Region),
        ("region=eu,zone=b", "region=eu,zone=a", Region),
        ("region=eu,zone=a", "region=eu,zone=a", Zone),
        ("region=eu,zone=a,host=h2", "region=eu,zone=a,host=h1", Zone),
        ("region=eu,zone=a,host=h1", "region=eu,zone=a,host=h1", Host),
        ("region=eu,zone=b,host=h1", "region=eu,zone=a,host=h1", Region),
        ("region=eu,host=h1", "region=eu,host=h1", Host),
        ("region=eu,host=h2", "region=eu,host=h1", Region),
        ("eu", "region=eu,host=h1", Region),
    ] {
        assert_eq!(Nearness::of(&place(at), &place(owner)), expected, "{at} and {owner}");
    }
}

#[test]
fn leadership_goes_to_the_nearest_voter() {
    let to = |at: &[&str], owner: &str| decide(&view(at, owner), &RULES);
    let three = ["eu", "us", "region=ap,zone=a"];
    assert_eq!(to(&three, "us"), Choice::HandOver(MemberId(2)));
    assert_eq!(to(&three, "region=ap,zone=b"), Choice::HandOver(MemberId(3)));
    assert_eq!(to(&three, "region=eu,zone=a"), Choice::Stay(Stay::Nearest));
    assert_eq!(to(&three, "sa"), Choice::Stay(Stay::Nearest), "all are equally far");
    assert_eq!(to(&["eu", "us", "us"], "us"), Choice::HandOver(MemberId(2)), "the lowest id");
    assert_eq!(to(&["us", "us"], "us"), Choice::Stay(Stay::Nearest), "as near is not nearer");
    let zones = ["region=us,zone=a", "region=us,zone=b"];
    assert_eq!(to(&zones, "region=us,zone=b"), Choice::HandOver(MemberId(2)));
    assert_eq!(to(&zones, "us"), Choice::Stay(Stay::Nearest));
}

#[test]
fn a_voter_that_could_not_serve_gets_nothing() {
    let mut seen = view(&["eu", "us", "us"], "us");
    seen.voters[1].serves = false;
    assert_eq!(decide(&seen, &RULES), Choice::HandOver(MemberId(3)));
    seen.voters[2].close = false;
    assert_eq!(decide(&seen, &RULES), Choice::Stay(Stay::Nearest));
    assert_eq!(heir(&seen, MemberId(3)), None);
    let mut aside = view(&["eu", "us"], "us");
    aside.voters[0].serves = false;
    assert_eq!(decide(&aside, &RULES), Choice::Stay(Stay::Aside), "that is the members' own move");
}

#[test]
fn it_waits_until_all_is_calm() {
    let seen = view(&["eu", "us"], "us");
    let stays = |seen: View, why: Stay| assert_eq!(decide(&seen, &RULES), Choice::Stay(why));
    stays(View { led: CALM - Duration::from_millis(1), ..seen.clone() }, Stay::Young);
    stays(View { steady: STEADY - Duration::from_millis(1), ..seen.clone() }, Stay::Fresh);
    stays(View { place: None, ..seen.clone() }, Stay::NoPlace);
    for busy in [Busy::Members, Busy::Moving, Busy::Rollback, Busy::Plain, Busy::OwnerAway] {
        stays(View { busy: Some(busy), ..seen.clone() }, Stay::Busy(busy));
    }
    let uploading = View { busy: Some(Busy::Checkpoint), ..seen.clone() };
    stays(View { steady: CALM * 2 - STEADY, ..uploading.clone() }, Stay::Busy(Busy::Checkpoint));
    assert_eq!(decide(&uploading, &RULES), Choice::HandOver(MemberId(2)), "not for ever");
    assert_eq!(decide(&seen, &Rules { calm: None }), Choice::Stay(Stay::Off));
}

#[test]
fn a_begun_move_goes_to_whoever_can_take_it() {
    let mut seen = view(&["eu", "us", "ap"], "us");
    assert_eq!(heir(&seen, MemberId(2)), Some(MemberId(2)));
    seen.voters[1].close = false;
    assert_eq!(heir(&seen, MemberId(2)), Some(MemberId(3)));
    seen.place = None;
    assert_eq!(heir(&seen, MemberId(2)), Some(MemberId(3)));
}

#[derive(Clone, Debug)]
enum Event {
    Seconds(u64),
    Owner(usize),
    Elected(usize),
    Serves(usize, bool),
    Answers(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1_u64..90).prop_map(Event::Seconds),
        2 => (0..PLACES.len()).prop_map(Event::Owner),
        1 => (0_usize..5).prop_map(Event::Elected),
        1 => (0_usize..5, any::<bool>()).prop_map(|(at, serves)| Event::Serves(at, serves)),
        1 => (0_usize..5, any::<bool>()).prop_map(|(at, close)| Event::Answers(at, close)),
    ]
}

/// A second passes, and the leader decides. Returns whether leadership moved.
fn second(seen: &mut View) -> bool {
    seen.led += Duration::from_secs(1);
    seen.steady += Duration::from_secs(1);
    let Choice::HandOver(to) = decide(seen, &RULES) else { return false };
    assert!(seen.led >= CALM, "FOLLOW-F2: after {:?}", seen.led);
    let of = |id: MemberId| seen.voters.iter().find(|voter| voter.id == id).unwrap();
    let near = |id: MemberId| Nearness::of(&of(id).locality, seen.place.as_ref().unwrap());
    assert!(of(to).serves && of(to).close && near(to) > near(seen.me), "FOLLOW-F1: to {to} in {seen:?}");
    (seen.me, seen.led) = (to, Duration::ZERO);
    true
}

fn happens(seen: &mut View, event: Event) {
    let count = seen.voters.len();
    match event {
        Event::Seconds(seconds) => {
            for _ in 0..seconds {
                second(seen);
            }
        }
        Event::Owner(at) => (seen.place, seen.steady) = (Some(place(PLACES[at])), Duration::ZERO),
        Event::Elected(at) => (seen.me, seen.led) = (seen.voters[at % count].id, Duration::ZERO),
        Event::Serves(at, serves) => seen.voters[at % count].serves = serves,
        Event::Answers(at, close) => seen.voters[at % count].close = close,
    }
}

/// The one gateway of a region comes back: the sets whose owners stand there do not all go to it at once.
#[test]
fn few_sets_have_a_turn_at_the_same_time() {
    use holdfast_types::GroupId;
    let mut turns = Turns::default();
    let at = |s: u64| Duration::from_secs(s);
    assert!(!turns.ask(GroupId(1), at(4)), "an earlier leader may have given all");
    for set in 1..=4 {
        assert!(turns.ask(GroupId(set), at(10)));
    }
    assert!(!turns.ask(GroupId(5), at(10)), "four are on the way");
    assert!(turns.ask(GroupId(1), at(12)), "it has its turn");
    assert!(!turns.ask(GroupId(5), at(14)));
    assert!(turns.ask(GroupId(5), at(15)), "their time is over, also of one that hangs");
    assert!(turns.ask(GroupId(1), at(15)), "another turn");
    assert!(turns.ask(GroupId(2), at(16)) && turns.ask(GroupId(3), at(16)) && !turns.ask(GroupId(4), at(16)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// FOLLOW-F1, FOLLOW-F2: whatever came before, it ends, and is never passed back and forth.
    #[test]
    fn leadership_is_never_passed_back_and_forth(
        at in vec(0..PLACES.len(), 1..6),
        owner in 0..PLACES.len(),
        events in vec(event(), 0..40),
    ) {
        let places: Vec<&str> = at.into_iter().map(|at| PLACES[at]).collect();
        let mut seen = view(&places, PLACES[owner]);
        for event in events {
            happens(&mut seen, event);
        }
        let mut led = vec![seen.me];
        for _ in 0..600 {
            if second(&mut seen) {
                prop_assert!(!led.contains(&seen.me), "back to {} after {:?}", seen.me, led);
                led.push(seen.me);
            }
        }
        prop_assert!(led.len() <= 4, "{led:?}");
        let at_rest = matches!(decide(&seen, &RULES), Choice::Stay(Stay::Nearest | Stay::Aside));
        prop_assert!(at_rest, "{seen:?}");
    }

    /// FOLLOW-F4: whoever asks and when, in no time as long as a turn do more sets get one.
    #[test]
    fn no_more_sets_move_in_the_time_of_a_turn(asks in vec((0..12_u64, 0..1500_u64), 1..200)) {
        use holdfast_types::GroupId;
        let (mut turns, mut now, mut given) = (Turns::default(), Duration::ZERO, Vec::new());
        for (set, pause) in asks {
            now += Duration::from_millis(pause);
            let had = given.iter().any(|(of, at)| *of == set && now - *at < TURN);
            if turns.ask(GroupId(set), now) && !had {
                given.push((set, now));
            }
            let live = given.iter().filter(|(_, at)| now - *at < TURN).count();
            prop_assert!(live <= TURNS_MAX, "{given:?}");
            prop_assert!(given.iter().all(|(_, at)| *at >= TURN), "{given:?}");
        }
    }
}
