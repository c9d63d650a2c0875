//! The kinds of storage: set up once, started before each turn, stopped after it.

use super::floor::Floor;
use super::peer::{self, Peer};
use super::rows::{self, CONNECTIONS, Place, Row, Scale, Value, Work};
use crate::attach::Device;
use crate::certificates::Certificates;
use crate::cluster::{Cluster, Options, Stopped, free_ports};
use crate::cmd::cmd;
use crate::nbd::Uri;
use crate::pg::Postgres;
use crate::process::{Proc, Signal, processor_seconds};
use crate::s3::S3;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kind of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    LocalDisk,
    Nbdkit,
    /// nbdkit's file is in the page cache until a flush. With this filter each write is on the disk when it is
    /// answered, as R1 requires of Holdfast.
    NbdkitDurable,
    OneGateway,
    ThreeGateways,
    /// The same with a real S3 server, as for the peer.
    ThreeGatewaysS3,
    Peer,
    /// Three processes that do the least there is to do for a write on three disks (`bench/floor`).
    Floor,
    /// One gateway, to which fio and nbdfuse speak NBD over TLS.
    OneGatewayTls,
    /// Three gateways with TLS on each link: NBD, and from gateway to gateway.
    ThreeGatewaysTls,
}

/// All kinds, in the order of the table.
pub const KINDS: [Kind; 10] = [
    Kind::LocalDisk,
    Kind::Nbdkit,
    Kind::NbdkitDurable,
    Kind::OneGateway,
    Kind::ThreeGateways,
    Kind::ThreeGatewaysS3,
    Kind::Peer,
    Kind::Floor,
    Kind::OneGatewayTls,
    Kind::ThreeGatewaysTls,
];

impl Kind {
    pub fn letter(self) -> char {
        match self {
            Self::LocalDisk => 'a',
            Self::Nbdkit => 'b',
            Self::NbdkitDurable => 'e',
            Self::OneGateway => 'c',
            Self::ThreeGateways => 'd',
            Self::ThreeGatewaysS3 => 's',
            Self::Peer => 'z',
            Self::Floor => 'f',
            Self::OneGatewayTls => 't',
            Self::ThreeGatewaysTls => 'u',
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::LocalDisk => "local disk",
            Self::Nbdkit => "nbdkit file",
            Self::NbdkitDurable => "nbdkit durable",
            Self::OneGateway => "one gateway",
            Self::ThreeGateways => "three gateways",
            Self::ThreeGatewaysS3 => "three gateways, S3",
            Self::Peer => "ZeroFS, S3",
            Self::Floor => "floor",
            Self::OneGatewayTls => "one gateway, TLS",
            Self::ThreeGatewaysTls => "three gateways, TLS",
        }
    }

    /// Whether it has an S3 server.
    fn has_s3(self) -> bool {
        matches!(self, Self::ThreeGatewaysS3 | Self::Peer)
    }

    /// Whether its clients come through TLS.
    fn has_tls(self) -> bool {
        matches!(self, Self::OneGatewayTls | Self::ThreeGatewaysTls)
    }
}

/// One storage with its file system, fio's file and a database.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    dir: PathBuf,
    mount: PathBuf,
    /// The home of fio's user, with its certificate, where there is TLS. nbdfuse uses the same certificate.
    home: PathBuf,
    /// The backing file of a local disk or of nbdkit.
    backing: PathBuf,
    fs_mib: u64,
    pg: Postgres,
    cluster: Option<Stopped>,
    peer: Option<Peer>,
    s3: Option<S3>,
}

/// The processes and mounts of a target during its turn.
enum Up {
    Nothing,
    Nbdkit(Proc, Uri),
    Cluster(Box<Cluster>, Uri),
    Peer(Proc, Uri),
    Floor(Floor),
}

impl Up {
    fn uri(&self) -> Option<&Uri> {
        match self {
            Self::Nothing => None,
            Self::Nbdkit(_, uri) | Self::Cluster(_, uri) | Self::Peer(_, uri) => Some(uri),
            Self::Floor(floor) => Some(&floor.uri),
        }
    }

    /// The server's processes.
    fn pids(&self) -> Vec<u32> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Nbdkit(server, _) | Self::Peer(server, _) => vec![server.pid()],
            Self::Cluster(cluster, _) => cluster.gateways.iter().map(|gateway| gateway.pid).collect(),
            Self::Floor(floor) => floor.pids(),
        }
    }
}

