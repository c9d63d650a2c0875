//! Argon2id's parameters as text and their bounds: a head in a store may hold any of these, and is not authenticated
//! yet when they are read.

use holdfast_seal::{Argon2id, SealError};

const SALT: &str = "000102030405060708090a0b0c0d0e0f";

#[test]
fn only_the_whole_form_is_read() {
    let good = format!("argon2id:m=19456,t=2,p=1:{SALT}");
    assert_eq!(good.parse::<Argon2id>().expect("the form").to_string(), good);
    for bad in [
        format!("argon2id:m=19456,t=2,p=1,x=1:{SALT}"),
        format!("argon2id:m=19456,t=2:{SALT}"),
        format!("argon2id:t=2,m=19456,p=1:{SALT}"),
        format!("argon2d:m=19456,t=2,p=1:{SALT}"),
        format!("argon2id:m=19456,t=2,p=1:{}", &SALT[2..]),
        format!("argon2id:m=19456,t=2,p=1:{SALT}10"),
        format!("argon2id:m=19456,t=2,p=1:g{}", &SALT[1..]),
        format!("argon2id:m=19456,t=2,p=1:0g{}", &SALT[2..]),
        "argon2id:m=19456,t=2,p=1".to_string(),
        format!("argon2id:m=19456,t=65,p=1:{SALT}"),
    ] {
        let read = bad.parse::<Argon2id>();
        assert!(matches!(read, Err(SealError::Kdf { .. })), "{bad}: {read:?}");
    }
}

#[test]
fn the_bounds_are_exact() {
    let with = |memory_kib, passes, lanes| Argon2id { memory_kib, passes, lanes, salt: [1; 16] }.check().is_ok();
    // Memory: 8 KiB for each lane to 1 GiB.
    assert_eq!([7, 8, 1 << 20, (1 << 20) + 1].map(|memory| with(memory, 1, 1)), [false, true, true, false]);
    assert_eq!([127, 128].map(|memory| with(memory, 1, 16)), [false, true]);
    assert_eq!([0, 1, 64, 65].map(|passes| with(19_456, passes, 1)), [false, true, true, false]);
    assert_eq!([0, 1, 16, 17].map(|lanes| with(19_456, 1, lanes)), [false, true, true, false]);
}
