use super::make::{Wanted, certificates};
use super::*;
use std::path::Path;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;

pub(crate) fn wanted(name: &str, role: Role) -> Wanted {
    Wanted::new(name, role)
}

pub(crate) fn files(dir: &Path, name: &str) -> TlsFiles {
    let at = |name: String| Some(dir.join(name));
    TlsFiles { ca: at("ca.pem".into()), certificate: at(format!("{name}.pem")), key: at(format!("{name}.key")) }
}

pub(crate) fn cluster(dir: &Path) {
    let all = [wanted("g1", Role::Gateway), wanted("db1", Role::Host), wanted("ann", Role::Admin)];
    let made = certificates(dir, &all, 30).expect("made");
    assert!(made.authority_made);
    assert_eq!(made.files.len(), 3);
}

pub(crate) fn load(dir: &Path, name: &str, role: Role) -> Tls {
    files(dir, name).load(role).expect("good files").expect("some")
}

#[test]
fn each_certificate_stands_for_its_role_only() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    for (name, role) in [("g1", Role::Gateway), ("db1", Role::Host), ("ann", Role::Admin)] {
        load(dir.path(), name, role);
        // Every member of the cluster may read.
        load(dir.path(), name, Role::Admin);
    }
    let wrong = files(dir.path(), "db1").load(Role::Gateway).expect_err("a host is no gateway");
    assert!(wrong.to_string().ends_with("found a certificate of host, expected one of gateway"), "{wrong}");
}

/// The certificate in a file, as a door reads it.
fn caller(dir: &Path, name: &str) -> Caller {
    use rustls_pki_types::pem::PemObject;
    let der = rustls_pki_types::CertificateDer::from_pem_file(dir.join(format!("{name}.pem"))).expect("a certificate");
    Caller::of(&der).expect("it can be read")
}

#[test]
fn a_certificate_says_whose_it_is_and_what_it_is_bound_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let bound = |owners: &[&str], sets: &[&str], name: &str| Wanted {
        owners: owners.iter().map(ToString::to_string).collect(),
        sets: sets.iter().map(ToString::to_string).collect(),
        ..wanted(name, Role::Host)
    };
    let all = [
        bound(&[], &[], "db1"),
        bound(&["site/db2", "db2"], &["demo"], "db2"),
        bound(&[ANY_OWNER], &[], "any"),
        wanted("vic", Role::Viewer),
        wanted("oda", Role::Operator),
    ];
    certificates(dir.path(), &all, 30).expect("made");
    for one in &all {
        let caller = caller(dir.path(), &one.name);
        assert_eq!((caller.name.as_str(), caller.roles.as_slice()), (one.name.as_str(), &[one.role][..]));
    }
    let db1 = caller(dir.path(), "db1");
    assert!(db1.may_own("db1") && !db1.may_own("db2") && !db1.may_own("") && db1.may_use("demo"));
    let db2 = caller(dir.path(), "db2");
    assert!(db2.may_own("db2") && db2.may_own("site/db2") && !db2.may_own("db1") && !db2.may_own("*"));
    assert!(db2.may_use("demo") && !db2.may_use("demo2") && !db2.may_use(""));
    assert!(db1.sees_all() && !db2.sees_all() && caller(dir.path(), "vic").sees_all());
    assert!(caller(dir.path(), "any").may_own("db7"));
    let why = db1.has_one_of(&[Role::Operator, Role::Admin]).expect_err("a host is neither");
    assert_eq!(why, "found role host of certificate db1, expected one of operator, admin");
}

