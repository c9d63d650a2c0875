//! A Go tool chain: the S3 server of the tests and the judge of histories are built with it. The one on the PATH, else
//! one that the distribution has beside its default, else the one that Go's own module proxy hands out, in a folder of
//! its own and on nobody's PATH.

use super::apt::{self, is_root};
use crate::cmd::{cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Go 1.21 is the first that fetches a newer one by itself where a module asks for that, as versitygw does.
const GO_MINOR_MIN: u32 = 21;

/// For people.
pub const LEAST: &str = "1.21";

/// What is fetched where there is no other.
const VERSION: &str = "1.25.4";

/// The proxy's archive of it for each kind of processor, with its SHA-256: as Rust names the processor, as Go does, the
/// digest.
const ARCHIVES: [(&str, &str, &str); 2] = [
    ("x86_64", "amd64", "f4fa35e13952bae9836a82d8cf077710cd58fee98d31680f94edf435852b1af2"),
    ("aarch64", "arm64", "2f51856a090fbee308b1e38e19eb46f59827b1518c61afb4cc46cc4f649b1799"),
];

/// Where it is asked for, unless `GOPROXY` names another proxy.
const PROXY: &str = "https://proxy.golang.org";

/// Where what was fetched lies. Removing the folder removes it.
const FETCHED: &str = "/usr/local/lib/holdfast-go-1.25.4";

/// A Go that will do, if one is there.
pub fn find() -> Option<PathBuf> {
    if on_path_minor().is_ok() {
        return Some("go".into());
    }
    let of_apt = std::fs::read_dir("/usr/lib").ok().and_then(|entries| {
        let names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        newest(&names.join("\n"), "go-1.", "").map(apt_path)
    });
    of_apt.into_iter().chain([fetched()]).find(|go| go.is_file())
}

/// Like `find`, installed where it is missing.
pub fn find_or_install() -> Result<PathBuf> {
    if let Some(go) = find() {
        return Ok(go);
    }
    let found = on_path_minor().err().unwrap_or_default();
    let lacks = format!("found {found}, expected Go {LEAST} or later");
    anyhow::ensure!(on_path("apt-get") && is_root(), "{lacks}");
    apt::update().with_context(|| lacks.clone())?;
    let names = cmd("apt-cache").args(["pkgnames", "golang-1."]).out().with_context(|| lacks.clone())?;
    if let Some(minor) = newest(&names, "golang-1.", "-go") {
        let package = format!("golang-1.{minor}-go");
        say::step(format!("apt-get install {package} ({lacks})"));
        apt::install(&[package.as_str()])?;
        return Ok(apt_path(minor));
    }
    say::step(format!("Go {VERSION} from Go's module proxy ({lacks}, and apt has none)"));
    fetch().with_context(|| format!("{lacks}; apt has none, and Go's module proxy gave none"))
}

/// The minor number of the Go on the PATH, if it will do; else what there is.
fn on_path_minor() -> Result<u32, String> {
    let said = cmd("go").arg("version").out().map_err(|_| "no Go".to_owned())?;
    go_minor(&said).filter(|minor| *minor >= GO_MINOR_MIN).ok_or_else(|| said.trim().to_owned())
}

fn apt_path(minor: u32) -> PathBuf {
    format!("/usr/lib/go-1.{minor}/bin/go").into()
}

fn fetched() -> PathBuf {
    Path::new(FETCHED).join("bin/go")
}

/// Fetches it, checks it, and puts it in its place in one step, so that half of one is never found.
fn fetch() -> Result<PathBuf> {
    let here = std::env::consts::ARCH;
    let (_, arch, digest) = ARCHIVES
        .into_iter()
        .find(|(of, ..)| *of == here)
        .with_context(|| format!("found a processor of kind {here}, expected x86_64 or aarch64"))?;
    let missing: Vec<&str> = ["curl", "unzip"].into_iter().filter(|program| !on_path(program)).collect();
    if !missing.is_empty() {
        apt::install(&[&missing[..], &["ca-certificates"]].concat())?;
    }
    let module = format!("golang.org/toolchain@v0.0.1-go{VERSION}.linux-{arch}");
    let url = format!("{}/{}.zip", proxy(std::env::var("GOPROXY").ok()), module.replace('@', "/@v/"));
    // Beside where it goes, so that it can be renamed.
    let dir = PathBuf::from(format!("{FETCHED}.{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let placed = place(&dir, &module, &url, digest);
    let _ = std::fs::remove_dir_all(&dir);
    placed
}

fn place(dir: &Path, module: &str, url: &str, digest: &str) -> Result<PathBuf> {
    let zip = dir.join("go.zip");
    cmd("curl").args(["-fsSL", "--retry", "3", "--max-time", "600", "-o"]).arg(&zip).arg(url).run()?;
    let said = cmd("sha256sum").arg(&zip).out()?;
    let found = said.split_whitespace().next().unwrap_or_default();
    anyhow::ensure!(found == digest, "{url}: found SHA-256 {found}, expected {digest}");
    cmd("unzip").arg("-q").arg(&zip).arg("-d").arg(dir).run()?;
    let unpacked = dir.join(module);
    // The archive of a module has no bits that make a file a program.
    cmd("chmod").args(["-R", "+x"]).arg(unpacked.join("bin")).arg(unpacked.join("pkg/tool")).run()?;
    std::fs::rename(&unpacked, FETCHED).with_context(|| format!("to {FETCHED}"))?;
    let go = fetched();
    say::note(format!("{} in {FETCHED}", cmd(&go).arg("version").out()?.trim()));
    Ok(go)
}

/// The first proxy that `GOPROXY` names, if that is one to be asked by HTTP.
fn proxy(set: Option<String>) -> String {
    let first = set.as_deref().unwrap_or_default().split([',', '|']).next().unwrap_or_default().trim();
    let usable = first.starts_with("https://") || first.starts_with("http://");
    if usable { first.trim_end_matches('/').to_owned() } else { PROXY.to_owned() }
}

/// The minor number in what `go version` says; nothing of a Go of before or after 1.
fn go_minor(said: &str) -> Option<u32> {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Of names, a line each, the newest Go that is new enough: its minor number.
fn newest(names: &str, before: &str, after: &str) -> Option<u32> {
    let minor = |name: &str| name.trim().strip_prefix(before)?.strip_suffix(after)?.parse::<u32>().ok();
    names.lines().filter_map(minor).filter(|minor| *minor >= GO_MINOR_MIN).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_go_is_told_from_one_that_will_do() {
        for (said, minor) in [
            ("go version go1.19.8 linux/amd64\n", Some(19)),
            ("go version go1.26.8 linux/amd64", Some(26)),
            ("go version go1.25rc1 linux/amd64", Some(25)),
            ("go version devel +1234 linux/amd64", None),
            ("", None),
        ] {
            assert_eq!(go_minor(said), minor, "{said:?}");
        }
        assert!(go_minor("go version go1.20.14 linux/amd64") < Some(GO_MINOR_MIN) && None < Some(GO_MINOR_MIN));
    }

    #[test]
    fn the_newest_go_of_the_distribution_that_will_do() {
        assert_eq!(newest("golang-1.19\ngolang-1.19-go\ngolang-1.19-src\n", "golang-1.", "-go"), None, "Debian 12");
        let many = "golang-1.24-doc\ngolang-1.9-go\ngolang-1.24-go\ngolang-1.23-go\ngolang-1.24-go-foo\n";
        assert_eq!(newest(many, "golang-1.", "-go"), Some(24));
    }

    #[test]
    fn of_several_proxies_the_first_and_none_that_is_no_address() {
        assert_eq!(proxy(None), PROXY);
        for off in ["", "off", "direct", "file:///srv/go,https://b"] {
            assert_eq!(proxy(Some(off.into())), PROXY, "{off:?}");
        }
        assert_eq!(proxy(Some("https://a/go/,direct".into())), "https://a/go");
        assert_eq!(proxy(Some("http://a|https://b".into())), "http://a");
    }

    #[test]
    fn what_is_fetched_is_new_enough_and_lies_where_it_is_looked_for() {
        assert!(go_minor(&format!("go version go{VERSION} linux/amd64")) >= Some(GO_MINOR_MIN));
        assert!(FETCHED.ends_with(&format!("-{VERSION}")) && LEAST == format!("1.{GO_MINOR_MIN}"));
        assert!(ARCHIVES.iter().all(|(_, _, digest)| digest.len() == 64));
    }
}
