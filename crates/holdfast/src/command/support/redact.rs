//! Takes secrets out of text, before it goes into a bundle. Pure.
//!
//! Two nets, since neither alone is enough: values that are known to be secret (the content of key files, of variables
//! of the environment), wherever they are; and what looks like a secret, whether it is known or not.

/// What is written in place of a secret.
const REDACTED: &str = "[redacted]";

/// Shorter values are not looked for: they would be found in ordinary words.
const KNOWN_MIN: usize = 6;

/// Hexadecimal digits of a token (32) or a key (64). The first digits are kept, so that ids, which look the same, can
/// be told from one another.
const HEX_MIN: usize = 32;
const HEX_KEPT: usize = 8;

/// Characters of base64 from which a mixture of letters and digits counts as a secret: those of AWS have 40.
const MIXED_MIN: usize = 40;

/// Parts of the names of settings, variables and fields whose values are secret.
const NAMES: [&str; 14] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "credential",
    "authorization",
    "cookie",
    "private_key",
    "privatekey",
    "api_key",
    "apikey",
    "access_key",
    "signature",
];

/// Ends of names whose values say where a secret is, or which, or how a key is derived from one.
const HARMLESS: [&str; 5] = ["_file", "_env", "_kdf", "_id", "_exports"];

/// Whether the value of this name is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', '.'], "_");
    NAMES.iter().any(|part| name.contains(part)) && !HARMLESS.iter().any(|end| name.ends_with(end))
}

/// Takes out the secrets that it knows, and what looks like one.
pub struct Redactor {
    /// The longest first: one may be a part of another.
    known: Vec<String>,
}

impl Redactor {
    /// `known`: secrets as they would be written in a text.
    pub fn new(known: impl IntoIterator<Item = String>) -> Self {
        let mut known: Vec<String> = known.into_iter().filter(|secret| secret.len() >= KNOWN_MIN).collect();
        known.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        known.dedup();
        Self { known }
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.known {
            text = text.replace(secret, REDACTED);
        }
        let mut out = String::with_capacity(text.len());
        for line in without_private_keys(&text).split_inclusive('\n') {
            out.push_str(&long_runs(&user_info(&named(line))));
        }
        out
    }
}

