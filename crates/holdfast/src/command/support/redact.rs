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

/// The end of the first and of the last line of a private key in PEM.
const KEY: &str = "PRIVATE KEY-----";

/// How tokens of Vault begin.
const VAULT: [&str; 3] = ["hvs.", "hvb.", "hvr."];

/// The shortest of them, in characters.
const VAULT_MIN: usize = 20;

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
        let known = known.into_iter().filter(|secret| secret.len() >= KNOWN_MIN);
        let mut known: Vec<String> = known.flat_map(forms).collect();
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

/// A secret as it is, in a text of JSON, in such a text within another one, and in a URL.
fn forms(secret: String) -> [String; 4] {
    let json = quoted(&secret);
    let (twice, mut url) = (quoted(&json), String::new());
    for byte in secret.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => url.push(char::from(byte)),
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    [secret, json, twice, url]
}

/// As JSON has it between two quotes.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// Settings without the arguments of programs, `command = ["PROGRAM", "ARGUMENT"]`: what gives a key may be a script
/// with a password in it. Settings that are not valid count too.
pub fn without_arguments(settings: &str) -> String {
    const NAME: &str = "command";
    let (mut out, mut rest) = (String::with_capacity(settings.len()), settings);
    while let Some(at) = rest.find(NAME) {
        let (before, from) = rest.split_at(at + NAME.len());
        out.push_str(before);
        rest = from;
        let value = rest.trim_start_matches(['"', '\'', ' ', '\t']).strip_prefix('=').map(str::trim_start);
        let Some(list) = value.and_then(|value| value.strip_prefix('[')) else { continue };
        let (program, end) = first_of_list(list);
        out.push_str(&rest[..rest.len() - list.len()]);
        out.push_str(program);
        if end > program.len() {
            out.push_str(&format!(", \"{REDACTED}\""));
        }
        rest = &list[end..];
    }
    out.push_str(rest);
    out
}

/// The first text of a list with what stands before it, and where the list ends (at its `]`).
fn first_of_list(list: &str) -> (&str, usize) {
    let (mut quote, mut first, mut escaped, mut comment) = (None, None, false, false);
    for (at, c) in list.char_indices() {
        match quote {
            _ if comment => comment = c != '\n',
            Some('"') if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(of) if c == of => {
                quote = None;
                first = first.or(Some(at + 1));
            }
            Some(_) => {}
            None if c == ']' => return (&list[..first.unwrap_or(at)], at),
            None if c == '#' => comment = true,
            None => quote = Some(c).filter(|c| matches!(c, '"' | '\'')),
        }
    }
    (&list[..first.unwrap_or(0)], list.len())
}

/// Without the blocks of private keys (PEM), also within one line. A block without an end goes to the end of the text.
fn without_private_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let title = block[BEGIN.len()..].find("-----").map_or(block.len(), |end| BEGIN.len() + end + 5);
        if !block[..title].ends_with(KEY) {
            // Its title may be cut off, and what ends it may begin another block.
            out.push_str(BEGIN);
            rest = &block[BEGIN.len()..];
            continue;
        }
        out.push_str(REDACTED);
        rest = key_end(&block[title..]).map_or("", |end| &block[title + end..]);
    }
    out.push_str(rest);
    out
}

/// Where the block of a private key ends. Others may begin before, if it was cut off.
fn key_end(block: &str) -> Option<usize> {
    const END: &str = "-----END ";
    let mut from = 0;
    loop {
        from += block[from..].find(END)? + END.len();
        let end = from + block[from..].find("-----")? + 5;
        if block[..end].ends_with(KEY) {
            return Some(end);
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Without the values of secret names: `NAME=VALUE`, `"NAME": "VALUE"`, `--NAME VALUE`, `"--NAME", "VALUE"`,
/// `Bearer VALUE`.
fn named(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(begin) = rest.find(is_of_name) {
        let name_end = rest[begin..].find(|c| !is_of_name(c)).map_or(rest.len(), |end| begin + end);
        let name = &rest[begin..name_end];
        // In a text within a text, a line break is a letter with a backslash before it.
        let word = if rest[..begin].ends_with('\\') { &name[1..] } else { name };
        let is_option = word.starts_with("--");
        // Arguments of a program, as a list of texts.
        let between = |c: char| is_between(c) || is_option && c == ',';
        let gap_end = rest[name_end..].find(|c| !between(c)).map_or(rest.len(), |end| name_end + end);
        let gap = &rest[name_end..gap_end];
        out.push_str(&rest[..name_end]);
        rest = &rest[name_end..];
        let assigned = gap.contains(['=', ':']) && is_secret_name(name);
        let listed = !gap.contains(',') || gap.contains(['"', '\'']);
        let option = is_option && listed && !gap.is_empty() && is_secret_name(name);
        let scheme = matches!(word, "Bearer" | "Basic" | "bearer" | "basic") && gap == " ";
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
    let Some(quote) = quote else { return bare_end(rest, whole_line) };
    // In a text within a text, the quote itself has a backslash. Otherwise that belongs to the character after it.
    let nested = gap.contains('\\');
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if nested => return at,
            '\\' if quote == '"' => _ = chars.next(),
            c if c == quote || c == '\n' => return at,
            _ => {}
        }
    }
    rest.len()
}

/// Where a value without a quote before it ends.
fn bare_end(rest: &str, whole_line: bool) -> usize {
    let ends = |c: char| match whole_line {
        true => c == '\n' || c == '"',
        false => c.is_whitespace() || matches!(c, ',' | ';' | '&' | '"' | '\'' | ')' | ']' | '}'),
    };
    let end = rest.find(ends).unwrap_or(rest.len());
    // A line break, in a text within a text.
    let end = rest[..end].find("\\n").unwrap_or(end);
    // `Some("VALUE")` of Rust, or a list: to the end of its last text.
    let close = match rest[..end].trim_end_matches('\\').chars().next_back() {
        Some('(') => "\")",
        Some('[') => "\"]",
        _ => return end,
    };
    if whole_line || !rest[end..].starts_with('"') {
        return end;
    }
    rest[end + 1..].find(close).map_or(rest.trim_end_matches('\n').len(), |at| end + 1 + at + 1)
}

/// Without the user and password of URLs: `scheme://USER:PASSWORD@HOST`.
fn user_info(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find("://") {
        let begin = at + 3;
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let until = |more: &[char]| {
            rest.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'') || more.contains(&c)).unwrap_or(rest.len())
        };
        let place = until(&['/', '?']);
        // What is no port after a colon is the beginning of a password with such a character in it.
        let is_port = |(_, port): (&str, &str)| port.bytes().all(|digit| digit.is_ascii_digit());
        let host = &rest[..place];
        let whole = host.starts_with('[') || host.contains('@') || host.rsplit_once(':').is_none_or(is_port);
        let end = if whole { place } else { until(&[]) };
        if let Some(user) = rest[..end].rfind('@') {
            out.push_str(REDACTED);
            rest = &rest[user..];
        }
    }
    out.push_str(rest);
    out
}

