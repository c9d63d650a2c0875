use super::*;
use holdfast_types::GroupId;
use proptest::prelude::*;

const OLD: u64 = 1;
const NEW: u64 = 2;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn gateway(at: u64, current: u64, previous: Option<u64>, node: Option<u64>) -> (MemberId, Gateway) {
    (MemberId(at), Gateway { name: name(&format!("g{at}")), keys: Ok(AtHand { current, previous, node }) })
}

fn set(at: u64, by: u64, head: Option<u64>) -> (SetId, Set) {
    (GroupId(at), Set { name: name(&format!("s{at}")), wrapped_by: Some(by), head })
}

fn ready() -> View {
    View {
        gateways: (1..4).map(|at| gateway(at, NEW, Some(OLD), Some(OLD))).collect(),
        sets: (1..3).map(|at| set(at, OLD, Some(OLD))).collect(),
    }
}

fn done(view: &mut View, step: Step) {
    match step {
        Step::Set(id) => view.sets.get_mut(&id).unwrap().wrapped_by = Some(NEW),
        Step::Head(id) => view.sets.get_mut(&id).unwrap().head = view.sets[&id].wrapped_by,
        Step::Node(id) => view.gateways.get_mut(&id).unwrap().keys.as_mut().unwrap().node = Some(NEW),
    }
}

/// Everything wrapped, with the wrapping key.
fn wrappings(view: &View) -> Vec<u64> {
    let sets = view.sets.values().flat_map(|set| [set.wrapped_by, set.head]);
    let nodes = view.gateways.values().map(|gateway| gateway.keys.as_ref().ok().and_then(|keys| keys.node));
    sets.chain(nodes).flatten().collect()
}

#[test]
fn who_lacks_the_new_key_is_named() {
    let told = |change: &dyn Fn(&mut View)| {
        let mut view = ready();
        change(&mut view);
        objections(&view, NEW).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told(&|_| {}), Vec::<String>::new());
    let lacks = told(&|view| view.gateways.extend([gateway(2, OLD, None, Some(OLD))]));
    assert_eq!(lacks, ["gateway g2: found 0000000000000001 as [key], expected 0000000000000002"]);
    let reversed = told(&|view| view.gateways.extend([gateway(2, OLD, Some(NEW), Some(OLD))]));
    assert!(reversed.len() == 1 && reversed[0].contains("not every gateway has the new settings yet"), "{reversed:?}");
    let early = told(&|view| view.gateways.extend([gateway(3, NEW, None, None)]));
    assert!(early.len() == 1 && early[0].contains("gateway g3 does not have key 0000000000000001"), "{early:?}");
    let silent = told(&|view| view.gateways.get_mut(&MemberId(1)).unwrap().keys = Err("no answer".into()));
    assert_eq!(silent, ["gateway g1 does not say which keys it has: no answer"]);
}

#[test]
fn a_head_that_nobody_has_seen_is_not_done() {
    let mut view = ready();
    left(&view, NEW).into_iter().for_each(|step| done(&mut view, step));
    view.sets.get_mut(&GroupId(1)).unwrap().head = None;
    assert_eq!(left(&view, NEW), [Step::Head(GroupId(1))]);
}

proptest! {
    /// KEY-Y2, KEY-Y3: interrupted anywhere and repeated any number of times; a head may also fall back to an older
    /// leader's.
    #[test]
    fn whatever_is_cut_short_opens_and_ends(cuts in proptest::collection::vec((0usize..9, any::<bool>()), 0..6)) {
        let mut view = ready();
        for (steps, back) in cuts {
            prop_assert!(objections(&view, NEW).is_empty(), "the same request again is not refused");
            for step in left(&view, NEW).into_iter().take(steps) {
                done(&mut view, step);
                // KEY-Y2: a gateway has both.
                prop_assert!(wrappings(&view).iter().all(|by| [OLD, NEW].contains(by)));
            }
            if back {
                view.sets.get_mut(&GroupId(1)).unwrap().head = Some(OLD);
            }
        }
        for step in left(&view, NEW) {
            done(&mut view, step);
        }
        prop_assert_eq!(left(&view, NEW), vec![]);
        prop_assert!(wrappings(&view).iter().all(|by| *by == NEW), "KEY-Y3");
    }
}
