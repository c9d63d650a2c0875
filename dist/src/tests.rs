//! Packing without a program: a script stands in for it. That two runs are equal, and what is in the packages.

use crate::inputs::Inputs;
use crate::layout::{DOCS, Entry, Format, Source, entries};
use crate::make::{What, all, same};
use crate::program::{Produced, Program};
use crate::release::{Arch, Release};
use crate::{image, stage};
use holdfast_chore::binary::root;
use holdfast_chore::cmd::cmd;
use holdfast_chore::say::held;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// 2023-11-14T22:13:20Z: before any clock that runs this.
const EPOCH: u64 = 1_700_000_000;

/// Formats whose tools every Debian has; `cargo xtask packages` packs all of them twice.
const FORMATS: [What; 3] = [What::Deb, What::Tar, What::Image];

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("holdfast-dist-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn release() -> Release {
    Release { version: "0.1.0".into(), epoch: EPOCH, arch: Arch { debian: "amd64", rpm: "x86_64" } }
}

/// Inputs whose files have the modes of this umask.
fn inputs(folder: &Path, mode: u32) -> Inputs {
    let (stripped, base) = (folder.join("holdfast"), folder.join("lower"));
    std::fs::create_dir_all(base.join("etc")).unwrap();
    std::fs::write(base.join("etc/debian_version"), "12\n").unwrap();
    std::fs::set_permissions(base.join("etc/debian_version"), std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::write(&stripped, "#!/bin/sh\necho holdfast\n").unwrap();
    std::fs::set_permissions(&stripped, std::fs::Permissions::from_mode(mode | 0o100)).unwrap();
    let text = |text: &str| text.to_owned();
    let produced = Produced {
        bash: text("complete -F _holdfast holdfast\n"),
        zsh: text("#compdef holdfast\n"),
        fish: text("complete -c holdfast\n"),
        pages: vec![(text("holdfast.1"), text(".TH holdfast 1\n"))],
        samples: vec![("gateway.toml", text("# name = \"g1\"\n"))],
    };
    let program = Program { stripped, depends: text("libc6 (>= 2.34)"), produced };
    Inputs { release: release(), program, sbom: text("{}\n"), notices: text("none\n"), base: Some(base) }
}

fn packed(folder: &Path, mode: u32) -> PathBuf {
    let out = folder.join("out");
    let inputs = inputs(folder, mode);
    let (made, _) = held(|| all(&inputs, &FORMATS, &folder.join("work"), &out));
    made.unwrap();
    out
}

/// Found differences once: the umask in the modes of folders, and the clock in the times of generated files.
#[test]
fn packing_twice_gives_the_same_bytes() {
    let (one, two) = (Folder::new("one"), Folder::new("two-with-a-longer-name"));
    let (first, second) = (packed(&one.0, 0o600), packed(&two.0, 0o644));
    same(&first, &second).unwrap();
    let files: Vec<_> = std::fs::read_dir(&first).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), FORMATS.len() + 2, "packages, SBOM, checksums: {files:?}");
    cmd("sha256sum").args(["--check", "--strict", "--quiet", "SHA256SUMS"]).dir(&first).run().unwrap();
    // The comparison must be able to fail.
    std::fs::write(second.join("holdfast_0.1.0_amd64.deb"), "other").unwrap();
    let error = same(&first, &second).unwrap_err().to_string();
    assert!(error.contains("these differ: holdfast_0.1.0_amd64.deb ("), "{error}");
}

#[test]
fn every_file_has_the_time_of_the_commit_and_a_fixed_mode() {
    let folder = Folder::new("staged");
    let inputs = inputs(&folder.0, 0o600);
    let all = entries(Format::Rpm, &inputs.release, &inputs.program.produced, &inputs.notices).unwrap();
    let to = folder.0.join("root");
    let staged = stage::write(&inputs.release, &all, &inputs.program.stripped, &to).unwrap();
    assert!(staged.iter().any(|one| one.path == "usr/share/man/man1/holdfast.1.gz"), "{staged:?}");
    for one in &staged {
        let meta = std::fs::metadata(to.join(&one.path)).unwrap_or_else(|error| panic!("{}: {error}", one.path));
        assert_eq!(meta.modified().unwrap(), UNIX_EPOCH + Duration::from_secs(EPOCH), "{}", one.path);
        let script = ["not-two-primaries", "/pgbackrest-if-primary", "/pgbackrest-on-role-change"];
        let script = script.iter().any(|name| one.path.ends_with(name));
        let runs = one.folder || one.path == "usr/bin/holdfast" || script;
        assert_eq!(meta.permissions().mode() & 0o7777, if runs { 0o755 } else { 0o644 }, "{}", one.path);
    }
}

#[test]
fn each_path_is_there_once_and_each_source_exists() {
    for format in [Format::Deb, Format::Rpm, Format::Tar] {
        let all: Vec<Entry> = entries(format, &release(), &Produced::default(), "").unwrap();
        let paths: BTreeSet<&str> = all.iter().map(|entry| entry.to.as_str()).collect();
        assert_eq!(paths.len(), all.len(), "{format:?}: a path twice");
        for entry in &all {
            if let Source::Tree(path) = &entry.source {
                assert!(root().join(path).is_file(), "{format:?}: {path} does not exist");
            }
        }
        // A new unit in deploy/systemd is packed, or is an example.
        for unit in std::fs::read_dir(root().join("deploy/systemd")).unwrap() {
            let name = unit.unwrap().file_name().into_string().unwrap();
            assert!(paths.iter().any(|path| path.ends_with(&format!("/{name}"))), "{format:?}: {name} is nowhere");
        }
        // The doctor, refusals and units name pages, and a page names the rules and dashboards.
        let named = ["docs/start.md", "docs/operating/keys.md", "docs/operating/attach.md"];
        for name in named.into_iter().chain(["examples/prometheus/holdfast.rules.yml"]) {
            assert!(paths.contains(format!("{DOCS}/{name}").as_str()), "{format:?}: {name} is nowhere");
        }
        // Files there belong to the administrator and to the cluster; a package that had them would take them away.
        let own = |path: &&&str| ["etc/holdfast/", "var/"].iter().any(|begin| path.starts_with(begin));
        assert_eq!(paths.iter().find(own), None, "{format:?}");
    }
}

#[test]
fn an_image_of_root_or_with_a_changed_layer_is_refused() {
    let folder = Folder::new("image");
    packed(&folder.0, 0o644);
    let layout = image::layout(&folder.0.join("work"));
    image::check(&layout).unwrap();
    let blobs = layout.join("blobs/sha256");
    let largest = std::fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().path());
    let largest = largest.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    std::fs::write(largest, "other").unwrap();
    let error = image::check(&layout).unwrap_err().to_string();
    assert!(error.contains("its digest is "), "{error}");
    assert_eq!(image::tag("0.1.0~git1+a"), "0.1.0-git1-a");
}

/// Whoever copies a command from a page must not be told that there is no such option.
#[test]
fn chores_on_the_pages_are_command_lines_of_this_program() {
    let own = |chore: &str| ["dist", "packages"].contains(&chore);
    let (tried, wrong) = holdfast_chore::pages::refused::<crate::Chore>(own).expect("pages");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried >= 3, "found {tried} commands, expected more");
}