/// A certificate of an authority in `dir` with this common name and these URIs, beside its key.
fn odd(dir: &Path, common_name: &str, uris: &[&str]) {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    use std::os::unix::fs::PermissionsExt;
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![Role::Host.dns_name().to_string()]).expect("a name");
    let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII")));
    params.subject_alt_names.extend(uris);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let certificate = params.self_signed(&key).expect("a certificate");
    std::fs::write(dir.join("odd.pem"), certificate.pem()).expect("written");
    std::fs::write(dir.join("odd.key"), key.serialize_pem()).expect("written");
    std::fs::set_permissions(dir.join("odd.key"), std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// What a process that loads that certificate is told, and what a door says to it.
fn odd_told(dir: &Path) -> Option<String> {
    use rustls_pki_types::pem::PemObject;
    let der = rustls_pki_types::CertificateDer::from_pem_file(dir.join("odd.pem")).expect("a certificate");
    let door = Caller::at_door(Some(der.as_ref()));
    let loaded = files(dir, "odd").load(Role::Host);
    assert_eq!(door.is_err(), loaded.is_err());
    let error = loaded.err()?.to_string();
    assert_eq!(door.expect_err("as above").code(), tonic::Code::Unauthenticated);
    Some(error)
}

/// TLS-T4: without sets a host may use all of them, so a set that is mistyped must not count as none.
#[test]
fn a_uri_of_ours_that_is_mistyped_makes_a_certificate_invalid() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let good = ["holdfast://owner/db1", "holdfast://set/demo", "spiffe://example/db1", "https://holdfast.example/"];
    odd(dir.path(), "db1", &good);
    assert_eq!(odd_told(dir.path()), None);
    for uri in [
        "holdfast://sets/demo",
        "holdfast:///set/demo",
        "holdfast:/set/demo",
        "holdfast:set/demo",
        "holdfast://Set/demo",
        "Holdfast://set/demo",
        "holdfast://set/",
        "holdfast://set",
        "holdfast://owner/",
        "holdfast:",
    ] {
        odd(dir.path(), "db1", &["holdfast://owner/db1", uri]);
        let why = odd_told(dir.path()).unwrap_or_else(|| panic!("{uri} frees the host"));
        let expected = format!("found URI name {uri:?} (of this program are only holdfast://owner/NAME and ");
        assert!(why.contains(&expected), "{why}");
    }
}

#[test]
fn a_common_name_is_refused_rather_than_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    odd(dir.path(), &"x".repeat(127), &[]);
    assert_eq!(odd_told(dir.path()), None);
    for (name, says) in [("x".repeat(128), "a common name of 128 characters"), ("db\n1".into(), "control characters")] {
        odd(dir.path(), &name, &[]);
        let why = odd_told(dir.path()).expect("refused");
        assert!(why.contains(says), "{why}");
    }
}

/// Further names are for others: they change nothing for our own processes.
#[test]
fn a_gateway_with_hosts_keeps_its_role() {
    let dir = tempfile::tempdir().expect("a directory");
    let hosts = vec!["g1.example".to_string(), "10.0.0.1".to_string()];
    let one = Wanted { hosts, ..wanted("g1", Role::Gateway) };
    certificates(dir.path(), &[one], 30).expect("made");
    load(dir.path(), "g1", Role::Gateway);
    let wrong = files(dir.path(), "g1").load(Role::Host).expect_err("no host");
    assert!(wrong.to_string().ends_with("found a certificate of gateway, expected one of host"), "{wrong}");
}

#[test]
fn a_second_call_adds_and_overwrites_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let key = std::fs::read(dir.path().join("g1.key")).expect("a key");
    let made = certificates(dir.path(), &[wanted("g2", Role::Gateway)], 30).expect("made");
    assert!(!made.authority_made);
    load(dir.path(), "g2", Role::Gateway);
    let again = certificates(dir.path(), &[wanted("g1", Role::Gateway)], 30).expect_err("it is there");
    assert!(matches!(again, TlsError::File { .. }), "{again}");
    for (name, set) in [("db\n1", "demo"), ("db1", "")] {
        let useless = Wanted { sets: vec![set.to_string()], ..wanted(name, Role::Host) };
        let error = certificates(dir.path(), &[useless], 30).expect_err("no process would take it");
        assert!(matches!(error, TlsError::Make { .. }), "{error}");
    }
    assert_eq!(std::fs::read(dir.path().join("g1.key")).expect("a key"), key);
}

