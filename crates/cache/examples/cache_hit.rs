//! The cost of a hit in the memory tier, by number of threads: `cargo run -p holdfast-cache --example cache_hit
//! [--release]`.

use bytes::Bytes;
use holdfast_cache::{BlockKey, Cache};
use holdfast_types::{MemberId, ObjectId, Term};
use rustix::time::{ClockId, clock_gettime};
use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

const KEYS: u32 = 4096;
const HITS: u32 = 2_000_000;
const VALUE_BYTES: usize = 8192;

fn key(number: u32) -> BlockKey {
    let random = u128::from(number / 128).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C834);
    BlockKey::first(ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, number)
}

/// This thread's own CPU time: on a busy machine, wall-clock time includes other threads.
fn cpu_nanos() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn per_hit(name: &str, run: impl FnOnce()) {
    let (wall, cpu) = (Instant::now(), cpu_nanos());
    run();
    let wall = wall.elapsed().as_nanos() / u128::from(HITS);
    let cpu = (cpu_nanos() - cpu) / i64::from(HITS);
    println!("{name:12} {cpu:6} ns of CPU, {wall:6} ns on the wall");
}

fn hit_all(cache: &Cache, runtime: &tokio::runtime::Runtime) {
    per_hit("get", || {
        for n in 0..HITS {
            black_box(cache.get(&key(n.wrapping_mul(2_654_435_761) % KEYS)));
        }
    });
    per_hit("get_or_load", || {
        runtime.block_on(async {
            for n in 0..HITS {
                let load = || async { Ok::<_, Infallible>(Bytes::new()) };
                let _ = black_box(cache.get_or_load(key(n.wrapping_mul(2_654_435_761) % KEYS), load).await);
            }
        });
    });
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let cache = runtime.block_on(Cache::open(256 << 20, None)).expect("open");
    for number in 0..KEYS {
        cache.insert(key(number), vec![0; VALUE_BYTES].into());
    }
    println!("{KEYS} entries of {VALUE_BYTES} bytes, {HITS} hits");
    for threads in [1, 2, 4] {
        println!("threads: {threads}");
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| hit_all(&cache, &runtime));
            }
        });
    }
    let stats = cache.stats();
    println!("{stats:?}");
}
