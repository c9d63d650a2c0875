use super::*;
use proptest::prelude::*;

const FILE: &str = "\
# keys of two providers
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key = default/secret+with=signs
[east]
AWS_Access_Key_ID=east-id
  aws_secret_access_key = east-secret ; inline
aws_session_token=east-token\t# inline
region = eu-west-1
s3 =
  addressing_style = path
  goes on without a sign

[ west ] ; a comment
aws_secret_access_key=west#not-a-comment
aws_access_key_id=first
aws_access_key_id=last
";

fn keys(text: &str, profile: &str) -> (String, String, Option<String>) {
    let keys = parse(text, profile).unwrap_or_else(|problem| panic!("{profile}: {problem}"));
    (keys.id, keys.secret.reveal().to_owned(), keys.token.map(|token| token.reveal().to_owned()))
}

fn problem(text: &str, profile: &str) -> String {
    parse(text, profile).expect_err(text).to_string()
}

fn owned(id: &str, secret: &str, token: Option<&str>) -> (String, String, Option<String>) {
    (id.to_owned(), secret.to_owned(), token.map(str::to_owned))
}

#[test]
fn each_profile_has_its_own_keys() {
    assert_eq!(keys(FILE, "default"), owned("AKIADEFAULT", "default/secret+with=signs", None));
    assert_eq!(keys(FILE, "east"), owned("east-id", "east-secret", Some("east-token")));
    assert_eq!(keys(FILE, "west"), owned("last", "west#not-a-comment", None), "the last one counts");
    let windows = FILE.replace('\n', "\r\n");
    assert_eq!(keys(&format!("\u{feff}{windows}"), "east"), keys(FILE, "east"));
    // Two parts of the same profile are merged, as in other tools.
    let divided = format!("{FILE}[east]\naws_access_key_id = newer\n");
    assert_eq!(keys(&divided, "east"), owned("newer", "east-secret", Some("east-token")));
}

#[test]
fn a_missing_profile_is_named_with_those_that_are_there() {
    assert_eq!(problem(FILE, "north"), "found profiles [default] [east] [west], expected a profile [north]");
    assert_eq!(problem("", "north"), "found no profile, expected a profile [north]");
    let many: String = (0..20).map(|at| format!("[p{at}]\n")).collect();
    let message = problem(&many, "north");
    assert!(message.contains("[p7] and others") && !message.contains("p8"), "{message}");
    let long = problem(&format!("[{}]\n", "x".repeat(5000)), "north");
    assert!(long.len() < 200, "{long}");
    assert!(problem("[East]\n", "east").contains("[East]"), "names differ by case");
}

/// Any state of an unfinished write: the rest of the text is missing, or replaced by zeroes.
#[test]
fn a_text_that_ends_early_is_never_taken_for_other_keys() {
    let whole = "[east]\naws_access_key_id = id-one\naws_secret_access_key = secret-one\naws_session_token = token\n";
    let there = keys(whole, "east");
    for end in 0..whole.len() {
        let Ok(found) = parse(&whole[..end], "east") else { continue };
        // Only a value that is cut in the middle cannot be distinguished from a complete one: the store will refuse it,
        // and the file will be read again.
        assert_eq!(found.id, there.0, "{end}");
        assert!(end > whole.find("= secret-one").expect("there") + 2, "{end}: {found:?}");
    }
    for broken in ["[east]\naws_access_key_id = a\naws_secr", "[east", "[east]\n\0\0\0\0", "[east]\naws_access_key_id"]
    {
        let message = problem(broken, "east");
        assert!(message.starts_with("line "), "{message}");
    }
    let half = problem("[east]\naws_access_key_id = a\naws_secret_access_key =", "east");
    assert_eq!(
        half,
        "profile [east]: found no aws_secret_access_key, expected aws_access_key_id and aws_secret_access_key"
    );
    // Another profile's part counts as well: the same writer writes it.
    let other = problem(&format!("{whole}[west]\naws_acc"), "east");
    assert!(other.starts_with("line 6: "), "{other}");
}

