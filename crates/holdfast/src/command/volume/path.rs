//! Where a volume that the command line names is looked up.

use crate::cli::VolumePath;
use crate::client::ClusterClient;
use crate::command::set_calls::{no_volume, status};
use crate::exit::CliError;
use holdfast_api::v1;

/// The volume as its set's leader has it.
pub async fn find(api: &mut ClusterClient, volume: &VolumePath) -> Result<v1::Volume, CliError> {
    let found = status(api, volume.set.as_str(), false).await?;
    let found = found.volumes.into_iter().find(|found| found.name == volume.name.as_str());
    found.ok_or_else(|| no_volume(volume))
}
