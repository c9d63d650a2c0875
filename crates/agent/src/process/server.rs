//! How one PostgreSQL of this host is recognised: its data directory, the users that may run it, and its program.

use super::system;
use crate::config::DatabaseConfig;
use holdfast_types::sync::LockExt;
use rustix::process::geteuid;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

/// The list of this host's users.
const PASSWD: &str = "/etc/passwd";

/// Numbers of users that are not in this list, by `id`; `None` while it is asked. A directory service may not answer:
/// nobody waits for it.
static TOLD: Mutex<BTreeMap<String, Option<u32>>> = Mutex::new(BTreeMap::new());

/// What the kernel appends to the path of a program whose file was removed.
const DELETED: &str = " (deleted)";

/// One PostgreSQL of this host.
///
/// A server refuses to run as another user than the owner of its data directory. So its user distinguishes it from
/// other processes of its name. Its program is a second sign, beside the name of a process: either is enough, because
/// another server would be started beside one that was not found.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its data directory.
    pub data: PathBuf,
    program: Option<PathBuf>,
    /// Name of its user.
    user: String,
    /// Real uids; `None` if this host's list does not have the user. Then the processes of all users count until `id`
    /// has told its number.
    users: Option<BTreeSet<u32>>,
}

impl Server {
    /// Of these settings. Reads the list of users of this host, and waits for no directory service.
    pub fn of(settings: &DatabaseConfig) -> Self {
        let passwd = std::fs::read(PASSWD).unwrap_or_default();
        let uid = uid_in(&String::from_utf8_lossy(&passwd), &settings.user);
        if uid.is_none() {
            ask(&settings.user);
        }
        Self {
            data: settings.data.clone(),
            program: settings.bin_dir.join("postgres").canonicalize().ok(),
            user: settings.user.clone(),
            users: uid.map(with_root),
        }
    }

    /// With these users alone.
    #[cfg(test)]
    pub fn for_test(data: &Path, users: Option<&[u32]>) -> Self {
        let users = users.map(|users| users.iter().copied().collect());
        Self { data: data.into(), program: None, user: String::new(), users }
    }

    /// Whether its user is known. If not, processes of all users count that look like it.
    pub fn has_user(&self) -> bool {
        self.users().is_some()
    }

    fn users(&self) -> Option<Cow<'_, BTreeSet<u32>>> {
        match &self.users {
            Some(users) => Some(Cow::Borrowed(users)),
            None => TOLD.locked().get(&self.user).copied().flatten().map(|uid| Cow::Owned(with_root(uid))),
        }
    }

    /// Whether a process of this user can belong to it.
    pub fn may_run_as(&self, uid: u32) -> bool {
        self.users().is_none_or(|users| users.contains(&uid))
    }

    /// Whether a process runs its program, by whatever name.
    pub(super) fn is_run_by(&self, proc: &Path, pid: i32) -> bool {
        let Some(program) = &self.program else { return false };
        let shown = std::fs::read_link(proc.join(pid.to_string()).join("exe"));
        shown.is_ok_and(|shown| {
            shown == *program || shown.to_str().and_then(|shown| shown.strip_suffix(DELETED)) == program.to_str()
        })
    }

    /// The number of the user that its data directory belongs to, if that user's processes are not looked for: a server
    /// there would not be found. Reads from the device.
    pub fn unknown_owner(&self) -> Option<u32> {
        let owner = std::fs::metadata(&self.data).ok()?.uid();
        (!self.may_run_as(owner)).then_some(owner)
    }

    /// Whether its data directory belongs to a user whose processes are looked for. Reads from the device.
    ///
    /// # Errors
    /// It does not, or its owner could not be read.
    pub fn owns_its_data(&self, user: &str) -> Result<(), String> {
        let data = self.data.display();
        let owner = std::fs::metadata(&self.data).map_err(|error| format!("{data}: {error}"))?.uid();
        if self.may_run_as(owner) {
            return Ok(());
        }
        Err(format!(
            "{data}: found that it belongs to the user with number {owner}, expected {user} (database.user): PostgreSQL would not start, or not be found; \
             give it to {user} (chown -R), or correct database.user"
        ))
    }
}

/// A process of root may become the server.
fn with_root(uid: u32) -> BTreeSet<u32> {
    [uid, 0, geteuid().as_raw()].into()
}

/// Asks for the number of a user of a directory service (LDAP), in a thread of its own. Once it failed, the next server
/// of that user asks again.
fn ask(user: &str) {
    if TOLD.locked().contains_key(user) {
        return;
    }
    TOLD.locked().insert(user.into(), None);
    let name = user.to_string();
    let note = move || {
        let uid = id_of(&name);
        let mut told = TOLD.locked();
        match uid {
            Some(_) => told.insert(name, uid),
            None => told.remove(&name),
        };
    };
    if std::thread::Builder::new().name("holdfast-user".into()).spawn(note).is_err() {
        TOLD.locked().remove(user);
    }
}

/// The number of a user, by `id`.
fn id_of(user: &str) -> Option<u32> {
    let mut id = system("id").into_std();
    let said = id.args(["-u", "--", user]).stdin(Stdio::null()).output().ok()?;
    if said.status.success() { String::from_utf8(said.stdout).ok()?.trim().parse().ok() } else { None }
}

/// The number of a user, by the text of the list of users.
fn uid_in(passwd: &str, user: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == user).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:7::/:/bin/sh\npostgres:x:105:113:PostgreSQL:/:/bin/sh\n";
        assert_eq!(uid_in(passwd, "postgres"), Some(105));
        assert_eq!(uid_in(passwd, "postgre"), None);
        assert_eq!(uid_in("postgres:x\n", "postgres"), None);
    }

    /// Otherwise each user's `postgres -D DATA` counts, and nobody takes over on that host.
    #[test]
    fn a_user_of_a_directory_service_is_known_once_id_has_told_its_number() {
        assert_eq!((id_of("root"), id_of("holdfast-no-such-user")), (Some(0), None));
        let of = |user: &str| Server { user: user.into(), ..Server::for_test(Path::new("/srv/pg/data"), None) };
        let theirs = geteuid().as_raw() + 2;
        assert!(!of("holdfast-ldap").has_user() && of("holdfast-ldap").may_run_as(theirs), "not known yet");
        TOLD.locked().insert("holdfast-ldap".into(), Some(geteuid().as_raw() + 1));
        let known = of("holdfast-ldap");
        assert!(known.has_user() && known.may_run_as(geteuid().as_raw() + 1) && known.may_run_as(0));
        assert!(!known.may_run_as(theirs));
        // One that is not in the list of this host is asked for.
        ask("root");
        let begun = std::time::Instant::now();
        while !of("root").has_user() {
            assert!(begun.elapsed().as_secs() < 20, "no answer of `id`");
            std::thread::yield_now();
        }
    }

    #[test]
    fn data_of_another_user_is_refused_before_its_server_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let own = geteuid().as_raw();
        Server::for_test(dir.path(), Some(&[own])).owns_its_data("pg").unwrap();
        Server::for_test(dir.path(), None).owns_its_data("pg").unwrap();
        let why = Server::for_test(dir.path(), Some(&[own + 1])).owns_its_data("pg").unwrap_err();
        assert!(why.contains("expected pg (database.user)") && why.contains("chown -R"), "{why}");
        assert_eq!(Server::for_test(dir.path(), Some(&[own + 1])).unknown_owner(), Some(own));
        assert_eq!(Server::for_test(dir.path(), Some(&[own])).unknown_owner(), None);
        assert_eq!(Server::for_test(&dir.path().join("none"), Some(&[own + 1])).unknown_owner(), None);
    }
}
