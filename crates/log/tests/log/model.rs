//! One group's log compared with a simple model, with a memory tail so small that most reads go to the disk.

use bytes::Bytes;
use holdfast_log::{Entry, GroupLog, GroupLogState, Identity, LogConfig, NodeLog};
use holdfast_testkit::SimDisk;
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc;

#[derive(Clone, Debug)]
enum Step {
    Append {
        count: u64,
        len: usize,
        new_term: bool,
        wait: bool,
    },
    /// Keeps this share of the entries, in percent.
    Truncate(u64),
    Purge(u64),
    /// Installs a snapshot that reaches beyond the last entry.
    Jump(u64),
    Vote(u8),
    Committed,
    Drop,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let append = (1u64..5, 0usize..900, any::<bool>(), any::<bool>());
    prop_oneof![
        8 => append.prop_map(|(count, len, new_term, wait)| Step::Append { count, len, new_term, wait }),
        3 => (0u64..=100).prop_map(Step::Truncate),
        3 => (0u64..=100).prop_map(Step::Purge),
        1 => (0u64..5).prop_map(Step::Jump),
        1 => any::<u8>().prop_map(Step::Vote),
        1 => Just(Step::Committed),
        1 => Just(Step::Drop),
        1 => Just(Step::Restart),
    ]
}

#[derive(Default)]
struct Model {
    state: GroupLogState,
    entries: BTreeMap<u64, (Term, Bytes)>,
    drawn: u8,
}

impl Model {
    fn settle(&mut self) {
        let last =
            self.entries.iter().next_back().map(|(index, (term, _))| LogId { term: *term, index: LogIndex(*index) });
        self.state.last = last.or(self.state.purged);
        self.state.first = self.entries.keys().next().copied().map(LogIndex);
    }

    /// The id at `percent` of the entries.
    fn at(&self, percent: u64) -> Option<LogId> {
        let number = self.entries.len().checked_sub(1)? * percent as usize / 100;
        self.entries.iter().nth(number).map(|(index, (term, _))| LogId { term: *term, index: LogIndex(*index) })
    }
}

fn open(disk: &SimDisk, tail_bytes: u64) -> NodeLog {
    let config = LogConfig {
        file_bytes: 64 << 10,
        bound_bytes: 1 << 20,
        reserve_bytes: 128 << 10,
        tail_bytes,
        ..LogConfig::new("simulated")
    };
    NodeLog::open_on(disk.clone(), config, Identity::default()).expect("opens").0
}

fn check(runtime: &tokio::runtime::Runtime, log: &GroupLog, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(log.state(), model.state.clone());
    let expected: Vec<Entry> = model
        .entries
        .iter()
        .map(|(index, (term, payload))| Entry {
            id: LogId { term: *term, index: LogIndex(*index) },
            payload: payload.clone(),
        })
        .collect();
    let first = model.entries.keys().next().copied().unwrap_or(0);
    let found = runtime.block_on(log.entries(first..u64::MAX, usize::MAX)).expect("reads");
    prop_assert!(found == expected, "entries {:?}, expected {:?}", ids(&found), ids(&expected));
    for index in first.saturating_sub(2)..first + expected.len() as u64 + 2 {
        let purged = model.state.purged.filter(|purged| purged.index.0 == index).map(|purged| purged.term);
        let term = model.entries.get(&index).map(|(term, _)| *term).or(purged);
        prop_assert_eq!(log.term_at(LogIndex(index)), term, "term at {}", index);
        if let Some(tail) = log.entries_in_tail(index..index + 1) {
            prop_assert_eq!(Some(&tail[0].payload), model.entries.get(&index).map(|(_, payload)| payload));
        }
    }
    let on_disk = |payload: &Bytes| {
        let bytes = 48 + 20 * payload.len().div_ceil(16384) as u64 + payload.len() as u64;
        bytes.next_multiple_of(8)
    };
    let live: u64 = model.entries.values().map(|(_, payload)| on_disk(payload)).sum();
    prop_assert_eq!(log.live_bytes(), live);
    // With the last purged one, after which everything is here.
    let begin = model.state.purged.map_or(first.saturating_sub(1), |purged| purged.index.0);
    for index in begin..begin + expected.len() as u64 + 2 {
        let after: Vec<u64> = model.entries.range(index + 1..).map(|(_, (_, payload))| on_disk(payload)).collect();
        let count = after.len() as u64;
        let bytes: u64 = after.iter().sum();
        prop_assert_eq!(log.bytes_after(LogIndex(index), count), Some(bytes), "after {}", index);
        if count > 0 {
            prop_assert_eq!(log.bytes_after(LogIndex(index), count - 1), None, "too many after {}", index);
        }
    }
    if let Some(before) = first.checked_sub(2).filter(|_| !expected.is_empty()) {
        prop_assert_eq!(log.bytes_after(LogIndex(before), u64::MAX), None, "entry {} is purged", before + 1);
    }
    Ok(())
}

