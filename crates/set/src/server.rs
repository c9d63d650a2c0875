//! Serves the set here, under the epoch of its lease. `control::serve` and the replicated state decide; this file feeds
//! them events and carries out their decisions.
//!
//! ```text
//!   leadership, applied entries, quorum acks, ticks ─▶ ServeGate ─▶ may this gateway read / write now?
//!   grant applied for this gateway in its own term  ─▶ a new `Serving`: sequencer + connections of that epoch
//!   release, other grant, lost leadership, cut off  ─▶ that `Serving` ends; its connections close unanswered (R8)
//! ```

use crate::boards::{MigrationBoard, ScrubBoard};
use crate::gate::Gate;
use crate::head::HeadKeeper;
use crate::host::{SetHost, decode_answer};
use crate::pace::JournalPace;
use crate::reader::Reader;
use crate::sequencer::{Admission, Pace, Sequencer, WriteFailure};
use holdfast_control::serve::{Timing, WhyNot};
use holdfast_control::set::{Judged, Lease, SetAnswer, SetCommand, SetRefusal};
use holdfast_host::unix_ms;
use holdfast_raft::{Group, ProposeError, boot_now};
use holdfast_store::{Health, Switch};
use holdfast_traces::Traces;
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Locality, MemberId, Name, Owner, RequestId, SetId, Term, Token};
use holdfast_volume::entry::encode_control;
use holdfast_volume::space::GivenUp;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

mod connection;
mod error;
mod expiry;
mod follow;
mod grants;
mod hold;
mod limits;
mod place;
mod throttles;
mod times;
mod traced;
mod uses;
mod verdict;
mod volumes;

pub use connection::Connection;
pub use error::SetError;
use expiry::Expiry;
use grants::Grants;

pub use hold::HeldOff;
pub use times::raft_timing;
use traced::SetTraces;
use uses::Uses;
pub use volumes::{InUse, VolumeHeld, VolumeUse};

/// How long a control entry (grant, release, renewal) may take before its outcome counts as unknown.
const CONTROL_LIMIT: Duration = Duration::from_secs(5);

/// Everything that serves one epoch. Ends with the epoch.
pub struct Serving {
    /// The epoch.
    pub epoch: Epoch,
    /// The term in which it was granted.
    pub term: Term,
    /// Owner of the lease.
    pub owner: Owner,
    /// Whether this is a plain export's lease.
    pub plain: bool,
    /// Opens connections of this epoch, except plain ones.
    pub token: Token,
    /// The write path.
    pub sequencer: Sequencer,
    /// When cancelled, the connections close unanswered.
    pub closed: CancellationToken,
    /// When cancelled, new connections are refused, and the open ones close after their pending requests are answered.
    pub draining: CancellationToken,
    /// Another owner holds the set now: requests fail with an error (R8).
    pub fenced: AtomicBool,
    connections: AtomicUsize,
    /// Notified when the last connection is gone.
    emptied: Notify,
}

/// Value of [`Serving::connections`] while the lease is being released: no new connection is admitted.
const ENDING: usize = usize::MAX / 2;

