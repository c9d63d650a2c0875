//! DATAKEY-Z3 with arbitrary delays: gateways that lag in group 0 or fall back after a restart, leaders that end during
//! a checkpoint, reports of leaders that arrive much later, recoveries from the head. Everything readable must open
//! with group 0's keys, and with the head's.

use super::*;
use proptest::prelude::*;

const GATEWAYS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    key: u32,
    needed: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
struct Head {
    root: Option<Root>,
    /// The ring that the writer knew.
    ring: Ring,
    sealed: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Rotate,
    /// Group 0 reaches a gateway, up to its end.
    Hears(usize),
    /// A restart: it knows an earlier state of group 0.
    FallsBack(usize, usize),
    Leads(usize),
    Begin,
    /// The head names the root of the checkpoint under way; this much of the old content is written again in it.
    Commit(u8),
    End,
    Snapshot,
    Delete(usize),
    Rollback(usize),
    LookThrough,
    /// The head is replaced around its content.
    Replace,
    /// The leader reports the needed keys; the report is kept.
    Speak,
    /// Group 0's leader acts on the `n`th word.
    Act(usize),
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Rotate),
        6 => (0..GATEWAYS).prop_map(Step::Hears),
        2 => (0..GATEWAYS, 0usize..8).prop_map(|(at, back)| Step::FallsBack(at, back)),
        3 => (0..GATEWAYS).prop_map(Step::Leads),
        6 => Just(Step::Begin),
        6 => any::<u8>().prop_map(Step::Commit),
        6 => Just(Step::End),
        2 => Just(Step::Snapshot),
        2 => (0usize..4).prop_map(Step::Delete),
        1 => (0usize..4).prop_map(Step::Rollback),
        4 => Just(Step::LookThrough),
        3 => Just(Step::Replace),
        6 => Just(Step::Speak),
        8 => (0usize..40).prop_map(Step::Act),
        1 => Just(Step::Recover),
    ]
}

struct World {
    /// States of group 0, after each entry.
    rings: Vec<Ring>,
    /// How far each gateway has heard.
    heard: [usize; GATEWAYS],
    /// Keys that each gateway has ever reported.
    said: [BTreeSet<u32>; GATEWAYS],
    /// The highest key under which each gateway has seen an object (DATAKEY-Z2).
    seen: [u32; GATEWAYS],
    leader: usize,
    current: Option<Root>,
    /// Base of the checkpoint under way, and its leader's sealing key.
    begun: Option<(Option<Root>, u32)>,
    /// Root that the checkpoint under way has put into the head.
    made: Option<Root>,
    committed: bool,
    rolled_back: bool,
    snapshots: Vec<Root>,
    dropped: Vec<Root>,
    head: Head,
    words: Vec<Needs>,
    keys_gone: u32,
}

impl World {
    fn new() -> Self {
        let ring = Ring { keys: [1].into(), seals: 1 };
        Self {
            rings: vec![ring.clone()],
            heard: [0; GATEWAYS],
            said: [const { BTreeSet::new() }; GATEWAYS],
            seen: [0; GATEWAYS],
            leader: 0,
            current: None,
            begun: None,
            made: None,
            committed: false,
            rolled_back: false,
            snapshots: Vec::new(),
            dropped: Vec::new(),
            head: Head { root: None, ring, sealed: 1 },
            words: Vec::new(),
            keys_gone: 0,
        }
    }

    fn ring(&self) -> &Ring {
        self.rings.last().expect("never empty")
    }

    fn known(&self) -> &Ring {
        &self.rings[self.heard[self.leader]]
    }

    /// Whether the leader can open it; otherwise it waits for group 0.
    fn opens(&mut self, key: u32) -> bool {
        let has = self.known().keys.contains(&key);
        if has {
            self.seen[self.leader] = self.seen[self.leader].max(key);
        }
        has
    }

    fn seals(&self) -> u32 {
        self.known().seals.max(self.seen[self.leader])
    }

