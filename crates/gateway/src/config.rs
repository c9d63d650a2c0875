//! Settings of one gateway: values that a person may turn, never components (clock, store, network).
//!
//! One struct per section; `Default` is the only home of defaults; each field's comment (unit, range, what turning it costs) is also the comment
//! in the sample file, `crates/gateway/gateway.sample.toml`, which a test compares with [`sample`]. No field holds a secret, only where one is found.

mod check;
mod document;
mod source;
#[cfg(test)]
mod tests;

pub use check::{ConfigError, Problem};
pub use document::sample;
use holdfast_control::cluster::MemberRole;
use holdfast_control::pair::Durability;
use holdfast_etcd::EtcdOptions;
use holdfast_settings::settings;
use holdfast_tls::files::{self, PEM_BYTES_MAX, SETTINGS_BYTES_MAX};
use holdfast_tls::{Role, Tls, TlsError, TlsFiles};
use holdfast_types::{ByteSize, Name};
use serde::{Deserialize, Serialize};
pub use source::{Mistake, known, read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A name that this source writes itself. Reached by defaults only, and a test makes every default.
fn fixed(text: &str) -> Name {
    match Name::new(text) {
        Ok(name) => name,
        Err(error) => unreachable!("a default is a valid name: {error}"),
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How segments are compressed before they are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all: for data that is compressed already.
    None,
    /// Fast; costs little on any machine.
    Lz4,
    /// Smaller objects for several times the processor time.
    Zstd,
}

/// Who may read an export of a snapshot, `SET/VOLUME@SNAPSHOT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotExports {
    /// Whoever names the snapshot's token.
    #[default]
    Token,
    /// Everybody who reaches the NBD port.
    Open,
}

/// What a gateway is there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GatewayRole {
    /// Votes, keeps the journal, serves.
    #[default]
    Gateway,
    /// Votes and keeps the journal, and serves nobody.
    Witness,
}

impl GatewayRole {
    /// As the admin door says it.
    pub fn as_str(self) -> &'static str {
        match self {
            GatewayRole::Gateway => "gateway",
            GatewayRole::Witness => "witness",
        }
    }
}

impl From<GatewayRole> for MemberRole {
    fn from(role: GatewayRole) -> Self {
        match role {
            GatewayRole::Gateway => MemberRole::Gateway,
            GatewayRole::Witness => MemberRole::Witness,
        }
    }
}

