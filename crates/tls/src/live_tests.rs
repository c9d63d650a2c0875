use super::*;
use crate::make::certificates;
use crate::tests::{cluster, files, load, wanted};
use crate::{Acceptor, Dialer, Role, Tls, TlsFiles, TlsStream};
use rustix::process::{Signal as Kind, getpid, kill_process};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tokio_rustls::{TlsConnector, client};

const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than any test: only SIGHUP has the files read.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Puts the file `from` in the place of `to` at once. It is another inode, whatever the clock says.
fn replace(dir: &Path, from: &str, to: &str) {
    let beside = dir.join("beside");
    std::fs::copy(dir.join(from), &beside).expect("a copy");
    std::fs::rename(&beside, dir.join(to)).expect("in its place");
}

/// Writes `text` in the place of a file, as a writer that has not ended.
fn cut(dir: &Path, to: &str, text: &str) {
    let beside = dir.join("beside");
    std::fs::write(&beside, text).expect("written");
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::rename(&beside, dir.join(to)).expect("in its place");
}

/// Two looks: the second finds the files unchanged.
fn look(tls: &Tls) {
    tls.live.look(false);
    tls.live.look(false);
}

/// A cluster with a second gateway's certificate, to renew the first with.
fn renewable(dir: &Path) -> (Tls, Tls) {
    cluster(dir);
    certificates(dir, &[wanted("g2", Role::Gateway)], 20).expect("made");
    (load(dir, "g1", Role::Gateway), load(dir, "db1", Role::Host))
}

/// Both ends of a connection after its handshake. The caller has read a byte: only then could it have what it needs to
/// resume its session.
struct Met {
    served: TlsStream<DuplexStream>,
    called: client::TlsStream<DuplexStream>,
}

async fn meet(door: &Acceptor, caller: Arc<ClientConfig>) -> io::Result<Met> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let name = ServerName::try_from(Role::Gateway.dns_name()).expect("a name");
    let (served, called) = tokio::join!(door.accept(far), TlsConnector::from(caller).connect(name, near));
    let mut met = Met { served: served?, called: called? };
    met.speak().await?;
    Ok(met)
}

impl Met {
    async fn speak(&mut self) -> io::Result<()> {
        self.served.write_all(b"x").await?;
        self.served.flush().await?;
        let mut byte = [0];
        self.called.read_exact(&mut byte).await?;
        assert_eq!(&byte, b"x");
        Ok(())
    }

    /// The certificate that the door showed.
    fn shown(&self) -> CertificateDer<'static> {
        let all = self.called.get_ref().1.peer_certificates().expect("certificates");
        all.first().expect("one").clone()
    }
}

fn caller(tls: &Tls) -> Arc<ClientConfig> {
    tls.live.current().expect("usable files").configs.client
}

#[tokio::test]
async fn a_new_certificate_is_used_by_the_next_handshake_and_an_open_connection_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    // Made before the change, as those of a process are.
    let door = gateway.acceptor();
    let mut open = meet(&door, caller(&host)).await.expect("a handshake");
    let first = open.shown();
    look(&gateway);
    assert_eq!(meet(&door, caller(&host)).await.expect("a handshake").shown(), first, "nothing has changed");

    let before = gateway.expiry();
    replace(dir.path(), "g2.key", "g1.key");
    replace(dir.path(), "g2.pem", "g1.pem");
    gateway.live.look(false);
    assert_eq!(gateway.expiry(), before, "files that have just changed may not be complete");
    gateway.live.look(false);
    let renewed = meet(&door, caller(&host)).await.expect("a handshake");
    assert_ne!(renewed.shown(), first, "LIVE-C1");
    assert!(gateway.expiry().own < before.own, "that of the new one");
    assert_eq!(gateway.expiry().authority, before.authority);
    open.speak().await.expect("an open connection goes on");
}

#[tokio::test]
async fn a_client_shows_its_new_certificate_in_its_next_handshake() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    let shown = |met: &Met| met.served.get_ref().1.peer_certificates().map(|all| all[0].clone());
    let first = meet(&gateway.acceptor(), caller(&host)).await.expect("a handshake");
    let renewed = tempfile::tempdir().expect("a directory");
    for name in ["ca.pem", "ca.key"] {
        std::fs::copy(dir.path().join(name), renewed.path().join(name)).expect("a copy");
    }
    certificates(renewed.path(), &[wanted("db1", Role::Host)], 20).expect("made");
    for name in ["db1.key", "db1.pem"] {
        std::fs::copy(renewed.path().join(name), dir.path().join("next")).expect("a copy");
        replace(dir.path(), "next", name);
    }
    look(&host);
    let second = meet(&gateway.acceptor(), caller(&host)).await.expect("a handshake");
    assert_ne!(shown(&first), shown(&second));
}

