//! Builds the `holdfast` program from this tree, unless `--bin` names one.

use crate::say;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Profiles of Cargo.toml whose folders have their names.
const PROFILES: [&str; 4] = ["release", "quick", "trial", "fuzz"];

/// Cargo's variable with the compiler of our own crates. With clippy's, each build lints.
pub const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Cargo's arguments for all tests, and the programs that the gate runs after them: one build keeps both processors
/// busy to its end. Where a build lints, it sees all code.
pub const EVERYTHING: [&str; 9] =
    ["--workspace", "--tests", "--examples", "--bin", "holdfast", "--bin", SCENARIOS, "--bin", "holdfast-mutations"];

/// Set for programs of chores that run after a build of [`EVERYTHING`]: they build programs by the same arguments.
///
/// For others cargo would build nearly all dependencies again. With `lto = "off"` (`[profile.dev]`), a crate that only
/// build scripts and macros need is compiled in another way than one that a program needs as well, and so is all that
/// depends on it. Which crates a program needs depends on which programs are built.
const AFTER_EVERYTHING: &str = "HOLDFAST_AFTER_EVERYTHING";

/// The same for this process.
static EVERYTHING_IS_BUILT: AtomicBool = AtomicBool::new(false);

/// From now on programs are built by the arguments of [`EVERYTHING`], here and by the programs that get the variables
/// of [`after_everything`].
pub fn everything_is_built() {
    EVERYTHING_IS_BUILT.store(true, Ordering::Relaxed);
}

/// The variable for a program that this one starts.
pub fn after_everything() -> Option<(&'static str, &'static str)> {
    is_after_everything().then_some((AFTER_EVERYTHING, "1"))
}

fn is_after_everything() -> bool {
    EVERYTHING_IS_BUILT.load(Ordering::Relaxed) || std::env::var_os(AFTER_EVERYTHING).is_some()
}

/// The program of the scenarios, which runs the demo too, and its package.
const SCENARIOS: &str = "holdfast-scenarios";

/// Profile of the demo that a new user waits for.
pub const DEMO_PROFILE: &str = "trial";

/// What is built for the demo: `holdfast` without the feature `whole`, and the program that runs the demo. Both at
/// once, so that what both depend on is built once, and each processor has work until the end.
const DEMO: [&str; 5] = ["-p", "holdfast", "-p", SCENARIOS, "--no-default-features"];

/// Which `holdfast` to use, or how to build it.
#[derive(Clone, Debug, clap::Args)]
pub struct Build {
    /// Use this `holdfast` program and build none
    #[arg(long, env = "HOLDFAST_BIN", value_name = "PATH")]
    pub bin: Option<PathBuf>,
    /// Cargo profile to build with: dev (lightly optimised, with checks), quick (a release that builds sooner) or
    /// release
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
}

impl Build {
    /// Returns the path of `holdfast`. Builds it if no `--bin` is given, in the profile `usual` if no `--profile` is
    /// given. Fails when it does not build.
    pub fn binary(&self, usual: &str) -> Result<PathBuf> {
        if let Some(bin) = &self.bin {
            return bin.canonicalize().with_context(|| bin.display().to_string());
        }
        let profile = self.profile.as_deref().unwrap_or(usual);
        built(&[of("holdfast", profile), vec!["--bin", "holdfast"]].concat(), "holdfast", profile)
    }

    /// Like [`Build::binary`], for the demo: without the parts of `holdfast` that it does not run, unless a program or
    /// a profile is given. Fails when it does not build.
    pub fn demo_binary(&self) -> Result<PathBuf> {
        if !self.is_usual() {
            return self.binary(DEMO_PROFILE);
        }
        built(&[&DEMO[..], &["--bin", "holdfast"][..]].concat(), "holdfast", DEMO_PROFILE)
    }

    /// Whether neither a program nor a profile is given.
    pub fn is_usual(&self) -> bool {
        self.bin.is_none() && self.profile.is_none()
    }

    /// Builds another program of our workspace in the same profile and returns its path. It is built together with
    /// `holdfast`, so that common dependencies are built once. Fails when it does not build.
    pub fn program(&self, package: &str, name: &str, usual: &str) -> Result<PathBuf> {
        let profile = self.profile.as_deref().unwrap_or(usual);
        built(&[of(package, profile), vec!["--bin", name]].concat(), name, profile)
    }

