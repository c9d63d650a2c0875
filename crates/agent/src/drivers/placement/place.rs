//! What PostgreSQL keeps at a place, and what is said of one that does not lie on the set.

use super::disks;
use crate::config::{AgentConfig, PoolKind};
use holdfast_host::mounts::Mount;
use std::path::{Path, PathBuf};

/// Directories of the data directory without which it is worth nothing. `database.allow_off_set` never allows them
/// elsewhere.
pub(super) const OWN: [&str; 11] = [
    "base",
    "global",
    "pg_clog",
    "pg_commit_ts",
    "pg_logical",
    "pg_multixact",
    "pg_replslot",
    "pg_stat",
    "pg_tblspc",
    "pg_twophase",
    "pg_xact",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Data,
    Wal,
    Tablespace,
    /// One of [`OWN`], or a database in `base`.
    Own,
    /// A person's own directory or file.
    Other,
}

impl What {
    /// What `path` is, by its name in the data directory.
    pub(super) fn of(data: &Path, path: &Path) -> Self {
        if path.ends_with("pg_wal") || path.ends_with("pg_xlog") {
            return Self::Wal;
        }
        let own = path.strip_prefix(data).is_ok_and(|rest| OWN.iter().any(|name| rest.starts_with(name)));
        if own { Self::Own } else { Self::Other }
    }
}

/// A place of PostgreSQL's files, mostly one that does not lie on the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffSet {
    pub(super) what: What,
    /// As PostgreSQL names it.
    pub(super) path: PathBuf,
    /// Target of its link.
    pub(super) link: Option<PathBuf>,
    /// Where it lies; `None` if it is not there.
    pub(super) real: Option<(PathBuf, Option<Mount>)>,
}

impl OffSet {
    /// The place that it should have, without links as far as that is known.
    pub(super) fn place(&self) -> &Path {
        match (&self.real, &self.link) {
            (Some((real, _)), _) => real,
            (None, Some(link)) => link,
            (None, None) => &self.path,
        }
    }

    pub(super) fn told(&self, config: &AgentConfig, advice: &str) -> String {
        let link = self.link.as_ref().map_or_else(String::new, |to| format!(" (a link to {})", to.display()));
        let found = match &self.real {
            Some((real, Some(mount))) => {
                let Mount { at, kind, source, .. } = mount;
                let further: String = disks::further(mount).map(|option| format!(", {option}")).collect();
                format!("{} on {} ({kind}, {source}{further})", real.display(), at.display())
            }
            Some((real, None)) => format!("{} on an unknown file system", real.display()),
            None => "nothing there".to_string(),
        };
        let next = self.next(config, advice);
        format!(
            "{}{link}: found {found}, expected a file system over the devices of set {}: {next}",
            self.path.display(),
            config.set
        )
    }

    fn next(&self, config: &AgentConfig, advice: &str) -> String {
        if !advice.is_empty() {
            return advice.to_string();
        }
        if let Some((_, Some(mount))) = &self.real
            && disks::further(mount).next().is_some()
        {
            return "each device of this file system has to be the set's, those for its log and realtime files too: create it again without devices of the host".into();
        }
        let (place, setting) = (self.place().display(), config.data_setting());
        match (self.what, config.pool.kind) {
            (What::Data, PoolKind::Zfs) => {
                let name = config.pool.name.as_deref().unwrap_or_default();
                format!("`zfs list -o name,mountpoint,canmount,mounted,keystatus -r {name}` shows the datasets; mount the one of the data directory, or correct {setting}")
            }
            (What::Data, PoolKind::Ext4 | PoolKind::Xfs) => {
                format!("unmount what hides the set's file system, or correct {setting}")
            }
            (What::Data, PoolKind::None) => {
                format!("mount the set's device there, for example in hooks.before_start, or correct {setting}")
            }
            (What::Wal, _) if self.real.is_none() => {
                "it may be on the host where PostgreSQL ran before: copy it from there onto the set, and make the link lead to the copy".into()
            }
            (What::Wal, _) => {
                "commits there are lost with this host: in a pause (`holdfast agent pause`) stop PostgreSQL, move the folder onto the set, and make the link lead there".into()
            }
            (What::Tablespace, _) => format!(
                "move it onto the set; a tablespace that holds only temporary files may stay if database.allow_off_set names {place}"
            ),
            (What::Own, _) => "move it onto the set, and make the link lead there".into(),
            (What::Other, _) if config.service.is_some() => "unmount it there, or mount a file system of the set".into(),
            (What::Other, _) => format!(
                "move it onto the set, and make the link lead there. If PostgreSQL only reads it (configuration), it may stay: write \
                 allow_off_set = [\"{place}\"] below [database] in the agent's settings on each host, and keep the same files there on each host"
            ),
        }
    }
}
