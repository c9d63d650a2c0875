//! A program of the Python Package Index, in a virtual environment of its own, which is on nobody's PATH. Removing the
//! folder removes it.

use super::apt::{self, is_root};
use crate::cmd::{cmd, on_path};
use crate::say;
use anyhow::Result;
use std::path::Path;

/// Where the environment lies.
const DIR: &str = "/usr/local/lib/holdfast-check-patroni-2.2.0";

/// The program: checks of Patroni clusters for Nagios and Icinga.
pub const CHECK_PATRONI: &str = "/usr/local/lib/holdfast-check-patroni-2.2.0/bin/check_patroni";

/// Its package. What it depends on is as the index has it that day.
const PACKAGE: &str = "check_patroni==2.2.0";

/// Seconds for an answer of the index: without a network the setup must go on.
const ANSWER_S: &str = "10";

/// Installs it where it is missing. Without it its scenario is skipped and does not fail: not every network reaches the
/// index.
pub(super) fn check_patroni() {
    if Path::new(CHECK_PATRONI).is_file() {
        return;
    }
    say::step(format!("pip install {PACKAGE} in {DIR}"));
    match environment().and_then(|()| install()) {
        Ok(()) => say::note(format!("installed as {CHECK_PATRONI}")),
        Err(why) => {
            let _ = std::fs::remove_dir_all(DIR);
            say::note(format!("not installed, so the scenario patroni will be skipped: {why:#}"));
        }
    }
}

fn environment() -> Result<()> {
    // What an interrupted setup left is cleared.
    let make = || cmd("python3").args(["-m", "venv", "--clear", DIR]).run();
    make().or_else(|why| {
        anyhow::ensure!(on_path("apt-get") && is_root(), "{why:#}");
        // Debian has the module in a package of its own.
        apt::update()?;
        apt::install(&["python3-venv"])?;
        make()
    })
}

fn install() -> Result<()> {
    let pip = cmd(Path::new(DIR).join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]);
    // No package runs a build of its own.
    let pip = pip.args(["--no-input", "--only-binary", ":all:", "--retries", "1", "--timeout", ANSWER_S]);
    pip.arg(PACKAGE).run()
}