#[test]
fn bad_files_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let bad = |files: &TlsFiles| files.load(Role::Gateway).expect_err("bad").to_string();
    let good = files(dir.path(), "g1");
    assert_eq!(TlsFiles::default().load(Role::Gateway).expect("none is fine").map(|_| ()), None);
    let text = bad(&TlsFiles { key: None, ..good.clone() });
    assert_eq!(
        text,
        "found only tls.ca and tls.certificate, expected all of tls.ca, tls.certificate and tls.key, or none"
    );
    let text = bad(&TlsFiles { ca: Some(dir.path().join("none.pem")), ..good.clone() });
    assert!(text.contains("none.pem"), "{text}");
    let text = bad(&TlsFiles { certificate: good.key.clone(), ..good.clone() });
    assert!(text.ends_with("g1.key: found none, expected a certificate (PEM)"), "{text}");
    let text = bad(&TlsFiles { key: good.certificate.clone(), ..good.clone() });
    assert!(text.contains("g1.pem"), "{text}");
    let text = bad(&TlsFiles { key: files(dir.path(), "ann").key, ..good.clone() });
    assert!(text.contains("cannot be used together"), "a key of another certificate: {text}");
    // The length limit is just above this file's size: it must not be cut.
    let mut long = std::fs::read(dir.path().join("ca.pem")).expect("an authority");
    long.resize(crate::files::PEM_BYTES_MAX as usize + 1, b'\n');
    std::fs::write(dir.path().join("long.pem"), long).expect("written");
    let text = bad(&TlsFiles { ca: Some(dir.path().join("long.pem")), ..good.clone() });
    assert!(text.ends_with("long.pem: found at least 1048577 bytes, expected at most 1048576"), "{text}");
    // A good authority and one that is none.
    let mut two = std::fs::read_to_string(dir.path().join("ca.pem")).expect("an authority");
    two.push_str("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    std::fs::write(dir.path().join("two.pem"), two).expect("written");
    let text = bad(&TlsFiles { ca: Some(dir.path().join("two.pem")), ..good.clone() });
    assert!(text.contains("certificate 2 of the authority's file"), "{text}");
    let key = good.key.clone().expect("a key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let text = bad(&good);
    assert!(text.contains("g1.key: found mode 0644") && text.contains("chmod 600"), "SECRET-F2: {text}");
    // A member of the group could read it.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o660)).expect("chmod");
    assert!(bad(&good).contains("g1.key: found mode 0660"), "SECRET-F2");
    // Whoever has the authority's key makes every certificate.
    let ca = dir.path().join("ca.key");
    std::fs::set_permissions(&ca, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let text = certificates(dir.path(), &[wanted("g9", Role::Gateway)], 30).expect_err("SECRET-F1").to_string();
    assert!(text.contains("ca.key: found mode 0644") && text.contains("chmod 600"), "{text}");
    assert!(!dir.path().join("g9.pem").exists());
    let text = crate::renew(dir.path(), &["g1".to_string()], 30).expect_err("SECRET-F1").to_string();
    assert!(text.contains("ca.key: found mode 0644"), "{text}");
}

/// A service that answers every call with `Unimplemented`: a call that gets this answer has passed the door.
#[derive(Clone)]
struct Nothing;

impl tonic::server::NamedService for Nothing {
    const NAME: &'static str = "holdfast.Nothing";
}

type Body = tonic::body::Body;

impl<B: Send + 'static> tonic::codegen::Service<tonic::codegen::http::Request<B>> for Nothing {
    type Response = tonic::codegen::http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::codegen::http::Request<B>) -> Self::Future {
        std::future::ready(Ok(tonic::Status::unimplemented("passed").into_http()))
    }
}

/// Starts a door of `tls` for `allowed`, and returns what a caller with `dialer` is told.
async fn told(tls: &Tls, allowed: &'static [Role], dialer: &Dialer) -> Result<tonic::Code, String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let check = move |request: tonic::Request<()>| {
        let certificates = request.peer_certs();
        let own = certificates.as_ref().and_then(|all| all.first());
        let caller = Caller::at_door(own.map(|own| own.as_ref()))?;
        caller.has_one_of(allowed).map_err(tonic::Status::permission_denied)?;
        Ok(request)
    };
    let door = InterceptedService::new(Nothing, check);
    let incoming = tls.acceptor().incoming(tonic::transport::server::TcpIncoming::from(listener));
    let server = tokio::spawn(Server::builder().add_service(door).serve_with_incoming(incoming));
    let answer = async {
        let channel = dialer.connect(&dialer.endpoint(&address)?).await.map_err(|error| format!("{error:?}"))?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| format!("{error:?}"))?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/holdfast.Nothing/Ask");
        let codec = nothing::Empty;
        let called = grpc.unary(tonic::Request::new(()), path, codec).await;
        Ok(called.expect_err("nothing is implemented").code())
    };
    let answer = tokio::time::timeout(std::time::Duration::from_secs(20), answer).await.expect("an answer in time");
    server.abort();
    answer
}

