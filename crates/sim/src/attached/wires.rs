//! Connections of an attached set: lanes over the simulated network, and pipes to the users of its devices.

use super::bugs;
use super::kernel::{Habits, KernelDevice, User, VolumeDoor};
use crate::client::{SET, VOLUME_NAMES};
use crate::host::{self, dialer, machine_of};
use crate::net::{Door, Net};
use crate::rng::Rng;
use crate::sync::lock;
use holdfast_attach::requests::ExportName;
use holdfast_attach::{AttachError, Bounds, Connect, DeviceKind, Ended, Halves, KernelOptions, Options};
use holdfast_types::{Name, Owner};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Connections of the device's user to each volume.
pub const USERS: usize = 2;
/// How long a lease lasts without a renewal.
pub const TTL: Duration = Duration::from_secs(2);
/// Time for the device to appear; then attach gives up, and is started again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Output of a process.
#[derive(Default)]
pub struct Said {
    /// With this epoch.
    pub ready: Option<u64>,
    pub devices: Vec<Vec<User>>,
    pub ended: Option<Result<Ended, AttachError>>,
}

/// The admin addresses of as many machines.
pub fn doors(gateways: usize) -> Vec<String> {
    (0..gateways).map(|index| format!("10.0.0.{}:7400", index + 1)).collect()
}

/// Attach options; the seed decides the variable ones.
pub fn options(
    rng: &mut Rng,
    (name, at): (&str, usize),
    net: &Net,
    dir: PathBuf,
    force: bool,
    gateways: usize,
) -> anyhow::Result<Options> {
    // Some gateways are enough to find the others, mostly.
    let mut api = doors(gateways);
    rng.shuffle(&mut api);
    if rng.chance(300) {
        api.truncate(rng.range(2, gateways as u64) as usize);
    }
    let bounds = [
        Bounds::default(),
        Bounds { requests: 3, ..Bounds::default() },
        Bounds { bytes: 24 << 10, ..Bounds::default() },
    ];
    Ok(Options {
        set: Name::new(SET)?,
        owner: Owner::new(name.to_string())?,
        locality: None,
        api,
        dialer: dialer(at, net),
        dir,
        ttl: Some(TTL),
        force,
        connections: rng.range(1, 3) as u8,
        bounds: rng.pick(&bounds),
        device: DeviceKind::None,
        kernel: KernelOptions { sockets: 1, dead_timeout: Duration::from_secs(60) },
        patience: PATIENCE,
    })
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

/// Connects the users of the devices.
pub async fn use_devices(doors: BTreeMap<Name, VolumeDoor>, said: Arc<Mutex<Said>>, habits: Habits) {
    let mut devices = Vec::new();
    for volume in VOLUME_NAMES {
        let (Ok(set), Ok(volume)) = (Name::new(SET), Name::new(volume)) else { return };
        let Some(door) = doors.get(&volume) else { return host::fatal("attach serves not every volume") };
        // It was told to end meanwhile.
        let Some(users) = KernelDevice::make(ExportName::plain(set, volume), door.clone(), USERS, habits).await else {
            return;
        };
        devices.push(users);
    }
    lock(&said).devices = devices;
}
