//! Parameters of a StorageClass.

use crate::refused::Refused;
use holdfast_api::v1 as api;
use std::collections::HashMap;

/// Begins the names of parameters that Kubernetes adds.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// The parameters of a new set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Its store.
    pub(super) store: String,
    /// Its home.
    pub(super) home: Option<String>,
    /// What it survives.
    survive: Option<String>,
    /// Its voters, 0 for the default.
    voters: u32,
}

impl Parameters {
    /// Reads them. A copy of a volume has its source's store and policy, and ignores these.
    pub(super) fn read(given: &HashMap<String, String>, store: Option<&str>) -> Result<Self, Refused> {
        let mut read = Self { store: store.unwrap_or_default().to_string(), home: None, survive: None, voters: 0 };
        for (name, value) in given {
            match name.as_str() {
                "store" => read.store.clone_from(value),
                "home" => read.home = Some(value.clone()),
                "survive" => read.survive = Some(value.clone()),
                "voters" => {
                    let voters = value.parse().ok().filter(|voters| matches!(voters, 3 | 5));
                    read.voters = voters.ok_or_else(|| {
                        Refused::invalid(format!("parameter voters: found {value:?}, expected 3 or 5"))
                    })?;
                }
                _ if name.starts_with(OF_KUBERNETES) => {}
                other => {
                    return Err(Refused::invalid(format!(
                        "parameters: found {other:?}, expected store, home, survive or voters"
                    )));
                }
            }
        }
        if read.store.is_empty() {
            return Err(Refused::invalid(
                "parameter store is missing: name the store in the StorageClass (s3://BUCKET/PREFIX), or give the driver --store",
            ));
        }
        Ok(read)
    }

    /// The policy of the set, if it asks for anything.
    pub(super) fn policy(&self, home: Option<String>) -> Option<api::Policy> {
        if home.is_none() && self.survive.is_none() && self.voters == 0 {
            return None;
        }
        let survive = self.survive.clone().unwrap_or_default();
        let home = home.unwrap_or_default();
        Some(api::Policy { survive, voters: self.voters, home, forbidden_regions: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)], store: Option<&str>) -> Result<Parameters, Refused> {
        Parameters::read(&given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(), store)
    }

    #[test]
    fn parameters_are_known_ones() {
        let all = [("store", "s3://b/p"), ("survive", "zone"), ("voters", "5"), ("csi.storage.k8s.io/pvc/name", "x")];
        let read_all = read(&all, Some("s3://other")).unwrap();
        assert_eq!(read_all.store, "s3://b/p");
        let policy = read_all.policy(Some("eu".into())).unwrap();
        assert_eq!((policy.survive.as_str(), policy.voters, policy.home.as_str()), ("zone", 5, "eu"));
        assert_eq!(read(&[], Some("s3://b/p")).unwrap().policy(None), None);
        assert!(read(&[], None).unwrap_err().text.contains("store is missing"));
        assert!(read(&[("stoer", "s3://b/p")], Some("s3://b/p")).unwrap_err().text.contains("stoer"));
        assert!(read(&[("voters", "4")], Some("s3://b/p")).is_err());
    }
}
