//! Credentials of clouds, from metadata servers, STS and programs on loopback. The SDK reads its settings from the
//! environment, so each test opens its store in a process of its own: this program again, with [`inside`] alone.

use crate::support;
use crate::support::server::{Request, Server, error, ok, receive};
use bytes::Bytes;
use holdfast_store::{RetryPolicy, StoreOptions, open};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const BODY: Bytes = Bytes::from_static(b"0123456789");
/// The store's URL, for the process inside.
const INSIDE: &str = "HOLDFAST_TEST_CLOUD_STORE";
/// Before each line of its answer.
const SAID: &str = "SAID ";
const URL: &str = "s3://bucket/pre";
const NO_METADATA: (&str, &str) = ("AWS_EC2_METADATA_DISABLED", "true");

/// Opens the store and reads one object, in a process with the environment that a test gives it.
#[tokio::test]
async fn inside() {
    let Ok(url) = std::env::var(INSIDE) else { return };
    let retry = RetryPolicy { attempts_max: 1, ..support::quick() };
    let store = open(&url, &StoreOptions { retry, ..StoreOptions::default() }).expect("open");
    match store.get("k").await {
        Ok(_) => println!("{SAID}read"),
        Err(error) => println!("{SAID}{error}"),
    }
    println!("{SAID}{}", store.credentials().unwrap_or_default());
}

