use super::*;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[test]
fn what_is_told_of_credentials_has_no_secret() {
    let keys = Keys { id: "AKIA".into(), secret: Secret::new("hunter2"), token: Some(Secret::new("hunter2")) };
    let mut found = Found { keys, ends: Some(4_000_000_000_999), by: "web identity".into(), region: None };
    assert_eq!(found.about(), "web identity, key AKIA, until 2096-10-02T07:06:40Z");
    assert!(!format!("{found:?}").contains("hunter2"));
    found.ends = None;
    assert_eq!(found.about(), "web identity, key AKIA, until further notice");
}

#[test]
fn a_reason_is_one_line_of_bounded_length_and_says_what_to_do_about_sso() {
    assert_eq!(reason(&CredentialsError::not_loaded_no_source()), "there is none");
    assert_eq!(reason(&CredentialsError::not_loaded("$X was not set")), "$X was not set");
    let long = reason(&CredentialsError::provider_error("a\nb".repeat(1000)));
    assert!(long.starts_with("a b") && long.chars().count() == REASON_CHARS_MAX, "{long}");
    let sso = "This behavior requires following cargo feature(s) enabled: sso. ";
    assert_eq!(reason(&CredentialsError::invalid_configuration(sso)), SSO);
}

/// Sends what is for the metadata server of ECS to a server on loopback.
#[derive(Debug)]
struct Redirected {
    to: SocketAddr,
    by: SharedHttpConnector,
}

impl HttpConnector for Redirected {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        let there = request.uri().replacen("http://169.254.170.2/", &format!("http://{}/", self.to), 1);
        request.set_uri(there).expect("a URI");
        self.by.call(request)
    }
}

/// In a process of its own: the SDK reads its settings from the environment.
#[test]
fn a_task_of_ecs_is_asked_at_its_fixed_address() {
    const INSIDE: &str = "HOLDFAST_TEST_ECS";
    if std::env::var_os(INSIDE).is_none() {
        let home = tempfile::tempdir().expect("home");
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "s3::chain::tests::a_task_of_ecs_is_asked_at_its_fixed_address"]).env_clear();
        command.env(INSIDE, "1").env("HOME", home.path()).env("AWS_EC2_METADATA_DISABLED", "true");
        command.env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/task");
        let output = command.output().expect("process");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let to = listener.local_addr().expect("address");
        let options = StoreOptions::default();
        let by = http::connector(Some(&format!("http://{to}")), &options).expect("connector");
        let redirected = SharedHttpConnector::new(Redirected { to, by });
        let mut chain = Chain::new(None, false, Some("eu-west-1".to_owned()), None, &options).expect("chain");
        chain.direct = http_client_fn(move |_, _| redirected.clone());
        let answering = async {
            let (mut stream, _) = listener.accept().await.expect("asked");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let body =
                r#"{"AccessKeyId":"task","SecretAccessKey":"s","Token":"t","Expiration":"2090-01-01T00:00:00Z"}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("answered");
            String::from_utf8(head).expect("text")
        };
        let (found, head) = tokio::join!(chain.ask(), answering);
        let found = found.expect("credentials");
        assert!(head.starts_with("GET /v2/credentials/task HTTP/1.1\r\n"), "{head}");
        assert!(found.about().starts_with("container (ECS, EKS Pod Identity), key task, until 2090-"));
    });
}
