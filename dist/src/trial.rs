//! `cargo xtask packages`: packs twice and compares; then installs, uses, upgrades and purges the packages in a Debian
//! of their own, a folder made by mmdebstrap. Nothing outside of that folder changes.

mod tree;
mod volume;

use crate::image;
use crate::inputs::Inputs;
use crate::make::{What, all, gather, same};
use crate::release::Release;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use holdfast_chore::binary::{Build, fresh_dir};
use holdfast_chore::cmd::{Cmd, cmd, missing};
use holdfast_chore::ends;
use holdfast_chore::say::{Count, note, step};
use holdfast_chore::setup::{self, For, is_root};
use std::path::{Path, PathBuf};
use tree::Tree;
use volume::Running;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    build: Build,
}

/// Two versions, the second of which is newer for both package managers.
const VERSIONS: [&str; 2] = ["1.0.0~trial1", "1.0.0~trial2"];

/// What an administrator or a gateway has written, and no package may take away.
const KEPT: [&str; 4] = [
    "etc/holdfast/gateway.toml",
    "etc/holdfast/cluster.key",
    "var/lib/holdfast/journal-of-another-disk",
    "var/log/holdfast/audit.log",
];

/// Packages of the Debian, beside its base: ours depends on the first two; the others look at what it installs.
const INCLUDED: &str = "systemd,procps,ca-certificates,logrotate,man-db";

/// The folder of the Debian. It stays where a check has failed.
const DEBIAN: &str = "debian";