/// The answer of [`inside`]. `home`: the home of a user there.
async fn elsewhere(url: &str, home: &Path, env: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "clouds::inside", "--nocapture"]).env_clear().envs(env.iter().copied());
    command.env(INSIDE, url).env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("task").expect("process");
    let text = String::from_utf8_lossy(&output.stdout);
    // The harness may have begun the line.
    let said: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(SAID)?.1)).collect();
    assert!(!said.is_empty(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    said.join("\n")
}

/// Status, headers and body.
type Answered = (u16, &'static str, String);

/// A server that answers by what it is asked, any number of times.
struct Door {
    asked: Arc<Mutex<Vec<Request>>>,
    url: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Door {
    /// `answer` gets the request and its number from 0 on.
    async fn open(answer: impl Fn(&Request, usize) -> Answered + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let asked: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (noted, answer) = (asked.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (noted, answer) = (noted.clone(), answer.clone());
                tokio::spawn(async move {
                    while let Some(request) = receive(&mut stream).await {
                        let number = noted.lock().expect("lock").len();
                        noted.lock().expect("lock").push(request.clone());
                        let (status, headers, body) = answer(&request, number);
                        let len = body.len();
                        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {len}\r\n{headers}\r\n{body}");
                        if stream.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { asked, url, task }
    }

    fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("lock").clone()
    }

    fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|request| request.line).collect()
    }

    /// Nobody has any business here.
    async fn shut() -> Self {
        Self::open(|_, _| (500, "", String::new())).await
    }
}

fn credentials(id: &str) -> String {
    format!(
        r#"{{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"{id}","SecretAccessKey":"hunter2-{id}","Token":"token-of-{id}","Expiration":"2090-01-01T00:00:00Z"}}"#
    )
}

const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

/// The metadata of an instance, for those who have asked for a token first.
async fn instance() -> Door {
    Door::open(|request, _| {
        let (method, path) = request.line.split_once(' ').expect("a request");
        if (method, path) == ("PUT", "/latest/api/token") {
            return (200, "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n", "a-token".to_owned());
        }
        if request.header("x-aws-ec2-metadata-token") != Some("a-token") {
            return (401, "", String::new());
        }
        match path {
            "/latest/meta-data/placement/region" => (200, "", "eu-west-3".to_owned()),
            ROLES => (200, "", "a-role".to_owned()),
            _ if path.strip_prefix(ROLES) == Some("a-role") => (200, "", credentials("instance")),
            _ => (404, "", String::new()),
        }
    })
    .await
}

/// The ids of the keys that have signed the store's requests.
fn signers(store: &Server) -> Vec<String> {
    let id = |request: &Request| {
        let text = request.header("authorization").expect("signed");
        text.split_once("Credential=").and_then(|(_, rest)| rest.split('/').next()).expect("an id").to_owned()
    };
    store.asked().iter().map(id).collect()
}

async fn store() -> (Server, String) {
    let server = Server::start([ok(BODY)]).await;
    let url = server.options.endpoint.clone().expect("its endpoint");
    (server, url)
}

/// CREDS-K4: proxies of any kind are set, and nobody asks them.
#[tokio::test]
async fn an_instance_gives_its_role_to_who_has_a_token_and_no_proxy_is_asked() {
    let (home, metadata, proxy) = (tempfile::tempdir().expect("home"), instance().await, Door::shut().await);
    let (server, endpoint) = store().await;
    let env = [
        ("AWS_ENDPOINT_URL_S3", &*endpoint),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata.url),
        ("HTTP_PROXY", &*proxy.url),
        ("HTTPS_PROXY", &*proxy.url),
        ("ALL_PROXY", &*proxy.url),
    ];
    let said = elsewhere(URL, home.path(), &env).await;
    assert_eq!(said, "read\ninstance (EC2 metadata), key instance, until 2090-01-01T00:00:00Z");
    assert_eq!(signers(&server), ["instance"]);
    assert_eq!(server.asked()[0].header("x-amz-security-token"), Some("token-of-instance"));
    assert_eq!(metadata.lines()[0], "PUT /latest/api/token");
    assert!(metadata.lines().contains(&format!("GET {ROLES}a-role")), "{:?}", metadata.lines());
    assert!(proxy.asked().is_empty(), "{:?}", proxy.lines());
}

#[tokio::test]
async fn a_container_has_a_token_in_a_file() {
    let home = tempfile::tempdir().expect("home");
    let token = home.path().join("token");
    std::fs::write(&token, "Bearer hunter2").expect("write");
    let door = Door::open(|request, _| {
        let known = request.header("authorization") == Some("Bearer hunter2");
        if known { (200, "", credentials("container")) } else { (401, "", String::new()) }
    })
    .await;
    let (server, endpoint) = store().await;
    let (url, proxy) = (format!("{}/v1/credentials", door.url), Door::shut().await);
    let env = [
        ("AWS_ENDPOINT_URL_S3", &*endpoint),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*url),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().expect("text")),
        ("ALL_PROXY", &*proxy.url),
        NO_METADATA,
    ];
    let said = elsewhere(URL, home.path(), &env).await;
    assert!(said.starts_with("read\ncontainer (ECS, EKS Pod Identity), key container, until 2090-"), "{said}");
    assert_eq!(signers(&server), ["container"]);
    assert_eq!(door.lines(), ["GET /v1/credentials"]);
    assert!(proxy.asked().is_empty());
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn keys_that_are_refused_are_asked_for_again() {
    let home = tempfile::tempdir().expect("home");
    let door = Door::open(|_, number| (200, "", credentials(if number == 0 { "old" } else { "new" }))).await;
    let server = Server::start([error(403, "ExpiredToken"), ok(BODY)]).await;
    let endpoint = server.options.endpoint.clone().expect("its endpoint");
    let env = [("AWS_ENDPOINT_URL_S3", &*endpoint), ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*door.url), NO_METADATA];
    let said = elsewhere(URL, home.path(), &env).await;
    assert!(said.starts_with("read\n") && said.contains("key new"), "{said}");
    assert_eq!(signers(&server), ["old", "new"]);
}

const ROLE: &str = "arn:aws:iam::123456789012:role/pod";

/// The environment of a pod, and an STS that answers this.
async fn pod(home: &Path, status: u16, answer: &'static str) -> (Door, Vec<(&'static str, String)>) {
    let token = home.join("token");
    std::fs::write(&token, "hunter2.jwt").expect("write");
    let door = Door::open(move |_, _| (status, "content-type: text/xml\r\n", answer.to_owned())).await;
    let env = vec![
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("AWS_ROLE_ARN", ROLE.to_owned()),
        ("AWS_ROLE_SESSION_NAME", "gateway-1".to_owned()),
        ("AWS_ENDPOINT_URL_STS", door.url.clone()),
    ];
    (door, env)
}

