use super::*;
use crate::Role;
use crate::revoked::Identity;
use crate::tests::{cluster, load};

fn names(all: &[&str]) -> Revoked {
    Revoked { names: all.iter().map(ToString::to_string).collect(), ..Revoked::default() }
}

fn host(name: &str) -> Identity {
    Identity { name: name.to_string(), serial: "0a".to_string() }
}

/// Certificates, and a place for a list.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let file = dir.path().join("revoked.json");
    (dir, file)
}

/// A process that starts, and its list.
fn begun(dir: &Path, file: &Path) -> (RevocationCache, Revocations) {
    let dialer = Dialer::from(&load(dir, "db1", Role::Host));
    let kept = RevocationCache::open(&dialer, file.to_path_buf()).expect("it has a certificate");
    (kept, dialer.revocations().expect("it has a certificate"))
}

/// A round in which these gateways are asked, and name this; `None`: no answer.
async fn round(kept: &mut RevocationCache, say: &[(&str, Option<&[&str]>)]) {
    let said: BTreeMap<String, Option<Revoked>> =
        say.iter().map(|(address, list)| (address.to_string(), list.map(names))).collect();
    let addresses = said.keys().cloned().collect();
    let ask = move |address: String, known: String| {
        let list = said[&address].clone();
        async move {
            let list = list.ok_or_else(|| "it is down".to_string())?;
            let digest = list.digest();
            let list = if digest == known { Revoked::default() } else { list };
            Ok::<_, String>(RevocationReply { digest, list })
        }
    };
    kept.round(addresses, ask).await;
}

/// Until the disk has what was to be written.
async fn written(kept: &mut RevocationCache) {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        kept.store().await;
        if kept.storing.is_none() {
            return;
        }
        assert!(tokio::time::Instant::now() < until, "it is not written");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// REVOKE-V3.
#[tokio::test]
async fn what_a_gateway_has_named_is_not_forgotten_by_silence() {
    let (dir, file) = place();
    let (mut kept, list) = begun(dir.path(), &file);
    let of = |name: &str| list.check(&host(name)).is_err();
    round(&mut kept, &[("g1", Some(&["ann"])), ("g2", Some(&[])), ("g3", Some(&[]))]).await;
    assert!(of("ann"), "one has applied it already");
    // The two that are left may not know of it yet: only what they say once they are more than half counts.
    round(&mut kept, &[("g1", None), ("g2", Some(&[])), ("g3", None)]).await;
    assert!(of("ann"));
    round(&mut kept, &[("g1", None), ("g2", None), ("g3", None)]).await;
    assert!(of("ann"));
    round(&mut kept, &[("g1", None), ("g2", Some(&["ann", "bob"])), ("g3", Some(&["ann"]))]).await;
    assert!(of("ann") && of("bob"));
    // Taken back: whoever still names it is not asked any more, or is cut off.
    round(&mut kept, &[("g1", None), ("g2", Some(&["bob"])), ("g3", Some(&["bob"]))]).await;
    assert!(!of("ann") && of("bob"));
}

/// REVOKE-V3: what was cut on its way, or is longer than any list, changes nothing.
#[tokio::test]
async fn a_part_of_a_list_is_no_list() {
    let (dir, file) = place();
    let (mut kept, list) = begun(dir.path(), &file);
    round(&mut kept, &[("g1", Some(&["ann", "bob"]))]).await;
    let many: Vec<String> = (0..=LIST_MAX).map(|n| n.to_string()).collect();
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let whole = names(&["ann", "bob"]).digest();
    let all = [
        RevocationReply::default(),
        RevocationReply { digest: whole.clone(), list: names(&["bob"]) },
        RevocationReply { digest: "other".to_string(), list: names(&["bob"]) },
        RevocationReply { digest: names(&["bob"]).digest(), list: Revoked::default() },
    ];
    let many = Revoked { serials: many.into_iter().collect(), ..Revoked::default() };
    let large = [many, names(&[long.as_str()])].map(|list| RevocationReply { digest: list.digest(), list });
    for told in all.into_iter().chain(large) {
        let ask = move |_, _| std::future::ready(Ok(told.clone()));
        kept.round(vec!["g1".to_string()], ask).await;
        for name in ["ann", "bob"] {
            assert!(list.check(&host(name)).is_err(), "{name}");
        }
    }
}

/// REVOKE-V4.
#[tokio::test]
async fn a_restart_forgets_nothing_while_no_gateway_answers() {
    let (dir, file) = place();
    let (mut kept, _) = begun(dir.path(), &file);
    round(&mut kept, &[("g1", Some(&["ann"])), ("g2", None)]).await;
    written(&mut kept).await;
    let (mut kept, list) = begun(dir.path(), &file);
    assert!(list.check(&host("ann")).is_err() && list.check_client(&host("bob")).is_ok());
    round(&mut kept, &[("g1", None), ("g2", None)]).await;
    round(&mut kept, &[("g1", None), ("g2", Some(&[]))]).await;
    assert!(list.check(&host("ann")).is_err(), "one of two may not know of it yet");
    round(&mut kept, &[("g1", Some(&[])), ("g2", None)]).await;
    assert!(list.check(&host("ann")).is_ok(), "taken back by the one that had named it");
    written(&mut kept).await;
    assert!(begun(dir.path(), &file).1.check(&host("ann")).is_ok());
}

/// REVOKE-V4.
#[tokio::test]
async fn a_list_that_cannot_be_read_is_not_empty() {
    let (dir, file) = place();
    let (mut kept, _) = begun(dir.path(), &file);
    round(&mut kept, &[("g1", Some(&["ann"])), ("g2", Some(&["ann"]))]).await;
    written(&mut kept).await;
    let text = std::fs::read_to_string(&file).expect("it was written");
    let shorter = text.replace("\"ann\"", "");
    for damaged in ["", &text[..text.len() / 2], shorter.as_str()] {
        std::fs::write(&file, damaged).expect("written");
        let (mut kept, list) = begun(dir.path(), &file);
        // A gateway has to be asked.
        assert!(list.check(&host("g1")).is_ok() && list.check_client(&host("bob")).is_err(), "{damaged}");
        round(&mut kept, &[("g1", Some(&["ann"])), ("g2", None)]).await;
        written(&mut kept).await;
        assert!(list.check_client(&host("bob")).is_err(), "one of two");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), damaged, "left as it is until then");
        round(&mut kept, &[("g1", Some(&["ann"])), ("g2", Some(&["ann"]))]).await;
        assert!(list.check_client(&host("bob")).is_ok() && list.check_client(&host("ann")).is_err());
        written(&mut kept).await;
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), text);
    }
}

#[test]
fn without_tls_there_is_no_list() {
    assert!(RevocationCache::open(&Dialer::plaintext(), PathBuf::from("/nowhere")).is_none());
}

#[test]
fn lists_are_told_apart() {
    let serials = Revoked { serials: ["ann".to_string()].into(), ..Revoked::default() };
    let lists = [Revoked::default(), names(&["ann"]), names(&["a", "nn"]), names(&["an", "n"]), serials];
    let all: BTreeSet<String> = lists.iter().map(Revoked::digest).collect();
    assert_eq!(all.len(), lists.len());
}