impl Target {
    /// Creates everything that the rows need.
    pub fn prepare(kind: Kind, bin: &Path, dir: &Path, public: &Path, scale: &Scale) -> Result<Self> {
        let dir = dir.join(kind.letter().to_string());
        let public = public.join(kind.letter().to_string());
        std::fs::create_dir_all(&dir)?;
        std::fs::create_dir_all(&public)?;
        let (mount, home) = (public.join("mount"), public.join("home"));
        let pg = Postgres::new(&mount.join("pgdata"), &public.join("socket"), &dir.join("postgres.log"))?;
        let backing = dir.join("volume.img");
        let s3 = if kind.has_s3() { Some(S3::start(&dir)?) } else { None };
        let fs_mib = scale.fs_mib;
        let mut target = Self { kind, dir, mount, home, backing, fs_mib, pg, cluster: None, peer: None, s3 };
        let up = match kind {
            Kind::LocalDisk | Kind::Nbdkit | Kind::NbdkitDurable => {
                zero_file(&target.backing, scale.volume_mib())?;
                target.up()?
            }
            Kind::Peer => {
                let s3 = target.s3.as_ref().context("no S3 server")?;
                let dir = target.dir.join("zerofs");
                target.peer = Some(Peer::prepare(&dir, s3, scale.volume_mib(), scale.cache_mib())?);
                target.up()?
            }
            Kind::Floor => target.up()?,
            Kind::OneGateway
            | Kind::ThreeGateways
            | Kind::ThreeGatewaysS3
            | Kind::OneGatewayTls
            | Kind::ThreeGatewaysTls => {
                let gateways = if matches!(kind, Kind::OneGateway | Kind::OneGatewayTls) { 1 } else { 3 };
                let size = format!("{}MiB", scale.volume_mib());
                let settings = vec![format!("cache.memory={}MiB", scale.cache_mib())];
                let (dir, bin) = (target.dir.join("cluster"), bin.to_path_buf());
                let (store, env) = target.s3.as_ref().map(|s3| (s3.url(), s3.env())).unzip();
                let env = if kind.has_tls() { certified(&bin, &dir, &target.home)? } else { env.unwrap_or_default() };
                up_with(Cluster::start(Options { bin, dir, gateways, store, size, settings, env })?)?
            }
        };
        if let Some(uri) = up.uri() {
            rows::fill(&target.raw(uri), scale.fio_mib)?;
        }
        let mut device = target.attach(&up)?;
        cmd("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(device.path()).arg(format!("{}M", scale.fs_mib)).run()?;
        device.mount(&target.mount)?;
        rows::fill(&Place::File(&target.fio_file()), scale.fio_mib)?;
        target.pg.initdb(&scale.postgres())?;
        target.pg.start()?;
        target.pg.pgbench_init(scale.pgbench_scale)?;
        target.down(device, up)?;
        Ok(target)
    }

    /// The part of the volume behind the file system, as fio reaches it.
    fn raw(&self, uri: &Uri) -> Place<'_> {
        let offset_mib = self.fs_mib;
        if self.kind.has_tls() {
            return Place::Tls { uri: format!("nbds://{}/{}", uri.addr, uri.export), home: &self.home, offset_mib };
        }
        Place::Raw { uri: uri.to_string(), offset_mib }
    }

    fn fio_file(&self) -> PathBuf {
        self.mount.join("fio.dat")
    }

    fn up(&mut self) -> Result<Up> {
        if let Some(s3) = self.s3.as_mut().filter(|s3| !s3.is_running()) {
            s3.resume()?;
        }
        match self.kind {
            Kind::LocalDisk => Ok(Up::Nothing),
            Kind::Nbdkit | Kind::NbdkitDurable => {
                let port = free_ports(1)?;
                let addr = format!("127.0.0.1:{port}");
                let command = cmd("nbdkit").args(["-f", "-i", "127.0.0.1", "-p", &port.to_string()]);
                let command = match self.kind {
                    Kind::NbdkitDurable => {
                        command.args(["--filter=fua", "file"]).arg(&self.backing).arg("fuamode=force")
                    }
                    _ => command.arg("file").arg(&self.backing),
                };
                let command = command.into_command();
                let mut server = Proc::spawn("nbdkit", command, &self.dir.join("nbdkit.log"))?;
                server.ready_when("listening", Duration::from_secs(10), || TcpStream::connect(&addr).is_ok())?;
                Ok(Up::Nbdkit(server, Uri { addr, export: String::new() }))
            }
            Kind::Peer => {
                let (server, uri) = self.peer.as_ref().context("no peer")?.start()?;
                Ok(Up::Peer(server, uri))
            }
            Kind::Floor => Ok(Up::Floor(Floor::start(&self.dir)?)),
            Kind::OneGateway
            | Kind::ThreeGateways
            | Kind::ThreeGatewaysS3
            | Kind::OneGatewayTls
            | Kind::ThreeGatewaysTls => up_with(self.cluster.take().context("no cluster")?.start()?),
        }
    }

