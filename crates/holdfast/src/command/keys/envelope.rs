//! `holdfast key envelope`: makes a cluster key that lies on disk only as somebody else has wrapped it.

use crate::cli::Common;
use crate::command::console::tell;
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_gateway::config::GatewayConfig;
use holdfast_set::keyring::{ClusterKeys, KeySource, new_envelope};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Mode of an envelope.
const MODE: u32 = 0o644;

/// Makes the envelope that these settings name, and opens it.
pub async fn make(common: &Common, config: &Path) -> Result<(), CliError> {
    serve::without_core_dumps();
    let settings = GatewayConfig::load(config).map_err(|error| CliError::usage("").because(&error))?;
    let source = settings.key.source(&settings.store);
    let Some((envelope, path)) = source.envelope.as_ref().and_then(|of| Some((of, of.file.as_deref()?))) else {
        let found = format!("{}: found no envelope in [key], expected one with `vault` or `kms`", config.display());
        return Err(CliError::usage(found).next("`holdfast key envelope --help` has an example"));
    };
    // Before a key is drawn: this file may be the only one that opens a cluster's data.
    if path.symlink_metadata().is_ok() {
        let found = format!("{}: found a file, expected none: it may be the envelope of a key in use", path.display());
        return Err(CliError::refused(found).next("name another file in `envelope`, or move this one away"));
    }
    let (content, key) = new_envelope(envelope).await.map_err(|error| CliError::failed("").because(&error))?;
    write_new(path, &content).map_err(|error| CliError::failed(path.display().to_string()).because(&error))?;
    let opened = ClusterKeys::load(&source, &KeySource::default()).await;
    let found = opened.map_err(|error| {
        let what = format!("{} is written, but it cannot be opened again", path.display());
        CliError::failed(what).because(&error).next("put this right, or remove the file, before you use it")
    })?;
    if found.current().fingerprint() != key {
        let found = found.current().fingerprint();
        return Err(CliError::failed(format!("{}: found key {found}, expected {key}", path.display())));
    }
    let text = serde_json::json!({ "envelope": path, "key": key.to_string() });
    output::show(common.output, &text, || format!("{}: key {key}", path.display()))?;
    tell(common, "next: copy it to every gateway, and to the place where you would look for it in a recovery");
    Ok(())
}

/// The gateway's user has to read it, and it is no secret: whoever opens it asks for more than the file.
fn write_new(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).mode(MODE).open(path)?;
    // Whatever the umask is.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(above)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `key envelope` is run by root, and the gateway by a user of its own.
    #[test]
    fn the_users_of_gateways_can_read_an_envelope_and_nothing_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("envelope");
        write_new(&path, "vault:v1:abc\n").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(write_new(&path, "another").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "vault:v1:abc\n");
    }
}
