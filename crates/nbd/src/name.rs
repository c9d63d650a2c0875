//! Export names: `SET/VOLUME`, `SET/VOLUME?token=…&conn=SLOT&gen=N` for a device that holds a lease, and
//! `SET/VOLUME@SNAPSHOT?token=…`, read-only. A snapshot may be named without a token; the gateway's settings decide
//! whether that opens it.

use holdfast_types::{Name, NameError, Token};
use std::fmt;
use std::str::FromStr;

/// Longest export name that we read, in bytes. The protocol allows 4096; ours fit in far less.
pub const EXPORT_NAME_BYTES_MAX: usize = 512;

/// Most slots of one volume: connections that one attached device may hold side by side.
pub const SLOTS_PER_VOLUME_MAX: u8 = 64;

/// An export name, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName {
    /// The volume set.
    pub set: Name,
    /// The volume inside the set.
    pub volume: Name,
    /// Set if a snapshot of the volume is requested. Never together with a session: nothing is written.
    pub snapshot: Option<SnapshotExport>,
    /// Set if the client proves that it holds the lease; absent for a plain export.
    pub session: Option<Session>,
}

/// A snapshot to export, and the proof that the client may read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotExport {
    /// The snapshot's name.
    pub name: Name,
    /// The token that `holdfast snapshot token` printed.
    pub token: Option<Token>,
}

/// A leased device's connection: proof of the lease, and the connection's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Proof of the grant.
    pub token: Token,
    /// The connection's slot, below [`SLOTS_PER_VOLUME_MAX`].
    pub slot: u8,
    /// Grows with each reconnect of the slot: a newer connection closes the older one before its first request is read.
    pub incarnation: u64,
}

/// An export name could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportNameError {
    /// Too long for an export name of ours.
    #[error("export name: found {found} bytes, expected at most {EXPORT_NAME_BYTES_MAX}")]
    TooLong {
        /// Length in bytes.
        found: usize,
    },
    /// The part before `?` is not `SET/VOLUME`.
    #[error("export name: found no '/', expected SET/VOLUME")]
    NoSlash,
    /// The set's or the volume's name is not of the right form.
    #[error("export name: {0}")]
    Name(#[from] NameError),
    /// The part after `?` of a snapshot is not `token=…`. The text is not repeated: it may hold a token.
    #[error("export name of a snapshot: found something else after '?', expected token=(32 hex digits) alone")]
    SnapshotToken,
    /// The part after `?` is not `token=…&conn=SLOT&gen=N`. The text is not repeated: it may hold a token.
    #[error("export name: found {found} after '?', expected token=(32 hex digits)&conn=SLOT&gen=N, each once")]
    Session {
        /// The fault, without the text itself.
        found: &'static str,
    },
}

impl FromStr for ExportName {
    type Err = ExportNameError;

    fn from_str(text: &str) -> Result<Self, ExportNameError> {
        if text.len() > EXPORT_NAME_BYTES_MAX {
            return Err(ExportNameError::TooLong { found: text.len() });
        }
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        let (set, volume) = path.split_once('/').ok_or(ExportNameError::NoSlash)?;
        let (volume, snapshot) = match volume.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(Name::new(snapshot)?)),
            None => (volume, None),
        };
        let (set, volume) = (Name::new(set)?, Name::new(volume)?);
        let Some(name) = snapshot else {
            return Ok(ExportName {
                set,
                volume,
                snapshot: None,
                session: query.map(Session::from_query).transpose()?,
            });
        };
        let token = |query: &str| query.strip_prefix("token=").and_then(Token::from_text);
        let token = query.map(|query| token(query).ok_or(ExportNameError::SnapshotToken)).transpose()?;
        Ok(ExportName { set, volume, snapshot: Some(SnapshotExport { name, token }), session: None })
    }
}

/// Plain decimal digits only: no sign, no leading zero, so that a number has one text form.
fn decimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    (digits && canonical).then(|| text.parse().ok()).flatten()
}

impl Session {
    fn from_query(query: &str) -> Result<Self, ExportNameError> {
        let bad = |found| ExportNameError::Session { found };
        let (mut token, mut slot, mut incarnation) = (None, None, None);
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or(bad("a part without '='"))?;
            let known = match key {
                "token" => {
                    let value = Token::from_text(value).ok_or(bad("a malformed token"))?;
                    token.replace(value).is_none()
                }
                "conn" => {
                    let value = decimal(value).and_then(|n| u8::try_from(n).ok()).filter(|n| *n < SLOTS_PER_VOLUME_MAX);
                    slot.replace(value.ok_or(bad("a connection slot out of range"))?).is_none()
                }
                "gen" => incarnation.replace(decimal(value).ok_or(bad("a malformed gen="))?).is_none(),
                _ => return Err(bad("an unknown key")),
            };
            if !known {
                return Err(bad("a key twice"));
            }
        }
        Ok(Session {
            token: token.ok_or(bad("no token"))?,
            slot: slot.ok_or(bad("no connection slot"))?,
            incarnation: incarnation.ok_or(bad("no gen="))?,
        })
    }
}