impl Serving {
    /// Counts one more connection, unless the lease is being released.
    fn admit(&self) -> bool {
        let more = |n: usize| (n < ENDING).then_some(n + 1);
        self.connections.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Starts the release of the lease, unless a client is connected. From then on no connection is admitted: the
    /// release would close a connection that arrived after the decision.
    fn begin_ending(&self) -> bool {
        self.connections.compare_exchange(0, ENDING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Open connections.
    pub fn connected(&self) -> usize {
        let n = self.connections.load(Ordering::Acquire);
        if n < ENDING { n } else { 0 }
    }

    /// Returns once no client is connected.
    async fn empty(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            // Enabled before the check: otherwise the last connection could end between check and wait.
            emptied.as_mut().enable();
            if self.connected() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn end(&self, why: WriteFailure) {
        if why == WriteFailure::Fenced {
            self.fenced.store(true, Ordering::Release);
        }
        self.sequencer.stop(why);
        if why == WriteFailure::Gone {
            self.closed.cancel();
        }
    }
}

/// Parts of a set's server.
pub struct SetParts {
    /// The set's id.
    pub id: SetId,
    /// Its name.
    pub name: Name,
    /// Its group.
    pub group: Group,
    /// Its replicated state.
    pub host: Arc<SetHost>,
    /// Its read path.
    pub reader: Reader,
    /// How fast its writers may go.
    pub pace: Arc<JournalPace>,
    /// Its head in the store.
    pub head: Arc<HeadKeeper>,
    /// Result counts of its store's answers.
    pub health: Arc<Health>,
    /// Location of its objects, which may change.
    pub switch: Arc<Switch>,
    /// The longest times that it may have, by the settings.
    pub timing: Timing,
    /// Takes spans of writes and grants; `None`: nothing is noted.
    pub traces: Option<Traces>,
    /// Stops the server.
    pub stop: CancellationToken,
}

/// One set on this node.
pub struct SetServer {
    /// The set's id.
    pub id: SetId,
    /// Its name.
    pub name: Name,
    /// Its group.
    pub group: Group,
    /// Its replicated state.
    pub host: Arc<SetHost>,
    /// Its read path.
    pub reader: Reader,
    /// Its head in the store.
    pub head: Arc<HeadKeeper>,
    /// Result counts of its store's answers to this gateway.
    pub health: Arc<Health>,
    /// Location of its objects, which may change.
    pub switch: Arc<Switch>,
    /// Progress of a change of that location.
    pub migration: MigrationBoard,
    /// Progress of the background check of its objects.
    pub scrub: ScrubBoard,
    pace: Arc<JournalPace>,
    /// The longest times that the settings allow: those of a set that nothing was chosen for.
    longest: Timing,
    /// The times that group and gate were told.
    timed: Mutex<Timing>,
    gate: Arc<Gate>,
    /// One call of [`SetServer::follow`] at a time, from the first fact read to the last event passed on.
    following: Mutex<()>,
    expiry: Mutex<Expiry>,
    /// The latest epoch ever served here. Its sequence numbers began at 1 and must never begin again (R2).
    served: Mutex<Epoch>,
    serving: Mutex<Option<Arc<Serving>>>,
    grants: Grants,
    uses: Mutex<Uses>,
    throttles: Mutex<throttles::Shared>,
    given_up: Mutex<GivenUp>,
    /// Where the owner of this grant stands, as it said here.
    place: Mutex<Option<(Epoch, Locality)>>,
    pub(crate) traced: SetTraces,
    stop: CancellationToken,
}

impl SetServer {
    /// Creates a server that runs until `stop`. Call [`SetServer::run`] in its own task.
    pub fn new(parts: SetParts) -> Arc<Self> {
        let SetParts { id, name, group, host, reader, pace, head, health, switch, timing, traces, stop } = parts;
        let gate = Arc::new(Gate::new(group.clone(), timing));
        Arc::new(Self {
            traced: SetTraces::new(traces, name.clone()),
            id,
            name,
            group,
            host,
            reader,
            head,
            health,
            switch,
            migration: MigrationBoard::default(),
            scrub: ScrubBoard::default(),
            pace,
            longest: timing,
            timed: Mutex::new(timing),
            gate,
            following: Mutex::new(()),
            expiry: Mutex::default(),
            served: Mutex::new(Epoch(0)),
            serving: Mutex::new(None),
            grants: Grants::default(),
            uses: Mutex::default(),
            throttles: Mutex::default(),
            given_up: Mutex::default(),
            place: Mutex::default(),
            stop,
        })
    }
}

// ---- queries

impl SetServer {
    /// The epoch under which a write may be accepted now.
    ///
    /// # Errors
    /// The reason why no write is accepted.
    pub fn may_write(&self) -> Result<Epoch, WhyNot> {
        self.gate.may_write()
    }

    /// The epoch under which a read may be answered now (R3). Compares values; makes no round trip.
    ///
    /// # Errors
    /// The reason why no read is answered.
    pub fn may_read(&self) -> Result<Epoch, WhyNot> {
        self.gate.may_read()
    }

    /// The gate, for callers that report clock and membership events to it.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// What this gateway serves now.
    pub fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.locked().clone()
    }

    /// The lease as applied here.
    pub fn lease(&self) -> Option<Lease> {
        self.host.with(|m| m.state().lease.clone())
    }

    /// Remaining time of the lease by this leader's clock; zero when it may be judged expired.
    pub fn lease_left(&self, lease: &Lease) -> Duration {
        if self.held_by_connections(lease) {
            return Duration::from_millis(u64::from(lease.ttl_ms));
        }
        let until = self.expiry.locked().judge.expires_at();
        until.map_or(Duration::from_millis(u64::from(lease.ttl_ms)), |until| until.saturating_since(boot_now()))
    }

    /// A plain lease lives as long as its connections here.
    fn held_by_connections(&self, lease: &Lease) -> bool {
        let serving = self.serving.locked();
        serving.as_ref().is_some_and(|s| s.plain && s.epoch == lease.epoch && s.connected() > 0)
    }

    fn judged_expired(&self) -> Option<Judged> {
        let lease = self.lease()?;
        if self.held_by_connections(&lease) {
            return None;
        }
        self.expiry.locked().judge.judge(boot_now())
    }
}

// ---- commands

impl SetServer {
    /// Proposes a command in the term in which this gateway leads, and waits until it is applied here.
    ///
    /// # Errors
    /// [`SetError`]. After `Propose(Unknown)` the command may have been applied (R12).
    pub async fn command(&self, what: &'static str, command: &SetCommand) -> Result<SetAnswer, SetError> {
        let payload = encode_control(command)
            .map_err(|e| SetError::Answer { what, found: format!("a command that does not encode: {e}") })?;
        let term = self.group.leading_term();
        let done = self.group.propose(term, payload, CONTROL_LIMIT).await?;
        match decode_answer(&done.answer) {
            Some(SetAnswer::Refused(refusal)) => Err(SetError::Refused(refusal)),
            Some(answer) => Ok(answer),
            None => Err(SetError::Answer { what, found: format!("{} bytes", done.answer.len()) }),
        }
    }

    /// Requests the lease for `owner` at this gateway.
    ///
    /// # Errors
    /// [`SetError::Refused`] names the holder, its gateway, and the time of the grant.
    pub async fn acquire(
        &self,
        owner: Owner,
        token: Token,
        ttl: Duration,
        request: RequestId,
        force: bool,
        plain: bool,
    ) -> Result<Lease, SetError> {
        let asked = self.traced.now();
        let _one = self.grants.one.lock().await;
        self.grants.may_begin()?;
        self.wait_ready().await?;
        self.before_answer().await?;
        let looked = self.traced.now();
        let command = SetCommand::Acquire {
            owner,
            gateway: self.group.me(),
            token,
            ttl_ms: u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX),
            request,
            judged_expired: self.judged_expired(),
            force,
            plain,
            at_unix_ms: unix_ms(),
        };
        let lease = self.granted(&command).await?;
        self.traced.granted(&lease, false, asked, looked);
        Ok(lease)
    }

    /// The same owner continues its lease here.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn continue_lease(
        &self,
        owner: Owner,
        token: Token,
        new_token: Token,
        request: RequestId,
    ) -> Result<Lease, SetError> {
        let asked = self.traced.now();
        let _one = self.grants.one.lock().await;
        self.grants.may_begin()?;
        self.wait_ready().await?;
        self.before_continuing().await?;
        let looked = self.traced.now();
        let command =
            SetCommand::Continue { owner, gateway: self.group.me(), token, new_token, request, at_unix_ms: unix_ms() };
        let lease = self.granted(&command).await?;
        self.traced.granted(&lease, true, asked, looked);
        Ok(lease)
    }

    /// Sets the reason why this gateway grants nothing; `None` allows grants again.
    pub fn stand_aside(&self, why: Option<&'static str>) {
        self.grants.stand_aside(why);
    }

    /// Whether a client that connects now gets the set here, as far as this gateway knows without asking others.
    ///
    /// # Errors
    /// The reason why not, as text for users.
    pub fn can_grant(&self) -> Result<(), String> {
        self.grants.may_begin().map_err(|why| why.to_string())?;
        let held_off = self.is_held_off().then(|| "the set is being rolled back".to_string());
        held_off.or_else(|| self.head.fenced()).map_or(Ok(()), Err)?;
        self.leads().map(|_| ()).ok_or_else(|| "it does not lead the set".to_string())
    }

    /// Whether a rollback is in progress here.
    pub fn is_held_off(&self) -> bool {
        self.grants.is_held_off()
    }

    async fn granted(&self, command: &SetCommand) -> Result<Lease, SetError> {
        if self.is_held_off() {
            return Err(SetError::NotReady("the set is being rolled back; no grants until that is finished".into()));
        }
        let answered = self.command("a grant", command).await;
        self.before_telling(command, &answered).await?;
        match answered? {
            SetAnswer::Granted(lease) => {
                self.follow();
                Ok(lease)
            }
            other => Err(SetError::Answer { what: "a grant", found: format!("{other:?}") }),
        }
    }

    /// Releases the lease of `epoch`. `token` is the owner's proof; `None` when this gateway releases it itself.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn release(&self, epoch: Epoch, token: Option<Token>) -> Result<(), SetError> {
        self.command("a release", &SetCommand::Release { epoch, token }).await?;
        self.follow();
        Ok(())
    }