    /// Cargo profile of the program that [`Build::binary`] returns, for the record of a run; see [`profile_of`].
    pub fn tested_profile(&self, usual: &str) -> String {
        match &self.bin {
            Some(bin) => profile_of(bin),
            None => self.profile.as_deref().unwrap_or(usual).to_owned(),
        }
    }

    /// Text about the build, to print beside measurements.
    pub fn describe(&self, usual: &str) -> String {
        let profile = self.profile.as_deref().unwrap_or(usual);
        self.bin.as_ref().map_or_else(|| profile.to_owned(), |_| "given program".into())
    }
}

/// Cargo profile that built this program, by the folder that cargo put it into; "" if it lies elsewhere.
pub fn profile_of(bin: &Path) -> String {
    let bin = bin.canonicalize().unwrap_or_else(|_| bin.to_owned());
    let folder = bin.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
    match folder {
        // Its profiles `dev` and `test` share this folder.
        "debug" => "dev".to_owned(),
        known if PROFILES.contains(&known) => known.to_owned(),
        _ => String::new(),
    }
}

/// Package arguments for cargo. In the tests' profile: the whole workspace. For a single package, cargo would choose
/// other features of the dependencies and build them all again. In the demos' profile: with the program that runs them,
/// for the same reason. In the other profiles: only what is needed.
fn of<'a>(package: &'a str, profile: &str) -> Vec<&'a str> {
    match profile {
        "dev" => vec!["--workspace"],
        DEMO_PROFILE => vec!["-p", "holdfast", "-p", SCENARIOS, "-p", package],
        _ => vec!["-p", "holdfast", "-p", package],
    }
}

/// Builds the program that runs the demo, and the `holdfast` that [`Build::demo_binary`] then finds built. Returns the
/// path of the former. Fails when they do not build.
pub fn demo_program() -> Result<PathBuf> {
    built(&[&DEMO[..], &["--bin", "holdfast", "--bin", SCENARIOS][..]].concat(), SCENARIOS, DEMO_PROFILE)
}

fn built(what: &[&str], name: &str, profile: &str) -> Result<PathBuf> {
    let by_everything = profile == "dev" && is_after_everything() && EVERYTHING.contains(&name);
    let what = if by_everything { &EVERYTHING } else { what };
    say::step(format!("Building {name} ({profile} profile)"));
    let begun = Instant::now();
    let mut child = cargo()
        .arg("build")
        .args(what)
        .args(["--message-format=json-render-diagnostics", "--profile", profile])
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut found = None;
    for line in std::io::BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(&line?) else { continue };
        found = program_of(&message, name).or(found);
    }
    anyhow::ensure!(child.wait()?.success(), "{name} does not build");
    say::note(format!("{:.0} s", begun.elapsed().as_secs_f64()));
    found.with_context(|| format!("cargo built no program called {name}"))
}

/// The path of the program of this name, if this message of cargo reports it. Unit tests of a program have its name.
fn program_of(message: &serde_json::Value, name: &str) -> Option<PathBuf> {
    let is_it = message["target"]["name"] == name && message["profile"]["test"] == false;
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

/// The cargo that runs us, without the variables that it set for this program. Some build scripts watch such variables,
/// `ring`'s for example. They would run again each time a user's build follows one of ours or the other way round, and
/// every dependent crate would be built again.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    unsaid(&mut command);
    command
}

/// Builds a program of chores and runs it in the current folder: `cargo run --bin NAME -- …`. Without `-p`: for a
/// single package, cargo would choose other features of the dependencies than for `xtask`, and build them all again.
pub fn run_program(name: &str) -> Command {
    let mut command = cargo();
    command.arg("run").arg("--manifest-path").arg(root().join("Cargo.toml")).args(["--bin", name, "--"]);
    command
}

/// Removes from `command` the variables that cargo set for this program.
pub fn unsaid(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_program(name)) {
        command.env_remove(name);
    }
    // Only this program reports to the one that started it.
    command.env_remove(say::REPORT);
}

