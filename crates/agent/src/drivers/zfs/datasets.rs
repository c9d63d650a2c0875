//! Datasets that are not mounted. `zpool import` succeeds without those that are encrypted and have no key, or that
//! have `canmount=noauto`.

use crate::process::{run, system};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of the question about them.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Properties of each dataset in the answer.
const COLUMNS: &str = "name,mountpoint,canmount,mounted,keystatus,encryptionroot";

/// A line of `zfs list`.
struct Dataset<'a> {
    name: &'a str,
    mountpoint: &'a str,
    canmount: &'a str,
    mounted: bool,
    has_no_key: bool,
    encryption_root: &'a str,
}

fn dataset(line: &str) -> Option<Dataset<'_>> {
    let words: Vec<&str> = line.split('\t').collect();
    let [name, mountpoint, canmount, mounted, keystatus, encryption_root] = words[..] else { return None };
    Some(Dataset {
        name,
        mountpoint,
        canmount,
        mounted: mounted == "yes",
        has_no_key: keystatus == "unavailable",
        encryption_root,
    })
}

/// A dataset that is not mounted, although it could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmounted {
    /// Its name.
    pub name: String,
    /// Where it belongs.
    pub at: PathBuf,
    /// How to mount it.
    pub advice: String,
}

/// Output of `zfs list` for the datasets of a pool.
async fn listed(pool: &str) -> Result<String, String> {
    let mut command = system("zfs");
    command.args(["list", "-H", "-r", "-t", "filesystem", "-o", COLUMNS, pool]);
    run(command, ASK_LIMIT).await
}

/// The datasets of the pool that are not mounted, and have a place of their own.
///
/// # Errors
/// ZFS does not say.
pub async fn unmounted(pool: &str) -> Result<Vec<Unmounted>, String> {
    Ok(unmounted_of(&listed(pool).await?))
}

/// The same from the output of `zfs list`. Nobody can mount a dataset with `canmount=off`: it only has properties for
/// those below it. Pure.
pub fn unmounted_of(listed: &str) -> Vec<Unmounted> {
    let missing = listed.lines().filter_map(dataset).filter(|dataset| !dataset.mounted && dataset.canmount != "off");
    let placed = missing.filter(|dataset| dataset.mountpoint.starts_with('/'));
    let named = placed.map(|dataset| Unmounted {
        name: dataset.name.into(),
        at: dataset.mountpoint.into(),
        advice: told(&dataset),
    });
    named.collect()
}

/// How to mount the dataset of the pool that belongs at `path`; "" if none is missing, or ZFS does not say.
pub async fn advice(pool: &str, path: &Path) -> String {
    match listed(pool).await {
        Ok(listed) => advice_of(&listed, path),
        Err(why) => {
            tracing::debug!(why, "could not list the datasets of the pool");
            String::new()
        }
    }
}

/// Like `advice`, from the output of `zfs list`. Pure.
fn advice_of(listed: &str, path: &Path) -> String {
    let missing = || listed.lines().filter_map(dataset).filter(|dataset| !dataset.mounted);
    let covers = |dataset: &Dataset<'_>| dataset.mountpoint.starts_with('/') && path.starts_with(dataset.mountpoint);
    let nearest = missing().filter(covers).max_by_key(|dataset| Path::new(dataset.mountpoint).components().count());
    let Some(dataset) = nearest.or_else(|| missing().find(|dataset| dataset.mountpoint == "legacy")) else {
        return String::new();
    };
    told(&dataset)
}

/// What comes before the commands. The pool is imported nowhere while the lease is given away: in a pause a forced
/// takeover imports it, and keeps it although PostgreSQL is not started. One that runs may have files in the dataset's
/// place.
const IN_A_PAUSE: &str = "in a pause (`holdfast agent pause` on each host, then `holdfast agent failover` on this one if its pool is not imported), while PostgreSQL does not run";

