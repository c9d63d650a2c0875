//! Shows grants in an etcd.

use crate::client::{Client, EtcdError, EtcdOptions};
use crate::grant::{Grant, Next};

/// Gives up for now after so many attempts in a row in which another writer came between our read and our write.
const TRIES: u32 = 5;

/// Result of [`Mirror::show`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It is there now.
    Written,
    /// It was there already.
    Already,
    /// What is there is newer (GRANT-G1): another gateway leads the set by now.
    Newer,
}

/// One etcd, and the place of grants in it: `PREFIX/sets/SET/grant`. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Mirror {
    client: Client,
    prefix: String,
    /// An earlier write of ours may still arrive (R12). The next write raises the revision that it compares with.
    unsure: bool,
}

impl Mirror {
    /// Connects on first use.
    ///
    /// # Errors
    /// [`EtcdError::Endpoint`].
    pub fn new(options: &EtcdOptions, prefix: &str) -> Result<Self, EtcdError> {
        Ok(Self { client: Client::new(options)?, prefix: prefix.trim_end_matches('/').to_string(), unsure: false })
    }

    fn key(&self, set: &str) -> String {
        format!("{}/sets/{set}/grant", self.prefix)
    }

    /// Shows `grant`, unless the record there is newer. Can be repeated: after an error it may have been written.
    ///
    /// # Errors
    /// [`EtcdError`]; it ends after a bounded number of calls, each of at most two seconds for each member.
    pub async fn show(&mut self, grant: &Grant) -> Result<Shown, EtcdError> {
        let key = self.key(&grant.set);
        for _ in 0..TRIES {
            let found = self.client.get(&key).await?;
            match grant.next(found.value.as_deref()) {
                Next::Same if !self.unsure => return Ok(Shown::Already),
                Next::Newer => return Ok(Shown::Newer),
                Next::Foreign(found) => return Err(EtcdError::Foreign { key, found }),
                Next::Put | Next::Same => {
                    let unsure = std::mem::replace(&mut self.unsure, true);
                    let written = self.client.put_if(&key, &grant.to_bytes(), found.revision).await?;
                    self.unsure = unsure && !written;
                    if written {
                        return Ok(Shown::Written);
                    }
                }
            }
        }
        Err(EtcdError::Contended { key, times: TRIES })
    }

    /// Removes the record of a deleted set: one of `cluster`, of life `generation` or an earlier one. Records that are
    /// not ours stay (GRANT-G2). Returns whether there was one. Can be repeated.
    ///
    /// # Errors
    /// [`EtcdError`], as [`Mirror::show`].
    pub async fn forget(&mut self, set: &str, number: u64, cluster: &str, generation: u64) -> Result<bool, EtcdError> {
        let key = self.key(set);
        for _ in 0..TRIES {
            let found = self.client.get(&key).await?;
            let ours = found.value.is_some_and(|there| Grant::was_told_of(&there, set, number, cluster, generation));
            if !ours {
                return Ok(false);
            }
            if self.client.delete_if(&key, found.revision).await? {
                return Ok(true);
            }
        }
        Err(EtcdError::Contended { key, times: TRIES })
    }
}