/// Whether cargo sets this variable for the program that it runs, and users do not.
fn is_of_this_program(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// The repository's top folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// An empty folder below `target/`, locked until this process ends: a second run of the same chore must not empty it
/// meanwhile. Fails when cargo keeps what it builds there, when another process holds it, or when it cannot be emptied
/// or created.
pub fn fresh_dir(name: &str) -> Result<PathBuf> {
    fresh_dir_after(name, |_| Ok(()))
}

/// Like [`fresh_dir`]. `before` is called when the folder is locked and not yet emptied, so that the caller can save
/// files from it. Fails as [`fresh_dir`] and `before` do.
pub fn fresh_dir_after(name: &str, before: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let dir = root().join("target").join(name);
    // A profile of that name would be built there, and emptying the folder would delete the program just built.
    anyhow::ensure!(
        !dir.join(".cargo-lock").exists(),
        "{}: cargo keeps a profile's builds there; give the chore's folder or the profile another name",
        dir.display()
    );
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let lock = std::fs::File::create(dir.with_extension("lock"))?;
    lock.try_lock().with_context(|| {
        format!("{}: another run of this chore uses it; wait until it ends, or stop it", dir.display())
    })?;
    // Never unlocked: the kernel releases it when the process ends, in whichever way.
    std::mem::forget(lock);
    before(&dir)?;
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context(dir.display().to_string()),
        _ => {}
    }
    std::fs::create_dir_all(&dir)?;
    crate::ends::will_look(&dir);
    Ok(dir)
}

/// A folder with a short path outside of the tree, readable by all users: the system user postgres must reach its
/// files, and a socket's path may have at most 107 bytes. Dropping the guard removes it. Fails when it cannot be
/// created.
pub fn public_dir(name: &str) -> Result<(PathBuf, crate::undo::Guard)> {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
    let guard = crate::undo::Guard::new(crate::undo::Undo::RemoveDir(dir.clone()))?;
    std::fs::create_dir_all(&dir)?;
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
    Ok((dir, guard))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build of everything reports both. The gate once started the unit tests of `holdfast` as a gateway.
    #[test]
    fn a_program_is_not_its_unit_tests() {
        let said = |name: &str, test: bool, file: serde_json::Value| {
            let message = serde_json::json!({
                "target": { "name": name }, "profile": { "test": test }, "executable": file });
            program_of(&message, "holdfast")
        };
        let file = |path: &str| serde_json::Value::from(path);
        assert_eq!(said("holdfast", false, file("debug/holdfast")), Some("debug/holdfast".into()));
        assert_eq!(said("holdfast", true, file("debug/deps/holdfast-6784d4a2")), None);
        assert_eq!(said("holdfast-sim", false, file("debug/holdfast-sim")), None);
        assert_eq!(said("holdfast", false, serde_json::Value::Null), None, "a library");
    }

    #[test]
    fn a_folder_in_which_cargo_builds_is_not_emptied() {
        // Cargo's own mark of a profile's folder. `target/demo` was once both, and the demo deleted its program.
        let name = format!("fresh-dir-test-{}", std::process::id());
        let dir = root().join("target").join(&name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(".cargo-lock"), "").unwrap();
        let refused = fresh_dir(&name).unwrap_err().to_string();
        let kept = dir.join(".cargo-lock").exists();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(kept && refused.contains("cargo keeps a profile's builds there"), "{refused}");
    }

    #[test]
    fn the_profile_of_a_program_is_known_by_its_folder() {
        for (bin, profile) in [
            ("/nowhere/target/debug/holdfast", "dev"),
            ("/nowhere/target/release/holdfast", "release"),
            ("/nowhere/target/x86_64-unknown-linux-musl/release/holdfast", "release"),
            ("/nowhere/target/quick/holdfast", "quick"),
            ("/usr/nowhere/holdfast", ""),
            ("holdfast-nowhere", ""),
        ] {
            assert_eq!(profile_of(Path::new(bin)), profile, "{bin}");
            let given = Build { bin: Some(bin.into()), profile: Some("quick".into()) };
            assert_eq!(given.tested_profile("dev"), profile, "what was given, and not what would be built");
        }
        let built = |profile: Option<&str>| Build { bin: None, profile: profile.map(str::to_owned) };
        assert_eq!(built(None).tested_profile("dev"), "dev");
        assert_eq!(built(Some("release")).tested_profile("dev"), "release");
    }

    #[test]
    fn cargo_is_not_told_of_the_program_that_asks() {
        for name in ["CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_PROFILE_DEV_DEBUG", "CARGO_TARGET_DIR"] {
            assert!(!is_of_this_program(OsStr::new(name)), "{name} is a user's variable");
        }
        let command = cargo();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some(), "{name}: expected to be run by cargo");
            let gone = command.get_envs().any(|(found, value)| found == OsStr::new(name) && value.is_none());
            assert!(gone, "{name} is passed on");
        }
    }
}
