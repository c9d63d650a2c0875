//! The page of a gateway: who sees it, what others can put into it, and who acts by its forms.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const OPEN: &str = "crates/gateway/src/http/page/open.rs";
const ACTIONS: &str = "crates/gateway/src/http/page/actions.rs";
const ANSWER: &str = "crates/gateway/src/http/page/answer.rs";
const FORMS: &str = "crates/gateway/src/http/page/forms.rs";
const GUARD: &str = "crates/gateway/src/access/guard.rs";
const OUTCOMES: &str = "crates/gateway/src/http/page/outcomes.rs";
const TICKET: &str = "crates/gateway/src/http/page/ticket.rs";

const PAGE: Test = lib(Layer::Unit, "holdfast-gateway", &["http::page::"]);
const DOOR: Test = lib(Layer::Unit, "holdfast-gateway", &["http::secured::"]);
const CALLS: Test = lib(Layer::Unit, "holdfast-gateway", &["access::tests::behalf::"]);

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
            file: ANSWER,
            old: "script-src 'self'; style-src",
            new: "script-src 'self' 'unsafe-inline'; style-src",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-from-another-page",
        bug: "a page of a stranger acts by a form in the browser of an operator",
        rule: "WEB-H6",
        edits: &[Edit {
            file: ACTIONS,
            old: "let is_ours = origin.eq_ignore_ascii_case(host) && same;",
            new: "let is_ours = (origin.eq_ignore_ascii_case(host) || !origin.is_empty()) && same;",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-from-another-site",
        bug: "a form counts as ours although the browser says that another site has sent it",
        rule: "WEB-H6",
        edits: &[Edit {
            file: ACTIONS,
            old: ".all(|site| site == \"same-origin\")",
            new: ".all(|site| site == \"same-origin\" || !site.is_empty())",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-through-a-proxy",
        bug: "everybody in front of a proxy acts by the proxy's certificate",
        rule: "WEB-H6",
        edits: &[Edit {
            file: ACTIONS,
            old: "    if open::through_proxy(headers) {\n",
            new: "    if open::through_proxy(headers) && headers.is_empty() {\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-without-its-ticket",
        bug: "a form is taken that this gateway has not made",
        rule: "WEB-H6",
        edits: &[Edit {
            file: ACTIONS,
            old: "        self.tickets.check(&caller.fingerprint, id, ticket, now_s).map_err(No::forbidden)?;\n",
            new: "        let _ = self.tickets.check(&caller.fingerprint, id, ticket, now_s).map_err(No::forbidden);\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-of-another-certificate",
        bug: "a form that a viewer or a thief has got is good in the browser of an administrator",
        rule: "WEB-H6",
        edits: &[Edit {
            file: TICKET,
            old: "        mac.update(certificate);\n",
            new: "        mac.update(&[0; 32][..certificate.len().min(32)]);\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-without-an-end",
        bug: "a form that was open for days still acts",
        rule: "WEB-H6",
        edits: &[Edit {
            file: TICKET,
            old: "        if now_s >= ends_s {\n",
            new: "        if now_s >= ends_s && ends_s == 0 {\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-with-a-null-origin",
        bug: "browsers do not say from which page a form is, so none is taken",
        rule: "WEB-H6",
        edits: &[Edit {
            file: ANSWER,
            old: "FORM_REFERRER: &str = \"same-origin\";",
            new: "FORM_REFERRER: &str = \"no-referrer\";",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-that-acts-twice",
        bug: "a form that is sent again acts again",
        rule: "WEB-H7",
        edits: &[Edit {
            file: OUTCOMES,
            old: "        if known.sent.iter().any(|(sent, _)| sent == id) {\n",
            new: "        if known.sent.iter().any(|(sent, _)| sent == id && id.is_empty()) {\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "form-forgotten-while-it-is-good",
        bug: "a form acts again once its outcome has left",
        rule: "WEB-H7",
        edits: &[Edit {
            file: OUTCOMES,
            old: "const SENT_S: u64 = 2 * LIFE_S;",
            new: "const SENT_S: u64 = LIFE_S / 2;",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "outcome-for-everybody",
        bug: "who knows the id of a form is told what came of it",
        rule: "WEB-H7",
        edits: &[Edit {
            file: OUTCOMES,
            old: "entry.id == id && entry.certificate == *certificate)?;",
            new: "entry.id == id && entry.certificate.len() == certificate.len())?;",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "forms-for-a-viewer",
        bug: "a viewer is shown the forms, and can send none of them",
        rule: "WEB-H5",
        edits: &[Edit {
            file: ACTIONS,
            old: "allowed(may.any(), caller, \"any action of this page\")?;",
            new: "allowed(may.any() || !caller.name.is_empty(), caller, \"any action of this page\")?;",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "drain-asked-though-refused",
        bug: "the page offers a drain that would be refused, without saying why",
        rule: "WEB-H5",
        edits: &[Edit {
            file: FORMS,
            old: "            if plan.refused.is_empty() {\n",
            new: "            if plan.refused.len() < 1000 {\n",
        }],
        tests: &[PAGE],
        smoke: false,
    },
    Mutation {
        name: "page-acts-without-tls",
        bug: "a call that the page makes for a viewer may do everything at a gateway without TLS",
        rule: "WEB-H5",
        edits: &[Edit {
            file: GUARD,
            old: "        if behalf.is_some() && self.tls.is_none() {\n",
            new: "        if behalf.is_some() && self.tls.is_none() && path.is_empty() {\n",
        }],
        tests: &[CALLS],
        smoke: false,
    },
];