/// A step of the trial and its name.
type Step = (&'static str, fn(&mut Lab) -> Result<()>);

/// The steps in their order; each begins where the one before has ended.
const STEPS: [Step; 7] = [
    ("deb: installed", installed),
    ("deb: not removed, and nothing restarted, while a unit runs", while_a_unit_runs),
    ("deb: used as its user", used),
    ("deb: upgraded while it runs", upgraded),
    ("deb: removed and purged, data stays", purged),
    ("deb: installed again, data is read", again),
    ("rpm: installed, upgraded, erased, data stays", rpm),
];

/// What the steps share.
struct Lab {
    /// Before the tree, so that it ends before the tree's /proc goes.
    running: Option<Running>,
    tree: Tree,
    /// The folders of the two versions.
    outs: [PathBuf; 2],
    release: Release,
    /// Files that clients write and read.
    dir: PathBuf,
}

/// Runs the chore.
pub fn chore(args: &Args) -> Result<()> {
    setup::setup(For::Packages)?;
    let built = args.build.binary("dev")?;
    let dir = fresh_dir("packages")?;
    let mut count = Count::default();
    match packed(&built, &dir, &mut count)? {
        Some((outs, release)) if is_root() => in_a_debian(&dir, outs, release, &mut count),
        Some(_) => count.skip("packages: in a Debian of their own", "only root can make one"),
        None => note("nothing to install"),
    }
    count.check("packages: logs and exits", ends::fine(&ends::look_through(&dir)));
    let debian = dir.join(DEBIAN);
    if count.failed == 0 && debian.exists() {
        std::fs::remove_dir_all(&debian).with_context(|| debian.display().to_string())?;
    }
    count.close()
}

/// Packs the first version twice and the second one once. `None` when that failed; the failure is in the count.
fn packed(built: &Path, dir: &Path, count: &mut Count) -> Result<Option<([PathBuf; 2], Release)>> {
    let release = Release::of_tree(true)?.named(VERSIONS[0])?;
    let formats = What::value_variants();
    let (once, twice, next) = (dir.join("once"), dir.join("twice-in-another-place"), dir.join("next"));
    let pack = |inputs: &Inputs, formats: &[What], to: &Path| {
        all(inputs, formats, &to.join("work"), &to.join("out")).map(drop)
    };
    let inputs = gather(&release, built, &once, formats)?;
    let made = pack(&inputs, formats, &once).and_then(|()| {
        // Gathered anew as well: the program is stripped and asked again.
        pack(&gather(&release, built, &twice, formats)?, formats, &twice)
    });
    let equal = made.and_then(|()| same(&once.join("out"), &twice.join("out")));
    let fine = equal.is_ok();
    count.check("packages: packed twice, byte by byte the same", equal);
    if !fine {
        return Ok(None);
    }
    count.check("packages: image", image_runs(&once, &release));
    pack(&inputs.of(release.named(VERSIONS[1])?), &[What::Deb, What::Rpm], &next)?;
    Ok(Some(([once.join("out"), next.join("out")], release)))
}

/// Unpacks the image with a tool of others, and runs its program as its user, with nothing else around it.
fn image_runs(once: &Path, release: &Release) -> Result<()> {
    let layout = image::layout(&once.join("work"));
    image::check(&layout)?;
    if let Some(why) = missing(&["umoci"]) {
        note(format!("the image was not run: {why}"));
        return Ok(());
    }
    if !is_root() {
        note("the image was not run: only root can change into its folder");
        return Ok(());
    }
    let bundle = once.join("bundle");
    let of = format!("{}:{}", layout.display(), image::tag(&release.version));
    cmd("umoci").args(["unpack", "--image", &of]).arg(&bundle).run()?;
    let rootfs = bundle.join("rootfs");
    let special = cmd("find").arg(&rootfs).args(["-type", "f", "-perm", "/6000"]).out()?;
    ensure!(special.is_empty(), "found programs that change the user: {special}");
    let said =
        cmd("chroot").arg("--userspec=65532:65532").arg(&rootfs).args(["/usr/bin/holdfast", "--version"]).out()?;
    ensure!(said.starts_with("holdfast "), "the program of the image said {said:?}");
    Ok(())
}

/// Plays the steps until one fails.
fn in_a_debian(dir: &Path, outs: [PathBuf; 2], release: Release, count: &mut Count) {
    step("A Debian by mmdebstrap (a minute, mostly its downloads)");
    let tree = match Tree::make(&dir.join(DEBIAN), INCLUDED) {
        Ok(tree) => tree,
        Err(why) => return count.check("packages: a Debian of their own", Err(why)),
    };
    let mut lab = Lab { running: None, tree, outs, release, dir: dir.to_path_buf() };
    for (name, play) in STEPS {
        step(format!("packages: {name}"));
        let result = play(&mut lab);
        let failed = result.is_err();
        count.check(&format!("packages: {name}"), result);
        if failed {
            note("the steps after it were left out: each begins where the one before has ended");
            return;
        }
    }
}

impl Lab {
    /// Puts the package of a version into the tree, and returns its path there.
    fn deb(&self, version: usize) -> Result<String> {
        self.package(version, ".deb")
    }

    fn package(&self, version: usize, ending: &str) -> Result<String> {
        for entry in std::fs::read_dir(&self.outs[version])? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(ending) {
                let to = format!("srv/{name}");
                std::fs::copy(&path, self.tree.path(&to)).with_context(|| to.clone())?;
                return Ok(format!("/{to}"));
            }
        }
        bail!("{}: found no {ending}, expected one", self.outs[version].display())
    }

    fn install(&self, version: usize) -> Result<()> {
        self.tree.apt(&["install", &self.deb(version)?]).run()?;
        let found = self.tree.run(&["dpkg-query", "-W", "-f", "${Version} ${Status}", "holdfast"]).out()?;
        let expected = format!("{} install ok installed", VERSIONS[version]);
        ensure!(found == expected, "dpkg has {found:?}, expected {expected:?}");
        Ok(())
    }

    /// Every file that others wrote is there, with its content.
    fn kept(&self) -> Result<()> {
        for path in KEPT {
            let found = std::fs::read_to_string(self.tree.path(path)).with_context(|| path.to_owned())?;
            ensure!(found == path, "{path}: found {found:?}, expected {path:?}");
        }
        Ok(())
    }
}