settings! {
    /// Settings of one gateway (`holdfast gateway run --config FILE`).
    /// A field that is left out has the value shown, or none where it is marked "Left out: none". An unknown field is an error.
    pub struct GatewayConfig {
        /// Name of this gateway, unique in the cluster. Shown to people and used in commands; identity is the disk's, not the name's.
        name: Name = fixed("g1");
        /// Region that it stands in. People are shown it; nothing is placed by it.
        region: Name = fixed("local");
        /// What it is there for, `gateway` or `witness`. A witness votes and keeps the journal, and serves nobody: the third voter beside two
        /// gateways. Counts when it joins; a later change has no effect.
        role: GatewayRole = GatewayRole::Gateway;
        /// Directory of the journal, the disk's identity and the cache. One gateway per directory; needs a local file system.
        data_dir: PathBuf = PathBuf::from("/var/lib/holdfast");
        /// Admin door (gRPC), where commands, agents and attach processes connect: IP:PORT.
        api_listen: SocketAddr = local(7400);
        /// Where other gateways connect (gRPC, Raft): IP:PORT.
        peer_listen: SocketAddr = local(7401);
        /// NBD over TCP: IP:PORT. Left out: none.
        nbd_listen: Option<SocketAddr> = None, sample "127.0.0.1:10809";
        /// NBD over a Unix socket: its path. Left out: none. At least one of the two is needed.
        nbd_unix: Option<PathBuf> = None, sample "/run/holdfast/nbd.sock";
        /// /metrics (Prometheus) and /healthz over HTTP: IP:PORT. Left out: none.
        http_listen: Option<SocketAddr> = None, sample "127.0.0.1:7402";
        /// Allow `SET/VOLUME` without a token: such a connection takes a free lease and holds it while it lasts. For trying out;
        /// a host that lost its lease and returns with old pages in memory is kept out only by tokens.
        plain_exports: bool = false;
        /// Who may read `SET/VOLUME@SNAPSHOT`: `token`, who names the snapshot's token (`holdfast snapshot token SET@SNAPSHOT` prints it), or `open`,
        /// everybody who reaches the NBD port: all data of the set at that moment, and names of scheduled snapshots can be guessed.
        snapshot_exports: SnapshotExports = SnapshotExports::Token;
        /// Allow gateway and admin traffic on addresses other than loopback without `[tls]` (R10).
        /// Only on a network that nobody else can read or write.
        plaintext_network: bool = false;
        /// Round trip between the two farthest gateways, in milliseconds, 1 to 1000. Heartbeats, elections and leases follow from it;
        /// all gateways of a cluster need the same value. Too low: elections without need. Too high: slower takeover.
        rtt_ms: u32 = 1;
        /// How long a lease lasts without a renewal where its owner asked for nothing else, in milliseconds, 1000 to 600000.
        /// Longer: a dead owner blocks its successor longer. Shorter: a stall of the owner loses it the lease.
        lease_ttl_ms: u32 = 3000;
        /// Threads that run the gateway's tasks, 0 to 64; 0: half of the processors, at least one, at most 16. Disk and encryption have
        /// threads of their own. More than needed costs speed: a commit's tasks then wake each other across threads.
        worker_threads: u32 = 0;
        /// Addresses under which others reach this gateway, HOST:PORT; by default those that it listens on.
        advertise: AdvertiseConfig = AdvertiseConfig::default();
        /// The journal: every write until it is in the store.
        journal: JournalConfig = JournalConfig::default();
        /// The cache of what was read from the store.
        cache: CacheConfig = CacheConfig::default();
        /// Bounds on what clients may have in flight: they bound memory.
        in_flight: InFlightConfig = InFlightConfig::default();
        /// The way from the journal to the store.
        upload: UploadConfig = UploadConfig::default();
        /// What of the store is given back, and when; how fast several stores are filled.
        space: SpaceConfig = SpaceConfig::default();
        /// Reading everything that a set has in its store, slowly, so that damage is found before it is needed.
        scrub: ScrubConfig = ScrubConfig::default();
        /// Where the cluster key is found. Exactly one source; the same key at every gateway.
        key: KeyConfig = KeyConfig::default();
        /// While the cluster key is changed: the one before, at every gateway, beside the new one in `[key]`. It opens what is not wrapped anew yet.
        /// Left out otherwise; `holdfast key list` says when it may go.
        key_previous: KeyConfig = KeyConfig::default();
        /// How s3:// stores are reached. The address of a store belongs to the set; keys come from a credentials file or from the usual AWS
        /// environment variables, never from this file.
        store: StoreConfig = StoreConfig::default();
        /// Mutually authenticated TLS for the admin door and between gateways (R10): all three files, or none. `holdfast cluster certificates` makes them.
        tls: TlsConfig = TlsConfig::default();
        /// An etcd that is told of each grant, for tools that follow etcd. Nothing waits for it, and nothing is read from it.
        etcd: EtcdConfig = EtcdConfig::default();
        /// A pair of gateways with that etcd in place of a third voter: one serves, the other one waits. See docs/operating/etcd.md before using it.
        pair: PairConfig = PairConfig::default();
    }
}

/// What an answer of a gateway pair says of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PairDurability {
    /// What was flushed is in the store. The loss of the gateway ends the device.
    #[default]
    Flush,
    /// Every write is, before it is answered.
    Write,
}

impl From<PairDurability> for Durability {
    fn from(durability: PairDurability) -> Self {
        match durability {
            PairDurability::Flush => Durability::Flush,
            PairDurability::Write => Durability::Write,
        }
    }
}