/// Without tokens of Vault, long runs of hexadecimal digits, and of base64 that mixes letters and digits.
fn long_runs(line: &str) -> String {
    let line = cut(line, is_of_name, |run| {
        let is_token = run.len() >= VAULT_MIN && VAULT.iter().any(|begin| run.starts_with(begin));
        is_token.then(|| REDACTED.to_owned())
    });
    let hex = cut(
        &line,
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
            "no -----BEGIN PRIVATE KEY-----\n-----BEGIN PRIVATE KEY-----\nS3CR!T\n-----END PRIVATE KEY-----\n".into(),
            "cut -----BEGIN \n-----BEGIN PRIVATE KEY-----\nS3CR!T\n-----END PRIVATE KEY-----\n".into(),
            "-----BEGIN PRIVATE KEY-----\n-----END CERTIFICATE-----\nS3CR!T\n-----END PRIVATE KEY-----\n".into(),
            "command = [\"unwrap\", \"--token\", \"S3CR!T\"]".into(),
            "ran [\\\"unwrap\\\", \\\"--token\\\", \\\"S3CR!T\\\"]".into(),
            "found Settings { token: Some(\"S3CR!T\"), ttl: 3 }".into(),
            "{\"message\":\"token=Some(\\\"S3CR!T\\\")\"}".into(),
            "\"passwords\": [\"S3CR!T\", \"S3CR!T\"],".into(),
            "password = \"a\\\"S3CR!T\"".into(),
            "{\"found\": \"two lines\\n--token S3CR!T\\nBearer S3CR!T\"}".into(),
            "s3://AKIA:ab/S3CR!T@host/p".into(),
            "postgres://u:a?S3CR!T@host/db".into(),
        ] {
            let said = redacted(&text);
            for secret in ["S3CR!T", "correct horse", &hex[..HEX_KEPT + 1], aws] {
                assert!(!said.contains(secret), "{text} became {said}");
            }
            assert!(said.contains(REDACTED), "{text} became {said}");
        }
    }

    /// A secret that is known is found in each form that a text may have it in.
    #[test]
    fn known_secrets_are_found_in_json_and_in_urls() {
        let secret = "a \"b\\c/d";
        let redactor = Redactor::new([secret.to_owned()]);
        let json = serde_json::json!({ "x": secret }).to_string();
        let within = serde_json::json!({ "x": &json }).to_string();
        let (debug, url) = (format!("{secret:?}"), "https://host/?x=a%20%22b%5Cc%2Fd".to_owned());
        for text in [secret.to_owned(), json, within, debug, url] {
            let said = redactor.text(&text);
            assert!(said.contains(REDACTED) && !said.contains("c/d") && !said.contains("c%2Fd"), "{said}");
        }
        let vault = "renewed hvs.CAESIJ0123456789abcdef, and hvs.short";
        assert_eq!(redacted(vault), "renewed [redacted], and hvs.short");
    }

    #[test]
    fn the_arguments_of_programs_are_taken_out() {
        for (settings, said) in [
            ("command = []\nx = 1\n", "command = []\nx = 1\n"),
            ("command = [\"/bin/unwrap\"]\n", "command = [\"/bin/unwrap\"]\n"),
            ("command=['/bin/sh', '-c', 'x \"]\" S3CR!T']\nx = 1", "command=['/bin/sh', \"[redacted]\"]\nx = 1"),
            ("command = [ # ]\n \"a\\\"\",\n \"S3CR!T\",\n]\n", "command = [ # ]\n \"a\\\"\", \"[redacted]\"]\n"),
            ("command = [\"a\", \"S3CR!T", "command = [\"a\", \"[redacted]\""),
            ("a command, and command = \"x\"", "a command, and command = \"x\""),
        ] {
            assert_eq!(without_arguments(settings), said);
            assert_eq!(without_arguments(said), said, "a second time");
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
            "https://[fd00::1]/sets/a@b and https://s3.example:9000/bucket/a@b",
            "use --token, or a certificate",
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
