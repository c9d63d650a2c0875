//! The directory of `holdfast dev`: existing files are kept, missing ones are created.

use super::secure;
use crate::cli::{Common, DevArgs};
use crate::command::bootstrap::{self, Plan, PlanGateway};
use crate::command::gateway::with_settings;
use crate::exit::CliError;
use holdfast_gateway::config::{GatewayConfig, KeyConfig, NbdTls, SnapshotExports, TlsConfig};
use holdfast_tls::make::{self, Wanted};
use holdfast_tls::{ANY_OWNER, Role, TlsFiles};
use holdfast_types::{ByteSize, Name};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Range of the ports: below the kernel's ephemeral ports, so that they are still free after a restart.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Attempts to find a free port.
const PORT_DRAWS_MAX: u32 = 1000;

/// Journal size of each gateway: several share one disk with other data.
const JOURNAL_BOUND: ByteSize = ByteSize(4 << 30);

/// The host's certificate. Folders of before have a `host.pem`, which is bound to the owner `host`.
const ANY_HOST: &str = "any-host";

/// The host's certificate of a secure cluster, bound to the owner of that name and to the sets of the plan.
const HOST: &str = "db1";

/// Mode of what only its owner may enter.
const OWN_FOLDER: u32 = 0o700;

/// One gateway and its files.
#[derive(Clone, Debug)]
pub struct DevGateway {
    /// Its settings.
    pub config: GatewayConfig,
    /// The file of its settings.
    pub file: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Whether the file must be written. An up-to-date file is left as it is: it may contain comments.
    unsaved: bool,
}

impl DevGateway {
    /// Its name.
    pub fn name(&self) -> &str {
        self.config.name.as_str()
    }
}

/// Certificates of a cluster with TLS, without those of the gateways.
#[derive(Clone, Debug, Serialize)]
pub struct DevTls {
    /// The CA certificate.
    pub ca: PathBuf,
    /// Certificate and key for commands.
    pub admin: [PathBuf; 2],
    /// Certificate and key of an operator, in a secure cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<[PathBuf; 2]>,
    /// Certificate and key of a viewer, in a secure cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub viewer: Option<[PathBuf; 2]>,
    /// Certificate and key for a host that attaches.
    pub host: [PathBuf; 2],
}

impl DevTls {
    /// Creates missing files in `dir`. In a secure cluster the host may use the sets of the plan alone.
    fn prepare(dir: &Path, gateways: &[Name], plan: &Plan, secure: bool) -> Result<Self, CliError> {
        if secure {
            // The authority's key is in there. The directory may have been made without `--secure`.
            DirBuilder::new().recursive(true).mode(OWN_FOLDER).create(dir).map_err(at(dir))?;
            std::fs::set_permissions(dir, Permissions::from_mode(OWN_FOLDER)).map_err(at(dir))?;
        }
        let mut all = vec![Wanted::new("admin", Role::Admin)];
        if secure {
            all.push(Wanted::new("operator", Role::Operator));
            all.push(Wanted::new("viewer", Role::Viewer));
            let sets = plan.sets.iter().map(|set| set.name.to_string()).collect();
            all.push(Wanted { sets, ..Wanted::new(HOST, Role::Host) });
        } else {
            // Whatever `attach` is tried with on this machine.
            all.push(Wanted { owners: vec![ANY_OWNER.to_string()], ..Wanted::new(ANY_HOST, Role::Host) });
        }
        if secure && lacks_a_set(dir, plan) {
            // Made for an earlier plan: it is made again.
            for end in ["pem", "key"] {
                let old = dir.join(format!("{HOST}.{end}"));
                std::fs::remove_file(&old).map_err(at(&old))?;
            }
        }
        let hosts = vec![Ipv4Addr::LOCALHOST.to_string(), "localhost".to_string()];
        let gateway = |name: &Name| Wanted { hosts: hosts.clone(), ..Wanted::new(name.as_str(), Role::Gateway) };
        all.extend(gateways.iter().map(gateway));
        let missing: Vec<Wanted> =
            all.into_iter().filter(|one| !dir.join(format!("{}.pem", one.name)).exists()).collect();
        make::certificates(dir, &missing, make::DAYS_MAX).map_err(|error| CliError::failed("TLS").because(&error))?;
        let pair = |name: &str| [dir.join(format!("{name}.pem")), dir.join(format!("{name}.key"))];
        Ok(Self {
            ca: dir.join("ca.pem"),
            admin: pair("admin"),
            operator: secure.then(|| pair("operator")),
            viewer: secure.then(|| pair("viewer")),
            host: pair(if secure { HOST } else { ANY_HOST }),
        })
    }

