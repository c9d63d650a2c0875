//! The door's side: the role is checked by the path of a call, before anything of it is decoded.

use super::bounds::{CallPlace, Counted, Running};
use super::named::Named;
use super::refused::Refused;
use super::rules::{self, Rule};
use crate::audit::Audit;
use crate::doors::{Client, Place, Standing};
use holdfast_api::{REFUSAL_KEY, Refusal, RefusalCode};
use holdfast_host::unix_ms;
use holdfast_tls::{Caller, EitherInfo, Revocations, Role};
use holdfast_types::sync::LockExt;
use serde::Serialize;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Code, Status};

/// What to do about a refusal.
const REMEDY: &str = "use a certificate of such a role; `holdfast cluster certificates` issues them";

/// Whether a call with these headers is of this gateway's cluster.
pub(crate) type ClusterCheck = Arc<dyn Fn(&http::HeaderMap) -> Result<(), Status> + Send + Sync>;

/// The check of one door.
#[derive(Clone)]
pub(crate) struct Guard {
    rules: &'static [Rule],
    /// In the order of the rules.
    running: Arc<Vec<Running>>,
    /// Clients have certificates, of which these count no more. `None`: they have none, and may do everything.
    tls: Option<Revocations>,
    /// Asked before anything of a body is read.
    cluster: Option<ClusterCheck>,
    audit: Option<Audit>,
    /// Of all connections (ACCESS-A4).
    lately: Arc<Mutex<Refused>>,
}

impl Guard {
    /// For the admin API.
    pub(crate) fn admin(tls: Option<Revocations>, audit: Option<Audit>) -> Self {
        Self::new(rules::ADMIN, tls, None, audit)
    }

    /// For the protocol between gateways.
    pub(crate) fn peer(tls: Option<Revocations>, cluster: Option<ClusterCheck>, audit: Option<Audit>) -> Self {
        Self::new(rules::PEER, tls, cluster, audit)
    }

    fn new(
        rules: &'static [Rule],
        tls: Option<Revocations>,
        cluster: Option<ClusterCheck>,
        audit: Option<Audit>,
    ) -> Self {
        let running = Arc::new(rules.iter().map(|rule| Running::new(&rule.bounds)).collect());
        Self { rules, running, tls, cluster, audit, lately: Arc::default() }
    }

    /// The call, and its line of the audit log; or the answer to it.
    fn ask<B>(&self, service: &str, request: &http::Request<B>) -> Result<(Asked, Line), Status> {
        let (path, extensions) = (request.uri().path(), request.extensions());
        let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(service)?.strip_prefix('/'));
        let rule = self.rules.iter().zip(&*self.running).find(|(rule, _)| Some(rule.method) == method);
        let Some((rule, running)) = rule else {
            return Err(Status::unimplemented("found a call that this gateway does not know (ACCESS-A1)"));
        };
        // Only a door that takes both has this.
        let either = extensions.get::<EitherInfo<Client>>();
        let over_tls = extensions.get::<TlsConnectInfo<Client>>().or_else(|| either?.tls());
        let below = over_tls.map(TlsConnectInfo::get_ref).or_else(|| either.map(EitherInfo::below));
        let client = extensions.get::<Client>().or(below);
        let behalf = extensions.get::<OnBehalf>();
        if behalf.is_some() && self.tls.is_none() {
            // Without TLS a call has no caller, and so may do everything. This one has a caller.
            return Err(Status::unauthenticated("found a call for a certificate, and a gateway without TLS"));
        }
        let asked = Asked::default();
        let mut line = self.line(rule, client);
        line.named = asked.named.clone();
        if let Some(behalf) = behalf {
            line.peer = Some(behalf.from);
        }
        let in_plain = either.is_some() && over_tls.is_none();
        if in_plain {
            plaintext_came("call");
        }
        let revocations = self.tls.as_ref().filter(|_| !in_plain);
        let certificates = over_tls.and_then(TlsConnectInfo::peer_certs);
        let own: Option<&[u8]> = certificates.as_ref().and_then(|all| all.first()).map(|own| own.as_ref());
        let shown = behalf.map_or(Shown::Certificate(own), |behalf| Shown::Read(&behalf.caller));
        match self.admit(shown, revocations, request.headers(), running, &mut line) {
            Ok(caller) => Ok((Asked { caller: caller.map(|caller| (caller, rule.roles)), ..asked }, line)),
            Err(status) => {
                line.ended(&status.clone().into_http::<Body>());
                Err(status)
            }
        }
    }

    /// The line of a call that begins now, of nobody yet.
    fn line(&self, rule: &'static Rule, client: Option<&Client>) -> Line {
        Line {
            audit: self.audit.clone(),
            lately: self.lately.clone(),
            rule,
            caller: None,
            peer: client.and_then(|client| client.address),
            place: client.map(|client| client.place.clone()),
            running: None,
            named: Arc::default(),
            begun: Instant::now(),
            refused: false,
            crowded: false,
            outcome: None,
        }
    }

    /// Leaves a line for a connection between gateways that may not carry appends (ACCESS-A3): those pass no guard.
    pub(crate) fn appends_refused(&self, certificate_der: Option<&[u8]>, client: Option<&Client>) {
        let Some(rule) = self.rules.iter().find(|rule| rule.method == "Append") else { return };
        let mut line = self.line(rule, client);
        line.caller = Caller::at_door(certificate_der).ok().map(Arc::new);
        (line.refused, line.outcome) = (true, Some(Code::PermissionDenied));
    }

    /// The caller, if there is TLS. Its connection is known from here on (DOOR-D5), and its call has a place.
    fn admit(
        &self,
        shown: Shown<'_>,
        revocations: Option<&Revocations>,
        headers: &http::HeaderMap,
        running: &Running,
        line: &mut Line,
    ) -> Result<Option<Arc<Caller>>, Status> {
        let caller = match revocations {
            Some(revocations) => Some(judge(shown, revocations, line.rule, line)?),
            None => None,
        };
        if let Some(cluster) = &self.cluster {
            cluster(headers)?;
        }
        let proven = caller.as_ref().is_some_and(|caller| caller.roles.iter().any(|role| PROVEN.contains(role)));
        line.shows(if proven { Standing::Proven } else { Standing::Asked });
        let standing = line.place.as_ref().map_or(Standing::Asked, Place::standing);
        line.running = running.begin(standing, caller.as_deref().and_then(sharer));
        if line.running.is_none() {
            line.crowded = true;
            let method = line.rule.method;
            let message =
                format!("{method}: too many such calls at once, or too many by one certificate (ACCESS-A5): try again");
            return Err(Refusal::new(RefusalCode::Busy, message).into());
        }
        Ok(caller)
    }
}

