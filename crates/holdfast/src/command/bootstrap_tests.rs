use super::*;

const GOOD: &str = "\
[[gateways]]
name = \"g1\"
region = \"eu\"
api = \"127.0.0.1:1\"
[[gateways]]
name = \"g2\"
region = \"us\"
api = \"127.0.0.1:2\"
[[sets]]
name = \"demo\"
store = \"s3://bucket/prefix\"
volumes = { vol2 = \"1GiB\", vol1 = \"100GiB\" }
";

fn load(text: &str) -> Result<Plan, CliError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.toml");
    std::fs::write(&path, text).unwrap();
    Plan::load(&path)
}

#[test]
fn a_plan_round_trips() {
    let plan = load(GOOD).unwrap();
    assert_eq!(plan.sets[0].volumes.len(), 2);
    assert_eq!(load(&toml::to_string(&plan).unwrap()), Ok(plan));
}

#[test]
fn what_is_wrong_with_a_plan_is_said() {
    for (from, to, expected) in [
        ("127.0.0.1:2", "127.0.0.1:1", "gateway g2 (127.0.0.1:1): found twice"),
        ("name = \"g2\"", "name = \"g1\"", "gateway g1 (127.0.0.1:2): found twice"),
        ("127.0.0.1:2", "127.0.0.1", "gateway g2: api: found \"127.0.0.1\", expected HOST:PORT"),
        ("s3://bucket/prefix", "bucket", "set demo: store: found \"bucket\""),
        ("\"1GiB\"", "\"513B\"", "volume demo/vol2: found 513B, expected a multiple of 512B"),
        ("\"1GiB\"", "\"0B\"", "volume demo/vol2: found 0B"),
        ("\"1GiB\"", "\"1025TiB\"", "volume demo/vol2: found 1025TiB"),
        ("region = \"us\"\n", "", "missing field `region`"),
        ("region = \"us\"", "region = \"us\"\nnbd = \"x\"", "unknown field `nbd`"),
    ] {
        assert!(GOOD.contains(from));
        let error = load(&GOOD.replace(from, to)).unwrap_err();
        assert_eq!(error.exit, crate::exit::Exit::Usage);
        assert!(error.message.contains(expected), "expected {expected:?} in {:?}", error.message);
    }
    assert!(load("gateways = []").unwrap_err().message.contains("found 0 gateways"));
    let long = load(&"\n".repeat(SETTINGS_BYTES_MAX as usize + 1)).unwrap_err().message;
    assert!(long.contains("found at least 1048577 bytes, expected at most 1048576"), "{long}");
}
