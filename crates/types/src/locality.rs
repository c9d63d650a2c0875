//! Where a gateway stands: region, zone, host. What fails together is one of these (ADR 0052).
//!
//! ```text
//!   region=eu-west                     a region alone; `eu-west` is the short form
//!   region=eu-west,zone=a,host=h1      the same, with the zone in it and the machine in that
//! ```

use crate::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// See the module. In files and on the wire it is a text: the short form if there is a region alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Locality {
    /// The widest part.
    pub region: Name,
    /// A part of the region. Without one, the region counts as one zone.
    pub zone: Option<Name>,
    /// The machine. Without one, each gateway counts as a machine of its own.
    pub host: Option<Name>,
}

/// A text is no [`Locality`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("locality: found {found:?}, expected region=NAME[,zone=NAME][,host=NAME]: {why}")]
pub struct LocalityError {
    found: String,
    why: String,
}

impl Locality {
    /// A region alone.
    pub fn of_region(region: Name) -> Self {
        Self { region, zone: None, host: None }
    }
}

impl std::str::FromStr for Locality {
    type Err = LocalityError;

    fn from_str(text: &str) -> Result<Self, LocalityError> {
        let bad = |why: String| LocalityError { found: text.chars().take(80).collect(), why };
        let named = |value: &str| Name::new(value).map_err(|error| bad(error.to_string()));
        if !text.contains('=') {
            return Ok(Self::of_region(named(text)?));
        }
        let (mut region, mut zone, mut host) = (None, None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| bad(format!("{part:?} has no `=`")))?;
            let place = match key {
                "region" => &mut region,
                "zone" => &mut zone,
                "host" => &mut host,
                other => return Err(bad(format!("{other:?} is none of region, zone, host"))),
            };
            if place.replace(named(value)?).is_some() {
                return Err(bad(format!("{key} is there twice")));
            }
        }
        let region = region.ok_or_else(|| bad("the region is missing".to_owned()))?;
        Ok(Self { region, zone, host })
    }
}

impl TryFrom<String> for Locality {
    type Error = LocalityError;

    fn try_from(text: String) -> Result<Self, LocalityError> {
        text.parse()
    }
}

impl From<Locality> for String {
    fn from(locality: Locality) -> String {
        match locality {
            Locality { region, zone: None, host: None } => region.into(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region={}", self.region)?;
        if let Some(zone) = &self.zone {
            write!(f, ",zone={zone}")?;
        }
        if let Some(host) = &self.host {
            write!(f, ",host={host}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_is_written() {
        for text in ["region=eu-west", "region=eu-west,zone=a", "region=eu,zone=a,host=h1", "region=eu,host=h1"] {
            let read: Locality = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        assert_eq!("eu-west".parse::<Locality>().unwrap().to_string(), "region=eu-west", "the short form");
        for text in ["eu-west", "region=eu,zone=a", "region=eu,host=h1"] {
            let read: Locality = text.parse().unwrap();
            assert_eq!(String::from(read), text, "on the wire");
        }
        let turned: Locality = "host=h1,region=eu,zone=a".parse().unwrap();
        assert_eq!(turned.to_string(), "region=eu,zone=a,host=h1");
    }

    #[test]
    fn what_is_no_locality_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "beginning with a letter"),
            ("zone=a", "the region is missing"),
            ("region=eu,zone", "\"zone\" has no `=`"),
            ("region=eu,rack=7", "\"rack\" is none of"),
            ("region=eu,region=us", "region is there twice"),
            ("region=", "beginning with a letter"),
            ("region=eu,zone=a b", "beginning with a letter"),
        ] {
            let error = text.parse::<Locality>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("expected region=NAME"), "{text}: {error}");
        }
    }
}