settings! {
    /// A pair of gateways with the etcd of `[etcd]` in place of a third voter.
    pub struct PairConfig {
        /// Name of the pair, the same at both gateways. Left out: none, and a majority of gateways is needed.
        name: Option<Name> = None, sample "db";
        /// The stores in which the pair's sets lie, URLs; the same at both. Whoever serves takes over every set of the pair that is there.
        stores: Vec<String> = Vec::new();
        /// `flush`: a flush is answered once the store has what it covers; with the gateway goes what was not flushed, and the device ends. `write`: so is every write,
        /// which makes each of them as slow as a flush.
        durability: PairDurability = PairDurability::Flush;
        /// How long the etcd keeps the seat for a gateway that falls silent, in milliseconds, whole seconds, 3000 to 600000. Three quarters of it are served.
        /// Shorter: a quicker takeover. Longer: an etcd that is slow or elects is lived through.
        ttl_ms: u32 = 10_000;
        /// Once, to make sets of a cluster sets of the pair: that cluster's id, 32 hex digits. Its gateways must be gone for good.
        adopt: Option<String> = None, sample "00112233445566778899aabbccddeeff";
    }
}

settings! {
    /// Addresses under which others reach this gateway.
    pub struct AdvertiseConfig {
        /// Admin door.
        api: Option<String> = None, sample "gateway-1.example:7400";
        /// Other gateways.
        peer: Option<String> = None, sample "gateway-1.example:7401";
        /// NBD clients.
        nbd: Option<String> = None, sample "gateway-1.example:10809";
        /// Metrics and health.
        http: Option<String> = None, sample "gateway-1.example:7402";
    }
}

settings! {
    /// The journal: every write until it is in the store.
    pub struct JournalConfig {
        /// Size at most. Writers are slowed down along a curve as it fills: how long the store may be away under load follows from it. At most 128GiB.
        bound: ByteSize = ByteSize(8 * GIB);
        /// Part of the bound that only control entries may use: leases and checkpoints go on when writers wait. At most half of it.
        reserve: ByteSize = ByteSize(512 * MIB);
        /// Size of one file, 16MiB to 1GiB. Space is given back file by file.
        file: ByteSize = ByteSize(64 * MIB);
        /// Newest entries kept in memory, so that followers and reads of fresh data need no disk. At least 8MiB.
        tail: ByteSize = ByteSize(128 * MIB);
        /// Encrypt what is written to the journal and to state snapshots, under a key of this node that the cluster key wraps. What was
        /// written before a change stays as it was until it is dropped.
        seal: bool = true;
    }
}

settings! {
    /// The cache of what was read from the store.
    pub struct CacheConfig {
        /// In memory, at least 32MiB.
        memory: ByteSize = ByteSize(256 * MIB);
        /// On disk under data_dir: 0B for none, else at least 64MiB.
        disk: ByteSize = ByteSize(2 * GIB);
        /// What is uploaded goes into the disk cache as well: a block that is read again after it was written costs no request. false where the bytes that the local
        /// disk takes are dear: each stored byte is one more.
        keep_uploaded: bool = true;
        /// How far a reader that goes through a volume in order is read ahead of, 0B (not at all) to 64MiB; at most a thirty-second of memory. More: fewer waits
        /// for a store that is far away, more read for nothing where the reader stops.
        read_ahead: ByteSize = ByteSize(8 * MIB);
        /// While another gateway leads: what that uploads is read from the store into the disk cache here, all sets together at most so much a second, 0B (not at
        /// all) to 1GiB. So that reads after a takeover cost no request. Each gateway but the leader reads every stored byte once; stores and lines
        /// between regions may charge for that. Below what is uploaded on average, the rest is left out. A witness does nothing of it.
        warm_bytes_per_second: ByteSize = ByteSize(0);
    }
}

