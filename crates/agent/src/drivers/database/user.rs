//! Programs that run as PostgreSQL's own system user.
//!
//! The server has all groups of its user, as after a login: a private key is often readable for a group only. `setpriv`
//! of util-linux gives them (`--init-groups`). That of busybox cannot, and is refused with what to install.

use crate::config::DatabaseConfig;
use crate::process::{NotRan, Server, ran, run, system};
use rustix::process::geteuid;
use std::path::PathBuf;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Time limit of a question to `id` or `setpriv`.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// Option of `setpriv` for all groups of the user.
pub const ALL_GROUPS: &str = "--init-groups";

/// PostgreSQL's own system user.
#[derive(Debug)]
pub struct User {
    name: String,
    bin_dir: PathBuf,
    processes: Server,
    ids: OnceCell<(u32, u32)>,
    keeps_groups: OnceCell<()>,
}

impl User {
    /// Of these settings; nothing is asked yet.
    pub fn new(settings: &DatabaseConfig) -> Self {
        Self {
            name: settings.user.clone(),
            bin_dir: settings.bin_dir.clone(),
            processes: Server::of(settings),
            ids: OnceCell::new(),
            keeps_groups: OnceCell::new(),
        }
    }

    async fn ids(&self) -> Result<(u32, u32), String> {
        self.ids.get_or_try_init(|| ids(&self.name)).await.copied()
    }

    /// One of PostgreSQL's programs, run as its user.
    ///
    /// # Errors
    /// The user is not known.
    pub async fn program(&self, name: &str) -> Result<Command, String> {
        let mut command = Command::new(self.bin_dir.join(name));
        command.current_dir("/").env("LC_ALL", "C");
        if geteuid().is_root() {
            let (uid, gid) = self.ids().await?;
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// A shell as this user, with all groups of it. `setpriv` becomes the shell, and the shell becomes what it runs: it
    /// has one process number throughout.
    ///
    /// # Errors
    /// The user is not known, or known by two numbers.
    pub async fn shell(&self) -> Result<Command, String> {
        if !geteuid().is_root() {
            return self.program("/bin/sh").await;
        }
        let (uid, gid) = self.ids().await?;
        if !self.processes.may_run_as(uid) {
            let user = &self.name;
            return Err(format!(
                "database.user {user}: found number {uid} by `id`, and another one in /etc/passwd, expected the same: its processes would not be found; correct either"
            ));
        }
        let mut command = system("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).args([ALL_GROUPS, "--", "/bin/sh"]);
        command.current_dir("/").env("LC_ALL", "C");
        Ok(command)
    }

    /// Whether [`User::shell`] can give all groups. Asked until it can: a person may install what is missing while the
    /// agent runs.
    ///
    /// # Errors
    /// It cannot, and what to install.
    pub async fn keeps_groups(&self) -> Result<(), String> {
        if !geteuid().is_root() {
            return Ok(());
        }
        self.keeps_groups.get_or_try_init(|| keeps_groups(system("setpriv"))).await.copied()
    }
}

/// Whether this `setpriv` has the option, by its own help.
async fn keeps_groups(mut setpriv: Command) -> Result<(), String> {
    let wanted = "expected that of util-linux, which starts PostgreSQL with all groups of database.user: install util-linux (Debian, Alpine), or use database.kind = \"systemd\"";
    setpriv.arg("--help").env("LC_ALL", "C");
    match ran(setpriv, ASK_LIMIT).await {
        Ok(said) if [&said.out, &said.err].iter().any(|text| text.contains(ALL_GROUPS)) => Ok(()),
        Ok(_) => Err(format!("setpriv: found one without {ALL_GROUPS} (busybox?), {wanted}")),
        Err(NotRan::Unable(why)) => Err(format!("found no setpriv ({why}), {wanted}")),
        Err(NotRan::Late(why)) => Err(format!("found no answer of setpriv ({why}), {wanted}")),
    }
}

/// Numbers of a user and of its first group.
///
/// # Errors
/// They are not known.
pub async fn ids(user: &str) -> Result<(u32, u32), String> {
    let ask = async |what: &str| {
        let mut command = system("id");
        command.arg(what).arg(user);
        let said = run(command, ASK_LIMIT).await?;
        said.parse::<u32>().map_err(|error| format!("id {what} {user}: found {said:?}: {error}"))
    };
    Ok((ask("-u").await?, ask("-g").await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helps(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("echo '{text}' >&2; exit 1"));
        command
    }

    /// With busybox's setpriv PostgreSQL would not start, and without a word about why.
    #[tokio::test]
    async fn a_setpriv_without_groups_is_refused_with_what_to_install() {
        let busybox = "Usage: setpriv [OPTIONS] PROG ARGS\n\t-d,--dump\n\t--nnp,--no-new-privs\n\t--inh-caps CAP";
        let why = keeps_groups(helps(busybox)).await.unwrap_err();
        assert!(why.contains("found one without --init-groups") && why.contains("install util-linux"), "{why}");
        let why = keeps_groups(Command::new("/nonexistent/setpriv")).await.unwrap_err();
        assert!(why.contains("found no setpriv") && why.contains("install util-linux"), "{why}");
        assert_eq!(keeps_groups(helps(" --init-groups               initialize supplementary groups")).await, Ok(()));
    }

    /// A private key is often readable for a group only (Debian's ssl-cert), and other rights hang on groups too.
    #[tokio::test]
    async fn the_server_has_all_groups_of_its_user() {
        let (groups, passwd) =
            (std::fs::read_to_string("/etc/group").unwrap(), std::fs::read_to_string("/etc/passwd").unwrap());
        let is_user = |name: &str| passwd.lines().any(|line| line.starts_with(&format!("{name}:")));
        let mut members = groups.lines().filter_map(|line| line.rsplit_once(':')?.1.split(',').next());
        let Some(user) = members.find(|name| *name != "root" && is_user(name)) else {
            return holdfast_testkit::skipped("no user of this machine has a further group");
        };
        if !geteuid().is_root() {
            return holdfast_testkit::skipped("only root starts PostgreSQL as another user");
        }
        let own = User::new(&DatabaseConfig { user: user.into(), ..DatabaseConfig::default() });
        assert_eq!(own.keeps_groups().await, Ok(()));
        let mut command = own.shell().await.unwrap();
        command.args(["-c", "id -u; id -G"]);
        let asked = async |what: &str| {
            let mut id = Command::new("id");
            id.args([what, user]);
            run(id, Duration::from_secs(10)).await.unwrap()
        };
        let said = run(command, Duration::from_secs(10)).await.unwrap();
        let sorted =
            |text: &str| text.split_whitespace().map(str::to_string).collect::<std::collections::BTreeSet<_>>();
        let (uid, theirs) = said.split_once('\n').unwrap();
        assert_eq!((uid, sorted(theirs)), (asked("-u").await.as_str(), sorted(&asked("-G").await)));
        assert!(sorted(theirs).len() > 1, "{theirs}");
    }
}