/// A codec for empty messages.
mod nothing {
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    #[derive(Default)]
    pub struct Empty;

    impl Codec for Empty {
        type Encode = ();
        type Decode = ();
        type Encoder = Empty;
        type Decoder = Empty;
        fn encoder(&mut self) -> Empty {
            Empty
        }
        fn decoder(&mut self) -> Empty {
            Empty
        }
    }

    impl Encoder for Empty {
        type Item = ();
        type Error = tonic::Status;
        fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
            Ok(())
        }
    }

    impl Decoder for Empty {
        type Item = ();
        type Error = tonic::Status;
        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, tonic::Status> {
            Ok(Some(()))
        }
    }
}

const GATEWAYS: &[Role] = &[Role::Gateway];

/// The commands of the operating page that make an authority and its certificates, copied from the page.
fn page() -> &'static str {
    let page = include_str!("../../../docs/operating/tls.md");
    let block = page.split_once("```sh\n").and_then(|(_, rest)| rest.split_once("```"));
    block.expect("a block of commands").0
}

/// Runs commands of `openssl` in `dir`. False: it is not installed.
fn run_openssl(dir: &Path, script: &str) -> bool {
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        holdfast_testkit::skipped("openssl is not installed");
        return false;
    }
    let output = std::process::Command::new("sh").args(["-euc", script]).current_dir(dir).output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// Certificates as cert-manager and step-ca make them: by an authority between, which stands behind each of them in its
/// file. The gateway's key is SEC1 (step-ca); the host's is RSA in PKCS#1, and it has no subject (cert-manager).
const OF_OTHERS: &str = r#"
umask 077
ca() { printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n'; }
new() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -keyout $1.key -out $1.csr -subj /CN=$1
}
sign() {
    openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days 90 -sha256 -extfile $1.ext -out $1.pem
}
leaf() {
    openssl req -new -key $1.key -sha256 -out $1.csr -subj "$2"
    printf '%s\n' "subjectAltName=$3" "basicConstraints=critical,CA:FALSE" \
        "keyUsage=critical,digitalSignature,keyEncipherment" "extendedKeyUsage=serverAuth,clientAuth" > $1.ext
    sign $1 between
    mv $1.pem $1.alone
    cat $1.alone between.pem > $1.pem
}
new root
ca > root.ext
openssl x509 -req -in root.csr -signkey root.key -days 90 -sha256 -extfile root.ext -out ca.pem
cp ca.pem root.pem
new between
ca > between.ext
sign between root
openssl ecparam -name prime256v1 -genkey -noout -out g1.key
leaf g1 /CN=g1 DNS:gateway.holdfast.internal,DNS:g1.example
openssl genrsa -traditional -out db1.key 2048
names=DNS:host.holdfast.internal,URI:holdfast://owner/db1,URI:holdfast://set/demo,URI:spiffe://example/db1
leaf db1 / critical,$names
"#;

#[tokio::test]
async fn certificates_of_other_authorities_work_as_they_come() {
    let dir = tempfile::tempdir().expect("a directory");
    if !run_openssl(dir.path(), OF_OTHERS) {
        return;
    }
    let key = |name: &str| std::fs::read_to_string(dir.path().join(format!("{name}.key"))).expect("a key");
    assert!(key("g1").contains("BEGIN EC PRIVATE KEY") && key("db1").contains("BEGIN RSA PRIVATE KEY"));
    let gateway = load(dir.path(), "g1", Role::Gateway);
    let host = load(dir.path(), "db1", Role::Host);
    let passed = Ok(tonic::Code::Unimplemented);
    assert_eq!(told(&gateway, &Role::ALL, &Dialer::from(&host)).await, passed);
    assert_eq!(told(&gateway, GATEWAYS, &Dialer::from(&gateway)).await, passed);
    let caller = caller(dir.path(), "db1");
    assert_eq!(caller.name, caller.serial, "without a common name it goes by its serial number");
    assert!(caller.may_own("db1") && caller.may_use("demo") && !caller.may_own("db2") && !caller.may_use("other"));
    // It is the authority between that leads to the one that is trusted.
    let alone = TlsFiles { certificate: Some(dir.path().join("db1.alone")), ..files(dir.path(), "db1") };
    let alone = Dialer::from(&alone.load(Role::Host).expect("good files").expect("some"));
    assert_ne!(told(&gateway, &Role::ALL, &alone).await, passed);
}