/// A call that another door of this gateway makes for its client. Nothing on the network can bring this with it.
///
/// Such a call has no place at a listener: it is nobody's proof there, and takes none of the places of those who are
/// proven.
#[derive(Clone, Debug)]
pub(crate) struct OnBehalf {
    /// Who has shown a certificate of the authority there.
    pub caller: Arc<Caller>,
    /// Its address.
    pub from: SocketAddr,
}

/// What a caller has shown.
enum Shown<'a> {
    /// In a handshake with TLS.
    Certificate(Option<&'a [u8]>),
    /// The same at another door, which has read it.
    Read(&'a Arc<Caller>),
}

impl Shown<'_> {
    fn caller(&self) -> Result<Arc<Caller>, Status> {
        match self {
            Shown::Certificate(der) => Caller::at_door(*der).map(Arc::new),
            Shown::Read(caller) => Ok((*caller).clone()),
        }
    }
}

/// The roles whose connections keep their places whatever others do (DOOR-D5).
const PROVEN: &[Role] = &[Role::Gateway, Role::Host];

/// The name of a certificate that has only a share of the places, of calls (ACCESS-A5) and of connections (DOOR-D5).
/// An administrator may do everything, and the calls of gateways are those of all their groups.
fn sharer(caller: &Caller) -> Option<&str> {
    let whole = caller.roles.iter().any(|role| [Role::Gateway, Role::Admin].contains(role));
    (!whole).then_some(caller.name.as_str())
}

/// Somebody has not come to TLS yet, while the doors take both.
pub(crate) fn plaintext_came(what: &'static str) {
    metrics::counter!("holdfast_plaintext_total", "what" => what).increment(1);
}

/// The caller, if its certificate counts and has one of the rule's roles. The line names it in either case.
fn judge(shown: Shown<'_>, revocations: &Revocations, rule: &Rule, line: &mut Line) -> Result<Arc<Caller>, Status> {
    let caller = shown.caller()?;
    line.caller = Some(caller.clone());
    // REVOKE-V1: also on a connection that was open before.
    revocations.check(&caller.identity()).map_err(|why| denied(format!("{}: {why}", rule.method)))?;
    let checked = caller.has_one_of(rule.roles);
    checked.map_err(|why| denied(format!("{}: {why}: {REMEDY}", rule.method)))?;
    Ok(caller)
}

fn denied(message: String) -> Refusal {
    Refusal::new(RefusalCode::Denied, message)
}

/// Goes along with a call that has passed the door.
#[derive(Clone, Default)]
pub(crate) struct Asked {
    /// None without TLS. The roles are those of the rule.
    caller: Option<(Arc<Caller>, &'static [Role])>,
    /// Told to the line of the audit log once the request is decoded.
    named: Arc<OnceLock<Named>>,
}

impl Asked {
    /// A call that any role may make.
    #[cfg(test)]
    pub(super) fn by(caller: Caller) -> Self {
        Self { caller: Some((Arc::new(caller), &Role::ALL)), ..Self::default() }
    }

    /// Who makes the call; `None` without a certificate.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref().map(|(caller, _)| &**caller)
    }