#[tokio::test]
async fn files_that_do_not_fit_leave_the_earlier_ones_in_use() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    let door = gateway.acceptor();
    let first = meet(&door, caller(&host)).await.expect("a handshake").shown();
    let key = std::fs::read_to_string(dir.path().join("g2.key")).expect("a key");
    replace(dir.path(), "g2.pem", "g1.pem");
    // Of another certificate, cut, of no use, gone: the door serves on with the earlier pair.
    for (what, says) in [("", "cannot be used together"), (&key[..40], "g1.key"), ("-", "g1.key")] {
        if !what.is_empty() {
            cut(dir.path(), "g1.key", what);
        }
        look(&gateway);
        let why = gateway.trouble().expect("LIVE-C2: it is told");
        assert!(why.contains(says), "{why}");
        assert!(gateway.warnings().iter().any(|warning| warning.contains(&why)));
        assert_eq!(meet(&door, caller(&host)).await.expect("LIVE-C2: a handshake").shown(), first);
    }
    std::fs::remove_file(dir.path().join("g1.key")).expect("removed");
    look(&gateway);
    assert!(gateway.trouble().is_some_and(|why| why.contains("g1.key")));
    assert_eq!(meet(&door, caller(&host)).await.expect("a handshake").shown(), first);

    replace(dir.path(), "g2.key", "g1.key");
    look(&gateway);
    assert_eq!(gateway.trouble(), None);
    assert_ne!(meet(&door, caller(&host)).await.expect("a handshake").shown(), first);
}

/// LIVE-C4: an agent beside PostgreSQL must not end because its key is being written.
#[tokio::test]
async fn files_that_cannot_be_used_at_the_start_are_used_once_they_can() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    let key = std::fs::read_to_string(dir.path().join("g1.key")).expect("a key");
    cut(dir.path(), "g1.key", &key[..40]);
    assert!(files(dir.path(), "g1").load(Role::Gateway).is_err(), "a first start is refused");
    let late = files(dir.path(), "g1").load_or_later(Role::Gateway).expect("all are named").expect("some");
    // Made before they can be used, as those of a process are.
    let (door, client) = (late.acceptor(), Dialer::from(&late).connector().expect("it has TLS"));
    look(&late);
    assert!(late.trouble().is_some_and(|why| why.contains("g1.key")), "{:?}", late.trouble());
    assert!(late.warnings().iter().any(|warning| warning.contains("g1.key")));
    assert_eq!(late.expiry(), Expiry::default());
    let (near, far) = tokio::io::duplex(64 << 10);
    for refused in [door.accept(near).await.err(), client.connect(far).await.err()] {
        let refused = refused.expect("nothing goes on without TLS").to_string();
        assert!(refused.contains("g1.key"), "{refused}");
    }
    cut(dir.path(), "g1.key", &key);
    look(&late);
    assert_eq!(late.trouble(), None);
    assert_eq!(late.expiry(), gateway.expiry());
    meet(&door, caller(&host)).await.expect("a handshake");
    let unnamed = TlsFiles { key: None, ..files(dir.path(), "g1") };
    assert!(unnamed.load_or_later(Role::Gateway).is_err(), "what is not named never comes");
}

/// A client of the earlier authority that trusts the new one too: only the door can refuse it.
#[tokio::test]
async fn after_a_change_of_the_authority_the_earlier_one_opens_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let (gateway, _) = renewable(&old);
    cluster(&new);
    let read = |path: &Path| std::fs::read_to_string(path.join("ca.pem")).expect("an authority");
    let both = [read(&old), read(&new)].concat();
    std::fs::write(dir.path().join("both.pem"), both).expect("written");
    let with_both = |own: &Path| {
        let files = TlsFiles { ca: Some(dir.path().join("both.pem")), ..files(own, "db1") };
        caller(&files.load(Role::Host).expect("good files").expect("some"))
    };
    let (earlier, later) = (with_both(&old), with_both(&new));
    let door = gateway.acceptor();
    meet(&door, earlier.clone()).await.expect("a handshake");
    meet(&door, later.clone()).await.map(drop).expect_err("not trusted yet");

    for name in ["ca.pem", "g1.key", "g1.pem"] {
        std::fs::copy(new.join(name), old.join("next")).expect("a copy");
        replace(&old, "next", name);
    }
    look(&gateway);
    assert_eq!(gateway.trouble(), None);
    meet(&door, later).await.expect("a handshake");
    // Also if it would resume its session from before.
    meet(&door, earlier).await.map(drop).expect_err("LIVE-C3: the earlier authority still opens");
}

/// A session that is resumed is not verified: an expired certificate would go on opening connections.
#[tokio::test]
async fn a_client_that_would_resume_its_session_shows_its_certificate_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    let door = gateway.acceptor();
    let mut willing = (*caller(&host)).clone();
    willing.resumption = Resumption::default();
    let willing = Arc::new(willing);
    for _ in 0..3 {
        let met = meet(&door, willing.clone()).await.expect("a handshake");
        assert_eq!(met.called.get_ref().1.handshake_kind(), Some(HandshakeKind::Full), "TLS-T1");
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_after_a_change_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, _) = renewable(dir.path());
    let mut roots = RootCertStore::empty();
    let ca = std::fs::read(dir.path().join("ca.pem")).expect("an authority");
    roots.add(CertificateDer::from_pem_slice(&ca).expect("a certificate")).expect("an authority");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let nobody = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let nobody = Arc::new(nobody);
    replace(dir.path(), "g2.key", "g1.key");
    replace(dir.path(), "g2.pem", "g1.pem");
    look(&gateway);
    assert_eq!(gateway.trouble(), None);
    let told = meet(&gateway.acceptor(), nobody).await.map(drop).expect_err("TLS-T3: no certificate").to_string();
    assert!(told.contains("peer sent no certificates"), "within the handshake: {told}");
}