/// What the packages install. The unit must find all programs that it names, and logrotate must take its file.
fn installed(lab: &mut Lab) -> Result<()> {
    lab.install(0)?;
    let quiet = |command: Cmd, what: &str| -> Result<()> {
        let said = command.out().with_context(|| what.to_owned())?;
        ensure!(said.trim().is_empty(), "{what}: {said}");
        Ok(())
    };
    quiet(lab.tree.run(&["dpkg", "--verify", "holdfast"]), "files that differ from the package")?;
    let verify = ["systemd-analyze", "--man=no", "--recursive-errors=no", "verify"];
    for unit in ["gateway", "agent", "attach@", "standby"] {
        let unit = format!("/usr/lib/systemd/system/holdfast-{unit}.service");
        quiet(lab.tree.run(&verify).arg(&unit), &unit)?;
    }
    for page in ["holdfast", "holdfast-gateway"] {
        lab.tree.run(&["man", "-w", page]).run()?;
    }
    lab.tree.run(&["bash", "-c", ". /usr/share/bash-completion/completions/holdfast; complete -p holdfast"]).run()?;
    let mode = lab.tree.run(&["stat", "-c", "%a %U %G", "/etc/holdfast"]).out()?;
    ensure!(mode.trim() == "750 root holdfast", "/etc/holdfast: found {mode:?}, expected 750 root holdfast");
    let sample = lab.tree.run(&["cat", "/usr/share/doc/holdfast/examples/gateway.toml"]).out()?;
    ensure!(
        sample == lab.tree.run(&["holdfast", "gateway", "sample-config"]).out()?,
        "the sample is another program's"
    );
    rotates(&lab.tree)
}

/// Logrotate turns over a log that a drop-in made, and leaves the audit log alone: a gateway renames that itself.
fn rotates(tree: &Tree) -> Result<()> {
    for folder in ["/var/lib/holdfast", "/var/log/holdfast"] {
        tree.run(&["install", "-d", "-o", "holdfast", "-g", "holdfast", "-m", "0700", folder]).run()?;
    }
    for path in KEPT {
        std::fs::write(tree.path(path), path).with_context(|| path.to_owned())?;
    }
    let log = tree.path("var/log/holdfast/gateway.log");
    std::fs::write(&log, "one line\n")?;
    tree.run(&["logrotate", "--force", "/etc/logrotate.d/holdfast"]).run()?;
    let turned = std::fs::read_to_string(tree.path("var/log/holdfast/gateway.log.1")).context("gateway.log.1")?;
    ensure!(turned == "one line\n" && std::fs::metadata(&log)?.len() == 0, "found {turned:?} in gateway.log.1");
    ensure!(!tree.path("var/log/holdfast/audit.log.1").exists(), "logrotate has renamed the audit log");
    Ok(())
}

/// systemd does not run in the tree. A script stands in for systemctl: it says that a gateway runs, and notes what it
/// is asked for.
fn while_a_unit_runs(lab: &mut Lab) -> Result<()> {
    let (booted, program, asked) = ("run/systemd/system", "srv/fake/systemctl", "srv/fake/asked");
    for folder in [booted, "srv/fake"] {
        std::fs::create_dir_all(lab.tree.path(folder))?;
    }
    let script = "#!/bin/sh\necho \"$1\" >> /srv/fake/asked\n\
                  [ \"$1\" != list-units ] || echo 'holdfast-gateway.service loaded active running Holdfast gateway'\n";
    std::fs::write(lab.tree.path(program), script)?;
    lab.tree.run(&["chmod", "0755", &format!("/{program}")]).run()?;
    let dpkg = |words: &[&str]| {
        let command = lab.tree.run(&["env", "PATH=/srv/fake:/usr/sbin:/usr/bin:/sbin:/bin", "dpkg"]);
        command.args(words).out()
    };
    let refused = dpkg(&["--remove", "holdfast"]);
    let again = dpkg(&["--install", &lab.deb(0)?]);
    let asked = std::fs::read_to_string(lab.tree.path(asked)).context("systemctl was not asked")?;
    std::fs::remove_dir(lab.tree.path(booted))?;
    let Err(why) = refused else { bail!("the package was removed while a gateway ran") };
    let why = format!("{why:#}");
    ensure!(why.contains("these units run: holdfast-gateway.service"), "dpkg refused with another reason: {why}");
    let said = again?;
    ensure!(said.contains("holdfast-gateway.service still runs"), "the installation does not say so: {said}");
    let other = asked.lines().find(|word| !["list-units", "daemon-reload"].contains(word));
    ensure!(other.is_none(), "a script of the package has asked systemctl for {other:?}");
    Ok(())
}

