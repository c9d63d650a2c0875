//! Actions of the page (ADR 0081): snapshot, switchover and drain by forms, for who may.
//!
//! ```text
//!   GET /page/actions ─▶ a form with a ticket ─▶ POST /page/act ─▶ Origin, body, ticket ─▶ the guard of the admin API
//!   GET /page/move, /page/drain: asked before ──┘                                             │ as any other call
//!   GET /page/done ◀────────────────────────────────── 303 ◀── the outcome, under the form's id ◀┘
//! ```
//! - **WEB-H5** Only who has shown a certificate acts, and as a caller of the admin API: by the same table, limits and
//!   audit log. A door without TLS does not have these paths.
//! - **WEB-H6** An action is a POST of a form that this process has made for this certificate (`ticket.rs`), sent from
//!   a page of this very address. A browser shows its certificate whoever made the request.
//! - **WEB-H7** A form begins one action, however often it is sent. Its outcome is told by a page of its own, to who
//!   sent it (`outcomes.rs`).
//! - **WEB-H8** A form is short and comes in time, and few actions go on at once.

use super::answer;
use super::forms::{self, Form, May};
use super::html::Html;
use super::open;
use super::outcomes::{Begun, Going, Kind, Outcome, Outcomes};
use super::ticket::Tickets;
use crate::access::OnBehalf;
use crate::admin::{AdminDoor, GuardedAdmin, ToAct};
use crate::http::secured::Asker;
use crate::node::Node;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use holdfast_api::v1::admin_client::AdminClient;
use holdfast_api::{Disposition, Refusal, RefusalCode, hex128, v1};
use holdfast_set::random::random_u128;
use holdfast_tls::Caller;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use url::form_urlencoded;

/// Longest form, in bytes: a few names, and its ticket.
const BODY_BYTES_MAX: usize = 4096;

/// How long a form may take to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// How long a browser waits for an outcome before it is told that the action goes on.
const WAIT: Duration = Duration::from_secs(8);

/// Longest text of an outcome, in characters.
const TEXT_CHARS_MAX: usize = 2000;

/// The actions of one gateway's page.
pub(crate) struct Actions {
    here: String,
    door: AdminDoor,
    admin: GuardedAdmin,
    tickets: Tickets,
    outcomes: Arc<Outcomes>,
    /// From where the time of tickets is counted.
    begun: Instant,
    /// Of this gateway.
    stop: CancellationToken,
}

/// Why a visitor gets no page, or a form is not taken. Nothing was changed.
#[derive(Debug)]
struct No {
    status: StatusCode,
    why: String,
}

impl No {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    fn forbidden(found: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, format!("found {found}"))
    }
}

/// The fields of a form or of a query.
#[derive(Debug)]
struct Fields(BTreeMap<String, String>);

impl Fields {
    /// Each field may be there once: who reads the first one and who reads the last one must not differ.
    fn read(text: &[u8]) -> Result<Self, No> {
        let mut fields = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text) {
            if fields.insert(name.to_string(), value.to_string()).is_some() {
                return Err(No::new(StatusCode::BAD_REQUEST, format!("found field {name} twice")));
            }
        }
        Ok(Self(fields))
    }

    fn of(asked: &Uri) -> Result<Self, No> {
        Self::read(asked.query().unwrap_or_default().as_bytes())
    }

    fn get(&self, name: &str) -> Result<&str, No> {
        let found = self.0.get(name).map(String::as_str);
        found.ok_or_else(|| No::new(StatusCode::BAD_REQUEST, format!("found no field {name}")))
    }

    fn member(&self) -> Result<u64, No> {
        let found = self.get("member")?;
        let bad = || No::new(StatusCode::BAD_REQUEST, format!("member: found {found:?}, expected a number"));
        found.parse().map_err(|_| bad())
    }
}

/// What a form asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Snapshot {
        set: String,
        name: String,
    },
    Switchover {
        set: String,
        to: String,
    },
    /// `drained`: or not any more.
    Drain {
        member: u64,
        drained: bool,
    },
}

