use super::*;
use holdfast_envelope::Keeper;
use holdfast_types::{Epoch, GroupId, MemberId, Name};
use std::os::unix::fs::PermissionsExt;

const SET: SetId = GroupId(3);

fn data_key() -> DataKey {
    DataKey::from_bytes([6; 32])
}

fn entry(by: &ClusterKey) -> SetEntry {
    SetEntry {
        name: Name::new("demo").unwrap(),
        policy: holdfast_control::policy::Policy::default(),
        store_url: "memory".into(),
        wrapped_key: by.wrap(&data_key(), SET, 1, [7; 24]),
        key_id: 1,
        created_by: MemberId(1),
        initial_members: vec![MemberId(1)],
        base_epoch: Epoch(0),
        generation: 1,
        restored: None,
        voters: Default::default(),
    }
}

#[test]
fn both_keys_open_and_the_current_one_wraps() {
    let (old, new, both) =
        (ClusterKeys::of_bytes(1, None), ClusterKeys::of_bytes(2, None), ClusterKeys::of_bytes(2, Some(1)));
    for wrapped_by in [&old, &new] {
        let wrapped = entry(wrapped_by.current()).wrapped_key;
        assert!(both.unwrap(&wrapped, SET, 1).is_ok());
    }
    let told = new.unwrap(&entry(old.current()).wrapped_key, SET, 1).unwrap_err().to_string();
    assert!(told.contains("another passphrase or key file"), "{told}");
    assert_eq!(both.current().fingerprint(), new.current().fingerprint());
}

/// Between the new settings and the change of the key, a gateway with only the old key must be able to open a new set.
#[test]
fn a_new_set_is_wrapped_as_the_newest_one_is() {
    let (old, both) = (ClusterKeys::of_bytes(1, None), ClusterKeys::of_bytes(2, Some(1)));
    let of = |keys: &ClusterKeys, sets: &BTreeMap<SetId, SetEntry>| keys.for_new_set(sets).map(ClusterKey::fingerprint);
    let before = BTreeMap::from([(SET, entry(old.current()))]);
    assert_eq!(of(&both, &before), Ok(old.current().fingerprint()));
    let after = BTreeMap::from([(SET, entry(both.current()))]);
    assert_eq!(of(&both, &after), Ok(both.current().fingerprint()));
    assert_eq!(of(&old, &after), Err(NotForNew::Unknown(both.current().fingerprint())));
    assert_eq!(of(&both, &BTreeMap::new()), Ok(both.current().fingerprint()));
}

/// A file of this user alone.
fn write(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

#[tokio::test]
async fn a_passphrase_leads_to_its_key_by_what_the_settings_or_the_head_say() -> Result<(), Box<dyn std::error::Error>>
{
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("passphrase");
    write(&file, "correct horse battery staple\n")?;
    let plain = KeySource { passphrase_file: Some(file), ..KeySource::default() };
    let kdf = new_passphrase_kdf();
    let salted = KeySource { passphrase_kdf: Some(kdf.to_string()), ..plain.clone() };
    let none = KeySource::default();
    // The key of every cluster before clusters had their own salts.
    let before = ClusterKeys::load(&plain, &none).await?;
    let fixed = ClusterKey::from_passphrase("correct horse battery staple", PASSPHRASE_SALT)?;
    assert_eq!(before.current().fingerprint(), fixed.fingerprint());
    let after = ClusterKeys::load(&salted, &plain).await?;
    assert_ne!(after.current().fingerprint(), before.current().fingerprint());
    assert!(after.unwrap(&entry(before.current()).wrapped_key, SET, 1).is_ok(), "the change from one to the other");
    let heads = [before.keyring_of(&entry(before.current())), after.keyring_of(&entry(after.current()))];
    assert_eq!(heads[1].passphrase, kdf);
    assert_eq!(after.keyring_of(&entry(before.current())), heads[0], "each with its own");
    // A reader of a store knows only the passphrase.
    let reader = ClusterKeys::of_store(&plain, &none).await?;
    for head in &heads {
        assert!(reader.open_keyring(head, SET, 1).is_ok(), "{head:?}");
    }
    let told = before.open_keyring(&heads[1], SET, 1).unwrap_err();
    assert!(told.contains(&format!("passphrase_kdf = \"{kdf}\"")), "{told}");
    Ok(())
}

/// KEYRING-W1: a new cluster has no set yet; an old one shows by its sets how it was made.
#[tokio::test]
async fn a_weak_passphrase_wraps_nothing_new() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("passphrase");
    write(&file, "correct horse battery staple\n")?;
    let of = async |kdf: Option<String>| {
        let source = KeySource { passphrase_file: Some(file.clone()), passphrase_kdf: kdf, ..KeySource::default() };
        ClusterKeys::load(&source, &KeySource::default()).await
    };
    let strong = of(Some(new_passphrase_kdf().to_string())).await?;
    assert!(strong.check_new().is_ok() && strong.for_new_set(&BTreeMap::new()).is_ok());
    for kdf in [None, Some(Argon2id::ours([7; 16]).to_string()), Some(Argon2id::fresh(PASSPHRASE_SALT).to_string())] {
        let weak = of(kdf.clone()).await?;
        let told = weak.check_new().unwrap_err().to_string();
        assert!(told.contains("expected a salt of the cluster's own") && told.contains("holdfast key kdf"), "{told}");
        assert!(matches!(weak.for_new_set(&BTreeMap::new()), Err(NotForNew::Weak(_))), "{kdf:?}");
        let old = BTreeMap::from([(SET, entry(weak.current()))]);
        assert!(weak.for_new_set(&old).is_ok(), "a cluster that was made so: {kdf:?}");
    }
    // A key that is no passphrase's has no derivation that could be weak.
    assert!(ClusterKeys::of_bytes(1, None).check_new().is_ok());
    Ok(())
}

