//! The package for Fedora, RHEL and their relatives, by rpmbuild.

use crate::inputs::Inputs;
use crate::layout::{DOCS, Format, Kind, SETTINGS, entries};
use crate::stage::{self, Staged};
use anyhow::{Context, Result};
use holdfast_chore::binary::root;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The spec in the tree.
const SPEC: &str = "deploy/package/rpm/holdfast.spec";

/// Makes the package. Fails when rpmbuild is missing or refuses.
pub fn build(inputs: &Inputs, work: &Path, out: &Path) -> Result<PathBuf> {
    let release = &inputs.release;
    let (folder, top) = (work.join("rpm"), work.join("rpmbuild"));
    let all = entries(Format::Rpm, release, &inputs.program.produced, &inputs.notices)?;
    let staged = stage::write(release, &all, &inputs.program.stripped, &folder)?;
    std::fs::create_dir_all(&top)?;
    let list = top.join("files");
    std::fs::write(&list, files(&staged))?;
    let made = top.join("made");
    let defines = [
        format!("_topdir {}", top.display()),
        format!("_tmppath {}", top.join("tmp").display()),
        format!("_rpmdir {}", made.display()),
        // Not the name and the clock of this machine.
        "_buildhost holdfast".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
        // One thread, in a format that every supported rpm reads.
        "_binary_payload w6.xzdio".to_owned(),
        format!("holdfast_version {}", release.version),
        format!("holdfast_root {}", folder.display()),
        format!("holdfast_files {}", list.display()),
    ];
    let mut command = release.tool("rpmbuild").args(["-bb", "--quiet", "--target", release.arch.rpm]);
    for define in &defines {
        command = command.args(["--define", define]);
    }
    command.arg(root().join(SPEC)).run()?;
    let name = format!("holdfast-{}-1.{}.rpm", release.version, release.arch.rpm);
    let to = out.join(&name);
    let from = made.join(release.arch.rpm).join(&name);
    std::fs::copy(&from, &to).with_context(|| format!("{}: expected rpmbuild to write it", from.display()))?;
    Ok(to)
}

/// The list of files for `%files`, with mode, owner and kind of each. Files of documents are in a folder of their own,
/// which is the package's too.
fn files(staged: &[Staged]) -> String {
    let mut folders = BTreeSet::new();
    let mut text = String::new();
    for one in staged {
        if one.folder {
            let group = if one.path == SETTINGS { "holdfast" } else { "root" };
            let mode = if one.path == SETTINGS { "0750" } else { "0755" };
            let _ = writeln!(text, "%dir %attr({mode},root,{group}) \"/{}\"", one.path);
            continue;
        }
        let mode = if one.path == "usr/bin/holdfast" { "0755" } else { "0644" };
        let kind = match one.kind {
            Kind::Plain => "",
            Kind::Config => "%config(noreplace) ",
            Kind::Doc => "%doc ",
        };
        let _ = writeln!(text, "%attr({mode},root,root) {kind}\"/{}\"", one.path);
        let above = Path::new(&one.path).ancestors().skip(1);
        folders.extend(above.filter(|path| path.starts_with(DOCS)).map(|path| path.display().to_string()));
    }
    for folder in folders {
        let _ = writeln!(text, "%dir %attr(0755,root,root) \"/{folder}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_kind_and_the_settings_their_group() {
        let one = |path: &str, kind, folder| Staged { path: path.into(), kind, folder };
        let text = files(&[
            one("etc/holdfast", Kind::Plain, true),
            one("etc/logrotate.d/holdfast", Kind::Config, false),
            one("usr/bin/holdfast", Kind::Plain, false),
            one("usr/share/doc/holdfast/examples/a.toml", Kind::Doc, false),
        ]);
        let expected = "\
%dir %attr(0750,root,holdfast) \"/etc/holdfast\"
%attr(0644,root,root) %config(noreplace) \"/etc/logrotate.d/holdfast\"
%attr(0755,root,root) \"/usr/bin/holdfast\"
%attr(0644,root,root) %doc \"/usr/share/doc/holdfast/examples/a.toml\"
%dir %attr(0755,root,root) \"/usr/share/doc/holdfast\"
%dir %attr(0755,root,root) \"/usr/share/doc/holdfast/examples\"
";
        assert_eq!(text, expected);
    }
}
