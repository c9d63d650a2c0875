//! The Debian package, by dpkg-deb.

use crate::inputs::Inputs;
use crate::layout::{Format, Kind, entries};
use crate::release::Release;
use crate::stage::{self, Staged};
use anyhow::{Context, Result, ensure};
use holdfast_chore::binary::root;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folder of its control files in the tree.
const CONTROL: &str = "deploy/package/deb";

/// Scripts that dpkg runs.
pub const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package. Fails when dpkg-deb is missing or refuses.
pub fn build(inputs: &Inputs, work: &Path, out: &Path) -> Result<PathBuf> {
    let release = &inputs.release;
    let folder = work.join("deb");
    let all = entries(Format::Deb, release, &inputs.program.produced, &inputs.notices)?;
    let staged = stage::write(release, &all, &inputs.program.stripped, &folder)?;
    let own = folder.join("DEBIAN");
    let digests = digests(release, &folder, &staged)?;
    let size = size_kib(&folder)?;
    std::fs::create_dir_all(&own)?;
    std::fs::write(own.join("md5sums"), digests)?;
    std::fs::write(own.join("conffiles"), conffiles(&staged))?;
    let template = std::fs::read_to_string(root().join(CONTROL).join("control"))?;
    std::fs::write(own.join("control"), control(&template, release, size, &inputs.program.depends)?)?;
    for script in SCRIPTS {
        let to = own.join(script);
        std::fs::copy(root().join(CONTROL).join(script), &to).with_context(|| script.to_owned())?;
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))?;
    }
    stage::settle(&folder, release.epoch)?;
    let to = out.join(format!("holdfast_{}_{}.deb", release.version, release.arch.debian));
    // One thread: the number of threads changes what xz writes.
    let options = ["--root-owner-group", "--threads-max=1", "-Zxz", "--build"];
    release.tool("dpkg-deb").args(options).arg(&folder).arg(&to).run()?;
    Ok(to)
}

/// The control file from its template.
fn control(template: &str, release: &Release, size_kib: u64, depends: &str) -> Result<String> {
    let text = template
        .replace("@VERSION@", &release.version)
        .replace("@ARCH@", release.arch.debian)
        .replace("@SIZE@", &size_kib.to_string())
        .replace("@DEPENDS@", depends);
    ensure!(!text.contains('@') || text.matches('@').count() == 1, "{CONTROL}/control: a word in @ is left: {text}");
    Ok(text)
}

/// Files that an administrator may change, one a line.
fn conffiles(staged: &[Staged]) -> String {
    staged.iter().filter(|one| one.kind == Kind::Config).map(|one| format!("/{}\n", one.path)).collect()
}

/// MD5 digests of all files, for `dpkg --verify`. MD5 is the format's own choice, and protects against accidents only.
fn digests(release: &Release, folder: &Path, staged: &[Staged]) -> Result<String> {
    let files = staged.iter().filter(|one| !one.folder).map(|one| &one.path);
    release.tool("md5sum").dir(folder).arg("--").args(files).out()
}

