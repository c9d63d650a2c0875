//! The services over a Unix socket. Thin: each call runs on a thread of its own, a limited number at once.

use crate::controller::Controller;
use crate::node::Node;
use crate::refused::Refused;
use crate::v1::controller_server::{Controller as ControllerCalls, ControllerServer};
use crate::v1::identity_server::{Identity, IdentityServer};
use crate::v1::node_server::{Node as NodeCalls, NodeServer};
use crate::{DRIVER, v1};
use futures_util::future::BoxFuture;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

/// Most calls at once; more wait. Below the program's number of threads for blocking work.
const CALLS_MAX: usize = 24;

/// Most calls that wait for a deletion, of all connections; one more is answered at once. Below the limit of calls of a
/// connection.
const WAITING_MAX: usize = CALLS_MAX;

/// How long a call waits for a deletion that is under way, and the pause between two looks. A new volume waits for that
/// of the one that had its name, a deletion for those of its copies.
const ENDING_LIMIT: Duration = Duration::from_secs(30);
const ENDING_PAUSE: Duration = Duration::from_millis(300);

/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The driver: either of its services may be left to another process.
#[derive(Clone)]
pub struct Driver {
    controller: Option<Arc<Controller>>,
    node: Option<Arc<Node>>,
    calls: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// The driver could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens at the socket, or what is there is no socket.
    #[error("{}: {why}", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
        /// What was found.
        why: &'static str,
    },
    /// The socket could not be made.
    #[error("{}: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// The server failed.
    #[error("the server of the socket failed")]
    Server(#[source] tonic::transport::Error),
}

impl Driver {
    /// A driver with these services.
    pub fn new(controller: Option<Controller>, node: Option<Node>) -> Self {
        let (controller, node) = (controller.map(Arc::new), node.map(Arc::new));
        let (calls, waiting) = (Arc::new(Semaphore::new(CALLS_MAX)), Arc::new(Semaphore::new(WAITING_MAX)));
        Self { controller, node, calls, waiting }
    }

    /// Runs `work` on a thread of its own, once it is among the calls that may run.
    async fn once<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
    ) -> Result<Result<T, Refused>, Status> {
        let permit = self.calls.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Status::unavailable(error.to_string()))?;
        let ended = tokio::task::spawn_blocking(move || {
            let ended = work();
            drop(permit);
            ended
        });
        ended.await.map_err(|error| Status::internal(error.to_string()))
    }

    async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        answer(what, self.once(work).await?)
    }

    /// Repeats a call that a deletion under way is in the way of: a caller would only come again. While it waits, it is
    /// none of the calls that run: many such deletions at once keep no other call waiting.
    async fn run_after_deletions<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Fn() -> Result<T, Refused> + Send + Sync + 'static,
    ) -> Result<Response<T>, Status> {
        let (work, begun) = (Arc::new(work), Instant::now());
        loop {
            let again = work.clone();
            match self.once(move || again()).await? {
                Err(refused) if refused.code == Code::Aborted && begun.elapsed() < ENDING_LIMIT => {
                    let Ok(_waiting) = self.waiting.try_acquire() else { return answer(what, Err(refused)) };
                    tokio::time::sleep(ENDING_PAUSE).await;
                }
                ended => return answer(what, ended),
            }
        }
    }

    fn controller(&self) -> Result<Arc<Controller>, Status> {
        let none = || Status::unimplemented("this process has no controller service: ask the one that has");
        self.controller.clone().ok_or_else(none)
    }

    async fn control<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Controller) -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let controller = self.controller()?;
        self.run(what, move || work(&controller)).await
    }

    async fn on_node<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Node) -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let none = || Status::unimplemented("this process has no node service: ask the one on the node");
        let node = self.node.clone().ok_or_else(none)?;
        self.run(what, move || work(&node)).await
    }
}

/// The answer to a call, and the log of a refusal.
fn answer<T>(what: &'static str, ended: Result<T, Refused>) -> Result<Response<T>, Status> {
    ended.map(Response::new).map_err(|refused| {
        tracing::info!(what, code = ?refused.code, text = refused.text, "refused");
        refused.into()
    })
}

/// Takes the socket's path. A socket that nobody listens at is of a process that has ended.
fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Socket { path: path.to_path_buf(), source };
    let taken = |why| ServeError::Taken { path: path.to_path_buf(), why };
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(taken("found a file, expected a socket or nothing")),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(taken("another process listens there already")),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        },
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Whoever may connect can mount and delete; the umask is the caller's.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves the driver at a Unix socket until `stop`.
///
/// # Errors
/// The socket cannot be used.
pub fn serve(driver: Driver, path: &Path, stop: CancellationToken) -> BoxFuture<'_, Result<(), ServeError>> {
    // Boxed: the code of the server is generated in this crate only.
    Box::pin(served(driver, path, stop))
}

