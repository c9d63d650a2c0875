//! Versions of the peer protocol that a gateway supports. Every call and answer carries them. Without a common version,
//! the call is refused with both ranges.
//!
//! Raise the version with every change of a message's meaning, and keep the oldest one as long as gateways of both
//! builds may meet during an upgrade.

use tonic::metadata::{MetadataMap, MetadataValue};

/// Metadata key: oldest and newest version, `1-1`.
const META_PROTOCOL: &str = "holdfast-protocol";

/// Versions that a build supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

/// The versions of this build. 2: append streams are frames on connections of their own (ADR 0043). 3: state snapshots
/// come in pieces (ADR 0048). 4: entries of writes are sealed where they are made (ADR 0057). 5: checksums of appends
/// cover payloads, those of state snapshots their heads.
pub const PROTOCOL: Protocol = Protocol { oldest: 5, newest: 5 };

impl Protocol {
    /// Adds our versions.
    pub(crate) fn stamp(self, meta: &mut MetadataMap) {
        if let Ok(text) = MetadataValue::try_from(format!("{}-{}", self.oldest, self.newest)) {
            meta.insert(META_PROTOCOL, text);
        }
    }

    /// The newest version that both sides support.
    ///
    /// # Errors
    /// The versions of both sides.
    pub(crate) fn common(self, meta: &MetadataMap) -> Result<u32, String> {
        let text = meta.get(META_PROTOCOL).and_then(|v| v.to_str().ok()).unwrap_or("");
        let Some(other) = parse(text) else {
            return Err(format!(
                "peer protocol: found {text:?}, expected the versions that the other gateway speaks, such as 1-1"
            ));
        };
        let newest = self.newest.min(other.newest);
        if newest >= self.oldest.max(other.oldest) {
            return Ok(newest);
        }
        Err(format!(
            "peer protocol: the other gateway speaks versions {}-{}, this one {}-{}: upgrade one version after the other, so that there is one that all speak",
            other.oldest, other.newest, self.oldest, self.newest
        ))
    }
}

fn parse(text: &str) -> Option<Protocol> {
    let (oldest, newest) = text.split_once('-')?;
    let (oldest, newest) = (oldest.parse().ok()?, newest.parse().ok()?);
    (oldest <= newest).then_some(Protocol { oldest, newest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_speak_the_newest_version_that_both_know() {
        let meets = |ours: (u32, u32), theirs: (u32, u32)| {
            let mut meta = MetadataMap::new();
            Protocol { oldest: theirs.0, newest: theirs.1 }.stamp(&mut meta);
            Protocol { oldest: ours.0, newest: ours.1 }.common(&meta)
        };
        assert_eq!(meets((1, 1), (1, 1)), Ok(1));
        assert_eq!(meets((1, 2), (2, 3)), Ok(2));
        assert_eq!(meets((2, 3), (1, 2)), Ok(2));
        let why = meets((1, 1), (2, 3)).unwrap_err();
        assert!(why.contains("speaks versions 2-3, this one 1-1"), "{why}");
        assert!(meets((3, 3), (1, 2)).is_err());
        assert!(PROTOCOL.common(&MetadataMap::new()).is_err(), "it does not say");
        for bad in ["", "1", "2-1", "a-1", "1-1-1", "-1-2"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