#[test]
fn what_is_no_such_text_is_refused_and_never_shown() {
    for (text, words) in [
        ("aws_access_key_id = hunter2\n[east]\n", "[PROFILE] before the first"),
        ("[east] hunter2\n", "nothing but a comment"),
        ("[east\naws_access_key_id = hunter2\n", "both brackets"),
        ("[east]\nhunter2\n", "NAME = VALUE"),
        ("[east]\naws_access_key_id = hunter2\n", "found no aws_secret_access_key"),
        ("[east]\naws_access_key_id = two words hunter2\naws_secret_access_key = hunter2\n", "visible ASCII"),
        ("[east]\naws_access_key_id = hunter2é\naws_secret_access_key = hunter2\n", "visible ASCII"),
        ("[east]\naws_access_key_id = id\naws_secret_access_key = hunter2\u{1}\n", "control characters"),
        ("[east]\naws_access_key_id = id\naws_secret_access_key = x\naws_session_token = hunter2 x\n", "16384"),
    ] {
        let error = parse(text, "east").expect_err(text);
        let message = format!("{error} {error:?}");
        assert!(message.contains(words), "{message} lacks {words}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let long = format!("[east]\naws_access_key_id = {}\naws_secret_access_key = x\n", "a".repeat(257));
    assert!(problem(&long, "east").contains("found 257 bytes as aws_access_key_id"));
    let shown = format!("{:?}", parse(FILE, "east").expect("keys"));
    assert!(shown.contains("***") && !shown.contains("east-secret") && !shown.contains("east-token"), "{shown}");
}

proptest! {
    /// Arbitrary bytes give keys that can be sent, or a problem; nothing else.
    #[test]
    fn any_text_is_keys_that_can_be_sent_or_a_problem(
        lines in proptest::collection::vec("(\\[?[a-z ]{0,4}\\]?|aws_(access_key_id|secret_access_key|session_token) ?=.{0,12}|.{0,20})", 0..12)
    ) {
        let text = lines.join("\n");
        for profile in ["default", "a", ""] {
            if let Ok(keys) = parse(&text, profile) {
                prop_assert!(!keys.id.is_empty() && keys.id.bytes().all(|b| b.is_ascii_graphic()));
                prop_assert!(!keys.secret.reveal().is_empty());
                prop_assert!(keys.token.is_none_or(|token| token.reveal().bytes().all(|b| b.is_ascii_graphic())));
            }
        }
    }
}

fn file(path: &str) -> Option<PathBuf> {
    Some(PathBuf::from(path))
}

fn filled(options: StoreOptions, env: &[(&str, &str)]) -> StoreOptions {
    let variable = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let once = options.filled_from(variable);
    // A gateway fills its options, and opening fills them again.
    assert_eq!(once.clone().filled_from(variable), once);
    once
}

#[test]
fn the_source_is_what_the_url_names_then_the_settings_then_the_environment() {
    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "env-id"), ("AWS_SECRET_ACCESS_KEY", "env-secret")];
    const FILE: (&str, &str) = ("AWS_SHARED_CREDENTIALS_FILE", "/env/file");
    let profile = |path: &str, name: &str| KeySource::Profile { path: path.into(), name: name.to_owned() };
    let env_keys = || KeySource::Given(Keys { id: "env-id".into(), secret: Secret::new("env-secret"), token: None });
    let none = StoreOptions::default;
    let set = || StoreOptions { credentials_file: file("/set/file"), ..StoreOptions::default() };

    // As before there were credentials files.
    assert_eq!(filled(none(), &KEYS).key_source(None), Ok(env_keys()));
    // As in AWS's own tools: keys of the environment have priority over its file, but not over a profile that is
    // requested by name.
    let both = [KEYS[0], KEYS[1], FILE];
    assert_eq!(filled(none(), &both).key_source(None), Ok(env_keys()));
    assert_eq!(filled(none(), &both).key_source(Some("east")), Ok(profile("/env/file", "east")));
    assert_eq!(filled(none(), &[FILE]).key_source(None), Ok(profile("/env/file", "default")));
    let named = [FILE, ("AWS_PROFILE", "mine")];
    assert_eq!(filled(none(), &named).key_source(None), Ok(profile("/env/file", "mine")));
    assert_eq!(filled(none(), &named).key_source(Some("east")), Ok(profile("/env/file", "east")));
    // Settings have priority over the environment.
    assert_eq!(filled(set(), &both).key_source(None), Ok(profile("/set/file", "default")));
    assert_eq!(filled(set(), &both).key_source(Some("east")), Ok(profile("/set/file", "east")));

    // Nothing is set: the SDK's providers are asked, and for a profile that the URL names, nobody but that profile.
    let chain = |profile: Option<&str>, alone| KeySource::Chain { profile: profile.map(str::to_owned), alone };
    assert_eq!(filled(none(), &KEYS).key_source(Some("east")), Ok(chain(Some("east"), true)));
    assert_eq!(filled(none(), &[]).key_source(None), Ok(chain(None, false)));
    assert_eq!(filled(none(), &[("AWS_PROFILE", "mine")]).key_source(None), Ok(chain(Some("mine"), false)));
    let half = filled(none(), &[KEYS[0], FILE]).key_source(None).expect_err("half").to_string();
    assert!(half.contains("found no secret_access_key"), "{half}");
}
