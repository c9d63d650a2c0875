//! Runs each target with its seeds, with all their prefixes and with single bytes changed, and with the inputs kept in
//! `fuzz/corpus`: a finding of the engine becomes a test here.

use holdfast_fuzz::{TARGETS, Target, corpus, kept};

/// Of a long seed only so many places are cut or changed.
const PLACES_MAX: usize = 64;

fn places(len: usize) -> impl Iterator<Item = usize> {
    let step = (len / PLACES_MAX).max(1);
    (0..len).step_by(step)
}

fn check(target: &Target, name: &str, input: &[u8]) -> bool {
    // The harness prints this with a failure.
    println!("{} with {name}: {} bytes", target.name, input.len());
    target.check(input)
}

/// Else a run would begin with nothing, and a decoder that refuses everything would look safe.
#[test]
fn every_seed_is_accepted() {
    for target in TARGETS {
        let seeds = target.seeds();
        assert!(!seeds.is_empty(), "{}: no seed", target.name);
        for (number, seed) in seeds.iter().enumerate() {
            assert!(seed.len() <= target.bytes_max, "{}: seed {number} has {} bytes", target.name, seed.len());
            assert!(check(target, &format!("seed {number}"), seed), "{}: seed {number} is refused", target.name);
        }
    }
}

#[test]
fn seeds_that_end_early_or_are_changed_break_nothing() {
    for target in TARGETS {
        for (number, seed) in target.seeds().iter().enumerate() {
            for at in places(seed.len()) {
                check(target, &format!("seed {number}, cut at {at}"), &seed[..at]);
                for change in [0x01, 0x80, 0xff] {
                    let mut changed = seed.clone();
                    changed[at] ^= change;
                    check(target, &format!("seed {number}, byte {at} changed by {change:02x}"), &changed);
                }
            }
        }
    }
}

#[test]
fn what_was_found_before_stays_mended() -> std::io::Result<()> {
    for target in TARGETS {
        for (name, input) in kept(target.name)? {
            check(target, &name, &input);
        }
    }
    for entry in std::fs::read_dir(corpus())? {
        let entry = entry?;
        let (name, is_dir) = (entry.file_name(), entry.file_type()?.is_dir());
        let known = TARGETS.iter().any(|target| *target.name == *name);
        assert!(!is_dir || known, "fuzz/corpus/{}: no target of that name", name.display());
    }
    Ok(())
}

#[test]
fn names_are_unique_and_a_wrong_one_is_told() {
    let names: std::collections::BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), TARGETS.len());
    let error = holdfast_fuzz::find("nothing").expect_err("no such target");
    assert!(error.contains("expected one of nbd-server-handshake, "), "{error}");
}
