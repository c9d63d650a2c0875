//! The door's side: the role is checked by the path of a call, before anything of it is decoded.

use super::named::Named;
use super::refused::Refused;
use super::rules::{self, Rule};
use crate::audit::Audit;
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
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Code, Status};

/// What to do about a refusal.
const REMEDY: &str = "use a certificate of such a role; `holdfast cluster certificates` issues them";

/// The check of one door.
#[derive(Clone)]
pub(crate) struct Guard {
    rules: &'static [Rule],
    /// Clients have certificates, of which these count no more. `None`: they have none, and may do everything.
    tls: Option<Revocations>,
    audit: Option<Audit>,
    /// Of all connections (ACCESS-A4).
    lately: Arc<Mutex<Refused>>,
}

impl Guard {
    /// For the admin API.
    pub(crate) fn admin(tls: Option<Revocations>, audit: Option<Audit>) -> Self {
        Self { rules: rules::ADMIN, tls, audit, lately: Arc::default() }
    }

    /// For the protocol between gateways.
    pub(crate) fn peer(tls: Option<Revocations>) -> Self {
        Self { rules: rules::PEER, tls, audit: None, lately: Arc::default() }
    }

    /// The call, and its line of the audit log; or the answer to it.
    fn ask(&self, path: &str, service: &str, extensions: &http::Extensions) -> Result<(Asked, Line), Status> {
        let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(service)?.strip_prefix('/'));
        let rule = self.rules.iter().find(|rule| Some(rule.method) == method);
        let Some(rule) = rule else {
            return Err(Status::unimplemented("found a call that this gateway does not know (ACCESS-A1)"));
        };
        // Only a door that takes both has this.
        let either = extensions.get::<EitherInfo<TcpConnectInfo>>();
        let over_tls = extensions.get::<TlsConnectInfo<TcpConnectInfo>>().or_else(|| either?.tls());
        let below = over_tls.map(TlsConnectInfo::get_ref).or_else(|| either.map(EitherInfo::below));
        let plain = extensions.get::<TcpConnectInfo>().or(below);
        let asked = Asked::default();
        let mut line = Line {
            audit: self.audit.clone(),
            lately: self.lately.clone(),
            rule,
            caller: None,
            peer: plain.and_then(TcpConnectInfo::remote_addr),
            named: asked.named.clone(),
            begun: Instant::now(),
            refused: false,
            outcome: None,
        };
        let Some(revocations) = &self.tls else { return Ok((asked, line)) };
        if either.is_some() && over_tls.is_none() {
            plaintext_came("call");
            return Ok((asked, line));
        }
        let certificates = over_tls.and_then(TlsConnectInfo::peer_certs);
        let own = certificates.as_ref().and_then(|all| all.first());
        match judge(own.map(|own| own.as_ref()), revocations, rule, &mut line) {
            Ok(caller) => Ok((Asked { caller: Some((caller, rule.roles)), ..asked }, line)),
            Err(status) => {
                line.ended(&status.clone().into_http::<Body>());
                Err(status)
            }
        }
    }
}

/// Somebody has not come to TLS yet, while the doors take both.
pub(crate) fn plaintext_came(what: &'static str) {
    metrics::counter!("holdfast_plaintext_total", "what" => what).increment(1);
}

/// The caller, if its certificate counts and has one of the rule's roles. The line names it in either case.
fn judge(
    certificate_der: Option<&[u8]>,
    revocations: &Revocations,
    rule: &Rule,
    line: &mut Line,
) -> Result<Arc<Caller>, Status> {
    let caller = Arc::new(Caller::at_door(certificate_der)?);
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
    named: Arc<OnceLock<Named>>,
    begun: Instant,
    /// Refused for its certificate or its store.
    refused: bool,
    outcome: Option<Code>,
}

/// The same, as it is written.
#[derive(Serialize)]
struct Record<'a> {
    time_unix_ms: u64,
    method: &'a str,
    roles: Vec<&'a str>,
    certificate: Option<&'a str>,
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
    fn ended<B>(&mut self, response: &http::Response<B>) {
        let status = Status::from_header_map(response.headers());
        self.outcome = Some(status.map_or(Code::Ok, |status| status.code()));
        let refusal = response.headers().get(REFUSAL_KEY);
        let unauthenticated = self.outcome == Some(Code::Unauthenticated);
        self.refused = unauthenticated || refusal.is_some_and(|code| code == RefusalCode::Denied.as_str());
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
        let repeated = if self.refused {
            let certificate = caller.map_or("", |caller| caller.name.as_str());
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
            peer: self.peer,
            named: self.named.get(),
            outcome: self.outcome.map_or("NotAwaited".to_string(), |code| format!("{code:?}")),
            repeated,
            duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
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
    S: Service<http::Request<B>, Response = http::Response<Body>, Error = Infallible> + NamedService,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        match self.guard.ask(request.uri().path(), S::NAME, request.extensions()) {
            Ok((asked, mut line)) => {
                request.extensions_mut().insert(asked);
                let answer = self.inner.call(request);
                Box::pin(async move {
                    let Ok(response) = answer.await;
                    line.ended(&response);
                    Ok(response)
                })
            }
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}
