//! The paths of Patroni's REST API that tell of this host and of the others: `/patroni`, `/cluster`, `/config`.
//!
//! They are answered with 200 whatever they tell, as by Patroni.

use super::door::{Door, json};
use super::patroni::{self, HostReport, Shown};
use crate::client;
use crate::clock;
use crate::server::ServerView;
use crate::view::View;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use holdfast_tls::HttpTls;
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;

/// Time limit for the answers of all other hosts. Patroni's clients wait for two seconds.
const PEERS_LIMIT: Duration = Duration::from_millis(1500);

/// What the documents of this host are made from.
pub(super) fn shown<'a>(door: &'a Door, view: &'a View, server: Option<ServerView>) -> Shown<'a> {
    let now = clock::now();
    Shown {
        view,
        fresh: view.is_fresh(now),
        server,
        config: &door.config,
        scheduled: door.schedule.get(),
        now,
        unix_ms: clock::unix_ms(),
    }
}

/// The document of this host, for which PostgreSQL is asked.
async fn own(door: &Door) -> Value {
    let server = door.answers.server(&door.view()).await;
    // The answer may have taken its time, and the lease may have ended meanwhile.
    patroni::document(&shown(door, &door.view(), server))
}

pub(super) async fn host(State(door): State<Door>) -> Response {
    json(StatusCode::OK, &own(&door).await)
}

pub(super) async fn cluster(State(door): State<Door>) -> Response {
    let told = door.answers.members(|| gather(door.clone())).await;
    json(StatusCode::OK, &patroni::cluster(&door.config.set, &door.view().lease.owner, &told))
}

pub(super) async fn config(State(door): State<Door>) -> Response {
    json(StatusCode::OK, &patroni::config(&door.config, door.view().paused))
}

/// What this host tells, and what the others do. All are asked at once.
async fn gather(door: Door) -> Vec<HostReport> {
    let secured = door.config.http_tls() != HttpTls::Off;
    let mut asked = JoinSet::new();
    for (name, address) in door.config.peers.0.clone() {
        let door = door.clone();
        asked.spawn(async move {
            let document = peer(&door, &name, &address).await;
            let (api_url, host) = patroni::place(&address, secured);
            HostReport { name, api_url, host, document }
        });
    }
    let document = Some(own(&door).await);
    let (name, listen) = (&door.config.name, door.config.http.listen);
    // Nobody can ask at 0.0.0.0. The name is that of a machine, as a rule.
    let address = if listen.ip().is_unspecified() { format!("{name}:{}", listen.port()) } else { listen.to_string() };
    let (api_url, host) = patroni::place(&address, secured);
    let mut told = asked.join_all().await;
    told.push(HostReport { name: name.clone(), api_url, host, document });
    told
}

/// The document of another host; `None` if it does not answer, or another one answers in its place.
async fn peer(door: &Door, name: &str, address: &str) -> Option<Value> {
    let asking = client::ask_over(&door.dial, address, "/patroni", None, None, PEERS_LIMIT);
    let answer = tokio::time::timeout(PEERS_LIMIT, asking).await.ok()?.ok()?;
    let document: Value = serde_json::from_str(&answer.body).ok()?;
    let is_it = document["patroni"]["name"] == name && document["patroni"]["scope"] == door.config.set.as_str();
    (answer.code == 200 && is_it).then_some(document)
}