settings! {
    /// Bounds on what clients may have in flight.
    pub struct InFlightConfig {
        /// NBD connections of this gateway, 1 to 65536.
        connections: u32 = 1024;
        /// Requests of one connection, 1 to 4096. More are left in the socket.
        connection_requests: u32 = 128;
        /// Requests of this gateway over all connections, 1 to 16777216; never less than two for each connection. More wait, none is refused. Half of them are
        /// for each connection to have some of its own.
        gateway_requests: u32 = 32_768;
        /// Request bytes of one connection, at least 32MiB (the largest request).
        connection_bytes: ByteSize = ByteSize(64 * MIB);
        /// Request bytes of this gateway over all connections, at least those of one.
        gateway_bytes: ByteSize = ByteSize(256 * MIB);
    }
}

settings! {
    /// The way from the journal to the store.
    pub struct UploadConfig {
        /// A checkpoint begins at latest this long after the last one where anything was written, in milliseconds, 100 to 3600000.
        interval_ms: u64 = 15_000;
        /// ... or after this much was written. Less: more and smaller objects. More: more to keep in the journal. At most a quarter of journal.bound.
        bytes: ByteSize = ByteSize(256 * MIB);
        /// "lz4", "zstd" or "none".
        compression: Compression = Compression::Lz4;
        /// Objects on their way to the store at the same time, 1 to 64; each takes up to 16MiB of memory.
        parallel: u32 = 4;
        /// A map's root of up to this many bytes is written as one object, a larger one as a top and leaves, of which each checkpoint writes what it changed. 0B
        /// (always in leaves) to 16MiB. Left out: 64KiB. In a gateway pair all are written as one object until both gateways' builds are known to read leaves
        /// (docs/operating/etcd.md).
        whole_root: Option<ByteSize> = None, sample "64KiB";
    }
}

settings! {
    /// What of the store is given back, and when; how fast several stores are filled.
    pub struct SpaceConfig {
        /// Bytes in segments for each 100 that are in use, 105 to 1000, before checkpoints empty the segments that hold the least. Lower: a smaller
        /// store, more bytes copied.
        target_percent: u32 = 130;
        /// Bytes of segments read and written for that a second and set at most, over a minute or so, with those of map pages that have to be fetched for it; 0B:
        /// no limit but that of each checkpoint (64MiB and twice what was written, or what was written while the journal is filling). Too low: the store grows
        /// beyond the target.
        move_bytes_per_second: ByteSize = ByteSize(0);
        /// Requests for that a second and set at most, over a minute or so, 0 to 10000; 0: no limit. A store may charge for each. One for each segment that is
        /// read or written, and one for each map page of it that no cache has: a segment of small writes, each elsewhere, has up to 2000.
        move_requests_per_second: u32 = 0;
        /// Of a set in several stores: bytes copied a second at most to those that lack something, all of them together, over a minute or so; 0B: no limit.
        /// Too low: a store that was lost or added is filled for longer, and while it is, the loss of another one is a danger.
        repair_bytes_per_second: ByteSize = ByteSize(0);
        /// How long a read that has begun may still need an object that was replaced, in milliseconds, 100 to 86400000. Deleted no earlier than that.
        grace_ms: u64 = 60_000;
        /// Deletions a second and set at most, 1 to 10000.
        deletes_per_second: u32 = 100;
        /// Between two listings of the whole store for uploads that came to nothing, in milliseconds, 1000 to 604800000. Each reads one page of
        /// 1000 keys after the other.
        sweep_interval_ms: u64 = 3_600_000;
    }
}

settings! {
    /// Reading everything that a set has in its store, slowly, so that damage is found before it is needed.
    pub struct ScrubConfig {
        /// Read a second and set at most, 0B: never, to 1GiB. It waits while the store is in trouble, and nearly stops while the set is busy. 1MiB is 2.5TiB
        /// in 30 days; stores may charge for what is read.
        bytes_per_second: ByteSize = ByteSize(MIB);
        /// From the end of one reading to the begin of the next, in milliseconds, 1000 to 31536000000 (a year). Default: 30 days.
        interval_ms: u64 = 2_592_000_000;
    }
}