/// SECRET-F1, and envelopes.
#[tokio::test]
async fn a_key_is_read_from_a_file_of_ours_or_from_an_envelope() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (path, none) = (dir.path().join("key"), KeySource::default());
    write(&path, [9; 32])?;
    let by_file = KeySource { file: Some(path.clone()), ..KeySource::default() };
    let fingerprint = ClusterKeys::load(&by_file, &none).await?.current().fingerprint();
    let envelope = Envelope { file: Some(path.clone()), keeper: Keeper::Command(vec!["/bin/cat".into()]) };
    let enveloped = KeySource { envelope: Some(envelope), ..KeySource::default() };
    let opened = ClusterKeys::load(&enveloped, &by_file).await?;
    assert_eq!(opened.current().fingerprint(), fingerprint);
    assert!(opened.check_new().is_ok());
    // A section that was left behind after a change is named.
    let gone = KeySource { file: Some(dir.path().join("gone")), ..KeySource::default() };
    let told = ClusterKeys::load(&by_file, &gone).await.unwrap_err().to_string();
    assert!(told.starts_with("[key_previous]: ") && told.contains("gone: No such file"), "{told}");
    // After the loss of all gateways in the middle of a change, some heads are under either key.
    let other = dir.path().join("other");
    write(&other, [8; 32])?;
    let by_other = KeySource { file: Some(other), ..KeySource::default() };
    let reader = ClusterKeys::of_store(&by_other, &enveloped).await?;
    for keys in [ClusterKeys::load(&by_other, &none).await?, opened] {
        let head = keys.keyring_of(&entry(keys.current()));
        assert!(reader.open_keyring(&head, SET, 1).is_ok(), "{head:?}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640))?;
    for source in [by_file, KeySource { passphrase_file: Some(path.clone()), ..KeySource::default() }] {
        let told = ClusterKeys::load(&source, &none).await.unwrap_err().to_string();
        assert!(told.contains("key: found mode 0640, expected 0600 or less"), "{told}");
    }
    write(&path, "no key")?;
    let told = ClusterKeys::load(&enveloped, &none).await.unwrap_err().to_string();
    assert!(told.starts_with("what the envelope was opened to: key file: found 6 bytes"), "{told}");
    Ok(())
}

/// A file named by mistake is not read to its end.
#[tokio::test]
async fn a_file_that_is_far_too_long_is_no_key_and_no_passphrase() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    let (file, none) = (Some(path.clone()), KeySource::default());
    let key = KeySource { file: file.clone(), ..KeySource::default() };
    let passphrase = KeySource { passphrase_file: file, ..KeySource::default() };
    write(&path, "x".repeat(SECRET_BYTES_MAX as usize + 1))?;
    for config in [&key, &passphrase] {
        let told = ClusterKeys::load(config, &none).await.unwrap_err().to_string();
        let expected =
            "image: found at least 65537 bytes, expected at most 65536: it is neither a key nor a passphrase";
        assert!(told.ends_with(expected), "{told}");
    }
    // A file that is there is never to be made anew: it may be the only copy.
    std::fs::remove_file(&path)?;
    std::fs::create_dir(&path)?;
    let told = ClusterKeys::load(&key, &none).await.unwrap_err().to_string();
    assert!(told.ends_with(KEEP) && !told.contains("urandom"), "{told}");
    assert_eq!(advice(ErrorKind::PermissionDenied, MAKE_KEY), LET_READ);
    assert!(MAKE_KEY.contains("set -C"), "without it the shell replaces a file");
    // For a missing file the error says what belongs into it: a key file and a passphrase file differ.
    std::fs::remove_dir(&path)?;
    for (config, next) in [(&key, MAKE_KEY), (&passphrase, MAKE_PASSPHRASE)] {
        let told = ClusterKeys::load(config, &none).await.unwrap_err().to_string();
        assert!(told.contains("image: No such file") && told.ends_with(next), "{told}");
    }
    Ok(())
}
