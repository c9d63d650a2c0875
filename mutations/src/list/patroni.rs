//! Paths and documents of Patroni's REST API: where they lead clients, and what they claim.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const HTTP: &str = "crates/agent/src/http.rs";
const ANSWERS: &str = "crates/agent/src/http/answers.rs";
const DOCUMENTS: &str = "crates/agent/src/http/patroni.rs";

/// The HTTP door of an agent.
const DOOR: Test = lib(Layer::Unit, "holdfast-agent", &["http::"]);
const STORIES: Test = lib(Layer::Story, "holdfast-agent", &["machine::story_tests::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "leader-after-its-lease",
        bug: "a host whose lease has ended is still led to by /leader and /primary, until its agent notices",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: "crates/agent/src/view.rs",
            old: "self.holds_until.is_some_and(|end| now < end)",
            new: "self.holds_until.is_some_and(|end| now < end || now >= end)",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "leader-while-fenced",
        bug: "a host that another owner has fenced answers 200 at /leader, beside the new owner",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: "crates/agent/src/machine/shown.rs",
            old: "            State::Standby | State::Acquiring | State::CutOff(_) | State::Fencing(_) | State::Ended => false,\n",
            new: "            State::Fencing(_) => return Some(self.renewed().saturating_add(self.lease.ttl)),\n            State::Standby | State::Acquiring | State::CutOff(_) | State::Ended => false,\n",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "leader-in-a-cut-off",
        bug: "a host that stopped PostgreSQL because it could not renew its lease answers 200 at /leader",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: "crates/agent/src/machine/shown.rs",
            old: "State::CutOff(_) | State::Fencing(_) | State::Ended => false,\n            State::Attaching",
            new: "State::Fencing(_) | State::Ended => false,\n            State::CutOff(_) | State::Attaching",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "primary-while-it-recovers",
        bug: "/primary leads clients to a holder of the lease whose PostgreSQL still recovers",
        rule: "AGENT-A5",
        edits: &[Edit {
            file: HTTP,
            old: "\"/\" | \"/primary\" | \"/master\" | \"/read-write\" => primary,",
            new: "\"/\" | \"/primary\" | \"/master\" | \"/read-write\" => primary || view.holds_lease(now),",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "leader-means-primary",
        bug: "/leader is 503 at a host that holds the lease and follows another server: nobody seems to lead",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: HTTP,
            old: "\"/leader\" => view.holds_lease(now),",
            new: "\"/leader\" => view.takes_writes(now),",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "sync-by-guess",
        bug: "/sync answers 200 for a standby of which nobody knows whether it is synchronous",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: HTTP,
            old: "\"/sync\" | \"/synchronous\" | \"/quorum\" => false,",
            new: "\"/sync\" | \"/synchronous\" | \"/quorum\" => standby,",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "cluster-with-the-earlier-leader",
        bug: "of two hosts that claim the lease, /cluster shows the one under the earlier epoch",
        rule: "R2",
        edits: &[Edit { file: DOCUMENTS, old: "claims.max_by_key(|one|", new: "claims.min_by_key(|one|" }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "cluster-believes-any-host",
        bug: "/cluster shows the document of another host that answers at the address of a peer",
        rule: "PEER-N1",
        edits: &[Edit {
            file: "crates/agent/src/http/cluster.rs",
            old: "(answer.code == 200 && is_it).then_some(document)",
            new: "(answer.code == 200 || is_it).then_some(document)",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "document-of-an-ended-server",
        bug: "a host without PostgreSQL shows timeline, version and WAL of the server that ran there before",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: DOCUMENTS,
            old: "if let Some(server) = shown.server.as_ref().filter(|_| view.database_runs()) {",
            new: "if let Some(server) = shown.server.as_ref() {",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "config-takes-changes",
        bug: "a change of settings as for Patroni is answered with 200, and changes nothing",
        rule: "HEALTH-H2",
        edits: &[Edit {
            file: HTTP,
            old: "What::Config => on(READS, cluster::config),",
            new: "What::Config => any(cluster::config),",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "question-of-who-hangs-up",
        bug: "a client that asks for /patroni and hangs up, again and again, makes a session of PostgreSQL each time",
        rule: "HEALTH-H5",
        edits: &[Edit {
            file: ANSWERS,
            old: "match tokio::spawn(asked(kept, ask())).await {",
            new: "match Ok::<T, tokio::task::JoinError>(asked(kept, ask()).await) {",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "question-by-an-old-view",
        bug: "while an agent hangs, each scrape makes sessions of PostgreSQL that may wait for its device",
        rule: "HEALTH-H5",
        edits: &[Edit { file: ANSWERS, old: "if well && view.is_fresh(clock::now()) {", new: "if well {" }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "metrics-of-an-agent-that-hangs",
        bug: "an agent that hangs is primary in its metrics for ever, and no alert finds that there is none",
        rule: "HEALTH-H4",
        edits: &[Edit {
            file: HTTP,
            old: "yes(view.takes_writes(now)));",
            new: "yes(view.role == crate::machine::Role::Primary));",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "standby-is-a-primary-at-the-root",
        bug: "a load balancer that asks for / as at Patroni sends writes to a standby on a copy",
        rule: "STANDBY-U4",
        edits: &[Edit {
            file: "crates/standby/src/http.rs",
            old: "        \"/\" | \"/primary\" | \"/master\" | \"/leader\" | \"/read-write\" | \"/standby-leader\" | \"/standby_leader\" => {\n",
            new: "        \"/\" => return Some(Ok(view.serving)),\n        \"/primary\" | \"/master\" | \"/leader\" | \"/read-write\" | \"/standby-leader\" | \"/standby_leader\" => {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-standby", &["http::"])],
        smoke: false,
    },
];