    /// Renews the lease: the owner is alive.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn renew(&self, epoch: Epoch) -> Result<(), SetError> {
        self.command("a renewal", &SetCommand::Renew { epoch }).await.map(|_| ())
    }

    /// Opens a connection without a token: joins the same owner's plain lease here, or takes a free one.
    ///
    /// # Errors
    /// [`SetError`].
    pub async fn open_plain(self: &Arc<Self>, owner: Owner) -> Result<Connection, SetError> {
        if let Some(connection) = self.join(|s| s.plain && s.owner == owner) {
            return Ok(connection);
        }
        if self.serving().is_some_and(|s| s.draining.is_cancelled()) {
            return Err(SetError::NotReady("the set is moving to another gateway".to_string()));
        }
        let token = Token(crate::random::random_u128());
        let request = RequestId(crate::random::random_u128());
        let ttl = holdfast_control::set::TTL_DEFAULT;
        let granted = self.acquire(owner.clone(), token, ttl, request, false, true).await;
        match granted {
            Ok(lease) => self
                .join(|s| s.epoch == lease.epoch)
                .ok_or_else(|| SetError::NotReady("the grant ended before the connection began".to_string())),
            // Another connection of the same owner was faster: join its lease.
            Err(SetError::Refused(refusal)) => {
                self.join(|s| s.plain && s.owner == owner).ok_or(SetError::Refused(refusal))
            }
            // It may have been granted: what nobody uses is released.
            Err(error @ SetError::Propose(ProposeError::Unknown { .. })) => {
                self.follow();
                if let Some(unused) = self.serving().filter(|s| s.plain && s.owner == owner && s.begin_ending()) {
                    unused.end(WriteFailure::Gone);
                }
                Err(error)
            }
            Err(e) => Err(e),
        }
    }

    /// Opens a connection with the token of the grant that is served here.
    ///
    /// # Errors
    /// [`SetError::NotReady`] if that grant is not served here.
    pub async fn open_session(self: &Arc<Self>, token: Token) -> Result<Connection, SetError> {
        if let Some(connection) = self.join(|s| !s.plain && s.token == token) {
            return Ok(connection);
        }
        let Some(held) = self.lease().filter(|lease| !lease.opens(token)) else {
            return Err(SetError::NotReady(
                "the token does not belong to a grant that is served here now; continue the lease at this gateway first"
                    .into(),
            ));
        };
        // R8: the owner of an ended grant has lost the set for good, so it gets an error. HEAD-H1: not from a gateway
        // of an older life, whose lease says nothing about the grants of the present one.
        self.before_answer().await?;
        let Lease { owner, gateway, epoch, since_unix_ms, plain, .. } = held;
        Err(SetError::Refused(SetRefusal::Held { owner, gateway, epoch, since_unix_ms, plain }))
    }

    fn join(self: &Arc<Self>, fits: impl Fn(&Serving) -> bool) -> Option<Connection> {
        let serving = self.serving.locked();
        let open =
            |s: &Serving| !s.closed.is_cancelled() && !s.draining.is_cancelled() && !s.fenced.load(Ordering::Acquire);
        let serving = serving.as_ref().filter(|s| fits(s) && open(s))?;
        if !serving.admit() {
            return None;
        }
        Some(Connection { server: self.clone(), serving: serving.clone() })
    }

    /// Waits until this gateway may request a grant: it leads and has applied the first entry of its term.
    async fn wait_ready(&self) -> Result<(), SetError> {
        self.head.first_look().await;
        if let Some(why) = self.head.fenced() {
            return Err(SetError::Fenced(why));
        }
        let deadline = tokio::time::Instant::now() + self.longest.election_max();
        loop {
            self.follow();
            let Some(term) = self.group.leading_term() else {
                let leader = self.group.leadership().borrow().leader;
                return Err(SetError::Propose(ProposeError::NotLeader { leader }));
            };
            if self.group.applied().term == term {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                let reason = format!("leads {term}, but has not applied an entry of it yet");
                return Err(SetError::NotReady(reason));
            }
            // At most one heartbeat: the notification may have come between check and wait.
            let _ = tokio::time::timeout(self.timing().heartbeat(), self.host.changed().notified()).await;
        }
    }
}

