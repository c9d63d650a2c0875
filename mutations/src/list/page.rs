//! The page of a gateway: who sees it, and what others can put into it.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const OPEN: &str = "crates/gateway/src/http/page/open.rs";

const PAGE: Test = lib(Layer::Unit, "holdfast-gateway", &["http::page::"]);
const DOOR: Test = lib(Layer::Unit, "holdfast-gateway", &["http::secured::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "page-with-markup-of-others",
        bug: "what a gateway or a store says becomes markup of the page",
        rule: "WEB-H1",
        edits: &[Edit {
            file: "crates/gateway/src/http/page/html.rs",
            old: "'<' => self.0.push_str(\"&lt;\"),",
            new: "'<' => self.0.push(char),",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-for-other-machines",
        bug: "a door without TLS shows its page to other machines",
        rule: "WEB-H2",
        edits: &[Edit {
            file: OPEN,
            old: "    if !from_itself {\n",
            new: "    if !from_itself && from.is_multicast() {\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-through-a-proxy",
        bug: "a door without TLS shows its page to the clients of a proxy on its machine",
        rule: "WEB-H2",
        edits: &[Edit {
            file: OPEN,
            old: "headers.keys().any(|name| is_of_proxies(name.as_str()))",
            new: "headers.keys().any(|name| name.as_str().is_empty() && is_of_proxies(name.as_str()))",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-under-any-name",
        bug: "a stranger's page that has its own name resolved to 127.0.0.1 reads the page in the browser of an administrator",
        rule: "WEB-H2",
        edits: &[Edit {
            file: OPEN,
            old: "host.to_str().is_ok_and(is_local)",
            new: "host.to_str().is_ok_and(|host| is_local(host) || !host.is_empty())",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-under-a-name-in-the-request-line",
        bug: "a request for http://NAME/ gets the page under any name",
        rule: "WEB-H2",
        edits: &[Edit {
            file: OPEN,
            old: "is_none_or(|name| is_local(name.as_str()))",
            new: "is_none_or(|name| is_local(name.as_str()) || !name.as_str().is_empty())",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-for-who-hangs-up",
        bug: "a browser that hangs up again and again has all other gateways asked each time",
        rule: "WEB-H4",
        edits: &[Edit {
            file: "crates/gateway/src/http/page/latest.rs",
            old: "match tokio::spawn(gathered(latest, gather())).await {",
            new: "match Ok::<Bytes, tokio::task::JoinError>(gathered(latest, gather()).await) {",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-as-a-check",
        bug: "where TLS asks for no certificate, the page counts as a health check",
        rule: "WEB-H2",
        edits: &[Edit {
            file: "crates/gateway/src/http/secured.rs",
            old: "|| path == \"/\" && method == Method::OPTIONS;",
            new: "|| path == \"/\" && method != Method::DELETE;",
        }],
        tests: &[DOOR],
        smoke: false,
    },
    Mutation {
        name: "page-with-code-of-others",
        bug: "a browser is allowed to run scripts inside of the page",
        rule: "WEB-H3",
        edits: &[Edit {
            file: "crates/gateway/src/http/page.rs",
            old: "script-src 'self'; style-src",
            new: "script-src 'self' 'unsafe-inline'; style-src",
        }],
        tests: &[PAGE],
        smoke: false,
    },
];
