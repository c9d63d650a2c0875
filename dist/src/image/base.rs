//! The lower layer: what the program needs of a system, from Debian's packages of the machine that built it. Nothing of
//! them is run, and only the files that [`is_kept`] names go into the image.

use anyhow::{Context, Result, ensure};
use holdfast_chore::cmd::cmd;
use holdfast_chore::say::{note, step};
use std::path::{Path, PathBuf};

/// The C library, the certificates of authorities, and the name of the distribution.
const PACKAGES: [&str; 4] = ["base-files", "ca-certificates", "libc6", "libgcc-s1"];

/// Where the C library and rustls look for certificates.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Where scanners of images find what is installed, a file for each package.
const STATUS: &str = "var/lib/dpkg/status.d";

/// Downloads the packages, and writes what is kept of them to a folder below `work`. Returns the folder. Fails when apt
/// cannot get them, or they do not have what is expected.
pub fn lower_layer(work: &Path) -> Result<PathBuf> {
    step(format!("Debian packages for the image: {}", PACKAGES.join(", ")));
    let (debs, whole, to) = (work.join("debs"), work.join("base-whole"), work.join("base"));
    for folder in [&debs, &whole, &to] {
        std::fs::create_dir_all(folder)?;
    }
    let download = || cmd("apt-get").dir(&debs).args(["-q", "download"]).args(PACKAGES).run();
    if download().is_err() {
        // Lists of packages may be missing or old on this machine.
        cmd("apt-get").args(["-q", "update"]).run()?;
        download()?;
    }
    std::fs::create_dir_all(to.join(STATUS))?;
    for deb in sorted(&debs)? {
        cmd("dpkg-deb").arg("--extract").arg(&deb).arg(&whole).run()?;
        let about = cmd("dpkg-deb").arg("--field").arg(&deb).out()?;
        let field = |key: &str| about.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        note(format!("{} {}", field("Package: "), field("Version: ")));
        std::fs::write(to.join(STATUS).join(field("Package: ")), &about)?;
    }
    keep(&whole, &whole, &to)?;
    write_certificates(&whole, &to)?;
    let loader = to.join("lib64").exists() || to.join("lib").exists();
    ensure!(loader, "the packages have no lib and no lib64; expected the loader of programs there");
    Ok(to)
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

/// Copies what is kept. `top` is the folder that paths begin at.
fn keep(folder: &Path, top: &Path, to: &Path) -> Result<()> {
    for path in sorted(folder)? {
        let relative = path.strip_prefix(top)?;
        let meta = std::fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            keep(&path, top, to)?;
        } else if is_kept(&relative.display().to_string(), meta.is_symlink()) {
            let target = to.join(relative);
            std::fs::create_dir_all(target.parent().unwrap_or(to))?;
            if meta.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(&path)?, &target)?;
            } else {
                std::fs::copy(&path, &target).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

/// Whether a file of the packages goes into the image: shared libraries and the loader, without converters of
/// character sets and tools of auditing; licences; the name of the distribution.
fn is_kept(path: &str, is_link: bool) -> bool {
    // Newer releases of Debian have links from the top to /usr.
    if is_link && ["lib", "lib64"].contains(&path) {
        return true;
    }
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let in_libraries = ["lib/", "lib64/", "usr/lib/", "usr/lib64/"].iter().any(|begin| path.starts_with(begin));
    let aside = folder.ends_with("/gconv") || folder.ends_with("/audit");
    in_libraries && name.contains(".so") && !aside
        || path.starts_with("usr/share/doc/") && name == "copyright"
        || ["etc/debian_version", "etc/os-release", "usr/lib/os-release"].contains(&path)
}

/// One file of all certificates, which a script of the package would write.
fn write_certificates(whole: &Path, to: &Path) -> Result<()> {
    let mut text = String::new();
    for path in sorted(&whole.join("usr/share/ca-certificates/mozilla"))? {
        let one = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(one.contains("BEGIN CERTIFICATE"), "{}: expected a certificate", path.display());
        text.push_str(one.trim_end());
        text.push('\n');
    }
    let target = to.join(CERTIFICATES);
    std::fs::create_dir_all(target.parent().unwrap_or(to))?;
    std::fs::write(&target, text).with_context(|| target.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_kept_and_programs_are_not() {
        for path in [
            "lib/x86_64-linux-gnu/libc.so.6",
            "lib64/ld-linux-x86-64.so.2",
            "lib/ld-linux-aarch64.so.1",
            "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "usr/share/doc/libc6/copyright",
            "usr/lib/os-release",
        ] {
            assert!(is_kept(path, false), "{path}");
        }
        for path in [
            "usr/bin/ldd",
            "usr/sbin/update-ca-certificates",
            "usr/lib/x86_64-linux-gnu/gconv/UTF-16.so",
            "usr/lib/x86_64-linux-gnu/audit/sotruss-lib.so",
            "usr/share/doc/libc6/changelog.gz",
            "etc/profile",
            "lib",
        ] {
            assert!(!is_kept(path, false), "{path}");
        }
        assert!(is_kept("lib64", true), "a link to usr/lib64");
    }
}
