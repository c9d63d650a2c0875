//! The page of a gateway (ADR 0064): the state of the cluster for people, in a browser.
//!
//! - **WEB-H1** What is not markup of this program is escaped (`page/html.rs`).
//! - **WEB-H2** The page names sets, hosts and stores, so it is for those who may read metrics where the door has TLS.
//!   A door without TLS knows nobody: there the page is for programs of this machine alone, under an address or the
//!   name `localhost`, and not through a proxy (`page/open.rs`).
//! - **WEB-H3** The page at `/` changes nothing; actions have pages of their own (`page/actions.rs`). The browser is
//!   told to load nothing from elsewhere, to run no script but ours, and to show the page in no other one.
//! - **WEB-H4** However many browsers look at it or hang up, the other gateways are asked at most once in two seconds
//!   (`page/latest.rs`).

pub(super) mod actions;
mod answer;
mod forms;
mod html;
mod latest;
pub(super) mod open;
mod outcomes;
mod texts;
mod ticket;
mod timeline;
mod view;

use super::secured::Asker;
use crate::admin::AdminDoor;
use crate::node::Node;
use answer::{HTML, told};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use holdfast_host::unix_ms;
use holdfast_types::sync::{LockExt, RwLockExt};
use latest::Latest;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timeline::{Held, Timeline};
use tokio::time::MissedTickBehavior;
use view::View;

/// Pause between two looks at the leases.
const LOOK: Duration = Duration::from_secs(1);

/// Changes that are shown.
const SHOWN: usize = 50;

/// The page of one gateway.
pub(super) struct Page {
    door: AdminDoor,
    node: Arc<Node>,
    timeline: Mutex<Timeline>,
    /// The state as it was shown last.
    latest: Latest,
}

impl Page {
    pub(super) fn new(node: Arc<Node>) -> Arc<Self> {
        let (timeline, latest) = (Mutex::new(Timeline::default()), Latest::default());
        Arc::new(Self { door: AdminDoor::new(node.clone()), node, timeline, latest })
    }

    /// Follows the leases of the sets that run here.
    pub(super) async fn follow(&self) -> Infallible {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let held = self.held();
            self.timeline.locked().look(unix_ms(), held);
        }
    }

    /// Who has which set.
    fn held(&self) -> BTreeMap<String, Option<Held>> {
        let sets: Vec<_> = self.node.sets.reading().values().cloned().collect();
        let of = |lease: holdfast_control::set::Lease| Held {
            owner: lease.owner.to_string(),
            gateway: self
                .node
                .cluster
                .member(lease.gateway)
                .map_or_else(|| lease.gateway.to_string(), |member| member.name.to_string()),
            epoch: lease.epoch.0,
            since_unix_ms: lease.since_unix_ms,
        };
        sets.iter().map(|set| (set.name.to_string(), set.lease().map(of))).collect()
    }

    /// The state as HTML. It takes a few seconds at most.
    async fn state(self: &Arc<Self>) -> Bytes {
        self.latest.get(|| self.clone().made()).await
    }

    async fn made(self: Arc<Self>) -> Bytes {
        let seen = self.door.gathered().await;
        let takeovers = self.timeline.locked().newest(SHOWN);
        let made = view::state(&View { at_unix_ms: unix_ms(), seen, takeovers });
        Bytes::from(made.finish())
    }
}

/// Paths of the page.
pub(super) fn routes(page: Arc<Page>) -> Router {
    Router::new()
        .route("/", get(whole))
        .route("/page/state", get(fragment))
        .route("/page/style.css", get(style))
        .route("/page/live.js", get(script))
        .route("/page/icon.svg", get(icon))
        .with_state(page)
}

async fn style() -> Response {
    told("text/css; charset=utf-8", include_str!("page/style.css"))
}

async fn script() -> Response {
    told("text/javascript; charset=utf-8", include_str!("page/live.js"))
}

async fn icon() -> Response {
    told("image/svg+xml", include_str!("page/icon.svg"))
}

/// At a door without TLS there is no asker.
async fn whole(State(page): State<Arc<Page>>, asker: Option<Extension<ConnectInfo<Asker>>>) -> Response {
    let acts = asker.is_some_and(|Extension(ConnectInfo(asker))| actions::may_act(&asker));
    let head = view::head(page.node.config.name.as_str(), acts).finish();
    let state = page.state().await;
    told(HTML, [head.as_bytes(), &state[..], view::TAIL.as_bytes()].concat())
}

async fn fragment(State(page): State<Arc<Page>>) -> Response {
    told(HTML, page.state().await)
}

#[cfg(test)]
mod tests;
