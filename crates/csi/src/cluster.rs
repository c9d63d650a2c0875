//! What the driver asks of a Holdfast cluster.

use crate::refused::Refused;
use holdfast_api::v1;
use holdfast_types::Name;

/// The admin API of a cluster, as far as the driver needs it. Each call blocks, for a limited time, and follows leaders
/// by itself. Its refusals have the codes of [`Refused::of_cluster`].
pub trait Cluster: Send + Sync + 'static {
    /// Regions that have gateways.
    ///
    /// # Errors
    /// No gateway answered.
    fn regions(&self) -> Result<Vec<String>, Refused>;

    /// All sets.
    ///
    /// # Errors
    /// No gateway answered.
    fn sets(&self) -> Result<Vec<v1::SetSummary>, Refused>;

    /// A set by its leader, or what is left of one that is being deleted. `None`: there is none of that name.
    ///
    /// # Errors
    /// It could not be found out.
    fn set(&self, set: &Name) -> Result<Option<v1::SetStatus>, Refused>;

    /// Creates a set, or finds that it exists with the same store.
    ///
    /// # Errors
    /// A refusal, or the outcome is unknown.
    fn create_set(&self, set: &Name, store: &str, policy: Option<v1::Policy>) -> Result<(), Refused>;

    /// Creates a volume, or finds that it exists with the same size.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn create_volume(&self, set: &Name, volume: &Name, bytes: u64) -> Result<(), Refused>;

    /// Grows a volume.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn grow(&self, set: &Name, volume: &v1::Volume, bytes: u64) -> Result<(), Refused>;

    /// Deletes a set. The request id is filled in.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn delete_set(&self, request: v1::DeleteSetRequest) -> Result<(), Refused>;

    /// A set's snapshots. `None`: there is no such set.
    ///
    /// # Errors
    /// It could not be found out.
    fn snapshots(&self, set: &Name) -> Result<Option<Vec<v1::Snapshot>>, Refused>;

    /// Creates a snapshot, or finds that it exists.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn create_snapshot(&self, set: &Name, name: &Name) -> Result<v1::Snapshot, Refused>;

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn delete_snapshot(&self, set: &Name, snapshot: &v1::Snapshot) -> Result<(), Refused>;

    /// Makes a set as a clone of a snapshot, or finds that it exists.
    ///
    /// # Errors
    /// As [`Cluster::create_set`].
    fn clone_set(&self, origin: &Name, snapshot: &v1::Snapshot, set: &Name) -> Result<(), Refused>;
}
