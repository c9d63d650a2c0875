//! The roster of a gateway pair: one key that both gateways read, and replace if it has not changed meanwhile (ADR
//! 0031).
//!
//! Owns: its text, and the calls. Does not own: its content, which `holdfast_control::pair` decides.

use crate::client::{Client, EtcdError, EtcdOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format version of [`RosterText`] that this build reads and writes.
const FORM: u32 = 1;

/// Gives up for now after so many attempts in a row in which another writer came between our read and our write.
const TRIES: u32 = 5;

/// The roster as it is stored in the etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterText {
    form: u32,
    /// The pair's feature level.
    pub level: u32,
    /// The feature level that each gateway's build knows, by the gateway's name.
    pub gateways: BTreeMap<String, u32>,
}

impl RosterText {
    /// In this build's format.
    pub fn new(level: u32, gateways: BTreeMap<String, u32>) -> Self {
        Self { form: FORM, level, gateways }
    }

    fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers and texts with string keys can always be written as JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn of_bytes(key: &str, bytes: &[u8]) -> Result<Self, EtcdError> {
        let found = match serde_json::from_slice::<Self>(bytes) {
            Ok(text) if text.form == FORM => return Ok(text),
            Ok(text) => format!("form {}", text.form),
            Err(_) => format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(64)])),
        };
        Err(EtcdError::NoRoster { key: key.to_owned(), found })
    }
}

/// The place of one pair's roster: `PREFIX/pairs/NAME/roster`, without a lease. Clones share their connections.
#[derive(Clone, Debug)]
pub struct RosterKey {
    client: Client,
    key: String,
}

impl RosterKey {
    /// The roster of the pair `name` below `prefix`. Connects on first use.
    ///
    /// # Errors
    /// [`EtcdError::Endpoint`].
    pub fn new(options: &EtcdOptions, prefix: &str, name: &str) -> Result<Self, EtcdError> {
        let key = format!("{}/pairs/{name}/roster", prefix.trim_end_matches('/'));
        Ok(Self { client: Client::new(options)?, key })
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads it (linearizable); `None`: nobody has written it.
    pub async fn read(&mut self) -> Result<Option<RosterText>, EtcdError> {
        self.read_at().await.map(|(found, _)| found)
    }

    async fn read_at(&mut self) -> Result<(Option<RosterText>, i64), EtcdError> {
        let found = self.client.get(&self.key).await?;
        let text = found.value.as_deref().map(|bytes| RosterText::of_bytes(&self.key, bytes)).transpose()?;
        Ok((text, found.revision))
    }

    /// Replaces the roster by the result of `next`; if that is no change, nothing is written. If another gateway wrote
    /// meanwhile, `next` is asked again. Can be repeated: after an error it may have been written, and a late write
    /// only replaces what it was made from (R12).
    ///
    /// # Errors
    /// [`EtcdError`], after a bounded number of calls. The inner error: `next` refused, and nothing was written.
    pub async fn change<E>(
        &mut self,
        next: impl Fn(Option<&RosterText>) -> Result<RosterText, E>,
    ) -> Result<Result<RosterText, E>, EtcdError> {
        for _ in 0..TRIES {
            let (found, revision) = self.read_at().await?;
            let wanted = match next(found.as_ref()) {
                Ok(wanted) => wanted,
                Err(refused) => return Ok(Err(refused)),
            };
            if found.as_ref() == Some(&wanted) || self.client.put_if(&self.key, &wanted.to_bytes(), revision).await? {
                return Ok(Ok(wanted));
            }
        }
        Err(EtcdError::Contended { key: self.key.clone(), times: TRIES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_what_the_page_says() {
        let text = RosterText::new(8, BTreeMap::from([("g1".to_string(), 8), ("g2".to_string(), 9)]));
        let expected = "{\"form\":1,\"level\":8,\"gateways\":{\"g1\":8,\"g2\":9}}";
        assert_eq!(String::from_utf8(text.to_bytes()).unwrap(), expected);
        assert_eq!(RosterText::of_bytes("k", expected.as_bytes()).unwrap(), text);
    }

    /// A newer build's text may say something that this build does not know: then it must not rely on the rest.
    #[test]
    fn another_form_is_no_roster() {
        let said = |text: &str| RosterText::of_bytes("/p/roster", text.as_bytes()).unwrap_err().to_string();
        let newer = said("{\"form\":2,\"level\":8,\"gateways\":{}}");
        assert!(newer.contains("\"/p/roster\"") && newer.contains("holds form 2"), "{newer}");
        assert!(said("mine").contains("holds \"mine\""), "{}", said("mine"));
        said("");
    }
}
