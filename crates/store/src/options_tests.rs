use super::*;

fn s3(text: &str) -> S3Target {
    match Location::parse(text) {
        Ok(Location::S3(target)) => target,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn urls_are_read() {
    assert_eq!(Location::parse("file:///var/lib/objects"), Ok(Location::Directory("/var/lib/objects".into())));
    assert_eq!(Location::parse("file:///with%20space"), Ok(Location::Directory("/with space".into())));
    let plain = s3("s3://bucket");
    assert_eq!((plain.bucket.as_str(), plain.prefix.as_str()), ("bucket", ""));
    assert_eq!(s3("s3://bucket/a/b/").prefix, "a/b/");
    let full = s3("s3://bucket/p?endpoint=http://127.0.0.1:7070&region=eu-west-1&path_style=false");
    assert_eq!(full.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
    assert_eq!(full.region.as_deref(), Some("eu-west-1"));
    assert_eq!(full.path_style, Some(false));
    assert_eq!(full.profile, None);
    assert_eq!(s3("s3://bucket/p?&region=auto&&profile=a").profile.as_deref(), Some("a"));
    assert_eq!(s3("s3://bucket/p?profile=r2.eu_1-a&region=auto").profile.as_deref(), Some("r2.eu_1-a"));
}

#[test]
fn urls_that_mean_nothing_are_refused() {
    for bad in [
        "",
        "bucket",
        "http://bucket",
        "s3://",
        "s3://b",
        "s3://Bucket_1/x",
        "s3://bucket:80/x",
        "s3://bucket/a//b",
        "s3://bucket/../x/.y",
        "s3://bucket?path_style=maybe",
        "s3://bucket?region=",
        "s3://bucket?region",
        "s3://bucket?endpoint=",
        "s3://bucket?secret=x",
        "s3://bucket?credentials_file=/etc/keys",
        "s3://bucket?profile",
        "s3://bucket?profile=",
        "s3://bucket?profile=a+b",
        "s3://bucket?profile=%61",
        "s3://bucket?%70rofile=a",
        "s3://bucket?profile=a&profile=%61",
        "s3://bucket?profile=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "s3://bucket#x",
        "file://",
        "file:///",
        "file://host/dir",
        "file:///dir?x=1",
    ] {
        assert!(Location::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_refused_url_shows_no_secret() {
    for text in ["s3://id:hunter2@bucket/x", "s3://bucket/x?secret=hunter2", "nothing?hunter2"] {
        let message = Location::parse(text).expect_err(text).to_string();
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn secrets_print_as_stars_and_stars_are_no_secret() {
    let options = StoreOptions {
        access_key_id: Some("id".into()),
        secret_access_key: Some(Secret::new("hunter2")),
        session_token: Some(Secret::new("hunter3")),
        ..StoreOptions::default()
    };
    let shown = format!("{options:?} {}", serde_json::to_string(&options).expect("json"));
    assert!(shown.contains("***"), "{shown}");
    assert!(!shown.contains("hunter"), "{shown}");
    let back: Result<StoreOptions, _> = serde_json::from_str(r#"{"secret_access_key":"***"}"#);
    assert!(back.expect_err("stars").to_string().contains("expected the secret itself"));
    let real: StoreOptions = serde_json::from_str(r#"{"secret_access_key":"hunter2"}"#).expect("json");
    assert_eq!(real.secret_access_key.as_ref().map(Secret::reveal), Some("hunter2"));
}

#[test]
fn the_environment_fills_gaps_but_never_mixes_credentials() {
    let env = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some("env-id".to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some("env-secret".to_owned()),
        "AWS_REGION" => Some("env-region".to_owned()),
        "AWS_ENDPOINT_URL" => Some(String::new()),
        _ => None,
    };
    let filled = StoreOptions::default().filled_from(env);
    assert_eq!(filled.access_key_id.as_deref(), Some("env-id"));
    assert_eq!(filled.secret_access_key.as_ref().map(Secret::reveal), Some("env-secret"));
    assert_eq!(filled.region.as_deref(), Some("env-region"));
    assert_eq!(filled.endpoint, None, "an empty variable counts as unset");

    let own = StoreOptions { access_key_id: Some("own".into()), region: Some("own".into()), ..Default::default() };
    let filled = own.filled_from(env);
    assert_eq!(filled.access_key_id.as_deref(), Some("own"));
    assert_eq!(filled.secret_access_key, None, "an id of ours must not be signed with another's secret");
    assert_eq!(filled.region.as_deref(), Some("own"));
}

#[test]
fn relations_between_timeouts_are_checked() {
    assert_eq!(StoreOptions::default().validate(), Ok(()));
    let mut options = StoreOptions { connect_timeout_ms: 60_000, ..Default::default() };
    assert!(options.validate().is_err());
    options.connect_timeout_ms = 100;
    options.retry.operation_timeout_ms = 1;
    assert!(options.validate().is_err());
    assert!(serde_json::from_str::<StoreOptions>(r#"{"bukcet":"x"}"#).is_err(), "unknown fields are refused");
}

#[test]
fn certificates_and_proxies_come_from_the_environment() {
    let environment = [
        ("AWS_CA_BUNDLE", "/etc/ca.pem"),
        ("SSL_CERT_FILE", "/etc/own.pem"),
        ("https_proxy", "http://user:hunter2@lower:1"),
        ("HTTP_PROXY", "http://upper:1"),
        ("http_proxy", "http://lower:2"),
        ("NO_PROXY", ""),
        ("no_proxy", ".internal"),
    ];
    let variable = |name: &str| environment.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
    let options = StoreOptions::default().filled_from(variable);
    assert_eq!(options.ca_bundle, Some("/etc/ca.pem".into()));
    assert_eq!(options.cert_file, Some("/etc/own.pem".into()));
    let Proxies { https, http, all, except } = &options.proxies;
    assert_eq!(https.as_ref().map(Secret::reveal), Some("http://user:hunter2@lower:1"));
    assert_eq!(http.as_ref().map(Secret::reveal), Some("http://upper:1"));
    assert_eq!((all, except.as_deref()), (&None, Some(".internal")));
    assert!(!format!("{options:?}").contains("hunter2"));
}