    fn let_go(&mut self, root: Option<Root>) {
        if let Some(root) = root.filter(|root| Some(root) != self.current.as_ref() && !self.snapshots.contains(root)) {
            self.dropped.push(root);
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Rotate => {
                if let Ok(key) = next_key(self.ring()) {
                    let mut ring = self.ring().clone();
                    ring.keys.insert(key);
                    self.rings.push(ring);
                }
            }
            Step::Hears(at) => {
                self.heard[*at] = self.rings.len() - 1;
                let keys = self.ring().keys.clone();
                self.said[*at].extend(keys);
            }
            Step::FallsBack(at, back) => {
                self.heard[*at] = self.heard[*at].saturating_sub(*back);
                self.seen[*at] = 0;
                if *at == self.leader {
                    (self.begun, self.made, self.committed) = (None, None, false);
                }
            }
            Step::Leads(at) => {
                (self.leader, self.committed) = (*at, false);
                // Its checkpoint under way is lost.
                (self.begun, self.made) = (None, None);
            }
            Step::Begin => {
                let base = self.current.clone();
                if base.as_ref().is_none_or(|base| self.opens(base.key)) {
                    (self.begun, self.made) = (Some((base, self.seals())), None);
                }
            }
            Step::Commit(anew) => {
                let Some((base, key)) = self.begun.clone() else { return };
                // The head is read first: a head that does not open is not replaced.
                if !self.opens(self.head.sealed) || !self.known().keys.contains(&key) {
                    return;
                }
                let kept = base.iter().flat_map(|base| base.needed.iter().copied());
                let needed = kept.filter(|old| anew >> (old % 8) & 1 == 0).chain([key]).collect();
                let root = Root { key, needed };
                self.head = Head { root: Some(root.clone()), ring: self.known().clone(), sealed: self.seals() };
                (self.made, self.committed) = (Some(root), true);
            }
            Step::End => {
                let (Some((base, _)), Some(made)) = (self.begun.take(), self.made.take()) else { return };
                self.current = Some(made);
                self.rolled_back = false;
                self.let_go(base);
            }
            Step::Snapshot => self.snapshots.extend(self.current.clone()),
            Step::Delete(at) => {
                if *at < self.snapshots.len() {
                    let gone = self.snapshots.remove(*at);
                    self.let_go(Some(gone));
                }
            }
            Step::Rollback(at) => {
                let Some(to) = self.snapshots.get(*at).cloned() else { return };
                let before = self.current.replace(to);
                (self.begun, self.made, self.rolled_back) = (None, None, true);
                self.let_go(before);
            }
            Step::LookThrough => {
                if let Some(root) = self.dropped.first().cloned()
                    && self.opens(root.key)
                {
                    self.dropped.remove(0);
                }
            }
            Step::Replace => {
                if self.opens(self.head.sealed) {
                    (self.head.ring, self.head.sealed) = (self.known().clone(), self.seals());
                }
            }
            Step::Speak => {
                let roots = self.current.iter().chain(&self.snapshots).chain(&self.dropped);
                let holders: Vec<Holder> =
                    roots.map(|root| Holder { what: String::new(), keys: root.needed.clone() }).collect();
                let root = self.current.as_ref().map_or(0, |root| root.key);
                self.words.push(Needs::of(root, &holders, self.committed && !self.rolled_back));
            }
            Step::Act(at) => {
                let gateways: Vec<Said> = (self.said.iter().zip(["g1", "g2", "g3"]))
                    .map(|(has, name)| Said { name: Name::new(name).expect("a name"), has: Ok(has.clone()) })
                    .collect();
                let word = (!self.words.is_empty()).then(|| &self.words[at % self.words.len()]);
                let mut ring = self.ring().clone();
                match next(&ring, &gateways, word) {
                    Next::Seal(key) => ring.seals = key,
                    Next::Drop(gone) => {
                        ring.keys.retain(|key| !gone.contains(key));
                        self.keys_gone += gone.len() as u32;
                    }
                    Next::Nothing | Next::Waits(_) => return,
                }
                self.rings.push(ring);
            }
            Step::Recover => {
                // Another cluster: it has only what the head has.
                let Head { root, ring, sealed } = self.head.clone();
                let ring = Ring { keys: ring.keys, seals: sealed };
                let keys_gone = self.keys_gone;
                let head = Head { root: root.clone(), ring: ring.clone(), sealed };
                *self = Self { rings: vec![ring], current: root, head, keys_gone, ..Self::new() };
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let ring = self.ring();
        let named = self.current.iter().chain(&self.snapshots).chain(&self.dropped).chain(&self.head.root);
        for root in named {
            prop_assert!(root.needed.is_subset(&ring.keys), "DATAKEY-Z3: {root:?} with {ring:?}");
        }
        // The head alone opens what it names.
        prop_assert!(self.head.ring.keys.contains(&self.head.sealed), "DATAKEY-Z3: {:?}", self.head);
        if let Some(root) = &self.head.root {
            prop_assert!(root.needed.is_subset(&self.head.ring.keys), "DATAKEY-Z3: {:?}", self.head);
        }
        prop_assert!(ring.keys.contains(&ring.seals), "DATAKEY-Z3: {ring:?}");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn no_key_goes_while_something_that_can_be_read_needs_it(steps in proptest::collection::vec(step(), 1..160)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.check()?;
        }
    }
}

/// Keys do get removed: the property must not hold trivially.
#[test]
fn a_change_comes_to_its_end() {
    let mut world = World::new();
    let all: Vec<Step> = (0..GATEWAYS).map(Step::Hears).collect();
    let checkpoint = [Step::Begin, Step::Commit(0xff), Step::End];
    let settle = [Step::LookThrough, Step::Begin, Step::Commit(0xff), Step::End, Step::LookThrough, Step::Speak];
    let steps = checkpoint.iter().chain([&Step::Rotate]).chain(&all).chain([&Step::Act(0)]).chain(&all).chain(&settle);
    for step in steps.cloned().collect::<Vec<_>>() {
        world.run(&step);
    }
    world.run(&Step::Act(world.words.len() - 1));
    assert_eq!((world.ring().keys.clone(), world.keys_gone), ([2].into(), 1));
}