    fn attach(&self, up: &Up) -> Result<Device> {
        match up.uri() {
            None => Device::file(&self.backing),
            Some(uri) => {
                // The floor serves one connection at a time.
                let connections = if self.kind == Kind::Floor { 1 } else { CONNECTIONS };
                if self.kind.has_tls() {
                    return Device::nbds(uri, &certificate_in(&self.home), connections, &self.dir);
                }
                Device::nbd(uri, connections, &self.dir)
            }
        }
    }

    fn down(&mut self, device: Device, up: Up) -> Result<()> {
        self.pg.stop(Signal::INT)?;
        device.detach()?;
        self.put_down(up)
    }

    /// Stops the servers.
    fn put_down(&mut self, up: Up) -> Result<()> {
        match up {
            Up::Nothing => {}
            Up::Nbdkit(mut server, _) => server.stop(Signal::TERM, Duration::from_secs(10))?,
            Up::Cluster(cluster, _) => self.cluster = Some(cluster.stop()?),
            Up::Peer(mut server, _) => server.stop(Signal::TERM, peer::STOP_LIMIT)?,
            Up::Floor(floor) => floor.stop()?,
        }
        self.s3.as_mut().map_or(Ok(()), S3::stop)
    }

    /// Starts it, measures each row, stops it. `None` for a row that does not apply to this target.
    pub fn measure(&mut self, rows: &[Row], scale: &Scale) -> Result<BTreeMap<&'static str, Value>> {
        let mut measured = BTreeMap::new();
        let up = self.up()?;
        if let Some(uri) = up.uri() {
            let place = self.raw(uri);
            for row in rows {
                let Work::Raw(args) = row.work else { continue };
                measured.insert(row.key, fio_row(&place, args, scale, &up.pids())?);
            }
        }
        if rows.iter().all(|r| matches!(r.work, Work::Raw(..))) {
            self.put_down(up)?;
            return Ok(measured);
        }
        let mut device = self.attach(&up)?;
        device.mount(&self.mount)?;
        let file = self.fio_file();
        for row in rows {
            let Work::File(args) = row.work else { continue };
            measured.insert(row.key, fio_row(&Place::File(&file), args, scale, &up.pids())?);
        }
        if rows.iter().any(|r| matches!(r.work, Work::Pgbench(..))) {
            self.pg.start()?;
            for row in rows {
                let Work::Pgbench(args, options) = row.work else { continue };
                // Each row begins with clean buffers and an empty part of WAL.
                self.pg.client()?.query("checkpoint")?;
                let args: Vec<&str> = ["-c", "16", "-j", "4"].into_iter().chain(args.iter().copied()).collect();
                let tps = self.pg.pgbench_with(&args, options, rows::pgbench_time(scale))?;
                measured.insert(row.key, Value::of(tps));
            }
        }
        self.down(device, up)?;
        Ok(measured)
    }
}

/// `servers`: the processes whose processor time is counted.
fn fio_row(place: &Place<'_>, args: &[&str], scale: &Scale, servers: &[u32]) -> Result<Value> {
    if args.contains(&"--rw=randread") {
        rows::warm(place, scale.fio_mib)?;
    }
    let used = || servers.iter().map(|pid| processor_seconds(*pid)).sum::<Option<f64>>();
    let before = used();
    let mut value = rows::fio(place, args, scale.fio_mib, scale.fio_s)?;
    if let (Some(before), Some(after), false) = (before, used(), servers.is_empty()) {
        value.cpu_us = Some((after - before) * 1e6 / value.requests.max(1.0));
    }
    Ok(value)
}

fn up_with(mut cluster: Cluster) -> Result<Up> {
    let serving = cluster.serving(Duration::from_secs(60))?;
    let uri = cluster.gateways[serving].nbd.clone();
    Ok(Up::Cluster(Box::new(cluster), uri))
}

/// Makes an authority and certificates before the cluster starts in `dir`, which then has TLS. Returns what its
/// commands need. fio's libnbd finds its certificate in `home`: fio does not let it read one that the URI names.
fn certified(bin: &Path, dir: &Path, home: &Path) -> Result<Vec<(String, String)>> {
    let certificates = Certificates::make(bin, &dir.join("tls"), &["--host", "fio", "--admin", "admin"])?;
    let (from, into) = (certificates.for_others("fio")?, certificate_in(home));
    std::fs::create_dir_all(&into)?;
    for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        let to = into.join(file);
        std::fs::copy(from.join(file), &to).with_context(|| file.to_owned())?;
        // For fio's user. It is of a cluster that ends with the benchmark.
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o644))?;
    }
    Ok(certificates.env("admin"))
}

/// Where libnbd finds the certificate of the user whose home this is.
fn certificate_in(home: &Path) -> PathBuf {
    home.join(".pki").join("libnbd")
}

/// A file of written zeroes: a sparse file would be allocated during the measurement.
fn zero_file(path: &Path, mib: u64) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..mib {
        file.write_all(&zeroes)?;
    }
    file.sync_all()?;
    Ok(())
}