fn used(lab: &mut Lab) -> Result<()> {
    let running = Running::start(&lab.tree, &lab.dir)?;
    running.write(&lab.dir)?;
    running.read(&lab.dir)?;
    lab.running = Some(running);
    Ok(())
}

/// Neither a program that runs nor what an administrator has changed is touched by an upgrade.
fn upgraded(lab: &mut Lab) -> Result<()> {
    let changed = "etc/logrotate.d/holdfast";
    std::fs::write(lab.tree.path(changed), "# mine\n")?;
    lab.tree.run(&["chmod", "0700", "/etc/holdfast"]).run()?;
    lab.install(1)?;
    let running = lab.running.as_mut().context("nothing runs")?;
    running.must_run().context("the upgrade ended the program")?;
    running.read(&lab.dir)?;
    running.stop()?;
    let mode = lab.tree.run(&["stat", "-c", "%a", "/etc/holdfast"]).out()?;
    ensure!(mode.trim() == "700", "/etc/holdfast: found the mode {mode:?}, expected 700, as it was before the upgrade");
    let text = std::fs::read_to_string(lab.tree.path(changed))?;
    ensure!(text == "# mine\n", "/{changed}: found {text:?}, expected what was there before the upgrade");
    lab.kept()?;
    reads(lab)
}

/// A program of the installed version reads what the one before has written.
fn reads(lab: &mut Lab) -> Result<()> {
    let mut running = Running::start(&lab.tree, &lab.dir)?;
    running.read(&lab.dir)?;
    running.stop()
}

fn purged(lab: &mut Lab) -> Result<()> {
    // What `systemctl enable` makes; a purge takes the link away, which would lead nowhere.
    let link = lab.tree.path("etc/systemd/system/multi-user.target.wants/holdfast-gateway.service");
    std::fs::create_dir_all(link.parent().context("no folder")?)?;
    std::os::unix::fs::symlink("/usr/lib/systemd/system/holdfast-gateway.service", &link)?;
    lab.tree.apt(&["remove", "holdfast"]).run()?;
    lab.kept()?;
    let said = lab.tree.apt(&["purge", "holdfast"]).out()?;
    ensure!(said.contains("/var/lib/holdfast stays"), "the purge does not say what stays: {said}");
    lab.kept()?;
    ensure!(std::fs::symlink_metadata(&link).is_err(), "the link of `systemctl enable` is still there");
    for gone in ["usr/bin/holdfast", "etc/logrotate.d/holdfast", "usr/lib/systemd/system/holdfast-gateway.service"] {
        ensure!(!lab.tree.path(gone).exists(), "/{gone} is still there");
    }
    lab.tree.run(&["id", "holdfast"]).run().context("the owner of the data is gone")
}

fn again(lab: &mut Lab) -> Result<()> {
    lab.install(1)?;
    reads(lab)?;
    lab.tree.apt(&["purge", "holdfast"]).run()?;
    lab.kept()
}

/// rpm of Debian, in the same tree: it runs the scripts there. Dependencies are names of another distribution.
fn rpm(lab: &mut Lab) -> Result<()> {
    let rpm = |args: &[&str]| cmd("rpm").arg("--root").arg(lab.tree.path("")).arg("--nodeps").args(args);
    for (version, name) in VERSIONS.iter().enumerate() {
        let package = lab.package(version, ".rpm")?;
        let package = lab.tree.path(&package[1..]).display().to_string();
        rpm(&["--upgrade", &package]).run()?;
        let found = cmd("rpm").arg("--root").arg(lab.tree.path("")).args(["-q", "holdfast"]).out()?;
        let expected = format!("holdfast-{name}-1.{}", lab.release.arch.rpm);
        ensure!(found.trim() == expected, "rpm has {found:?}, expected {expected:?}");
        lab.kept()?;
    }
    reads(lab)?;
    cmd("rpm").arg("--root").arg(lab.tree.path("")).args(["--nodeps", "--erase", "holdfast"]).run()?;
    ensure!(!lab.tree.path("usr/bin/holdfast").exists(), "/usr/bin/holdfast is still there");
    lab.kept()
}