    /// Whether it belongs to a secure cluster.
    pub fn is_secure(&self) -> bool {
        self.viewer.is_some()
    }
}

/// Whether the host's certificate in `dir` is bound to sets, and not to all of this plan.
fn lacks_a_set(dir: &Path, plan: &Plan) -> bool {
    const URI: &str = "holdfast://set/";
    let at = |name: String| Some(dir.join(name));
    let (certificate, key) = (at(format!("{HOST}.pem")), at(format!("{HOST}.key")));
    let files = TlsFiles { ca: at("ca.pem".into()), certificate, key };
    let Ok(Some(tls)) = files.load(Role::Host) else { return false };
    let names = tls.shown().names;
    let is_bound = names.iter().any(|name| name.starts_with(URI));
    is_bound && !plan.sets.iter().all(|set| names.contains(&format!("{URI}{}", set.name)))
}

/// A prepared directory.
#[derive(Debug)]
pub struct Layout {
    /// Absolute.
    pub dir: PathBuf,
    /// The plan of the cluster.
    pub plan: Plan,
    /// In the plan's order.
    pub gateways: Vec<DevGateway>,
    /// With TLS.
    pub tls: Option<DevTls>,
    _lock: File,
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> CliError {
    let path = path.display().to_string();
    move |error| CliError::failed(path.clone()).because(&error)
}

impl Layout {
    /// Locks the directory and creates missing files.
    pub fn prepare(args: &DevArgs) -> Result<Self, CliError> {
        let dir = folder(args)?;
        let lock = lock(&dir.join("dev.lock"))?;
        let key = dir.join("cluster.key");
        if !key.exists() {
            let digits = format!("{:032x}{:032x}\n", rand::random::<u128>(), rand::random::<u128>());
            write_new(&key, &digits)?;
        }
        let plan_file = dir.join("cluster.toml");
        let old = if plan_file.exists() { Some(read_plan(&plan_file)?) } else { None };
        let mut plan = match &old {
            Some(plan) => agree(plan.clone(), args, &dir)?,
            None => first_plan(args, &store_in(&dir)?)?,
        };
        let names = names(old.as_ref(), args)?;
        let mut ports = Ports::default();
        let mut gateways = Vec::new();
        for (number, name) in (0u16..).zip(names) {
            let nbd_port = args.nbd_port.map(|first| first + number);
            gateways.push(gateway(&dir, &key, name, nbd_port, &args.gateway_set, &mut ports)?);
        }
        let tls = protect(&dir, args, &plan, &mut gateways)?;
        drop(ports);
        expect_free(&gateways)?;
        for gateway in gateways.iter().filter(|gateway| gateway.unsaved) {
            let text =
                toml::to_string(&gateway.config).map_err(|error| CliError::failed("the settings").because(&error))?;
            replace(&gateway.file, &text)?;
        }
        plan.gateways = gateways.iter().map(planned).collect();
        plan.check().map_err(|problem| CliError::usage(format!("{}: {problem}", plan_file.display())))?;
        if old.as_ref() != Some(&plan) {
            let text = toml::to_string(&plan).map_err(|error| CliError::failed("the plan").because(&error))?;
            replace(&plan_file, &text)?;
        }
        Ok(Self { dir, plan, gateways, tls, _lock: lock })
    }

    /// The common arguments, with the administrator's certificate if the cluster has TLS.
    pub fn common(&self, common: &Common) -> Result<Common, CliError> {
        let mut common = common.clone();
        if let Some(tls) = &self.tls {
            let [certificate, key] = tls.admin.clone();
            (common.tls_ca, common.tls_certificate, common.tls_key) =
                (Some(tls.ca.clone()), Some(certificate), Some(key));
            common.load_certificate(Role::Admin)?;
        }
        Ok(common)
    }

    /// Saves the printed result for other programs.
    pub fn keep_ready(&self, ready: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(ready).map_err(|error| CliError::failed("the result").because(&error))?;
        replace(&self.dir.join("dev.json"), &format!("{text}\n"))
    }