impl Action {
    fn of(fields: &Fields) -> Result<Self, No> {
        let set = || fields.get("set").map(str::to_string);
        Ok(match fields.get("action")? {
            "snapshot" => Self::Snapshot { set: set()?, name: fields.get("name")?.to_string() },
            "switchover" => Self::Switchover { set: set()?, to: fields.get("to")?.to_string() },
            "drain" => Self::Drain { member: fields.member()?, drained: true },
            "undrain" => Self::Drain { member: fields.member()?, drained: false },
            other => return Err(No::new(StatusCode::BAD_REQUEST, format!("found action {other:?}, which is none"))),
        })
    }

    /// What it is, for people.
    fn text(&self, to_act: &ToAct) -> String {
        let name = |id: u64| {
            let member = to_act.members.iter().find(|member| member.id == id);
            member.map_or_else(|| format!("gateway {id}"), |member| member.name.clone())
        };
        match self {
            Self::Snapshot { set, name } => format!("Snapshot {set}@{name}"),
            Self::Switchover { set, to } => format!("Switchover of {set} to {to}"),
            Self::Drain { member, drained: true } => format!("Drain of {}", name(*member)),
            Self::Drain { member, drained: false } => format!("Undrain of {}", name(*member)),
        }
    }
}

/// Whether the page at `/` leads a visitor to the actions.
pub(super) fn may_act(asker: &Asker) -> bool {
    asker.caller().is_some_and(|caller| May::of(caller).any())
}

/// Who asks. The door has refused everybody else before.
fn known(asker: &Asker) -> Result<&Arc<Caller>, No> {
    asker.caller().ok_or_else(|| No::forbidden("no certificate, expected one of the cluster's authority"))
}

/// A call of the admin API by the visitor.
fn call<M>(message: M, by: &OnBehalf) -> tonic::Request<M> {
    let mut request = tonic::Request::new(message);
    request.extensions_mut().insert(by.clone());
    request
}

fn allowed(may: bool, caller: &Caller, what: &str) -> Result<(), No> {
    let (roles, name) = (caller.roles_text(), &caller.name);
    let found = || format!("role {roles} of certificate {name}, which does not allow {what}");
    if may { Ok(()) } else { Err(No::forbidden(&found())) }
}

/// What speaks against a request being sent by a form of this page; `None` if nothing does.
fn foreign(headers: &HeaderMap) -> Option<&'static str> {
    if open::through_proxy(headers) {
        return Some("a form through a proxy, which shows its own certificate, not that of who sent the form");
    }
    let one = |name: HeaderName| {
        let mut all = headers.get_all(name).iter();
        let first = all.next().and_then(|value| value.to_str().ok());
        first.filter(|_| all.next().is_none())
    };
    // Browsers say with each POST from which page it comes.
    let origin = one(header::ORIGIN).and_then(|origin| origin.strip_prefix("https://"));
    let (Some(origin), Some(host)) = (origin, one(header::HOST)) else {
        return Some("a form that does not say which page it is from, expected one of this gateway's page");
    };
    let same = headers.get_all("sec-fetch-site").iter().all(|site| site == "same-origin");
    let is_ours = origin.eq_ignore_ascii_case(host) && same;
    (!is_ours).then_some("a form from another page, expected one of this gateway's page")
}

/// What a failed call came to.
fn failed(status: &Status) -> Outcome {
    let refusal = Refusal::from_status(status);
    let kind = match refusal.as_ref().map(Refusal::disposition) {
        None | Some(Disposition::Unknown) => Kind::Unknown,
        Some(Disposition::FollowLeader | Disposition::Retry | Disposition::Reject) => Kind::Refused,
    };
    let text = refusal.map_or_else(|| status.message().to_string(), |refusal| refusal.message);
    Outcome { kind, text: text.chars().take(TEXT_CHARS_MAX).collect() }
}

impl Actions {
    pub(crate) fn new(node: Arc<Node>, admin: GuardedAdmin) -> Arc<Self> {
        let (here, stop) = (node.config.name.to_string(), node.stop.clone());
        let door = AdminDoor::new(node);
        Arc::new(Self {
            here,
            door,
            admin,
            tickets: Tickets::default(),
            outcomes: Arc::default(),
            begun: Instant::now(),
            stop,
        })
    }

    /// A client of the admin API of this gateway, behind the guard.
    fn client(&self) -> AdminClient<GuardedAdmin> {
        AdminClient::new(self.admin.clone()).max_decoding_message_size(holdfast_api::ADMIN_MESSAGE_BYTES_MAX)
    }