#[tokio::test]
async fn a_pod_changes_its_token_for_a_role() {
    const ANSWER: &str = r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>pod</AccessKeyId><SecretAccessKey>hunter2</SecretAccessKey>
<SessionToken>token-of-pod</SessionToken><Expiration>2090-01-01T00:00:00Z</Expiration></Credentials>
<AssumedRoleUser><AssumedRoleId>AROA:gateway-1</AssumedRoleId>
<Arn>arn:aws:sts::123456789012:assumed-role/pod/gateway-1</Arn></AssumedRoleUser></AssumeRoleWithWebIdentityResult>
<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>"#;
    let home = tempfile::tempdir().expect("home");
    let (sts, pod) = pod(home.path(), 200, ANSWER).await;
    let (server, endpoint) = store().await;
    let mut env: Vec<(&str, &str)> = pod.iter().map(|(name, value)| (*name, value.as_str())).collect();
    env.extend([("AWS_ENDPOINT_URL_S3", &*endpoint), NO_METADATA]);
    let said = elsewhere(URL, home.path(), &env).await;
    assert_eq!(said, format!("read\nweb identity, role {ROLE}, key pod, until 2090-01-01T00:00:00Z"));
    assert_eq!(signers(&server), ["pod"]);
    let body = String::from_utf8(sts.asked()[0].body.to_vec()).expect("a form");
    let parts = ["Action=AssumeRoleWithWebIdentity", "RoleSessionName=gateway-1", "WebIdentityToken=hunter2.jwt"];
    assert!(parts.iter().all(|part| body.contains(part)), "{body}");
}

/// CREDS-K3: the instance's role may be another identity.
#[tokio::test]
async fn a_provider_that_fails_is_not_passed_over() {
    const REFUSED: &str = r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
<Code>InvalidIdentityToken</Code><Message>no OpenIDConnect provider found</Message></Error><RequestId>1</RequestId></ErrorResponse>"#;
    let (home, metadata) = (tempfile::tempdir().expect("home"), instance().await);
    let (_sts, pod) = pod(home.path(), 400, REFUSED).await;
    let server = Server::start([]).await;
    let endpoint = server.options.endpoint.clone().expect("its endpoint");
    let mut env: Vec<(&str, &str)> = pod.iter().map(|(name, value)| (*name, value.as_str())).collect();
    env.extend([("AWS_ENDPOINT_URL_S3", &*endpoint), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata.url)]);
    let said = elsewhere(URL, home.path(), &env).await;
    let words =
        ["the default profile of AWS's files: there is none; web identity: ", "no OpenIDConnect provider found"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(!said.contains("instance") && metadata.asked().is_empty(), "{said}");
    assert!(!said.contains("hunter2") && server.asked().is_empty(), "{said}");
}

#[tokio::test]
async fn a_profile_in_the_url_names_a_program_and_nobody_else_is_asked() {
    let (home, metadata) = (tempfile::tempdir().expect("home"), instance().await);
    let (script, config) = (home.path().join("keys.sh"), home.path().join("config"));
    let json = credentials("program").replace("\"Token\"", "\"SessionToken\"").replace("{", "{\"Version\":1,");
    std::fs::write(&script, format!("cat <<END\n{json}\nEND\n")).expect("write");
    let process = format!("[profile work]\ncredential_process = sh {}\n", script.display());
    std::fs::write(&config, process).expect("write");
    let (server, endpoint) = store().await;
    let env = [
        ("AWS_ENDPOINT_URL_S3", &*endpoint),
        ("AWS_CONFIG_FILE", config.to_str().expect("text")),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata.url),
    ];
    let said = elsewhere("s3://bucket/pre?profile=work", home.path(), &env).await;
    assert!(said.starts_with("read\nprofile [work] of AWS's files, key program, until 2090-"), "{said}");
    assert_eq!(signers(&server), ["program"]);
    let said = elsewhere("s3://bucket/pre?profile=play", home.path(), &env).await;
    assert!(said.contains("found no credentials: profile [play] of AWS's files: "), "{said}");
    assert!(metadata.asked().is_empty(), "{:?}", metadata.lines());
    let sso = "[profile work]\nsso_start_url = https://a.example\nsso_region = eu-west-1\nsso_account_id = 123456789012\nsso_role_name = r\n";
    std::fs::write(&config, sso).expect("write");
    let said = elsewhere("s3://bucket/pre?profile=work", home.path(), &env).await;
    assert!(said.contains("credential_process = aws configure export-credentials"), "{said}");
}