/// Size in KiB as Debian Policy 5.6.20 counts it: each file rounded up, 1 for anything else.
fn size_kib(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        sum += if meta.is_dir() { 1 + size_kib(&entry.path())? } else { meta.len().div_ceil(1024) };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Arch;

    #[test]
    fn the_control_file_is_filled_in() {
        let release =
            Release { version: "0.1.0".into(), epoch: 1_700_000_000, arch: Arch { debian: "amd64", rpm: "x86_64" } };
        let template = std::fs::read_to_string(root().join(CONTROL).join("control")).unwrap();
        let text = control(&template, &release, 42, "libc6 (>= 2.34)").unwrap();
        for line in ["Version: 0.1.0", "Architecture: amd64", "Installed-Size: 42"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("\nDepends: libc6 (>= 2.34), "), "{text}");
        assert!(control("A: @NEW@ @", &release, 42, "").is_err(), "a word that nobody fills in");
    }

    /// Runs a script of the package as if systemd ran, with these functions in place of programs. Returns whether it
    /// succeeded, its output and its errors.
    fn run(script: &str, functions: &str, args: &[&str]) -> (bool, String, String) {
        let text = std::fs::read_to_string(root().join(CONTROL).join(script)).unwrap();
        let text = text.replace("/run/systemd/system", "/").replace("systemd-sysusers", ":");
        let text = text.replace("-d /etc/systemd/system", "-d /");
        let mut command = std::process::Command::new("sh");
        let ended = command.arg("-c").arg(format!("{functions}\n{text}")).arg(script).args(args).output().unwrap();
        let said = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let [out, err] = said;
        (ended.status.success(), out, err)
    }

    /// A gateway that is between two starts, and a systemctl that does not answer.
    #[test]
    fn a_removal_needs_to_know_that_nothing_runs() {
        let waits =
            "case \"$*\" in *,activating,*) echo 'holdfast-gateway.service loaded activating auto-restart x';; esac";
        let removal = |systemctl: &str| run("prerm", &format!("systemctl() {{ {systemctl}; }}"), &["remove"]);
        let (none, waiting, unknown) = (removal("true"), removal(waits), removal("false"));
        assert!(none.0, "{}", none.2);
        assert!(!waiting.0 && waiting.2.contains("these units run: holdfast-gateway.service;"), "{}", waiting.2);
        assert!(!unknown.0 && unknown.2.contains("nothing is removed"), "{}", unknown.2);
        // rpm's script has the same lines.
        let text = std::fs::read_to_string(root().join(CONTROL).join("prerm")).unwrap();
        let spec = std::fs::read_to_string(root().join("deploy/package/rpm/holdfast.spec")).unwrap();
        let asks = |text: &str| Some(text.split_once("  units=")?.1.split_once("\nfi")?.0.to_owned());
        assert!(asks(&text).is_some());
        assert_eq!(asks(&spec), asks(&text));
    }

    /// A removal takes the empty folder away. The next installation is an upgrade for dpkg, and the folder would be
    /// open to all.
    #[test]
    fn a_new_folder_of_keys_is_closed_and_an_older_one_is_left_alone() {
        let said = |state: &str, args: &[&str]| {
            let functions =
                format!("stat() {{ echo {state}; }}; chown() {{ :; }}; chmod() {{ echo $1; }}; systemctl() {{ :; }}");
            run("postinst", &functions, args)
        };
        for (state, args, mode) in [
            ("root:root:755", &["configure", ""][..], "0750"),
            ("root:root:755", &["configure", "0.1.0"][..], "0750"),
            ("root:holdfast:700", &["configure", "0.1.0"][..], ""),
        ] {
            let (done, out, err) = said(state, args);
            assert!(done, "{state}: {err}");
            assert_eq!(out.trim(), mode, "{state} {args:?}");
        }
    }

    /// An administrator's own unit may have such a name, and stays enabled.
    #[test]
    fn a_purge_takes_links_away_that_lead_nowhere() {
        let folder = std::env::temp_dir().join(format!("holdfast-purge-{}", std::process::id()));
        let (wants, own) = (folder.join("multi-user.target.wants"), folder.join("holdfast-own.service"));
        std::fs::create_dir_all(&wants).unwrap();
        std::fs::write(&own, "").unwrap();
        for (name, to) in [("holdfast-own.service", own.as_path()), ("holdfast-gateway.service", Path::new("/nowhere"))]
        {
            std::os::unix::fs::symlink(to, wants.join(name)).unwrap();
        }
        let looks_there = format!("find() {{ shift; command find '{}' \"$@\"; }}", folder.display());
        let (done, _, err) = run("postrm", &format!("{looks_there}; systemctl() {{ :; }}"), &["purge"]);
        let left = std::fs::read_dir(&wants).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(done, "{err}");
        assert_eq!(left, ["holdfast-own.service"]);
    }

    /// A script that removes more than links of units could remove the only copy of acknowledged data.
    #[test]
    fn no_script_removes_files() {
        for script in SCRIPTS {
            let text = std::fs::read_to_string(root().join(CONTROL).join(script)).unwrap();
            let removes =
                |line: &&str| line.split([' ', ';', '|', '&']).any(|word| ["rm", "rmdir", "unlink"].contains(&word));
            assert_eq!(text.lines().find(removes), None, "{script}");
            let deletes: Vec<&str> = text.lines().filter(|line| line.contains("-delete")).collect();
            assert!(
                deletes.iter().all(|line| line.contains("-type l -path '*.wants/holdfast-")),
                "{script}: {deletes:?}"
            );
        }
    }
}