    /// ACCESS-A2. Notes what the request names first, so that a refusal is noted with it.
    ///
    /// # Errors
    /// What was found and what was expected; for the client.
    pub(crate) fn about(&self, named: &Named) -> Result<(), Refusal> {
        // Set before only if the same call was decoded twice.
        let _ = self.named.set(named.shortened());
        let Some((caller, allowed)) = &self.caller else { return Ok(()) };
        let mut why = String::new();
        for role in caller.roles.iter().filter(|role| allowed.contains(role)) {
            match named.may(*role, caller) {
                Ok(()) => return Ok(()),
                Err(found) => why = found,
            }
        }
        Err(denied(format!("{why}: {REMEDY}")))
    }
}

/// A line of the audit log, written when it is dropped: also if the caller has gone, or did not get an answer in time.
struct Line {
    audit: Option<Audit>,
    lately: Arc<Mutex<Refused>>,
    rule: &'static Rule,
    caller: Option<Arc<Caller>>,
    peer: Option<SocketAddr>,
    /// Of its connection; None in a simulation.
    place: Option<Place>,
    /// Its place among the calls of its method.
    running: Option<CallPlace>,
    named: Arc<OnceLock<Named>>,
    begun: Instant,
    /// Refused for its certificate or its store; between gateways also for its cluster or its life.
    refused: bool,
    /// Refused since too many calls of its method run. That costs its caller nothing.
    crowded: bool,
    outcome: Option<Code>,
}

/// Like `Line`, as it is written.
#[derive(Serialize)]
struct Record<'a> {
    time_unix_ms: u64,
    method: &'a str,
    roles: Vec<&'a str>,
    certificate: Option<&'a str>,
    /// Its serial number in hex: there may be several certificates of one name.
    serial: Option<&'a str>,
    peer: Option<SocketAddr>,
    #[serde(flatten)]
    named: Option<&'a Named>,
    outcome: String,
    /// Refusals since the line before, of the same certificate and method, that left no line (ACCESS-A4).
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<u64>,
    duration_ms: u64,
}

impl Line {
    fn shows(&self, standing: Standing) {
        if let Some(place) = &self.place {
            place.shows_of(standing, self.caller.as_deref().and_then(sharer));
        }
    }

    fn ended<B>(&mut self, response: &http::Response<B>) {
        let status = Status::from_header_map(response.headers());
        self.outcome = Some(status.map_or(Code::Ok, |status| status.code()));
        let denied = [Some(Code::Unauthenticated), Some(Code::PermissionDenied)].contains(&self.outcome);
        // Between gateways, and of who has no certificate, no refusal has a code of its own.
        let refusal = response.headers().get(REFUSAL_KEY);
        self.refused = denied && refusal.is_none_or(|code| code == RefusalCode::Denied.as_str());
        if self.outcome == Some(Code::Ok) && self.rule.proves {
            self.shows(Standing::Proven);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(audit) = &self.audit else { return };
        // ACCESS-A3.
        let noted = self.refused || self.rule.noted;
        if !noted || self.rule.repeated && self.outcome == Some(Code::Unavailable) {
            return;
        }
        let caller = self.caller.as_deref();
        let repeated = if self.refused || self.crowded {
            let certificate = caller.map_or("", |caller| caller.serial.as_str());
            let Some(repeated) = self.lately.locked().line(certificate, self.rule.method, Instant::now()) else {
                return;
            };
            Some(repeated).filter(|&n| n > 0)
        } else {
            None
        };
        let roles = match caller {
            Some(caller) => caller.roles.iter().map(|role| role.name()).collect(),
            // Without TLS.
            None if !self.refused => vec![Role::Admin.name()],
            None => Vec::new(),
        };
        audit.write(&Record {
            time_unix_ms: unix_ms(),
            method: self.rule.method,
            roles,
            certificate: caller.map(|caller| caller.name.as_str()),
            serial: caller.map(|caller| caller.serial.as_str()),
            peer: self.peer,
            named: self.named.get(),
            outcome: self.outcome.map_or("NotAwaited".to_string(), |code| format!("{code:?}")),
            repeated,
            duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

/// ACCESS-A6. What was begun may still have an effect (R12).
fn late(rule: &Rule) -> Status {
    let (method, limit) = (rule.method, rule.bounds.deadline);
    Refusal::new(RefusalCode::Unknown, format!("{method}: no outcome within {limit:?} (ACCESS-A6)")).into()
}

/// A service behind its door.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: Guard,
}

impl<S> Guarded<S> {
    pub(crate) fn new(inner: S, guard: Guard) -> Self {
        Self { inner, guard }
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<Counted<B>>, Response = http::Response<Body>, Error = Infallible> + NamedService,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match self.guard.ask(S::NAME, &request) {
            Ok((asked, mut line)) => {
                let rule = line.rule;
                let mut request = request.map(|body| Counted::new(body, &rule.bounds));
                request.extensions_mut().insert(asked);
                let answer = self.inner.call(request);
                Box::pin(async move {
                    let response = match tokio::time::timeout(rule.bounds.deadline, answer).await {
                        Ok(Ok(response)) => response,
                        Err(_) => late(rule).into_http(),
                    };
                    line.ended(&response);
                    Ok(response)
                })
            }
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}
