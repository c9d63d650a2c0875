//! The stores of a living set are changed, and read from.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const MOVES: &str = "crates/store/src/quorum/moves.rs";
const QUORUM: &str = "crates/store/src/quorum/state.rs";
const MOVER: &str = "crates/set/src/store_migration.rs";
const PLACEMENT: &str = "crates/types/src/placement.rs";

const LISTS: Test = lib(Layer::Property, "holdfast-store", &["quorum::moves::tests::"]);
const STEPS: Test = lib(Layer::Unit, "holdfast-control", &["cluster::placement::"]);
const FILLED: Test = lib(Layer::Unit, "holdfast-set", &["store_migration::"]);
const READS: Test = lib(Layer::Unit, "holdfast-store", &["quorum::reads::tests::"]);
const MOVED: Test =
    file(Layer::Simulation, "holdfast-sim", &["--test", "scenes"], &["the_stores_of_a_set_are_changed"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "list-ended-over-another-head",
        bug: "a list of stores is ended without a check of its head: a checkpoint that other gateways made meanwhile is not compared",
        rule: "LIST-L1",
        edits: &[
            Edit { file: MOVES, old: "if head.version != *expected {", new: "if false && head.version != *expected {" },
            Edit {
                file: MOVES,
                old: "first.swap_register(&first.key(set), Some(expected), last.encode(rand::random())).await?;",
                new: "first.swap_register(&first.key(set), Some(&head.version), last.encode(rand::random())).await?;",
            },
        ],
        tests: &[LISTS],
        smoke: false,
    },
    Mutation {
        name: "object-counts-in-one-list",
        bug: "while stores are changed, an object counts as stored when the stores of one list have it",
        rule: "LIST-L4",
        edits: &[Edit {
            file: QUORUM,
            old: "self.counting().iter().all(|register| register.count(done) >= register.w)",
            new: "self.counting().iter().any(|register| register.count(done) >= register.w)",
        }],
        tests: &[LISTS, MOVED],
        smoke: false,
    },
    Mutation {
        name: "unknown-list-followed",
        bug: "a store's claim that the set has moved is believed, whatever the target",
        rule: "LIST-L2",
        edits: &[Edit { file: MOVES, old: "if moved.to != next.text {", new: "if false && moved.to != next.text {" }],
        tests: &[LISTS],
        smoke: false,
    },
    Mutation {
        name: "decided-change-abandoned",
        bug: "a change of stores is abandoned although the set's leader may have ended the list by then",
        rule: "PLACE-P1",
        edits: &[Edit {
            file: PLACEMENT,
            old: "(Some((PlacementPhase::Filling, _)), None) => next.stores == self.stores,",
            new: "(Some(_), None) if next.stores == self.stores => true,",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "list-ended-before-it-was-filled",
        bug: "the new stores count before they were compared with what is kept",
        rule: "MOVE-V3",
        edits: &[Edit {
            file: MOVER,
            old: "one.backlog.compared && one.backlog.named == 0 && one.standing.now.is_none();",
            new: "one.standing.now.is_none();",
        }],
        tests: &[FILLED, MOVED],
        smoke: false,
    },
    Mutation {
        name: "compared-while-it-is-compared",
        bug: "a store counts as complete as soon as what its last comparison left out is looked for: new stores count though they lack objects",
        rule: "MOVE-V3",
        edits: &[Edit {
            file: "crates/store/src/quorum/repair.rs",
            old: "            missing.compared = None;\n            (missing.overflowed",
            new: "            (missing.overflowed",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["quorum::repair::tests::a_comparison_that_has_not_ended"])],
        smoke: false,
    },
    Mutation {
        name: "silence-of-stores-that-were-left",
        bug: "a gateway that was told that the head is in stores that it does not know answers again once the known ones are silent",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/head/freshness.rs",
            old: "(self.elsewhere.load(Ordering::Acquire) == 0\n                && counts(&self.silent)",
            new: "(counts(&self.silent)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["head::freshness::"])],
        smoke: false,
    },
    Mutation {
        name: "silent-store-waited-for",
        bug: "a store that never answers blocks each read that asks it first, for ever",
        rule: "READ-E2",
        edits: &[Edit {
            file: "crates/store/src/quorum/reads.rs",
            old: "newest.filter(|_| left.len() > 0)",
            new: "newest.filter(|_| false)",
        }],
        tests: &[READS],
        smoke: false,
    },
    Mutation {
        name: "silent-store-asked-first-again",
        bug: "a store that did not answer is also asked first by the next read: every read waits",
        rule: "READ-E2",
        edits: &[Edit {
            file: "crates/store/src/quorum/reads.rs",
            old: "silent.iter().for_each(|replica| replica.speed.failed());",
            new: "let _ = silent;",
        }],
        tests: &[READS],
        smoke: false,
    },
    Mutation {
        name: "clones-not-scrubbed",
        bug: "the scrub does not read objects of an origin that only a clone still uses: damage there is found only when the data is read",
        rule: "R9",
        edits: &[Edit {
            file: "crates/set/src/scrub.rs",
            old: "    snapshots.chain(pinned_alone(state).map(|pin| Target::Clone(pin.clone))).collect()\n",
            new: "    snapshots.collect()\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["scrub::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "spoilt-copy-deleted-first",
        bug: "a damaged copy is deleted before a good one is put in its place: a repeated DELETE may be executed after the PUT",
        rule: "R12",
        edits: &[Edit {
            file: "crates/store/src/quorum/repair.rs",
            old: "                Some(version) => replica.store.swap(key, Some(version), body.clone()).await.map(drop),\n",
            new: "                Some(_) => match replica.store.delete(key).await {\n                    Ok(()) => replica.store.put_new(key, body.clone()).await,\n                    \
                  Err(error) => Err(error),\n                },\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["quorum::repair::tests::a_spoilt_copy"])],
        smoke: false,
    },
    Mutation {
        name: "disorder-believed",
        bug: "a listing in another order is taken for what a store holds: a walk over it never ends, or passes objects over",
        rule: "PAGE-O1",
        edits: &[Edit {
            file: "crates/store/src/retry.rs",
            old: "page::admit(&self.place, prefix, after, self.within.list(prefix, after).await?)",
            new: "self.within.list(prefix, after).await",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_listing_in_another_order_ends_the_survey"])],
        smoke: false,
    },
    Mutation {
        name: "survey-stands-still",
        bug: "a recovery's walk over the sets of a store asks for ever at a key of others",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/recovery.rs",
            old: "Some(format!(\"sets/{}0\", set.0))",
            new: "Some(format!(\"sets/{}/zzzz\", set.0))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_survey_walks_past_any_key_of_others"])],
        smoke: false,
    },
    Mutation {
        name: "verify-ends-at-a-refusal",
        bug: "verify ends at the first object that the store refuses to give",
        rule: "R9",
        edits: &[Edit {
            file: "crates/set/src/verify/subject.rs",
            old: "damage || (self.reports_refusals && e.is_of_object())",
            new: "damage || (self.reports_refusals && e.is_of_object() && damage)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["an_object_that_cannot_be_read_is_named_and_the_rest_is_read"])],
        smoke: false,
    },
    Mutation {
        name: "any-authoritys-own-is-taken",
        bug: "a store's server is believed with any certificate that has CA:TRUE and the right name, not only with the one that a person named",
        rule: "R10",
        edits: &[Edit {
            file: "crates/store/src/s3/trust.rs",
            old: "self.named.iter().any(|named| named[..] == certificate[..])",
            new: "!self.named.is_empty() && !certificate.is_empty()",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["an_authoritys_own_is_taken_if_it_is_named"])],
        smoke: false,
    },
    Mutation {
        name: "failed-role-passed-over",
        bug: "a role that cannot be taken is passed over, and a store is signed for as another identity: the machine's",
        rule: "CREDS-K3",
        edits: &[Edit {
            file: "crates/store/src/s3/chain.rs",
            old: "if !matches!(error, CredentialsError::CredentialsNotLoaded(_)) {",
            new: "if false && !matches!(error, CredentialsError::CredentialsNotLoaded(_)) {",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast-store",
            &["--test", "store"],
            &["a_provider_that_fails_is_not_passed_over"],
        )],
        smoke: false,
    },
    Mutation {
        name: "metadata-through-a-proxy",
        bug: "the metadata server is asked through the stores' proxy, which gives the role of its own machine",
        rule: "CREDS-K4",
        edits: &[Edit {
            file: "crates/store/src/s3/http.rs",
            old: "Https::new(Trust::of(options)?.config(), None, options.connect_timeout())",
            new: "Https::new(Trust::of(options)?.config(), proxy(None, false, &options.proxies)?.map(|proxy| proxy.matcher), options.connect_timeout())",
        }],
        tests: &[file(Layer::Unit, "holdfast-store", &["--test", "store"], &["an_instance_gives_its_role_"])],
        smoke: false,
    },
    Mutation {
        name: "credentials-end-first",
        bug: "temporary credentials are not renewed before they end: each time, requests wait or are refused",
        rule: "R8",
        edits: &[Edit {
            file: "crates/store/src/renewal.rs",
            old: "if now >= term.renew_at && !self.rests(now) { Need::Renew } else { Need::Nothing }",
            new: "if now >= ends && !self.rests(now) { Need::Renew } else { Need::Nothing }",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["renewal::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "region-without-a-value",
        bug: "a store's URL with `?region=` and nothing behind it is taken: requests are signed for no region",
        rule: "R8",
        edits: &[Edit {
            file: "crates/store/src/options.rs",
            old: "\"endpoint\" | \"region\" if value.is_empty() => {",
            new: "\"endpoint\" | \"region\" if false && value.is_empty() => {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["options::tests::urls_that_mean_nothing_are_refused"])],
        smoke: false,
    },
];
