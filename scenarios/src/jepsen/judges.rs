//! The judges' own tests: hand-made histories and logs, good ones and bad ones, each of which has to be judged as it is. They run before any of them is
//! believed, in this very tree: a checker that finds nothing any more makes every run valid.

use crate::binary::root;
use crate::cmd::{cmd, tail_of};
use crate::say::{note, step};
use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;

/// All that need no cluster, in one process.
const TESTS: &str = "jepsen.holdfast.all-test";

/// Runs them; what they say is in `dir`. `path` is the class path.
///
/// # Errors
/// When one of them fails, or cannot be run.
pub fn must_pass(path: &str, dir: &Path) -> Result<()> {
    step("The judges' own tests");
    let go = cmd("go").dir(root().join("jepsen/porcupine")).env("GOFLAGS", "-mod=readonly -buildvcs=false");
    go.args(["test", "./..."]).run().context("the tests of jepsen/porcupine")?;
    let log = dir.join("logs/judges.log");
    // Libraries write classes that they make while they are loaded; not into the tree.
    let classes = dir.join("classes");
    std::fs::create_dir_all(&classes)?;
    // The tests look for their files in jepsen/.
    let java = cmd("java").dir(root().join("jepsen")).args(["-Xmx1g", "-Djava.awt.headless=true"]);
    let java = java.arg(format!("-Dclojure.compile.path={}", classes.display()));
    let java = java.args(["-cp", &format!("src:test:{path}"), "clojure.main", "-m", TESTS]);
    let mut java = java.into_command();
    let said = File::options().create(true).append(true).open(&log)?;
    let status = java.stdout(said.try_clone()?).stderr(said).status().context("java does not start")?;
    anyhow::ensure!(
        status.success(),
        "the tests of jepsen/test: {status}: {} (see {})",
        tail_of(&log, 12),
        log.display()
    );
    note(tail_of(&log, 2));
    Ok(())
}