settings! {
    /// Where the cluster key is found.
    pub struct KeyConfig {
        /// File with the key: 32 random bytes, or the same as 64 hex digits. Readable for this gateway only.
        file: Option<PathBuf> = None, sample "/etc/holdfast/cluster.key";
        /// File with a passphrase (one line), readable for this gateway only.
        passphrase_file: Option<PathBuf> = None, sample "/etc/holdfast/passphrase";
        /// Name of the environment variable that holds a passphrase.
        passphrase_env: Option<String> = None, sample "HOLDFAST_PASSPHRASE";
        /// How the key comes from the passphrase, with a salt of its own; no secret, the same at every gateway. `holdfast key kdf` makes one. Left out:
        /// a salt that all clusters share, so that one table of guesses serves against all of them.
        passphrase_kdf: Option<String> = None, sample "argon2id:m=19456,t=2,p=1:00112233445566778899aabbccddeeff";
    }
}

settings! {
    /// How s3:// stores are reached.
    pub struct StoreConfig {
        /// Base URL of a server that is not AWS.
        endpoint: Option<String> = None, sample "https://s3.example:9000";
        /// Region name that requests are signed with.
        region: Option<String> = None, sample "us-east-1";
        /// Bucket in the path rather than in the host name: most servers that are not AWS want it.
        path_style: bool = false;
        /// File with the keys, as AWS tools have it: profiles in brackets, aws_access_key_id, aws_secret_access_key, aws_session_token. A store whose URL has ?profile=NAME
        /// uses that profile, every other one AWS_PROFILE or else `default`. Put new keys there at any time: it is read within some seconds of a change, and at
        /// once when its keys are refused. Left out: keys of the environment, or else the file that AWS_SHARED_CREDENTIALS_FILE names.
        credentials_file: Option<PathBuf> = None, sample "/etc/holdfast/s3-credentials";
        /// How long one try to read, list or delete may take, in milliseconds, 100 to 120000. Shorter: a connection that hangs is noticed sooner; too
        /// short for the line: nothing is ever read.
        read_timeout_ms: u64 = 10_000;
        /// The same for a write: a segment of 16 MiB has to get through in it. 100 to 120000.
        write_timeout_ms: u64 = 60_000;
        /// How long a store that a set leaves may take to let go of the set's head, in milliseconds, 1000 to 3600000. A change of stores waits so long for one that
        /// is dead, and then ends without it; what it holds is to be emptied by hand.
        let_go_ms: u64 = 60_000;
    }
}

settings! {
    /// Mutually authenticated TLS for the admin door and between gateways: all three files, or none of them.
    pub struct TlsConfig {
        /// The authority's certificate (PEM); nothing else is trusted, neither the system's authorities nor another cluster's.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/tls/ca.pem";
        /// This gateway's certificate (PEM) by that authority, with the DNS name gateway.holdfast.internal.
        certificate: Option<PathBuf> = None, sample "/etc/holdfast/tls/g1.pem";
        /// Its private key (PEM); a file that everyone can read is refused. Read at the start: a new certificate needs a restart.
        key: Option<PathBuf> = None, sample "/etc/holdfast/tls/g1.key";
    }
}

settings! {
    /// An etcd (3.4 or later) that is told of each grant.
    pub struct EtcdConfig {
        /// Its members: http://HOST:PORT or https://HOST:PORT. The first that answers is used. None: nothing is told.
        endpoints: Vec<String> = Vec::new();
        /// Before the key of each set: PREFIX/sets/SET/grant. The same at every gateway; one of its own for each cluster.
        prefix: String = "/holdfast".to_string();
        /// The certificate (PEM) of the authority that an https member's is by.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/etcd/ca.pem";
        /// Our certificate (PEM) for it, where it asks for one.
        certificate: Option<PathBuf> = None, sample "/etc/holdfast/etcd/client.pem";
        /// The private key (PEM) of that certificate.
        key: Option<PathBuf> = None, sample "/etc/holdfast/etcd/client.key";
    }
}

