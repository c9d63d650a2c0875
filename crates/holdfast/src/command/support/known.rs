//! The secrets that a host knows: the content of files and variables that its settings name as secret.

use super::redact::is_secret_name;
use holdfast_types::ByteSize;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes that are read of a file: more than any key, certificate or list of credentials has.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The values of `NAME = "VALUE"` in settings whose name is `of` a kind. Settings that are not valid count too: their
/// files have secrets all the same.
fn values(settings: &str, of: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for line in settings.lines() {
        // The value is between two quotes, the name before the first one.
        let mut pieces = line.split(['"', '\'']);
        while let (Some(before), Some(value)) = (pieces.next(), pieces.next()) {
            let name = before.trim_end().strip_suffix('=').map(str::trim_end).unwrap_or_default();
            let name = name.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            if of(name) {
                found.push(value);
            }
        }
    }
    found
}

/// The files with secrets that settings name: `file` and `key` of a section, `passphrase_file`, `token_file` and the
/// like. (The `file` of a journal is a size.)
pub fn files(settings: &str) -> Vec<PathBuf> {
    let found = values(settings, |name| ["file", "key"].contains(&name) || name.ends_with("_file"));
    let is_path = |value: &&str| !value.is_empty() && value.parse::<ByteSize>().is_err();
    found.into_iter().filter(is_path).map(PathBuf::from).collect()
}

/// Files in `dir` with variables of systemd's units (`EnvironmentFile`). `dir` itself if it cannot be read: as a file
/// it cannot be read either, and is named as such.
pub fn of_units(dir: &Path) -> Vec<PathBuf> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(_) => vec![dir.to_path_buf()],
        Ok(entries) => {
            let all = entries.filter_map(|entry| Some(entry.ok()?.path()));
            all.filter(|path| path.extension().is_some_and(|end| end == "env")).collect()
        }
    }
}

/// Opens a regular file. Others are refused at once: a pipe would be waited for.
///
/// # Errors
/// It cannot be opened, or is something else.
pub fn opened(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("found something else, expected a regular file")),
    }
}

/// The secrets in the environment: variables with such a name, and those that settings name (`passphrase_env`).
pub fn of_environment(variables: impl Iterator<Item = (OsString, OsString)>, settings: &str) -> Vec<String> {
    let named = values(settings, |name| name.ends_with("_env"));
    let text = |value: OsString| value.to_string_lossy().into_owned();
    let all = variables.map(|(name, value)| (text(name), text(value)));
    // Also what looks like a path: a secret in base64 may begin with a slash.
    let secret = all.filter(|(name, _)| named.contains(&name.as_str()) || is_secret_name(name));
    secret.map(|(_, value)| value).collect()
}

/// The secrets in a file, as they might be written in a text.
///
/// # Errors
/// The file cannot be read: its secrets are not known.
pub fn of_file(path: &Path) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    opened(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(of_bytes(&bytes))
}

fn of_bytes(bytes: &[u8]) -> Vec<String> {
    let mut hex = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    let mut secrets = vec![hex.to_uppercase(), hex];
    let Ok(text) = std::str::from_utf8(bytes) else { return secrets };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_key = text.contains("-----BEGIN ");
    for line in &lines {
        match line.split_once('=') {
            // A line of credentials. A key in base64 may end with the same sign.
            Some((name, value)) if is_secret_name(name.trim()) || name.trim().ends_with("_id") => {
                secrets.push(value.trim().trim_matches(['"', '\'']).to_owned());
            }
            _ if lines.len() == 1 || (is_key && !line.starts_with("-----")) => secrets.push((*line).to_owned()),
            _ => {}
        }
    }
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_gives_its_secrets_and_no_ordinary_words() {
        let has = |bytes: &[u8], secret: &str| of_bytes(bytes).iter().any(|found| found == secret);
        assert!(has(&[0xab; 4], "abababab") && has(&[0xab; 4], "ABABABAB"), "a binary key, in hex");
        assert!(has(b"open sesame\n", "open sesame"), "a passphrase");
        let credentials = b"[default]\naws_access_key_id = AKIA1\naws_secret_access_key = \"x/y=\"\nregion = eu\n";
        assert!(has(credentials, "x/y=") && has(credentials, "AKIA1"));
        assert!(!has(credentials, "eu") && !has(credentials, "[default]"));
        let pem = b"-----BEGIN PRIVATE KEY-----\nMIIabc=\n-----END PRIVATE KEY-----\n";
        assert!(has(pem, "MIIabc=") && !has(pem, "-----END PRIVATE KEY-----"));
        assert!(of_file(Path::new("/nowhere")).is_err(), "not known is not none");
    }

    #[test]
    fn settings_tell_where_secrets_are_valid_or_not() {
        let settings = "nonsense\nkey = { file = '/a' }\n[tls]\nkey = \"/b\" # the key\n  vault_token_file=\"/c\"\nca = \"/d\"\nfile = \"64MiB\"\n\
                        passphrase_env = \"HF\"\nkey = \"/e\nkey_file = \"f\"\n";
        let found: Vec<String> = files(settings).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/a", "/b", "/c", "/e", "f"]);
        let all = [("HF", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("HOME", "c"), ("X_TOKEN", "/d+e"), ("T_FILE", "e")];
        let variables: [(OsString, OsString); 5] = all.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(of_environment(variables.into_iter(), settings), ["a", "b", "/d+e"]);
    }

    #[test]
    fn variables_of_units_are_secrets_and_a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join("gateway.env");
        std::fs::write(&unit, "AWS_REGION=eu\nAWS_SECRET_ACCESS_KEY=x/y\n").unwrap();
        std::fs::write(dir.path().join("gateway.toml"), "").unwrap();
        assert_eq!(of_units(dir.path()), std::slice::from_ref(&unit));
        assert!(of_file(&unit).unwrap().iter().any(|secret| secret == "x/y"));
        assert_eq!(of_units(&dir.path().join("none")), Vec::<PathBuf>::new());
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(of_file(&pipe).is_err() && of_file(dir.path()).is_err());
    }
}