    fn now_s(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    fn form(&self, caller: &Caller) -> Form {
        let id = hex128(random_u128());
        let ticket = self.tickets.give(&caller.fingerprint, &id, self.now_s());
        Form { id, ticket }
    }

    fn shown(&self, page: Result<Html, No>) -> Response {
        match page {
            Ok(page) => answer::with_forms(StatusCode::OK, page),
            Err(no) => answer::with_forms(no.status, forms::refused(&self.here, &no.why)),
        }
    }

    fn overview(&self, asker: &Asker) -> Result<Html, No> {
        let caller = known(asker)?;
        let may = May::of(caller);
        allowed(may.any(), caller, "any action of this page")?;
        Ok(forms::overview(&self.door.to_act(), may, || self.form(caller)))
    }

    fn asked_move(&self, asker: &Asker, asked: &Uri) -> Result<Html, No> {
        let caller = known(asker)?;
        allowed(May::of(caller).switchover, caller, "a switchover")?;
        let fields = Fields::of(asked)?;
        let (set, to) = (fields.get("set")?, fields.get("to")?);
        let to_act = self.door.to_act();
        let found = to_act.sets.iter().find(|one| one.name == set && one.led_here);
        let missing = |why: String| No::new(StatusCode::NOT_FOUND, why);
        let found = found.ok_or_else(|| missing(format!("this gateway serves no set {set}")))?;
        if !found.heirs.iter().any(|heir| heir == to) {
            return Err(missing(format!("no gateway {to} could serve set {set}")));
        }
        Ok(forms::switchover(&self.here, found, to, &self.form(caller)))
    }

    /// What would move is asked for as by a command: by a call of the visitor's.
    async fn asked_drain(&self, asker: &Asker, asked: &Uri) -> Result<Html, No> {
        let caller = known(asker)?;
        allowed(May::of(caller).drain, caller, "a drain")?;
        let member = Fields::of(asked)?.member()?;
        let to_act = self.door.to_act();
        let Some(found) = to_act.members.iter().find(|one| one.id == member) else {
            return Err(No::new(StatusCode::NOT_FOUND, format!("no gateway has the number {member}")));
        };
        if found.standing == "drained" {
            return Ok(forms::undrain(&self.here, found, &self.form(caller)));
        }
        let by = OnBehalf { caller: caller.clone(), from: asker.address() };
        let plan = self.client().plan_drain(call(v1::PlanDrainRequest { member, force: false }, &by)).await;
        let plan = plan.map_err(|status| No::new(StatusCode::CONFLICT, failed(&status).text))?;
        Ok(forms::drain(&self.here, found, plan.get_ref(), &self.form(caller)))
    }

    fn done(&self, asker: &Asker, asked: &Uri) -> Result<Html, No> {
        let caller = known(asker)?;
        let fields = Fields::of(asked)?;
        let Some((what, outcome)) = self.outcomes.of(fields.get("id")?, &caller.fingerprint) else {
            let why = "this gateway knows no such action of this certificate any more; the audit log has it";
            return Err(No::new(StatusCode::NOT_FOUND, why));
        };
        Ok(forms::done(&self.here, &what, outcome.as_ref()))
    }

    /// Takes a form, and begins what it asks for. Returns the form's id.
    async fn begin(self: &Arc<Self>, asker: &Asker, request: Request) -> Result<String, No> {
        let caller = known(asker)?;
        let (parts, body) = request.into_parts();
        if let Some(found) = foreign(&parts.headers) {
            return Err(No::forbidden(found));
        }
        let body = match tokio::time::timeout(BODY_LIMIT, to_bytes(body, BODY_BYTES_MAX)).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => {
                let why = format!("found a form without an end, or of more than {BODY_BYTES_MAX} bytes");
                return Err(No::new(StatusCode::PAYLOAD_TOO_LARGE, why));
            }
            Err(_) => return Err(No::new(StatusCode::REQUEST_TIMEOUT, "the form did not arrive in time")),
        };
        let fields = Fields::read(&body)?;
        let (id, ticket, now_s) = (fields.get("id")?, fields.get("ticket")?, self.now_s());
        self.tickets.check(&caller.fingerprint, id, ticket, now_s).map_err(No::forbidden)?;
        let action = Action::of(&fields)?;
        let what = action.text(&self.door.to_act());
        let going = match self.outcomes.begin(id, caller.fingerprint, what, now_s) {
            Begun::Now(going) => going,
            Begun::Before => return Ok(id.to_string()),
            Begun::Crowded => {
                let why = "too many actions of this page go on, or were asked for in the last hour: try again, or \
                           use a command";
                return Err(No::new(StatusCode::SERVICE_UNAVAILABLE, why));
            }
        };
        let by = OnBehalf { caller: caller.clone(), from: asker.address() };
        // It goes on if the browser leaves: what has begun has an outcome, which the audit log has too.
        let work = tokio::spawn(self.clone().carry_out(action, by, going));
        if let Ok(Err(ended)) = tokio::time::timeout(WAIT, work).await
            && let Ok(panic) = ended.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        Ok(id.to_string())
    }