impl EtcdConfig {
    /// Reads the files; `None` where no member is named.
    ///
    /// # Errors
    /// A file that cannot be read, or is longer than such a file is, with its setting.
    pub fn load(&self) -> Result<Option<EtcdOptions>, (String, std::io::Error)> {
        if self.endpoints.is_empty() {
            return Ok(None);
        }
        let read = |field: &str, path: &Path| {
            files::read(path, PEM_BYTES_MAX).map_err(|e| (format!("etcd.{field} {}", path.display()), e))
        };
        let ca = self.ca.as_deref().map(|path| read("ca", path)).transpose()?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((read("certificate", certificate)?, read("key", key)?)),
            _ => None,
        };
        Ok(Some(EtcdOptions { endpoints: self.endpoints.clone(), ca, identity }))
    }
}

impl KeyConfig {
    /// Whether any source is named.
    pub fn any(&self) -> bool {
        self.sources() > 0
    }

    fn sources(&self) -> usize {
        let sources = [self.file.is_some(), self.passphrase_file.is_some(), self.passphrase_env.is_some()];
        sources.iter().filter(|&&given| given).count()
    }
}

impl TlsConfig {
    fn files(&self) -> TlsFiles {
        TlsFiles { ca: self.ca.clone(), certificate: self.certificate.clone(), key: self.key.clone() }
    }

    /// Whether any file is named.
    pub fn any(&self) -> bool {
        self.files().any()
    }

    /// Reads the files; `None` where none is named.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self, role: Role) -> Result<Option<Tls>, TlsError> {
        self.files().load(role)
    }
}

impl GatewayConfig {
    /// Reads and validates `path`.
    ///
    /// # Errors
    /// Unreadable, not TOML of this form, or [`GatewayConfig::validate`]'s.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text(path, SETTINGS_BYTES_MAX)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let wrong = |mistakes| ConfigError::Parse { path: path.into(), mistakes };
        source::read(&text).map_err(wrong)?;
        let config = Self::parse(&text).map_err(|error| wrong(vec![Mistake { line: 1, what: error.to_string() }]))?;
        config.validate()?;
        Ok(config)
    }

    /// Reads TOML without judging the values.
    ///
    /// # Errors
    /// Not TOML, an unknown field, or a value of another type.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Checks ranges, and the relations between fields.
    ///
    /// # Errors
    /// All that is wrong, not only the first.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let problems = check::problems(self);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid { problems }) }
    }

    /// A configuration that works for a first try: the defaults, and the fields that have none filled in.
    pub fn example() -> Self {
        Self {
            nbd_listen: Some(local(10809)),
            http_listen: Some(local(7402)),
            key: KeyConfig { file: Some(PathBuf::from("/etc/holdfast/cluster.key")), ..KeyConfig::default() },
            ..Self::default()
        }
    }

    /// How many threads run the tasks: `worker_threads`, or what 0 stands for on this machine.
    pub fn workers(&self) -> usize {
        match self.worker_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).clamp(1, 16)),
            n => n as usize,
        }
    }

    /// Admin door as others reach it, HOST:PORT.
    pub fn api_address(&self) -> String {
        self.advertise.api.clone().unwrap_or_else(|| self.api_listen.to_string())
    }

    /// Peer address as other gateways reach it, HOST:PORT.
    pub fn peer_address(&self) -> String {
        self.advertise.peer.clone().unwrap_or_else(|| self.peer_listen.to_string())
    }

    /// NBD address as clients reach it, HOST:PORT; `None` without a TCP listener.
    pub fn nbd_address(&self) -> Option<String> {
        let listen = self.nbd_listen?;
        Some(self.advertise.nbd.clone().unwrap_or_else(|| listen.to_string()))
    }

    /// HTTP address as others reach it, HOST:PORT; `None` without a listener.
    pub fn http_address(&self) -> Option<String> {
        let listen = self.http_listen?;
        Some(self.advertise.http.clone().unwrap_or_else(|| listen.to_string()))
    }
}