    /// Removes the saved result when the cluster stops.
    pub fn forget_ready(&self) {
        let _ = std::fs::remove_file(self.dir.join("dev.json"));
    }
}

/// The directory, absolute. A new one of a secure cluster is its owner's alone; one that was there may be a shared one.
fn folder(args: &DevArgs) -> Result<PathBuf, CliError> {
    let new = !args.dir.exists();
    holdfast_folder::make(&args.dir).map_err(at(&args.dir))?;
    if new && args.secure {
        std::fs::set_permissions(&args.dir, Permissions::from_mode(OWN_FOLDER)).map_err(at(&args.dir))?;
    }
    args.dir.canonicalize().map_err(at(&args.dir))
}

/// Names of the gateways: those of the plan, or new ones.
fn names(old: Option<&Plan>, args: &DevArgs) -> Result<Vec<Name>, CliError> {
    if let Some(plan) = old {
        return Ok(plan.gateways.iter().map(|gateway| gateway.name.clone()).collect());
    }
    (1..=args.gateways.unwrap_or(3))
        .map(|number| Name::new(format!("g{number}")))
        .collect::<Result<_, _>>()
        .map_err(|error| CliError::failed("name").because(&error))
}

/// TLS, and what `--secure` switches on: as asked for, or as the directory has it already.
fn protect(dir: &Path, args: &DevArgs, plan: &Plan, gateways: &mut [DevGateway]) -> Result<Option<DevTls>, CliError> {
    let secure = args.secure || gateways.iter().all(|gateway| secure::is_on(&gateway.config));
    let tls_dir = dir.join("tls");
    if !secure && !args.tls && !tls_dir.join("ca.pem").exists() {
        return Ok(None);
    }
    let names: Vec<Name> = gateways.iter().map(|gateway| gateway.config.name.clone()).collect();
    let tls = DevTls::prepare(&tls_dir, &names, plan, secure)?;
    for gateway in gateways {
        let mut config = gateway.config.clone();
        if args.secure {
            secure::switch_on(&mut config, dir);
            // A setting that was given counts more.
            config = with_settings(config, &args.gateway_set)?;
        }
        if secure {
            secure::allow(&mut config, plan);
        }
        let of = |end: &str| Some(tls_dir.join(format!("{}.{end}", config.name)));
        let (certificate, key) = (of("pem"), of("key"));
        // A cluster to play with: clients that have no TLS still find it.
        let nbd = config.tls.nbd.or(Some(NbdTls::Optional));
        let http = config.tls.http;
        config.tls = TlsConfig { ca: Some(tls.ca.clone()), certificate, key, nbd, transition: None, http };
        gateway.unsaved |= gateway.config != config;
        gateway.config = config;
    }
    Ok(Some(tls))
}

fn planned(gateway: &DevGateway) -> PlanGateway {
    PlanGateway {
        name: gateway.config.name.clone(),
        region: gateway.config.locality().region,
        api: gateway.config.api_address(),
    }
}

fn read_plan(path: &Path) -> Result<Plan, CliError> {
    Plan::load(path).map_err(|error| {
        error.next("the directory was not created by `holdfast dev`, or was changed: use another --dir")
    })
}

fn store_in(dir: &Path) -> Result<String, CliError> {
    let store = dir.join("store");
    std::fs::create_dir_all(&store).map_err(at(&store))?;
    let url = url::Url::from_file_path(&store)
        .map_err(|()| CliError::usage(format!("{}: this path cannot be used as a store", store.display())))?;
    Ok(url.to_string())
}

/// Checks that repeated arguments agree with the directory, and adds new sets and volumes.
fn agree(mut plan: Plan, args: &DevArgs, dir: &Path) -> Result<Plan, CliError> {
    let differs = |what: &str, found: String, expected: String| {
        let error = CliError::usage(format!("{what}: found {found}, expected {expected} as in {}", dir.display()));
        Err(error.next("omit this option, or use another --dir"))
    };
    if let Some(count) = args.gateways.filter(|&count| usize::from(count) != plan.gateways.len()) {
        return differs("--gateways", count.to_string(), plan.gateways.len().to_string());
    }
    let wanted = first_plan(args, "")?.sets.remove(0);
    let place = match &args.set {
        Some(name) => plan.sets.iter().position(|set| set.name == *name),
        None => (!plan.sets.is_empty()).then_some(0),
    };
    let Some(set) = place.map(|at| &mut plan.sets[at]) else {
        let store = if args.store.is_some() { wanted.store.clone() } else { store_in(dir)? };
        plan.sets.push(crate::command::bootstrap::PlanSet { store, ..wanted });
        return Ok(plan);
    };
    if let Some(store) = args.store.as_ref().filter(|store| **store != set.store) {
        return differs("--store", store.clone(), set.store.clone());
    }
    for volume in &args.volumes {
        let size = *set.volumes.entry(volume.name.clone()).or_insert(volume.size);
        if size != volume.size {
            return differs(&format!("--volume {}", volume.name), volume.size.to_string(), size.to_string());
        }
    }
    Ok(plan)
}

/// One gateway: from its file, or new.
fn gateway(
    dir: &Path,
    key: &Path,
    name: Name,
    nbd_port: Option<u16>,
    settings: &[(String, String)],
    ports: &mut Ports,
) -> Result<DevGateway, CliError> {
    let file = dir.join(format!("{name}.toml"));
    let log = dir.join(format!("{name}.log"));
    let known = file.exists();
    let mut config = if known {
        GatewayConfig::load(&file).map_err(|error| CliError::usage("settings").because(&error))?
    } else {
        let mut config = GatewayConfig {
            data_dir: dir.join(name.as_str()),
            api_listen: ports.draw()?,
            peer_listen: ports.draw()?,
            http_listen: Some(ports.draw()?),
            plain_exports: true,
            snapshot_exports: SnapshotExports::Open,
            // What crashes during development is looked at.
            core_dumps: true,
            key: KeyConfig { file: Some(key.to_path_buf()), ..KeyConfig::default() },
            name,
            ..GatewayConfig::default()
        };
        config.journal.bound = JOURNAL_BOUND;
        config.nbd_listen = match nbd_port {
            Some(port) => Some(loopback(port)),
            None => Some(ports.draw()?),
        };
        config
    };
    let before = config.clone();
    config.nbd_listen = nbd_port.map(loopback).or(config.nbd_listen);
    config = with_settings(config, settings)?;
    let unsaved = !known || config != before;
    config.validate().map_err(|error| CliError::usage(file.display().to_string()).because(&error))?;
    Ok(DevGateway { config, file, log, unsaved })
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Free ports, kept open until all are found, so that none is used twice.
#[derive(Default)]
struct Ports {
    held: Vec<TcpListener>,
}

impl Ports {
    fn draw(&mut self) -> Result<SocketAddr, CliError> {
        for _ in 0..PORT_DRAWS_MAX {
            let address = loopback(rand::random_range(PORTS));
            if let Ok(listener) = TcpListener::bind(address) {
                self.held.push(listener);
                return Ok(address);
            }
        }
        Err(CliError::failed(format!("found no free port in {PORT_DRAWS_MAX} attempts in {PORTS:?}")))
    }
}

/// Checks that all addresses are free, for a clearer error than that of the gateway.
fn expect_free(gateways: &[DevGateway]) -> Result<(), CliError> {
    let mut seen = BTreeSet::new();
    for gateway in gateways {
        let config = &gateway.config;
        let fixed = [("api_listen", Some(config.api_listen)), ("peer_listen", Some(config.peer_listen))];
        let optional = [("nbd_listen", config.nbd_listen), ("http_listen", config.http_listen)];
        for (field, address) in fixed.into_iter().chain(optional) {
            let Some(address) = address else { continue };
            let taken = !seen.insert(address);
            let problem = if taken {
                Some("another gateway of this directory uses it".to_string())
            } else {
                TcpListener::bind(address).err().map(|error| error.to_string())
            };
            if let Some(problem) = problem {
                let error = CliError::failed(format!("{field} of gateway {}: {address}: {problem}", gateway.name()));
                return Err(error.next(format!(
                    "stop the program that listens there, or change {field} in {}",
                    gateway.file.display()
                )));
            }
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, CliError> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(at(path))?;
    let taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
    taken.map_err(|_| {
        CliError::failed(format!("{}: locked by another `holdfast dev`", path.display()))
            .next("stop the other one, or use another --dir")
    })?;
    Ok(file)
}

/// Writes a secret: readable by this user only, and never overwritten.
fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path).map_err(at(path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(at(path))?;
    sync_above(path)
}

/// Makes the new name durable.
fn sync_above(path: &Path) -> Result<(), CliError> {
    let above = path.parent().unwrap_or(path);
    File::open(above).and_then(|folder| folder.sync_all()).map_err(at(above))
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> Result<(), CliError> {
    let new = path.with_extension("new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&new, path)).map_err(at(path))?;
    sync_above(path)
}

/// The plan of a new directory.
fn first_plan(args: &DevArgs, default_store: &str) -> Result<Plan, CliError> {
    let name = |text: &str| holdfast_types::Name::new(text).map_err(|error| CliError::usage("name").because(&error));
    let mut volumes = BTreeMap::new();
    for volume in &args.volumes {
        bootstrap::check_size(volume.size)
            .map_err(|problem| CliError::usage(format!("--volume {}: {problem}", volume.name)))?;
        volumes.insert(volume.name.clone(), volume.size);
    }
    if volumes.is_empty() {
        volumes.insert(name("vol1")?, holdfast_types::ByteSize(1 << 30));
    }
    let set = match &args.set {
        Some(set) => set.clone(),
        None => name("demo")?,
    };
    let store = args.store.clone().unwrap_or_else(|| default_store.to_string());
    Ok(Plan { gateways: Vec::new(), sets: vec![bootstrap::PlanSet { name: set, store, volumes }] })
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