/// Without the blocks of private keys (PEM), also within one line. A block without an end goes to the end of the text.
fn without_private_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const KEY: &str = "PRIVATE KEY-----";
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let title = block[BEGIN.len()..].find("-----").map_or(block.len(), |end| BEGIN.len() + end + 5);
        if !block[..title].ends_with(KEY) {
            out.push_str(&block[..title]);
            rest = &block[title..];
            continue;
        }
        out.push_str(REDACTED);
        rest = match block[title..].find(KEY) {
            Some(end) => &block[title + end + KEY.len()..],
            None => "",
        };
    }
    out.push_str(rest);
    out
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Without the values of secret names: `NAME=VALUE`, `"NAME": "VALUE"`, `--NAME VALUE`, `Bearer VALUE`.
fn named(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(begin) = rest.find(is_of_name) {
        let name_end = rest[begin..].find(|c| !is_of_name(c)).map_or(rest.len(), |end| begin + end);
        let name = &rest[begin..name_end];
        let gap_end = rest[name_end..].find(|c| !is_between(c)).map_or(rest.len(), |end| name_end + end);
        let gap = &rest[name_end..gap_end];
        out.push_str(&rest[..name_end]);
        rest = &rest[name_end..];
        let assigned = gap.contains(['=', ':']) && is_secret_name(name);
        let option = name.starts_with("--") && gap.trim().is_empty() && !gap.is_empty() && is_secret_name(name);
        let scheme = matches!(name, "Bearer" | "Basic" | "bearer" | "basic") && gap == " ";
        if !(assigned || option || scheme) {
            continue;
        }
        out.push_str(gap);
        rest = &rest[gap.len()..];
        let end = value_end(rest, gap, is_whole_line(name));
        if end > 0 && !rest.starts_with(REDACTED) {
            out.push_str(REDACTED);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Between a name and its value.
fn is_between(c: char) -> bool {
    matches!(c, ' ' | '\t' | '=' | ':' | '>' | '"' | '\'' | '\\')
}

/// Headers whose value has several words.
fn is_whole_line(name: &str) -> bool {
    ["authorization", "cookie"].iter().any(|header| name.to_ascii_lowercase().ends_with(header))
}

/// Where the value at the beginning of `rest` ends: at its quote, else at a blank or at the next field.
fn value_end(rest: &str, gap: &str, whole_line: bool) -> usize {
    let quote = gap.chars().rev().find(|c| !matches!(c, '\\')).filter(|c| matches!(c, '"' | '\''));
    let ends = |c: char| match quote {
        Some(quote) => c == quote || c == '\\' || c == '\n',
        None if whole_line => c == '\n' || c == '"',
        None => c.is_whitespace() || matches!(c, ',' | ';' | '&' | '"' | '\'' | ')' | ']' | '}'),
    };
    rest.find(ends).unwrap_or(rest.len())
}

/// Without the user and password of URLs: `scheme://USER:PASSWORD@HOST`.
fn user_info(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find("://") {
        let begin = at + 3;
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?')).unwrap_or(rest.len());
        if let Some(user) = rest[..end].rfind('@') {
            out.push_str(REDACTED);
            rest = &rest[user..];
        }
    }
    out.push_str(rest);
    out
}

/// Without long runs of hexadecimal digits, and of base64 that mixes letters and digits.
fn long_runs(line: &str) -> String {
    let hex = cut(
        line,
        |c| c.is_ascii_hexdigit(),
        |run| (run.len() >= HEX_MIN).then(|| format!("{}{REDACTED}", &run[..HEX_KEPT])),
    );
    let of_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-');
    cut(&hex, of_base64, |run| {
        let has = |is: fn(&u8) -> bool| run.as_bytes().iter().any(is);
        let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit);
        (run.len() >= MIXED_MIN && mixed).then(|| REDACTED.to_owned())
    })
}

/// Replaces each longest run of characters that are `of` a kind by what `judge` says, if it says something.
fn cut(line: &str, of: impl Fn(char) -> bool, judge: impl Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(begin) = rest.find(&of) {
        let end = rest[begin..].find(|c| !of(c)).map_or(rest.len(), |end| begin + end);
        out.push_str(&rest[..begin]);
        match judge(&rest[begin..end]) {
            Some(instead) => out.push_str(&instead),
            None => out.push_str(&rest[begin..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        Redactor::new(["correct horse".to_owned(), "short".to_owned()]).text(text)
    }

    #[test]
    fn secrets_are_taken_out_wherever_they_are() {
        let (hex, aws) = ("0f".repeat(32), "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        for text in [
            "x correct horse y".to_owned(),
            "password=S3CR!T".into(),
            "password = 'S3CR!T'".into(),
            "  \"token\": \"S3CR!T\",".into(),
            "{\\\"token\\\":\\\"S3CR!T\\\",\\\"a\\\":1}".into(),
            "PGPASSWORD=S3CR!T psql".into(),
            "holdfast lease renew demo --token S3CR!T".into(),
            "aws_secret_access_key = S3CR!T".into(),
            "X-Vault-Token: S3CR!T".into(),
            "Authorization: Digest S3CR!T, S3CR!T".into(),
            "got Bearer S3CR!T from".into(),
            "s3://u:S3CR!T@host/p and https://S3CR!T@host".into(),
            format!("a key {hex}."),
            format!("token=x&sig={hex}"),
            format!("keys {aws},"),
            "-----BEGIN PRIVATE KEY-----\nS3CR!T\n-----END PRIVATE KEY-----\n".into(),
            "a -----BEGIN EC PRIVATE KEY-----\\nS3CR!T\\n-----END EC PRIVATE KEY----- b".into(),
            "-----BEGIN RSA PRIVATE KEY-----\nS3CR!T\nand so on".into(),
        ] {
            let said = redacted(&text);
            for secret in ["S3CR!T", "correct horse", &hex[..HEX_KEPT + 1], aws] {
                assert!(!said.contains(secret), "{text} became {said}");
            }
            assert!(said.contains(REDACTED), "{text} became {said}");
        }
    }

    #[test]
    fn what_helps_stays() {
        for text in [
            "passphrase_file = \"/etc/holdfast/passphrase\"",
            "credentials_file = \"/etc/holdfast/s3\"",
            "passphrase_env = \"HOLDFAST_PASSPHRASE\"",
            "snapshot_exports = \"token\"",
            "store = \"s3://bucket/prefix?endpoint=https://s3.example:9000\"",
            "2026-11-29T22:07:03Z INFO holdfast_gateway::node: set=demo epoch=1234567 started",
            "holdfast_journal_write_seconds_bucket{le=\"0.0001\"} 3",
            "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
            "a short line: /var/lib/holdfast/journal/0000000000000001.log",
        ] {
            assert_eq!(redacted(text), text);
        }
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(redacted(&format!("cluster {id}\n")), "cluster 01234567[redacted]\n", "ids can be told apart");
        let fields = redacted("token=a, epoch=5; password=\"b c\" region=eu");
        assert_eq!(fields, "token=[redacted], epoch=5; password=\"[redacted]\" region=eu");
    }

    #[test]
    fn any_text_is_taken_and_a_second_time_changes_nothing() {
        for text in
            ["", "=", "token=", "token: \"", "://", "://@", "-----BEGIN ", "Bearer ", "ä token=ü\n\"", "--token "]
        {
            let once = redacted(text);
            assert_eq!(redacted(&once), once, "{text:?}");
        }
    }
}
