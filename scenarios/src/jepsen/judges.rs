//! Tests of the judges: hand-made good and bad histories and logs that they must judge correctly. They run before the
//! judges are used, because a broken checker would make every run valid.

use crate::binary::root;
use crate::cmd::{cmd, tail_of};
use crate::say::{note, step};
use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;

/// All test namespaces that need no cluster, in one process.
const TESTS: &str = "jepsen.holdfast.all-test";

/// Runs the tests; their output is in `dir`. `path` is the class path. Fails when a test fails or cannot run.
pub fn must_pass(path: &str, dir: &Path) -> Result<()> {
    step("Tests of the judges");
    let go = cmd("go").dir(root().join("jepsen/porcupine")).env("GOFLAGS", "-mod=readonly -buildvcs=false");
    go.args(["test", "./..."]).run().context("the tests of jepsen/porcupine")?;
    let log = dir.join("logs/judges.log");
    // Libraries write generated classes when they are loaded; keep those out of the tree.
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
