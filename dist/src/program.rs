//! The program: built so that no path of the machine is in it, stripped, asked for its completions, pages and samples.

use crate::release::Release;
use anyhow::{Context, Result, ensure};
use holdfast_chore::binary::{cargo, root};
use holdfast_chore::cmd::{Cmd, cmd};
use holdfast_chore::say::{note, step};
use std::path::{Path, PathBuf};

/// The newest C library that the program may need: that of RHEL 9, older than that of Debian 12.
const GLIBC_MAX: (u32, u32) = (2, 34);

/// The program and what is found out about it.
#[derive(Clone, Debug)]
pub struct Program {
    /// Without debug information. Its symbols stay: the backtrace of an abort names functions (R11).
    pub stripped: PathBuf,
    /// The Debian packages of the libraries that it needs, as `Depends:` has them.
    pub depends: String,
    pub produced: Produced,
}

/// What the program prints about itself.
#[derive(Clone, Debug, Default)]
pub struct Produced {
    pub bash: String,
    pub zsh: String,
    pub fish: String,
    /// Manual pages: file name and text, sorted.
    pub pages: Vec<(String, String)>,
    /// Sample settings: file name and text.
    pub samples: Vec<(&'static str, String)>,
}

/// Builds the release profile in `folder`, below `target/`. Fails when it does not build.
pub fn build(release: &Release, folder: &str) -> Result<PathBuf> {
    step("Building holdfast (release profile, without paths of this machine)");
    let target = root().join("target").join(folder);
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?).join(".cargo"),
    };
    // The most specific one last: for rustc and for cc the last one that fits wins.
    let places = [(&*home, "/cargo"), (root(), "/holdfast"), (&*target, "/build")];
    let rust: Vec<String> =
        places.iter().map(|(of, to)| format!("--remap-path-prefix={}={to}", of.display())).collect();
    let c: Vec<String> = places.iter().map(|(of, to)| format!("-ffile-prefix-map={}={to}", of.display())).collect();
    Cmd::of(cargo())
        .args(["build", "--release", "--locked", "--package", "holdfast", "--bin", "holdfast", "--target-dir"])
        .arg(&target)
        // Unlike RUSTFLAGS, this may hold paths with blanks.
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"))
        .env("CFLAGS", c.join(" "))
        .env("CXXFLAGS", c.join(" "))
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .env("CARGO_INCREMENTAL", "0")
        .dir(root())
        .show()?;
    Ok(target.join("release/holdfast"))
}

impl Program {
    /// Strips a copy in `work`, and finds out what it needs and prints. Fails when a tool is missing, or the program
    /// needs a newer C library than the oldest supported system has.
    pub fn prepare(release: &Release, built: &Path, work: &Path) -> Result<Self> {
        step("Completions, manual pages and samples from the program itself");
        std::fs::create_dir_all(work)?;
        let stripped = work.join("holdfast");
        release.tool("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(built).run()?;
        let needed = newest_glibc(&cmd("objdump").arg("-T").arg(&stripped).out()?);
        let (major, minor) =
            needed.context("objdump shows no symbol of a C library; expected a program linked with glibc")?;
        note(format!("it needs glibc {major}.{minor}"));
        ensure!(
            (major, minor) <= GLIBC_MAX,
            "the program needs glibc {major}.{minor}, expected at most {}.{}: RHEL 9 would not start it (build on Debian 12)",
            GLIBC_MAX.0,
            GLIBC_MAX.1
        );
        Ok(Self { depends: depends(release, &stripped, work)?, produced: produced(built, work)?, stripped })
    }
}

/// Writes the debug information alone, for gdb.
pub fn debug_file(release: &Release, built: &Path, to: &Path) -> Result<()> {
    let options = ["--only-keep-debug", "--compress-debug-sections=zlib"];
    release.tool("objcopy").args(options).arg(built).arg(to).run()
}

/// Asks dpkg which packages have the libraries.
fn depends(release: &Release, program: &Path, work: &Path) -> Result<String> {
    let folder = work.join("shlibs");
    std::fs::create_dir_all(folder.join("debian"))?;
    // dpkg-shlibdeps reads no more of it than that the package exists.
    let control = "Source: holdfast\n\nPackage: holdfast\nArchitecture: any\n";
    std::fs::write(folder.join("debian/control"), control)?;
    let said = release.tool("dpkg-shlibdeps").dir(&folder).arg("-O").arg(program).out()?;
    let found = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(found.with_context(|| format!("dpkg-shlibdeps: found {said:?}, expected shlibs:Depends=..."))?.to_owned())
}

fn produced(program: &Path, work: &Path) -> Result<Produced> {
    // A width of the terminal must not change a page.
    let ask = |args: &[&str]| cmd(program).env("COLUMNS", "100").args(args).out();
    let folder = work.join("man");
    cmd(program).env("COLUMNS", "100").args(["man", "--dir"]).arg(&folder).run()?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        pages.push((name, std::fs::read_to_string(&path).with_context(|| path.display().to_string())?));
    }
    pages.sort();
    ensure!(
        pages.iter().any(|(name, _)| name == "holdfast.1"),
        "found {} manual pages, none is holdfast.1",
        pages.len()
    );
    Ok(Produced {
        bash: ask(&["completions", "bash"])?,
        zsh: ask(&["completions", "zsh"])?,
        fish: ask(&["completions", "fish"])?,
        pages,
        samples: vec![
            ("gateway.toml", ask(&["gateway", "config"])?),
            ("agent.toml", ask(&["agent", "config"])?),
            ("standby.toml", ask(&["standby", "config"])?),
        ],
    })
}

/// The newest version of glibc that a symbol in `objdump -T` asks for.
fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (major, minor) = rest[..end].split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_library_that_is_asked_for_is_found() {
        let symbols = "
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5) free
0000000000000000  w   DF *UND*  0000000000000000  Base        __gmon_start__
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.28) statx
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.3.4) __snprintf_chk
0000000000000000      DF *UND*  0000000000000000 (GCC_3.0)    _Unwind_Resume
";
        assert_eq!(newest_glibc(symbols), Some((2, 28)), "by number, not by letter");
        assert_eq!(newest_glibc("no dynamic symbol table"), None);
    }
}