impl ExportName {
    /// A plain export.
    pub fn plain(set: Name, volume: Name) -> Self {
        Self { set, volume, snapshot: None, session: None }
    }

    /// The name without tokens. A client that opens it again gets the same volume, or the same snapshot of it.
    pub(crate) fn path(&self) -> String {
        match &self.snapshot {
            None => format!("{}/{}", self.set, self.volume),
            Some(snapshot) => format!("{}/{}@{}", self.set, self.volume, snapshot.name),
        }
    }

    /// The name on the wire. It contains the token: never log it; use [`fmt::Display`] for that.
    pub fn to_wire(&self) -> String {
        if let Some(token) = self.snapshot.as_ref().and_then(|snapshot| snapshot.token) {
            return format!("{}?token={}", self.path(), token.to_text());
        }
        match &self.session {
            None => self.path(),
            Some(session) => format!(
                "{}/{}?token={}&conn={}&gen={}",
                self.set,
                self.volume,
                session.token.to_text(),
                session.slot,
                session.incarnation
            ),
        }
    }
}

impl fmt::Display for ExportName {
    /// For people and logs: without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())?;
        match &self.session {
            None => Ok(()),
            Some(session) => write!(f, " (conn {}, gen {})", session.slot, session.incarnation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms() {
        let plain: ExportName = "tank/vol1".parse().unwrap();
        assert_eq!((plain.set.as_str(), plain.volume.as_str(), plain.session), ("tank", "vol1", None));
        let token = Token(0xfeed);
        let text = format!("tank/vol1?token={}&conn=3&gen=17", token.to_text());
        let leased: ExportName = text.parse().unwrap();
        assert_eq!(leased.session, Some(Session { token, slot: 3, incarnation: 17 }));
        assert_eq!(leased.to_wire(), text);
        assert!(!leased.to_string().contains("feed"), "a log line must not show the token");
        let reordered = format!("tank/vol1?gen=17&conn=3&token={}", token.to_text());
        assert_eq!(reordered.parse::<ExportName>(), Ok(leased));
        let snapshot: ExportName = "tank/vol1@monday".parse().unwrap();
        let monday = |token| Some(SnapshotExport { name: Name::new("monday").unwrap(), token });
        assert_eq!(snapshot.snapshot, monday(None));
        let text = format!("tank/vol1@monday?token={}", token.to_text());
        let opened: ExportName = text.parse().unwrap();
        assert_eq!((&opened.snapshot, opened.session), (&monday(Some(token)), None));
        assert_eq!(opened.to_wire(), text);
        assert_eq!(opened.to_string(), "tank/vol1@monday", "a log line must not show the token");
        assert_eq!((snapshot.to_wire().as_str(), snapshot.volume.as_str()), ("tank/vol1@monday", "vol1"));
    }

    #[test]
    fn refusals() {
        let token = Token(1).to_text();
        for bad in [
            String::new(),
            "tank".into(),
            "tank/".into(),
            "/vol".into(),
            "tank/a/b".into(),
            "tank/vol?".into(),
            "tank/vol@".into(),
            "tank/vol@a@b".into(),
            "tank@a/vol".into(),
            format!("tank/vol@a?token={token}&conn=1&gen=1"),
            "tank/vol@a?".into(),
            "tank/vol@a?token=".into(),
            format!("tank/vol@a?{token}"),
            format!("tank/vol@a?token={token}&token={token}"),
            format!("tank/vol?token={token}"),
            format!("tank/vol?token={token}&conn=1"),
            format!("tank/vol?token={token}&conn=64&gen=1"),
            format!("tank/vol?token={token}&conn=+1&gen=1"),
            format!("tank/vol?token={token}&conn=01&gen=1"),
            format!("tank/vol?token={token}&conn=1&gen=1&gen=1"),
            format!("tank/vol?token={token}&conn=1&gen=18446744073709551616"),
            format!("tank/vol?token={}&conn=1&gen=1", "F".repeat(32)),
            format!("tank/vol?token={token}&conn=1&gen=1&more=1"),
            "x".repeat(EXPORT_NAME_BYTES_MAX + 1),
        ] {
            assert!(bad.parse::<ExportName>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,600}") {
            if let Ok(name) = text.parse::<ExportName>() {
                prop_assert_eq!(name.to_wire().parse::<ExportName>(), Ok(name));
            }
        }

        #[test]
        fn round_trip(token: u128, slot in 0..SLOTS_PER_VOLUME_MAX, incarnation: u64) {
            let session = Some(Session { token: Token(token), slot, incarnation });
            let name =
                ExportName { set: Name::new("s").unwrap(), volume: Name::new("v").unwrap(), snapshot: None, session };
            prop_assert_eq!(name.to_wire().parse::<ExportName>(), Ok(name));
        }
    }
}
