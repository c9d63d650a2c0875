//! Debian packages by apt, which only root can install.

use crate::cmd::{Cmd, cmd};
use crate::say;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// Whether we are root: only root can mount, make loop devices and become the user postgres.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// How long to wait for another apt: a machine that has just started often updates itself.
const APT_LIMIT: Duration = Duration::from_secs(300);

/// Pause between two attempts meanwhile.
const APT_PAUSE: Duration = Duration::from_secs(2);

fn apt() -> Cmd {
    let wait = format!("DPkg::Lock::Timeout={}", APT_LIMIT.as_secs());
    // The code below looks for apt's message about a lock.
    let apt = cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    apt.args(["-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", &wait])
}

pub(super) fn update() -> Result<()> {
    once_unlocked(APT_LIMIT, APT_PAUSE, || apt().arg("update").run().context("apt-get update"))
}

/// Repeats the command while another process holds the lock of apt's lists: apt has an option that waits for dpkg's
/// lock, and none for this one.
fn once_unlocked(limit: Duration, pause: Duration, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        match run() {
            Err(error) if format!("{error:#}").contains("Could not get lock") && begun.elapsed() < limit => {
                if !said {
                    say::note(format!("another apt is running; waiting at most {} s for it", limit.as_secs()));
                    said = true;
                }
                std::thread::sleep(pause);
            }
            result => return result,
        }
    }
}

pub(super) fn install(names: &[&str]) -> Result<()> {
    apt().args(["install", "--no-install-recommends", "--no-upgrade"]).args(names).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_apt_is_waited_for_and_nothing_else_is() {
        let run = |limit: u64, answers: &[&'static str]| {
            let mut left = answers.iter();
            let answer = || match left.next() {
                Some(why) => Err(anyhow::anyhow!("E: {why}").context("apt-get update")),
                None => Ok(()),
            };
            let limit = Duration::from_secs(limit);
            let (result, said) = say::held(|| once_unlocked(limit, Duration::ZERO, answer));
            (result.map_err(|error| format!("{error:#}")), said.len())
        };
        const LOCKED: &str = "Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)";
        assert_eq!(run(60, &[LOCKED, LOCKED]), (Ok(()), 1), "said once");
        assert_eq!(run(60, &["no space left"]), (Err("apt-get update: E: no space left".into()), 0));
        assert_eq!(run(0, &[LOCKED]), (Err(format!("apt-get update: E: {LOCKED}")), 0));
    }
}