fn ids(entries: &[Entry]) -> Vec<LogId> {
    entries.iter().map(|entry| entry.id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_group_is_what_was_asked_of_it(steps in prop::collection::vec(step(), 1..60), tail_bytes in 0u64..4000) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let disk = SimDisk::new();
        let mut node = open(&disk, tail_bytes);
        let mut log = node.group(GroupId(5));
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Append { count, len, new_term, wait } => {
                    let last = model.state.last;
                    let term = last.map_or(1, |last| last.term.0) + u64::from(new_term);
                    let start = last.map_or(0, |last| last.index.0 + 1);
                    let mut entries = Vec::new();
                    for index in start..start + count {
                        model.drawn = model.drawn.wrapping_add(1);
                        let payload = Bytes::from(vec![model.drawn; len]);
                        model.entries.insert(index, (Term(term), payload.clone()));
                        entries.push(Entry { id: LogId::new(term, index), payload });
                    }
                    let (sender, receiver) = mpsc::channel();
                    log.append(entries, move |result| { let _ = sender.send(result); });
                    if wait {
                        receiver.recv().expect("called back").expect("durable");
                    }
                }
                Step::Truncate(percent) => {
                    let keep = if percent == 0 && model.state.purged.is_none() { None } else { model.at(percent).or(model.state.purged) };
                    runtime.block_on(log.truncate_after(keep)).expect("durable");
                    model.entries.retain(|index, _| keep.is_some_and(|keep| *index <= keep.index.0));
                }
                Step::Purge(percent) => if let Some(upto) = model.at(percent) {
                    runtime.block_on(log.purge(upto)).expect("durable");
                    model.entries.retain(|index, _| *index > upto.index.0);
                    model.state.purged = Some(upto);
                },
                Step::Jump(by) => {
                    let last = model.state.last.unwrap_or_default();
                    let upto = LogId::new(last.term.0 + 1, last.index.0 + by + 1);
                    runtime.block_on(log.purge(upto)).expect("durable");
                    model.entries.clear();
                    model.state.purged = Some(upto);
                }
                Step::Vote(byte) => {
                    let vote = Bytes::from(vec![byte; 9]);
                    runtime.block_on(log.save_vote(vote.clone())).expect("durable");
                    model.state.vote = Some(vote);
                }
                Step::Committed => if let Some(last) = model.state.purged {
                    log.save_committed(last);
                    model.state.committed = Some(last);
                },
                Step::Drop => {
                    runtime.block_on(log.drop_group()).expect("durable");
                    model = Model { drawn: model.drawn, ..Model::default() };
                }
                Step::Restart => {
                    node.close();
                    node = open(&disk, tail_bytes);
                    log = node.group(GroupId(5));
                }
            }
            model.settle();
            check(&runtime, &log, &model)?;
        }
        prop_assert!(node.usage().failed.is_none());
        node.close();
    }
}