impl SetServer {
    /// Cancelled when this gateway stops.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// This member.
    pub fn me(&self) -> MemberId {
        self.group.me()
    }

    /// Objects that checkpoints of this leadership began to write: the uploader records them, and the sweep decides
    /// which were given up (SPACE-G4).
    pub fn given_up(&self) -> MutexGuard<'_, GivenUp> {
        self.given_up.locked()
    }

    /// Whether writers wait for the journal while this set holds a large part of it.
    pub fn journal_pressed(&self) -> bool {
        self.pace.pace() != Pace::Go && self.group.live_bytes() > self.pace.share_bytes()
    }

    /// The term in which this gateway leads, once it has applied an entry of that term.
    pub fn leading_ready(&self) -> Option<Term> {
        self.group.ready_term()
    }

    /// As [`SetServer::leading_ready`], but `None` if the head in the store belongs to another cluster. Background work
    /// for the set runs in this term.
    pub fn leads(&self) -> Option<Term> {
        self.leading_ready().filter(|_| self.head.fenced().is_none())
    }

    /// Waits until a quorum acknowledges a heartbeat sent after the call, which proves that this gateway led until
    /// then.
    ///
    /// # Errors
    /// This gateway does not lead, or no quorum answered within two election timeouts.
    pub async fn confirm_leadership(&self) -> Result<(), SetError> {
        self.wait_ready().await?;
        let asked = boot_now();
        let term = self.leading_ready();
        let deadline = tokio::time::Instant::now() + self.longest.election_max() * 2;
        loop {
            if self.leading_ready() != term || term.is_none() {
                let leader = self.group.leadership().borrow().leader;
                return Err(SetError::Propose(ProposeError::NotLeader { leader }));
            }
            let sole = self.gate.is_sole_voter();
            if sole || self.group.quorum_acked().is_some_and(|(acked_term, at)| Some(acked_term) == term && at >= asked)
            {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(SetError::NotReady(
                    "no quorum of gateways has answered; try again, or try another gateway".into(),
                ));
            }
            tokio::time::sleep(self.timing().heartbeat() / 4).await;
        }
    }
}
