//! What an attached set is connected with: lanes over the simulated network, pipes to who uses its devices.

use super::bugs;
use crate::client::{SET, VOLUME_NAMES};
use crate::host::{self, lock, machine_of};
use crate::net::{Door, Net};
use holdfast_attach::requests::{ExportName, Requests};
use holdfast_attach::{AttachError, Connect, Ended, Halves};
use holdfast_types::Name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// Connections of the device's user to each volume.
pub const USERS: usize = 2;
/// Bytes of a pipe between the device and who uses it.
const PIPE_BYTES: usize = 64 << 10;

/// What a process says.
#[derive(Default)]
pub struct Said {
    /// With this epoch.
    pub ready: Option<u64>,
    pub devices: Vec<Vec<Arc<Requests>>>,
    pub ended: Option<Result<Ended, AttachError>>,
}

/// How lanes are connected.
pub fn way(from: usize, net: &Net, bug: Option<bugs::Memory>) -> Connect {
    let net = net.clone();
    Arc::new(move |lane, nbd| {
        let (net, bug) = (net.clone(), bug.clone());
        Box::pin(async move {
            let to = nbd.rsplit_once(':').and_then(|(host, _)| machine_of(host));
            let to = to.ok_or(std::io::ErrorKind::InvalidInput)?;
            let (read, write) = tokio::io::split(net.connect(from, to, Door::Nbd).await?);
            let halves: Halves = (Box::new(read), Box::new(write));
            Ok(match bug {
                Some(memory) => memory.wrap(lane, halves),
                None => halves,
            })
        })
    })
}

/// Connects whoever uses the devices.
pub async fn use_devices(doors: BTreeMap<Name, mpsc::UnboundedSender<Halves>>, said: Arc<Mutex<Said>>) {
    let mut devices = Vec::new();
    for volume in VOLUME_NAMES {
        let mut users = Vec::new();
        for _ in 0..USERS {
            let (Ok(set), Ok(volume)) = (Name::new(SET), Name::new(volume)) else { return };
            let Some(door) = doors.get(&volume) else { return host::fatal("attach serves not every volume") };
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            let [ours, theirs] = [ours, theirs].map(|end| -> Halves {
                let (read, write) = tokio::io::split(end);
                (Box::new(read), Box::new(write))
            });
            if door.send(theirs).is_err() {
                return;
            }
            match Requests::over(ours, &ExportName::plain(set, volume)).await {
                Ok(requests) => users.push(Arc::new(requests)),
                // It was told to end meanwhile.
                Err(_) => return,
            }
        }
        devices.push(users);
    }
    lock(&said).devices = devices;
}
