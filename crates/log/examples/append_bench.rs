//! Durable appends per second on a real disk: 8 KiB entries, one and sixteen in flight.
//!
//! `cargo run --release -p holdfast-log --example append_bench -- DIR [SECONDS] [PAYLOAD_BYTES] [GROUPS]`

use bytes::Bytes;
use holdfast_log::{Entry, GroupLog, LogConfig, NodeLog};
use holdfast_types::{GroupId, LogId};
use std::sync::mpsc;
use std::time::{Duration, Instant};

struct Figures {
    appends: u64,
    seconds: f64,
    latencies: Vec<Duration>,
}

fn measure(logs: &[GroupLog], next: &mut [u64], depth: usize, payload: &Bytes, length: Duration) -> Figures {
    let (sender, receiver) = mpsc::channel();
    let mut appended = 0;
    let mut append = |sender: &mpsc::Sender<Instant>| {
        let turn = appended % logs.len();
        appended += 1;
        let (begun, sender) = (Instant::now(), sender.clone());
        let entry = Entry { id: LogId::new(1, next[turn]), payload: payload.clone() };
        next[turn] += 1;
        logs[turn].append(vec![entry], move |result| {
            if let Err(error) = result {
                eprintln!("append: {error}");
            }
            // The receiver outlives all appends.
            let _ = sender.send(begun);
        });
    };
    let begun = Instant::now();
    let mut latencies = Vec::new();
    (0..depth).for_each(|_| append(&sender));
    while begun.elapsed() < length {
        let Ok(sent) = receiver.recv() else { break };
        latencies.push(sent.elapsed());
        append(&sender);
    }
    let seconds = begun.elapsed().as_secs_f64();
    (0..depth).filter_map(|_| receiver.recv().ok()).for_each(drop);
    latencies.sort_unstable();
    Figures { appends: latencies.len() as u64, seconds, latencies }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        eprintln!("usage: append_bench DIR [SECONDS] [PAYLOAD_BYTES] [GROUPS]");
        std::process::exit(2);
    };
    let mut number = |default: u64| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, bytes, groups) = (number(5), number(8192), number(1));
    let (node, report) = match NodeLog::open(LogConfig::new(&dir)) {
        Ok(opened) => opened,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    println!("opened: {} files, {} records, {} bytes read", report.files, report.records, report.bytes);
    let logs: Vec<GroupLog> = (0..groups).map(|group| node.group(GroupId(group))).collect();
    let mut next: Vec<u64> = logs.iter().map(|log| log.state().last.map_or(0, |last| last.index.0 + 1)).collect();
    let payload = Bytes::from(vec![0xa5; bytes as usize]);
    for depth in [1, 16] {
        let figures = measure(&logs, &mut next, depth, &payload, Duration::from_secs(seconds));
        let at = |percent: usize| {
            figures.latencies.get(figures.latencies.len() * percent / 100).copied().unwrap_or_default()
        };
        println!(
            "{bytes} B, depth {depth:2}, {groups} groups: {:8.0} appends/s  {:7.1} MiB/s  p50 {:?}  p99 {:?}",
            figures.appends as f64 / figures.seconds,
            figures.appends as f64 * bytes as f64 / figures.seconds / f64::from(1 << 20),
            at(50),
            at(99),
        );
    }
    println!("{:?}", node.usage());
    node.close();
}