#[tokio::test]
async fn the_page_makes_certificates_that_doors_take() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |script: &str| run_openssl(dir.path(), script);
    if !run(page()) {
        return;
    }
    let own = dir.path().join("tls");
    let gateway = load(&own, "g1", Role::Gateway);
    let host = Dialer::from(&load(&own, "db1", Role::Host));
    load(&own, "ann", Role::Admin);
    let passed = Ok(tonic::Code::Unimplemented);
    assert_eq!(told(&load(&own, "g2", Role::Gateway), GATEWAYS, &Dialer::from(&gateway)).await, passed);
    assert_eq!(told(&gateway, &Role::ALL, &host).await, passed);
    assert_eq!(told(&gateway, GATEWAYS, &host).await, Ok(tonic::Code::PermissionDenied));

    // A new authority: with both in `ca`, certificates of either are accepted; with one of them, only its own.
    run("mkdir new && mv tls/ca.pem old.pem && mv tls old");
    run(page());
    std::fs::rename(&own, dir.path().join("new/tls")).expect("a place of its own");
    run("mv old tls && cat old.pem new/tls/ca.pem > both.pem && cp old.pem tls/ca.pem");
    let with = |ca: &str, certificates: &str| {
        let files = TlsFiles { ca: Some(dir.path().join(ca)), ..files(&dir.path().join(certificates), "g1") };
        files.load(Role::Gateway).expect("good files").expect("some")
    };
    let (old, renewed) = (with("both.pem", "tls"), with("both.pem", "new/tls"));
    for (door, caller) in [(&old, &renewed), (&renewed, &old), (&renewed, &with("new/tls/ca.pem", "new/tls"))] {
        assert_eq!(told(door, GATEWAYS, &Dialer::from(caller)).await, passed);
    }
    let ended = told(&with("new/tls/ca.pem", "new/tls"), GATEWAYS, &Dialer::from(&old)).await;
    assert!(ended != passed && ended != Ok(tonic::Code::PermissionDenied), "the old authority still opens: {ended:?}");
}

#[tokio::test]
async fn a_door_lets_in_who_has_the_role() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let gateway = load(dir.path(), "g1", Role::Gateway);
    let host = Dialer::from(&load(dir.path(), "db1", Role::Host));
    let passed = Ok(tonic::Code::Unimplemented);
    assert_eq!(told(&gateway, GATEWAYS, &Dialer::from(&gateway)).await, passed);
    assert_eq!(told(&gateway, &Role::ALL, &host).await, passed);
    // TLS-T3: a host's certificate belongs to the cluster, but it is not a gateway's.
    assert_eq!(told(&gateway, GATEWAYS, &host).await, Ok(tonic::Code::PermissionDenied));
}

#[tokio::test]
async fn a_door_of_another_role_or_cluster_is_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (own, other) = (dir.path().join("own"), dir.path().join("other"));
    cluster(&own);
    cluster(&other);
    let gateway = load(&own, "g1", Role::Gateway);
    let dialer = Dialer::from(&load(&own, "db1", Role::Host));
    // TLS-T2: a host listens at a gateway's former address.
    let posing = load(&own, "db1", Role::Host);
    told(&posing, &Role::ALL, &dialer).await.expect_err("a host stood for a gateway");
    // TLS-T1, in both directions: the other cluster's authority has the same name and another key.
    let stranger = load(&other, "g1", Role::Gateway);
    told(&stranger, &Role::ALL, &dialer).await.expect_err("another cluster's gateway was believed");
    // It trusts this cluster's gateway, but its own certificate is from another cluster.
    let mixed = TlsFiles { ca: files(&own, "g1").ca, ..files(&other, "g1") };
    let mixed = Dialer::from(&mixed.load(Role::Gateway).expect("good files").expect("some"));
    for (who, caller) in [("another cluster's gateway", mixed), ("plain text", Dialer::plaintext())] {
        // The handshake ends the call: neither the service nor the check of the role may see it.
        let seen = [tonic::Code::Unimplemented, tonic::Code::PermissionDenied, tonic::Code::Unauthenticated];
        let answer = told(&gateway, &Role::ALL, &caller).await;
        assert!(answer.as_ref().map_or(true, |code| !seen.contains(code)), "{who} was let in: {answer:?}");
    }
}