/// The signal reaches the whole process, and the handler is for all of it.
#[tokio::test]
async fn a_hangup_has_the_files_read_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, _) = renewable(dir.path());
    let before = gateway.expiry();
    let mut told = gateway.live.current.subscribe();
    let mut following = Box::pin(gateway.live.follow_every(NEVER));
    // The handler is registered from here on.
    assert!(poll_fn(|context| Poll::Ready(following.as_mut().poll(context).is_pending())).await);
    replace(dir.path(), "g2.key", "g1.key");
    replace(dir.path(), "g2.pem", "g1.pem");
    kill_process(getpid(), Kind::HUP).expect("a signal");
    let read = told.wait_for(|current| {
        current.loaded.as_ref().is_some_and(|loaded| loaded.lives.expiry(SystemTime::now()) != before)
    });
    tokio::select! {
        read = tokio::time::timeout(PATIENCE, read) => drop(read.expect("in time").expect("it is followed")),
        never = &mut following => match never {},
    }
    assert_eq!(gateway.trouble(), None);
}

#[tokio::test]
async fn a_change_is_found_without_a_signal() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    let before = gateway.expiry();
    let mut told = gateway.live.current.subscribe();
    let live = gateway.live.clone();
    let following = tokio::spawn(async move { live.follow_every(Duration::from_millis(1)).await });
    replace(dir.path(), "g2.key", "g1.key");
    replace(dir.path(), "g2.pem", "g1.pem");
    let read = told.wait_for(|current| {
        current.loaded.as_ref().is_some_and(|loaded| loaded.lives.expiry(SystemTime::now()) != before)
    });
    tokio::time::timeout(PATIENCE, read).await.expect("in time").expect("it is followed");
    following.abort();

    // A client's connections over TCP.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let door = gateway.acceptor();
    let dialer = Dialer::from(&host);
    let accepted = async { door.accept(listener.accept().await?.0).await };
    let (accepted, dialled) = tokio::join!(accepted, dialer.stream(&address, PATIENCE));
    accepted.expect("a handshake");
    dialled.expect("a connection");
}

/// TLS of a connection that begins without it.
#[tokio::test]
async fn a_client_of_nbd_shows_the_certificate_that_was_read_last() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, host) = renewable(dir.path());
    // Made before the change, as that of an attach is.
    let connector = Dialer::from(&host).connector().expect("it has a certificate");
    certificates(dir.path(), &[wanted("db2", Role::Host)], 30).expect("made");
    replace(dir.path(), "db2.key", "db1.key");
    replace(dir.path(), "db2.pem", "db1.pem");
    look(&host);
    let (near, far) = tokio::io::duplex(64 << 10);
    let door = gateway.acceptor();
    let (served, called) = tokio::join!(door.accept(far), connector.connect(near));
    called.expect("a handshake");
    let served = served.expect("a handshake");
    let shown = served.get_ref().1.peer_certificates().and_then(|all| all.first()).expect("a certificate");
    assert_eq!(shown, &CertificateDer::from_pem_file(dir.path().join("db2.pem")).expect("a certificate"));
}

/// A certificate of a gateway that was made `age` ago for `life`, in the place of g2's.
fn aged(dir: &Path, age: Duration, life: Duration) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params =
        rcgen::CertificateParams::new(vec![Role::Gateway.dns_name().to_string()]).expect("the name of its role");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "g2");
    let begins = SystemTime::now() - age;
    (params.not_before, params.not_after) = (begins.into(), (begins + life).into());
    let made = params.self_signed(&key).expect("a certificate");
    cut(dir, "g2.key", &key.serialize_pem());
    cut(dir, "g2.pem", &made.pem());
}

#[test]
fn what_expires_soon_is_warned_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let (gateway, _) = renewable(dir.path());
    let said = |age: u64, life: u64| {
        let [age, life] = [age, life].map(|hours| Duration::from_secs(hours * 3600));
        aged(dir.path(), age, life);
        load(dir.path(), "g2", Role::Gateway).warnings()
    };
    assert_eq!(said(12, 24), Vec::<String>::new(), "half of a short life is left");
    for (age, life) in [(20, 24), (300 * 24, 325 * 24)] {
        let said = said(age, life);
        assert!(said.len() == 1 && said[0].starts_with("the TLS certificate expires in "), "{said:?}");
    }
    let left = |tls: &Tls, days: u64| {
        let ends = tls.expiry().own.expect("a time");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
        let days = now + days * 24 * 3600;
        assert!(days.abs_diff(ends) < 3600, "found {ends}, expected about {days}");
    };
    left(&gateway, 30);
    assert!(gateway.warnings().is_empty(), "a third of its life is not begun");
    assert!(gateway.expiry().authority > gateway.expiry().own);
}