async fn served(driver: Driver, path: &Path, stop: CancellationToken) -> Result<(), ServeError> {
    let listener = listen(path)?;
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(socket, _)| socket);
        if accepted.is_err() {
            // Without free file descriptors it fails at once, again and again.
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        Some((accepted, listener))
    });
    let mut server = tonic::transport::Server::builder().concurrency_limit_per_connection(2 * CALLS_MAX);
    let router = server
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(NodeServer::new(driver));
    router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await.map_err(ServeError::Server)
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (DRIVER.to_string(), env!("CARGO_PKG_VERSION").to_string());
        Ok(Response::new(v1::GetPluginInfoResponse { name, vendor_version }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
        let service = |kind: service::Type| Type::Service(Service { r#type: kind as i32 });
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online as i32 };
        let mut kinds = Vec::new();
        if self.controller.is_some() {
            kinds.push(service(service::Type::ControllerService));
        }
        // A node without a configured locality reports no topology.
        let has_places = self.node.as_ref().is_none_or(|node| node.info().accessible_topology.is_some());
        if has_places {
            kinds.push(service(service::Type::VolumeAccessibilityConstraints));
        }
        kinds.push(Type::VolumeExpansion(online));
        let capabilities = kinds.into_iter().map(|kind| v1::PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let node = self.node.clone();
        let check = move || {
            node.map_or(Ok(()), |node| node.check())?;
            Ok(v1::ProbeResponse { ready: Some(true) })
        };
        self.run("Probe", check).await
    }
}

#[tonic::async_trait]
impl ControllerCalls for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        use v1::controller_service_capability::{Rpc, Type, rpc};
        let kinds = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::ListVolumes,
            rpc::Type::CreateDeleteSnapshot,
            rpc::Type::ListSnapshots,
            rpc::Type::CloneVolume,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let of =
            |kind: rpc::Type| v1::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) };
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities: kinds.map(of).into() }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let (controller, request) = (self.controller()?, request.into_inner());
        let work = move || {
            let volume = Some(controller.create_volume(&request)?);
            Ok(v1::CreateVolumeResponse { volume })
        };
        self.run_after_deletions("CreateVolume", work).await
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let (controller, request) = (self.controller()?, request.into_inner());
        let work = move || controller.delete_volume(&request.volume_id).map(|()| v1::DeleteVolumeResponse {});
        self.run_after_deletions("DeleteVolume", work).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.control("ValidateVolumeCapabilities", move |controller| controller.validate(&request)).await
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.control("ListVolumes", move |controller| controller.list_volumes(&request)).await
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let work = move |controller: &Controller| {
            let snapshot = Some(controller.create_snapshot(&request)?);
            Ok(v1::CreateSnapshotResponse { snapshot })
        };
        self.control("CreateSnapshot", work).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        let work = move |controller: &Controller| {
            controller.delete_snapshot(&request.snapshot_id).map(|()| v1::DeleteSnapshotResponse {})
        };
        self.control("DeleteSnapshot", work).await
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        self.control("ListSnapshots", move |controller| controller.list_snapshots(&request)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.control("ControllerExpandVolume", move |controller| controller.expand(&request)).await
    }
}

#[tonic::async_trait]
impl NodeCalls for Driver {
    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        use v1::node_service_capability::{Rpc, Type, rpc};
        let kinds = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let of = |kind: rpc::Type| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) };
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities: kinds.map(of).into() }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| node.stage(&request).map(|()| v1::NodeStageVolumeResponse {});
        self.on_node("NodeStageVolume", work).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| node.unstage(&request).map(|()| v1::NodeUnstageVolumeResponse {});
        self.on_node("NodeUnstageVolume", work).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| node.publish(&request).map(|()| v1::NodePublishVolumeResponse {});
        self.on_node("NodePublishVolume", work).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| node.unpublish(&request).map(|()| v1::NodeUnpublishVolumeResponse {});
        self.on_node("NodeUnpublishVolume", work).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| node.stats(&request).map(|usage| v1::NodeGetVolumeStatsResponse { usage });
        self.on_node("NodeGetVolumeStats", work).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let work = move |node: &Node| {
            let capacity_bytes = crate::capacity::signed(node.expand(&request)?);
            Ok(v1::NodeExpandVolumeResponse { capacity_bytes })
        };
        self.on_node("NodeExpandVolume", work).await
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        self.on_node("NodeGetInfo", |node| Ok(node.info())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A namespace is deleted whose volumes are copies of one another: each of their sources waits.
    #[tokio::test]
    async fn calls_that_wait_for_deletions_keep_no_other_call_waiting() {
        let (driver, goes) = (Driver::new(None, None), Arc::new(AtomicBool::new(true)));
        let begun = Arc::new(AtomicUsize::new(0));
        let waiting: Vec<_> = (0..CALLS_MAX)
            .map(|_| {
                let (driver, goes, begun) = (driver.clone(), goes.clone(), begun.clone());
                let work = move || {
                    begun.fetch_add(1, Ordering::AcqRel);
                    if goes.load(Ordering::Acquire) { Err(Refused::pending("its copy goes")) } else { Ok(()) }
                };
                tokio::spawn(async move { driver.run_after_deletions("DeleteVolume", work).await })
            })
            .collect();
        while begun.load(Ordering::Acquire) < CALLS_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let other = driver.run("Probe", || Ok(()));
        let other = tokio::time::timeout(ENDING_LIMIT / 3, other).await;
        goes.store(false, Ordering::Release);
        other.expect("it waits for those that wait").unwrap();
        for call in waiting {
            call.await.unwrap().unwrap();
        }
        let refused = driver.run_after_deletions("DeleteVolume", || Err::<(), _>(Refused::precondition("in use")));
        assert_eq!(refused.await.unwrap_err().code(), Code::FailedPrecondition);
    }

    #[tokio::test]
    async fn a_socket_of_a_process_that_has_ended_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let first = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen(&path), Err(ServeError::Taken { .. })));
        drop(first);
        drop(listen(&path).unwrap());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(listen(&file), Err(ServeError::Taken { .. })));
    }
}
