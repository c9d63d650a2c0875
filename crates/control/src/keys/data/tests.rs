use super::*;

fn ring(keys: &[u32], seals: u32) -> Ring {
    Ring { keys: keys.iter().copied().collect(), seals }
}

fn said(name: &str, has: Result<&[u32], &str>) -> Said {
    let has = has.map(|keys| keys.iter().copied().collect()).map_err(str::to_owned);
    Said { name: Name::new(name).unwrap(), has }
}

fn needs(root: u32, needed: &[u32], settled: bool) -> Needs {
    Needs { root, needed: needed.iter().copied().collect(), settled }
}

#[test]
fn one_key_is_no_change() {
    assert_eq!(next(&ring(&[1], 1), &[], None), Next::Nothing);
    assert_eq!(next_key(&ring(&[1], 1)), Ok(2));
}

#[test]
fn nothing_is_sealed_under_a_key_that_somebody_lacks_or_is_silent_of() {
    let ring = ring(&[1, 2], 1);
    let both = [said("g1", Ok(&[1, 2])), said("g2", Ok(&[1, 2]))];
    assert_eq!(next(&ring, &both, None), Next::Seal(2));
    for other in [said("g3", Ok(&[1])), said("g3", Err("no answer"))] {
        let gateways = [both[0].clone(), other];
        let Next::Waits(waits) = next(&ring, &gateways, Some(&needs(1, &[1], true))) else { panic!("not waiting") };
        assert_eq!(waits.len(), 1);
        assert!(waits[0].to_string().starts_with("gateway g3: "), "{}", waits[0]);
    }
    assert_eq!(next_key(&ring), Err(NoNewKey::Beginning { newest: 2 }));
}

#[test]
fn a_key_goes_once_nothing_needs_it() {
    let ring = ring(&[1, 2, 3], 3);
    let of = |needs: Needs| next(&ring, &[], Some(&needs));
    assert_eq!(of(needs(3, &[1, 2, 3], true)), Next::Nothing);
    assert_eq!(of(needs(3, &[1, 3], true)), Next::Drop([2].into()), "a snapshot may need one from before it");
    assert_eq!(of(needs(3, &[3], true)), Next::Drop([1, 2].into()));
    assert_eq!(of(needs(3, &[3], false)), Next::Nothing, "the head may name something else");
    assert_eq!(of(needs(2, &[2], true)), Next::Drop([1].into()), "what comes is under 2 or higher");
    assert_eq!(of(needs(0, &[], true)), Next::Nothing, "an empty set: the first root may be under any key");
    assert_eq!(next(&ring, &[], None), Next::Waits(vec![Waits::Leader]));
}

#[test]
fn there_are_only_so_many() {
    let full: Vec<u32> = (1..=DATA_KEYS_MAX as u32).collect();
    assert!(matches!(next_key(&ring(&full, DATA_KEYS_MAX as u32)), Err(NoNewKey::TooMany { .. })));
    assert!(matches!(next_key(&ring(&[u32::MAX], u32::MAX)), Err(NoNewKey::Last { .. })));
}

#[test]
fn what_is_needed_is_what_any_holder_needs() {
    let holder = |keys: &[u32]| Holder { what: String::new(), keys: keys.iter().copied().collect() };
    let holders = [holder(&[1]), holder(&[2, 3])];
    assert_eq!(Needs::of(3, &holders, true), needs(3, &[1, 2, 3], true));
}
