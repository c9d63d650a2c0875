//! Which version is packed, and the one time that all files of it have.

use anyhow::{Context, Result, ensure};
use holdfast_chore::binary::root;
use holdfast_chore::cmd::{Cmd, cmd};

/// The workspace's version in Cargo.toml: all crates have the same.
const DECLARED: &str = env!("CARGO_PKG_VERSION");

/// What is packed.
#[derive(Clone, Debug)]
pub struct Release {
    /// The version as both package managers order it. `~` sorts before the end: `0.2.0~git…` is older than `0.2.0`.
    pub version: String,
    /// The time of every file, in seconds since 1970: that of the commit, or `SOURCE_DATE_EPOCH`.
    pub epoch: u64,
    /// The processor.
    pub arch: Arch,
}

/// The names of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// For Debian, OCI and file names.
    pub debian: &'static str,
    /// For rpm, and for cargo's target.
    pub rpm: &'static str,
}

/// The processors that are packed for. No cross-building: the packed program is run for its completions.
const ARCHS: [Arch; 2] = [Arch { debian: "amd64", rpm: "x86_64" }, Arch { debian: "arm64", rpm: "aarch64" }];

impl Arch {
    /// That of this machine. Fails when there are no packages for it.
    pub fn here() -> Result<Self> {
        let here = std::env::consts::ARCH;
        let found = ARCHS.into_iter().find(|arch| arch.rpm == here);
        found.with_context(|| format!("found the processor {here}, expected x86_64 or aarch64"))
    }
}

impl Release {
    /// The release of the tree's commit: the declared version at its tag `vVERSION`, otherwise with the commit's time
    /// and name behind it. Fails when git says nothing, or files differ from the commit and `dirty` is false: what is
    /// packed could not be built again from the commit.
    pub fn of_tree(dirty: bool) -> Result<Self> {
        let git = |args: &[&str]| cmd("git").dir(root()).env("TZ", "UTC").args(args).out();
        let changed = git(&["status", "--porcelain"])?;
        let changed: Vec<&str> = changed.lines().collect();
        ensure!(
            dirty || changed.is_empty(),
            "found {} files that differ from the commit (the first: {}), expected none; commit them, or use --dirty",
            changed.len(),
            changed[0].trim()
        );
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        let stamp = git(&["log", "-1", "--abbrev=12", "--format=%cd.%h", "--date=format-local:%Y%m%d%H%M%S"])?;
        let mark = if changed.is_empty() { "" } else { ".dirty" };
        let version = format!("{}{mark}", version(DECLARED, &tags, stamp.trim()));
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => git(&["log", "-1", "--format=%ct"])?,
        };
        let epoch = epoch.trim();
        let epoch =
            epoch.parse::<u64>().with_context(|| format!("SOURCE_DATE_EPOCH: found {epoch:?}, expected seconds"))?;
        Ok(Self { version, epoch, arch: Arch::here()? })
    }

    /// The same with another version. Fails when it is none that both package managers take.
    pub fn named(&self, version: &str) -> Result<Self> {
        let fine = |c: char| c.is_ascii_alphanumeric() || ".~+".contains(c);
        ensure!(
            version.starts_with(|c: char| c.is_ascii_digit()) && version.chars().all(fine),
            "found the version {version:?}; expected a digit first, then digits, letters, '.', '~', '+', as dpkg and rpm \
             take them"
        );
        Ok(Self { version: version.to_owned(), ..self.clone() })
    }

    /// A command whose output depends on nothing but its input: one time, one language, one time zone.
    pub fn tool(&self, program: &str) -> Cmd {
        cmd(program).env("SOURCE_DATE_EPOCH", self.epoch.to_string()).env("LC_ALL", "C").env("TZ", "UTC")
    }

    /// The time of the release as `date` formats it. Fails when there is no `date`.
    pub fn date(&self, format: &str) -> Result<String> {
        let said = self.tool("date").args(["-u", "-d", &format!("@{}", self.epoch), &format!("+{format}")]).out()?;
        Ok(said.trim().to_owned())
    }

    /// The time as JSON has it: `2026-11-29T20:00:00Z`.
    pub fn date_json(&self) -> Result<String> {
        self.date("%Y-%m-%dT%H:%M:%SZ")
    }

    /// Debian's own changelog: what changed for users is in the other one.
    pub fn history(&self) -> Result<String> {
        let (version, date) = (&self.version, self.date("%a, %d %b %Y %H:%M:%S +0000")?);
        Ok(format!(
            "holdfast ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n \
             -- Holdfast maintainers <maintainers@holdfast.invalid>  {date}\n"
        ))
    }

    /// A file name: `holdfast-VERSION-linux-ARCH` and an ending.
    pub fn file(&self, ending: &str) -> String {
        format!("holdfast-{}-linux-{}{ending}", self.version, self.arch.debian)
    }
}

/// The version from the declared one, the tags of the commit, and its stamp.
fn version(declared: &str, tags: &str, stamp: &str) -> String {
    if tags.lines().any(|tag| tag.strip_prefix('v') == Some(declared)) {
        return declared.to_owned();
    }
    format!("{declared}~git{stamp}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_commit_with_the_tag_has_the_plain_version() {
        assert_eq!(version("0.2.0", "v0.1.0\nv0.2.0\n", "20261129200000.0123456789ab"), "0.2.0");
        let before = version("0.2.0", "v0.1.0\n", "20261129200000.0123456789ab");
        assert_eq!(before, "0.2.0~git20261129200000.0123456789ab");
    }

    #[test]
    fn the_history_has_the_time_of_the_release() {
        let release = Release { version: "1".into(), epoch: 1_700_000_000, arch: ARCHS[0] };
        let history = release.history().expect("a date");
        assert!(
            history.ends_with(
                "\n\n -- Holdfast maintainers <maintainers@holdfast.invalid>  \
                                   Tue, 14 Nov 2023 22:13:20 +0000\n"
            ),
            "{history}"
        );
    }

    #[test]
    fn a_version_that_a_package_manager_would_refuse_is_refused_here() {
        let release = Release { version: "1".into(), epoch: 0, arch: ARCHS[0] };
        assert_eq!(release.named("0.1.0~git1.ab+b").expect("fine").version, "0.1.0~git1.ab+b");
        for wrong in ["", "v1", "1-2", "1 2", "1/2"] {
            let error = release.named(wrong).expect_err(wrong).to_string();
            assert!(error.contains("as dpkg and rpm take them"), "{error}");
        }
    }
}