/// Why it is not mounted, and what mounts it.
fn told(dataset: &Dataset<'_>) -> String {
    let Dataset { name, mountpoint, canmount, has_no_key, encryption_root, .. } = *dataset;
    let (mut why, mut todo) = (Vec::new(), Vec::new());
    if has_no_key {
        why.push("its key is not loaded".to_string());
        todo.push(format!("`zfs load-key {encryption_root}`"));
    }
    if mountpoint == "legacy" {
        why.push("its mountpoint is legacy".to_string());
        todo.push(format!("`mount -t zfs {name} DIRECTORY`"));
    } else {
        if canmount == "off" {
            todo.push(format!("`zfs set canmount=on {name}`"));
        }
        if canmount != "on" {
            why.push(format!("canmount={canmount}"));
        }
        todo.push(format!("`zfs mount {name}`"));
    }
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
    format!(
        "dataset {name} is not mounted{why}: {IN_A_PAUSE}: {}, then `holdfast agent resume` on each host; hooks.before_start can do the mount at each start",
        todo.join(", then ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_that_is_not_mounted_is_named_with_the_command_that_mounts_it() {
        let of = |lines: &[&str], path: &str| advice_of(&lines.join("\n"), Path::new(path));
        let (plain, path) = ("tank\tnone\ton\tno\t-\t-", "/tank/pg/data");
        let noauto = of(&[plain, "tank/pg\t/tank/pg\tnoauto\tno\t-\t-"], path);
        assert_eq!(
            noauto,
            "dataset tank/pg is not mounted (canmount=noauto): in a pause (`holdfast agent pause` on each host, then `holdfast agent failover` on this one if its \
             pool is not imported), while PostgreSQL does not run: `zfs mount tank/pg`, then `holdfast agent resume` on each host; hooks.before_start can do the \
             mount at each start"
        );
        let locked = of(&[plain, "tank/pg\t/tank/pg\ton\tno\tunavailable\ttank/safe"], path);
        assert!(
            locked.contains("its key is not loaded")
                && locked.contains("`zfs load-key tank/safe`, then `zfs mount tank/pg`"),
            "{locked}"
        );
        let off = of(&["tank/pg\t/tank/pg\toff\tno\t-\t-"], path);
        assert!(off.contains("`zfs set canmount=on tank/pg`, then `zfs mount tank/pg`"), "{off}");
        let legacy = of(&[plain, "tank/pg\tlegacy\ton\tno\t-\t-"], path);
        assert!(legacy.contains("legacy") && legacy.contains("`mount -t zfs tank/pg DIRECTORY`"), "{legacy}");
        // The nearest one, without those that are mounted or belong elsewhere.
        let wal = [
            "tank/pg\t/tank/pg\ton\tno\t-\t-",
            "tank/pg/wal\t/tank/pg/wal\ton\tno\t-\t-",
            "tank/a\t/tank/a\ton\tno\t-\t-",
        ];
        assert!(of(&wal, "/tank/pg/wal/data").starts_with("dataset tank/pg/wal is not mounted: "));
        assert_eq!(of(&["tank/pg\t/tank/pg\ton\tyes\tavailable\ttank/pg", "?"], path), "");
    }

    #[test]
    fn a_dataset_that_could_be_mounted_and_is_not_is_listed_with_its_place() {
        let listed = [
            "tank\t/tank\toff\tno\t-\t-",
            "tank/pg\t/tank/pg\ton\tyes\t-\t-",
            "tank/pg/ts\t/tank/pg/ts\ton\tno\tunavailable\ttank/pg/ts",
            "tank/old\tlegacy\ton\tno\t-\t-",
            "tank/none\tnone\ton\tno\t-\t-",
        ];
        let found = unmounted_of(&listed.join("\n"));
        let [missing] = &found[..] else { panic!("{found:?}") };
        assert_eq!((missing.name.as_str(), missing.at.as_path()), ("tank/pg/ts", Path::new("/tank/pg/ts")));
        assert!(missing.advice.contains("`zfs load-key tank/pg/ts`, then `zfs mount tank/pg/ts`"), "{found:?}");
    }
}