    async fn carry_out(self: Arc<Self>, action: Action, by: OnBehalf, going: Going) {
        // Nothing of a gateway is left once it has stopped: its next start may have the same directory.
        let called = tokio::select! {
            called = self.called(action, &by, going.id().to_string()) => called,
            () = self.stop.cancelled() => Err(Refusal::new(RefusalCode::Unknown, "this gateway stops").into()),
        };
        let outcome = match called {
            Ok(text) => Outcome { kind: Kind::Done, text },
            Err(status) => failed(&status),
        };
        going.ends(outcome);
    }

    /// Makes the call. Returns what is said of it once it is carried out.
    async fn called(&self, action: Action, by: &OnBehalf, request_id: String) -> Result<String, Status> {
        let mut admin = self.client();
        Ok(match action {
            Action::Snapshot { set, name } => {
                let done = format!("{set}@{name} is in the store.");
                admin.create_snapshot(call(v1::CreateSnapshotRequest { set, name, request_id }, by)).await?;
                done
            }
            Action::Switchover { set, to } => {
                let done = [format!("{to} serves {set}."), format!("{to} serves {set} already.")];
                let request = v1::SwitchoverRequest { set, to_gateway: to, request_id };
                let moved = admin.switchover(call(request, by)).await?;
                let [moves, stays] = done;
                if moved.get_ref().already { stays } else { moves }
            }
            Action::Drain { member, drained } => {
                let request = v1::DrainMemberRequest { member, drained, force: false, request_id };
                admin.drain_member(call(request, by)).await?;
                let text = if drained {
                    "It is drained. What it leads moves now: stop it once the page shows that it leads nothing."
                } else {
                    "It may lead again."
                };
                text.to_string()
            }
        })
    }
}

/// The paths of the actions, for a door with TLS alone (WEB-H5).
pub(crate) fn routes(actions: Arc<Actions>) -> Router {
    Router::new()
        .route("/page/actions", get(overview))
        .route("/page/move", get(asked_move))
        .route("/page/drain", get(asked_drain))
        .route("/page/done", get(done))
        .route("/page/act", post(act))
        .with_state(actions)
}

async fn overview(State(actions): State<Arc<Actions>>, ConnectInfo(asker): ConnectInfo<Asker>) -> Response {
    actions.shown(actions.overview(&asker))
}

async fn asked_move(
    State(actions): State<Arc<Actions>>,
    ConnectInfo(asker): ConnectInfo<Asker>,
    asked: Uri,
) -> Response {
    actions.shown(actions.asked_move(&asker, &asked))
}

async fn asked_drain(
    State(actions): State<Arc<Actions>>,
    ConnectInfo(asker): ConnectInfo<Asker>,
    asked: Uri,
) -> Response {
    let page = actions.asked_drain(&asker, &asked).await;
    actions.shown(page)
}

async fn done(State(actions): State<Arc<Actions>>, ConnectInfo(asker): ConnectInfo<Asker>, asked: Uri) -> Response {
    actions.shown(actions.done(&asker, &asked))
}

async fn act(
    State(actions): State<Arc<Actions>>,
    ConnectInfo(asker): ConnectInfo<Asker>,
    request: Request,
) -> Response {
    match actions.begin(&asker, request).await {
        Ok(id) => answer::see_other(format!("done?id={id}")),
        Err(no) => {
            tracing::debug!(from = %asker.address(), status = %no.status, "a form was refused");
            actions.shown(Err(no))
        }
    }
}

#[cfg(test)]
mod tests;
