//! `holdfast support-bundle`: a bundle for support, without secrets.
//!
//! Every text passes `Redactor` in one place, `write`, before any of it is on the disk.

mod gather;
mod known;
mod redact;

use crate::cli::{Common, SupportArgs};
use crate::exit::CliError;
use crate::{output, serve};
use gather::{Entry, Settings};
use holdfast_set::random::random_u128;
use redact::Redactor;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The folder in the archive.
const FOLDER: &str = "holdfast-support";

/// Where systemd's units have their variables.
const UNITS: &str = "/etc/holdfast";

/// Time limit of tar.
const TAR_LIMIT: Duration = Duration::from_secs(120);

/// Runs `holdfast support-bundle`.
pub async fn run(common: &Common, args: &SupportArgs) -> Result<(), CliError> {
    serve::without_core_dumps();
    let about =
        |error: &(dyn std::error::Error + 'static)| CliError::failed(args.file.display().to_string()).because(error);
    // First, so that nothing is gathered in vain. Only its owner can read it.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&args.file);
    made.map_err(|error| about(&error).next("name a file that does not exist yet"))?;
    let written = bundle(common, args).await;
    if written.is_err() {
        let _ = std::fs::remove_file(&args.file);
    }
    let names = written?;
    let json = serde_json::json!({ "file": args.file, "entries": names });
    output::show(common.output, &json, || {
        format!("{} has {} files. Look through it before you send it.", args.file.display(), names.len())
    })
}

async fn bundle(common: &Common, args: &SupportArgs) -> Result<Vec<String>, CliError> {
    let settings = Settings::of(args);
    let texts = settings.texts();
    let mut files = known::files(&texts);
    files.extend(known::of_units(Path::new(UNITS)));
    files.extend(common.tls_key.iter().chain(&args.doctor.access.credentials_file).cloned());
    let (mut secrets, mut unread) = (known::of_environment(std::env::vars_os(), &texts), Vec::new());
    for path in &files {
        match known::of_file(path) {
            Ok(found) => secrets.extend(found),
            Err(error) => unread.push(format!("{}: {error}", path.display())),
        }
    }
    let redactor = Redactor::new(secrets);
    let mut entries = gather::all(common, args, &settings).await?;
    if !unread.is_empty() {
        let text =
            format!("These files could not be read, so what they have was not looked for:\n{}\n", unread.join("\n"));
        output::remark(&text);
        entries.push(Entry { name: "not-looked-for.txt".into(), text });
    }
    let failed = |error: std::io::Error| CliError::failed("the bundle").because(&error);
    let folder = Folder::beside(&args.file).map_err(failed)?;
    write(&folder.0.join(FOLDER), &entries, &redactor).map_err(failed)?;
    pack(&folder.0, &args.file).await?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

/// A folder that is deleted at the end.
struct Folder(PathBuf);

impl Folder {
    /// On the disk of `file`, for its owner alone.
    fn beside(file: &Path) -> std::io::Result<Self> {
        let name = format!(".{FOLDER}-{:032x}", random_u128());
        let path = std::path::absolute(file)?.with_file_name(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes the entries into `dir`, without secrets.
fn write(dir: &Path, entries: &[Entry], redactor: &Redactor) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)?;
    for entry in entries {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(dir.join(&entry.name))?;
        file.write_all(redactor.text(&entry.text).as_bytes())?;
    }
    Ok(())
}

/// Packs `dir`/[`FOLDER`] into `file`.
async fn pack(dir: &Path, file: &Path) -> Result<(), CliError> {
    let file = std::path::absolute(file).map_err(|error| CliError::failed("the bundle").because(&error))?;
    let mut tar = tokio::process::Command::new("tar");
    // Without `--force-local` a colon in the name would be that of another machine.
    tar.args(["--create", "--gzip", "--force-local", "--owner=0", "--group=0", "--file"]).arg(&file);
    tar.arg("--directory").arg(dir).arg(FOLDER).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: String| CliError::failed(format!("tar: {why}")).next("install tar and gzip; is the disk full?");
    let said = tokio::time::timeout(TAR_LIMIT, tar.output()).await;
    let output =
        said.map_err(|_| failed(format!("no end in {TAR_LIMIT:?}")))?.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
