use super::*;
use std::os::unix::fs::PermissionsExt;

/// A file, and the one that checks it.
struct Room {
    dir: tempfile::TempDir,
    watched: Watched,
    health: Arc<Health>,
}

/// Writes a file that belongs to its user alone.
fn secret(path: &Path, content: impl AsRef<[u8]>) {
    std::fs::write(path, content).expect("write");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("chmod");
}

fn text(id: &str) -> String {
    format!("[east]\naws_access_key_id = {id}\naws_secret_access_key = hunter2-{id}\n")
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("credentials");
        secret(&path, text("first"));
        let (stamp, _) = read(&path).expect("read");
        let (began, health) = (Instant::now(), Arc::new(Health::new("demo")));
        let seen = FileState { looked: began, read: began, stamp: Some(stamp), problem: None, told: None };
        let watched = Watched {
            path,
            profile: "east".to_owned(),
            every: Duration::ZERO,
            place: Arc::from("s3://bucket/"),
            health: Some(health.clone()),
            turns: Arc::new(Semaphore::new(1)),
            seen: Mutex::new(seen),
        };
        Self { dir, watched, health }
    }

    /// As tools do it: a new file beside it is renamed over it.
    fn replace(&self, content: &str) {
        let beside = self.dir.path().join("beside");
        secret(&beside, content);
        std::fs::rename(&beside, &self.watched.path).expect("rename");
    }

    fn look(&self) -> Option<String> {
        self.watched.look(false).map(|keys| keys.id)
    }

    fn trouble(&self) -> Option<String> {
        self.health.standing(unix_ms()).now.map(|trouble| format!("{}: {}", trouble.kind.name(), trouble.error))
    }
}

#[test]
fn a_file_that_is_as_it_was_is_not_read() {
    let room = Room::new();
    let read = room.watched.seen().read;
    assert_eq!(room.look(), None);
    assert_eq!(room.watched.seen().read, read, "looked at only");
    assert_eq!(room.watched.look(true).map(|keys| keys.id).as_deref(), Some("first"), "after a refusal it is read");
    assert!(room.watched.seen().read > read);
    assert_eq!(room.trouble(), None);
}

#[test]
fn a_file_that_was_replaced_is_read_once_even_where_its_length_is_the_same() {
    let room = Room::new();
    room.replace(&text("other"));
    assert_eq!(room.look().as_deref(), Some("other"));
    assert_eq!(room.look(), None);
    assert_eq!(room.trouble(), None);
}

#[test]
fn a_file_that_is_no_use_is_told_for_as_long_as_it_is_none() {
    let room = Room::new();
    for (spoil, words) in [
        ("[east]\naws_access_key_id = new\naws_secr", "line 3: found something else"),
        ("[west]\naws_access_key_id = new\naws_secret_access_key = hunter2\n", "found profiles [west]"),
        ("", "found no profile"),
        ("[east]\naws_access_key_id = new\n", "found no aws_secret_access_key"),
    ] {
        room.replace(spoil);
        for look in ["read", "as it was, and that is bad"] {
            assert_eq!(room.look(), None, "{spoil:?} {look}");
            let trouble = room.trouble().expect("told");
            let all = ["credentials: credentials file ", "[east]", words, "signed with the keys that it had before"];
            assert!(all.iter().all(|word| trouble.contains(word)), "{trouble}");
            assert!(!trouble.contains("hunter2"), "{trouble}");
        }
    }
    room.replace(&text("last"));
    assert_eq!(room.look().as_deref(), Some("last"));
    assert_eq!(room.trouble(), None);
    let (last, _) = room.health.standing(unix_ms()).last.expect("it was told");
    assert!(last.failures >= 8, "{last:?}");
}

#[test]
fn a_file_that_is_gone_a_pipe_a_folder_no_text_or_too_long_is_told() {
    let room = Room::new();
    let path = &room.watched.path;
    let told = |words: &str| {
        assert_eq!(room.look(), None, "{words}");
        let trouble = room.trouble().expect(words);
        assert!(trouble.contains(words), "{trouble} lacks {words}");
    };
    std::fs::remove_file(path).expect("remove");
    told("cannot be read");
    std::fs::create_dir(path).expect("create");
    told("found no regular file");
    std::fs::remove_dir(path).expect("remove");
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
    told("found no regular file");
    std::fs::remove_file(path).expect("remove");
    secret(path, [b'[', 0xff, b']']);
    told("expected UTF-8");
    let long = std::fs::File::create(path).expect("create");
    long.set_len(CREDENTIALS_BYTES_MAX + 1).expect("length");
    told("found 1048577 bytes, expected at most 1048576");
    std::fs::write(path, text("back")).expect("write");
    assert_eq!(room.look().as_deref(), Some("back"), "the same keys may be there again, and are read");
    assert_eq!(room.trouble(), None);
}

#[test]
fn a_file_that_others_can_read_is_told_and_the_keys_before_stay() {
    let room = Room::new();
    let set = |mode| std::fs::set_permissions(&room.watched.path, PermissionsExt::from_mode(mode)).expect("chmod");
    set(0o644);
    // After a refusal: it may have changed too fast for a look.
    assert_eq!(room.watched.look(true), None, "CREDS-K1");
    let trouble = room.trouble().expect("SECRET-F1");
    assert!(trouble.contains("found mode 0644, expected 0600 or less") && trouble.contains("chmod 600"), "{trouble}");
    set(0o600);
    assert_eq!(room.watched.look(true).map(|keys| keys.id).as_deref(), Some("first"));
    assert_eq!(room.trouble(), None);
}

/// Somebody may write to it between the check of its length and the read.
#[test]
fn a_file_that_grows_while_it_is_read_is_read_no_further_than_its_bound() {
    let bytes = |count| std::io::repeat(b'#').take(count);
    let whole = bounded(bytes(CREDENTIALS_BYTES_MAX)).expect("as long as one may be");
    assert_eq!(whole.len() as u64, CREDENTIALS_BYTES_MAX);
    let found_bytes = CREDENTIALS_BYTES_MAX + 1;
    assert_eq!(bounded(bytes(CREDENTIALS_BYTES_MAX * 4)), Err(CredentialsProblem::TooLarge { found_bytes }));
}

#[test]
fn who_looks_no_more_leaves_no_trouble_behind() {
    let room = Room::new();
    std::fs::remove_file(&room.watched.path).expect("remove");
    assert_eq!(room.look(), None);
    assert!(room.trouble().is_some());
    let Room { watched, health, .. } = room;
    drop(watched);
    assert_eq!(health.standing(unix_ms()).now, None);
}