/// The region is in the name of the host that a proxy is asked for.
#[tokio::test]
async fn the_region_of_the_profile_or_of_the_instance_is_the_stores() {
    let (home, metadata) = (tempfile::tempdir().expect("home"), instance().await);
    let config = home.path().join("config");
    let keys = "[default]\naws_access_key_id = id\naws_secret_access_key = hunter2\nregion = eu-west-2\n";
    std::fs::write(&config, keys).expect("write");
    for (file, region) in [(Some(&config), "eu-west-2"), (None, "eu-west-3")] {
        let proxy = Door::open(|_, _| (403, "", String::new())).await;
        let mut env = vec![("HTTPS_PROXY", &*proxy.url), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata.url)];
        env.extend(file.map(|file| ("AWS_CONFIG_FILE", file.to_str().expect("text"))));
        let said = elsewhere(URL, home.path(), &env).await;
        assert_eq!(proxy.lines(), [format!("CONNECT bucket.s3.{region}.amazonaws.com:443")], "{said}");
    }
}

/// STS is asked as the store is.
#[tokio::test]
async fn sts_is_asked_through_the_proxy() {
    let home = tempfile::tempdir().expect("home");
    let (_sts, pod) = pod(home.path(), 500, "").await;
    let proxy = Door::open(|_, _| (403, "", String::new())).await;
    let mut env: Vec<(&str, &str)> = pod.iter().map(|(name, value)| (*name, value.as_str())).collect();
    env.retain(|(name, _)| *name != "AWS_ENDPOINT_URL_STS");
    env.extend([("HTTPS_PROXY", &*proxy.url), ("AWS_REGION", "eu-west-1"), NO_METADATA]);
    let said = elsewhere(URL, home.path(), &env).await;
    assert!(said.contains("web identity: "), "{said}");
    assert!(!proxy.asked().is_empty(), "{said}");
    assert!(proxy.lines().iter().all(|line| line == "CONNECT sts.eu-west-1.amazonaws.com:443"), "{:?}", proxy.lines());
}

#[tokio::test]
async fn without_any_each_provider_is_named_with_its_reason_and_what_to_do() {
    let home = tempfile::tempdir().expect("home");
    let server = Server::start([]).await;
    let endpoint = server.options.endpoint.clone().expect("its endpoint");
    let said = elsewhere(URL, home.path(), &[("AWS_ENDPOINT_URL_S3", &*endpoint), NO_METADATA]).await;
    for words in [
        "found no credentials: the default profile of AWS's files: there is none; web identity: ",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "container (ECS, EKS Pod Identity): ",
        "instance (EC2 metadata): ",
        "AWS_EC2_METADATA_DISABLED",
        "give this machine, task or pod a role that may use the store, or set store.credentials_file",
    ] {
        assert!(said.contains(words), "{said} lacks {words}");
    }
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_metadata_server_that_does_not_answer_is_given_up() {
    let home = tempfile::tempdir().expect("home");
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!("http://{}", silent.local_addr().expect("address"));
    let server = Server::start([]).await;
    let endpoint = server.options.endpoint.clone().expect("its endpoint");
    let env = [("AWS_ENDPOINT_URL_S3", &*endpoint), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*url)];
    let said = elsewhere(URL, home.path(), &env).await;
    assert!(said.contains("found no credentials: ") && said.contains("instance (EC2 metadata): "), "{said}");
}
