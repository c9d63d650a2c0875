//! Who comes in at a gateway, at attach and at an agent's command line, and what is left of an earlier process: clients
//! that leave, tokens, directories and files that cannot be read.

use crate::bug::{Edit, Layer, Mutation, file, lib};

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "waiting-request-of-a-closed-client",
        bug: "a request that waits for a limit is carried out after its client has closed the connection and sent it again on another one: it undoes a later write",
        rule: "CONN-C7",
        edits: &[Edit { file: "crates/front/src/conn.rs", old: "        self.look_for_end(cx)?;\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["what_waits_in_a_connection_that_was_closed_is_not_begun"])],
        smoke: false,
    },
    Mutation {
        name: "time-for-asking-without-a-certificate",
        bug: "a client without a certificate keeps its place among the handshakes for ten minutes, since it asks again and again",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: "crates/front/src/handshake.rs",
            old: "if !self.is_stranger.load(Ordering::Relaxed) {",
            new: "if !self.is_stranger.load(Ordering::Relaxed) || self.begun <= Instant::now() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["a_client_without_a_certificate_gains_no_time_by_asking"])],
        smoke: false,
    },
    Mutation {
        name: "time-for-an-option-now-and-then",
        bug: "a client without a certificate, where none is needed, keeps its place among the handshakes for ten minutes by an option now and then",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: "crates/front/src/handshake.rs",
            old: "self.begun + limits.handshake_total.min(first.saturating_add(of_options))",
            new: "self.begun + limits.handshake_total.max(first.saturating_add(of_options))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["an_option_now_and_then_gains_no_time"])],
        smoke: false,
    },
    Mutation {
        name: "disconnect-not-looked-for",
        bug: "a client that sends NBD_CMD_DISC and closes its sending side counts as gone: requests that wait stay unanswered",
        rule: "CONN-C8",
        edits: &[Edit {
            file: "crates/front/src/conn/incoming.rs",
            old: "self.leaves = self.decoder.ends_with_disconnect(&self.input.bytes, left);",
            new: "self.leaves = self.input.bytes.len() + left.len() == usize::MAX;",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-front",
            &["a_client_that_disconnects_and_closes_its_sending_side_is_answered"],
        )],
        smoke: false,
    },
    Mutation {
        name: "plain-where-tls-is-required",
        bug: "a gateway that requires TLS serves NBD clients in plain text",
        rule: "NBD-S1",
        edits: &[Edit {
            file: "crates/nbd/src/server/handshake.rs",
            old: "if self.tls == TlsMode::Required && !self.secure {",
            new: "if self.tls == TlsMode::Required && !self.secure && self.options > OPTIONS_MAX {",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-nbd", &["s1_"]),
            lib(Layer::Unit, "holdfast-front", &["a_plain_client_is_served_only_where_tls_is_optional"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "plain-bytes-behind-starttls",
        bug: "bytes that anyone on the way put behind a client's wish for TLS are taken for the client's, once TLS is there",
        rule: "NBD-S2",
        edits: &[Edit {
            file: "crates/nbd/src/server/handshake.rs",
            old: "    if found == 0 { Ok(()) } else { Err(HandshakeError::BehindStartTls { found }) }\n",
            new: "    if found < usize::MAX { Ok(()) } else { Err(HandshakeError::BehindStartTls { found }) }\n",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-nbd", &["s2_bytes_behind_the_option_end_the_connection"]),
            lib(Layer::Unit, "holdfast-front", &["bytes_behind_the_wish_for_tls_end_the_connection"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "negotiated-before-tls",
        bug: "what was negotiated in plain text, by anyone on the way, counts after the upgrade to TLS",
        rule: "NBD-S2",
        edits: &[Edit {
            file: "crates/nbd/src/server/handshake.rs",
            old: "        self.allocation_of = None;\n        self.secure = true;\n",
            new: "        self.secure = true;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-nbd", &["s2_what_was_negotiated_in_plain_text_is_forgotten"])],
        smoke: true,
    },
    Mutation {
        name: "client-downgrades",
        bug: "a client that wants TLS goes on in plain text, with its token, if the server, or anyone on the way, says that there is no TLS",
        rule: "NBD-S3",
        edits: &[Edit {
            file: "crates/nbd/src/client/handshake.rs",
            old: "                    if asked == OPT_STARTTLS {\n",
            new: "                    if asked == OPT_STARTTLS && reply.failed() {
                        self.begin(out);
                        continue;
                    }
                    if asked == OPT_STARTTLS {\n",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-nbd", &["s3_a_client_goes_on_through_tls_or_not_at_all"]),
            lib(Layer::Unit, "holdfast-front", &["a_client_with_a_certificate_leaves_a_server_without_tls"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "any-certificate-uses-nbd",
        bug: "a gateway's certificate, whose key is on every gateway, opens volumes as a host's does",
        rule: "TLS-T3",
        edits: &[Edit {
            file: "crates/front/src/line.rs",
            old: "admits(&stream, &Role::NBD)",
            new: "admits(&stream, &Role::ALL)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["other_certificates_are_not_served"])],
        smoke: false,
    },
    Mutation {
        name: "request-of-a-closed-socket",
        bug: "a request is taken in although the kernel's driver has closed the socket and sent it again on another one",
        rule: "CLIENT-F4",
        edits: &[Edit {
            file: "crates/attach/src/client.rs",
            old: "            if intake.changes() {\n                client = look_for_end();\n",
            new: "            if intake.changes() && intake.offset == u64::MAX {\n                client = look_for_end();\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-attach",
            &[
                "what_waited_for_room_is_not_taken_once_its_client_is_gone",
                "a_write_of_a_client_that_is_gone_is_not_taken_although_there_is_room",
            ],
        )],
        smoke: false,
    },
    Mutation {
        name: "request-of-a-closed-socket-of-a-copy",
        bug: "a write to a snapshot copy is carried out although the kernel's driver has closed the socket and sent it again on another one",
        rule: "CLIENT-F4",
        edits: &[Edit {
            file: "crates/attach/src/snapshot_copy/serve.rs",
            old: "        // CLIENT-F4, CLIENT-F5.\n        unread.look_for_end(socket)?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["a_write_of_a_client_that_is_gone_is_not_carried_out"])],
        smoke: false,
    },
    Mutation {
        name: "no-spare-for-a-full-disk",
        bug: "what is renewed ten times a second is not written on a full file system: the agent and the watchdog's helper take a lease that attach renews for one that ends, and end a healthy PostgreSQL",
        rule: "REWRITE-F2",
        edits: &[Edit {
            file: "crates/host/src/rewritten.rs",
            old: "self.spares.iter().any(|spare| self.write_spare(spare, content).is_ok())",
            new: "self.spares.iter().any(|spare| content.is_empty() && self.write_spare(spare, content).is_ok())",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-host", &["a_full_file_system_takes_new_contents_in_the_space_of_earlier_ones"]),
            lib(Layer::Unit, "holdfast-attach", &["a_full_file_system_still_shows_the_status"]),
            lib(Layer::Unit, "holdfast-agent", &["signs_are_given_on_a_full_file_system"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "token-not-kept-on-a-full-run",
        bug: "on a full /run attach does not keep its new token: if it ends, the next process cannot continue with the devices",
        rule: "TOKEN-P1",
        edits: &[Edit {
            file: "crates/attach/src/lease_file.rs",
            old: "        self.file.write(&serde_json::to_vec(lease)?)?;\n",
            new: "        let next = self.file.path().with_extension(\"json.next\");
        std::fs::write(&next, serde_json::to_vec(lease)?)?;
        std::fs::rename(&next, self.file.path())?;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["lease_file::"])],
        smoke: false,
    },
    Mutation {
        name: "spares-of-a-secret-are-readable",
        bug: "spare files with earlier tokens of a lease are readable for every user who reaches their directory",
        rule: "R10",
        edits: &[Edit {
            file: "crates/host/src/rewritten.rs",
            old: "Some(self.mode)).is_ok_and(",
            new: "Some(MODE)).is_ok_and(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-host", &["a_secret_is_its_owners_alone_and_nothing_of_it_stays"])],
        smoke: false,
    },
    Mutation {
        name: "armed-and-not-shown",
        bug: "on a full /run the helper cannot say that the machine's watchdog counts, and PostgreSQL is not started",
        rule: "REWRITE-F2",
        edits: &[Edit {
            file: "crates/agent/src/watchdog/guard.rs",
            old: "        let done = self.shown_at.write(text.as_bytes());\n",
            new: "        let next = self.shown_at.path().with_extension(\"device.next\");
        let done = std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, self.shown_at.path()));\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["the_state_is_shown_on_a_full_file_system"])],
        smoke: false,
    },
    Mutation {
        name: "spare-overwritten-while-it-is-read",
        bug: "on a full file system a spare is written while somebody reads it: half an old and half a new sign of life",
        rule: "REWRITE-F1",
        edits: &[Edit {
            file: "crates/host/src/rewritten.rs",
            old: "    flock(&file, FlockOperation::NonBlockingLockExclusive)?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-host", &["what_somebody_reads_is_not_overwritten"])],
        smoke: false,
    },
    Mutation {
        name: "device-disconnect-not-looked-for",
        bug: "a device's client that sends NBD_CMD_DISC and closes its sending side counts as gone: requests that wait for room stay unanswered",
        rule: "CLIENT-F5",
        edits: &[Edit {
            file: "crates/attach/src/client.rs",
            old: "self.leaves = self.decoder.ends_with_disconnect(&self.input, left);",
            new: "self.leaves = self.input.len() + left.len() == usize::MAX;",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-attach",
            &["a_client_that_disconnects_and_closes_its_sending_side_is_answered"],
        )],
        smoke: false,
    },
    Mutation {
        name: "look-without-a-bound",
        bug: "the look at what a client left behind takes as much memory as the client likes",
        rule: "CONN-C8",
        edits: &[Edit {
            file: "crates/host/src/sockets.rs",
            old: "vec![0; count.min(most)]",
            new: "vec![0; count.max(most.min(count))]",
        }],
        tests: &[lib(Layer::Unit, "holdfast-host", &["a_look_at_what_a_client_left_is_bounded"])],
        smoke: false,
    },
    Mutation {
        name: "unread-lease-is-none",
        bug: "the lease of an earlier process that cannot be read counts as none: the kernel's devices that wait for it are disconnected",
        rule: "R8",
        edits: &[Edit {
            file: "crates/attach/src/lease_file.rs",
            old: "            Err(error) if error.kind() == io::ErrorKind::NotFound => None,\n",
            new: "            Err(_) => None,\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["a_lease_that_cannot_be_read_ends_the_start"])],
        smoke: false,
    },
    Mutation {
        name: "device-of-unknown-size-is-none",
        bug: "a kernel device whose size cannot be read counts as none: what an earlier process left is not found",
        rule: "R8",
        edits: &[Edit {
            file: "crates/attach/src/device/driver.rs",
            old: "let Some(text) = shown(path.clone(), |path| std::fs::read_to_string(path))? else { return Ok(None) };",
            new: "let Ok(Some(text)) = shown(path.clone(), |path| std::fs::read_to_string(path)) else { return Ok(None) };",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["a_device_of_unknown_size_is_not_none"])],
        smoke: false,
    },
    Mutation {
        name: "unread-tenure-is-none",
        bug: "the folder of a pair's tenure that cannot be looked at counts as missing: the tenure is begun a second time",
        rule: "PAIR-P2",
        edits: &[Edit {
            file: "crates/pair/src/lib.rs",
            old: "        Err(error) => Some(format!(\"or {} cannot be looked at: {error}\", tenure.display())),",
            new: "        Err(_) => None,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-pair", &["a_tenure_that_cannot_be_looked_at_may_have_been_before"])],
        smoke: false,
    },
    Mutation {
        name: "any-token-opens-a-snapshot",
        bug: "a snapshot can be read with any token",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/set_key.rs",
            old: "held.keys.values().any(|key| key.snapshot_token(self.set, made_by) == token)",
            new: "held.keys.values().any(|key| key.snapshot_token(self.set, made_by) == token || token.0 > 0)",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-set",
            &["a_snapshot_token_outlives_a_change_of_the_data_key_and_not_the_key"],
        )],
        smoke: false,
    },
    Mutation {
        name: "panic-of-a-start-is-lost",
        bug: "a panic in the start of a set ends the task and nothing else: the set never starts, and nobody learns of it",
        rule: "R11",
        edits: &[Edit {
            file: "crates/gateway/src/node/starts.rs",
            old: "            pass_panic_on((&mut earlier.task).await);\n",
            new: "",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["a_panic_of_a_start_reaches_the_task_that_begins_the_next_one"],
        )],
        smoke: false,
    },
    Mutation {
        name: "two-gateways-in-a-directory",
        bug: "a second gateway starts in the data directory of a first one that belongs to no cluster yet",
        rule: "R2",
        edits: &[Edit {
            file: "crates/holdfast/src/serve.rs",
            old: "lock(data_dir, LOCK).map_err(|why| {",
            new: "lock(data_dir, &format!(\"{LOCK}{:?}\", std::time::Instant::now())).map_err(|why| {",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["a_data_directory_has_one_gateway_before_it_is_adopted_too"],
        )],
        smoke: false,
    },
    Mutation {
        name: "token-to-whoever-listens",
        bug: "a command with the agents' token is sent to whoever listens at the default address",
        rule: "HEALTH-H2",
        edits: &[Edit {
            file: "crates/holdfast/src/command/agent/ask.rs",
            old: "if token.is_some() && !agents.named && !is_peer(agents, address).await {",
            new: "if token.is_some() && agents.agent.is_empty() && !is_peer(agents, address).await {",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["a_command_with_a_token_goes_only_to_an_address_that_was_named"],
        )],
        smoke: false,
    },
    Mutation {
        name: "certificates-of-the-start",
        bug: "changed files are read, and handshakes go on with those of the start: an authority that was taken out still opens",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/live.rs",
            old: "self.current.send_replace(Current { loaded: Some(loaded), trouble: None });",
            new: "drop(loaded);\n                self.current.send_modify(|current| current.trouble = None);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["live::"])],
        smoke: false,
    },
    Mutation {
        name: "bad-pair-ends-the-service",
        bug: "a certificate that was replaced before its key ends the gateway",
        rule: "LIVE-C2",
        edits: &[Edit {
            file: "crates/tls/src/live.rs",
            old: "self.current.send_modify(|current| current.trouble = Some(why));",
            new: "panic!(\"{why}\");",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["files_that_do_not_fit_leave_the_earlier_ones_in_use"])],
        smoke: false,
    },
    Mutation {
        name: "sessions-are-resumed",
        bug: "a client resumes its session: its certificate, which has expired since, goes on opening connections",
        rule: "TLS-T1",
        edits: &[Edit {
            file: "crates/tls/src/stream.rs",
            old: "    server.session_storage = Arc::new(NoServerSessionStorage {});\n    server.send_tls13_tickets = 0;\n",
            new: "    let _ = NoServerSessionStorage {};\n    server.session_storage = \
                  tokio_rustls::rustls::server::ServerSessionMemoryCache::new(256);\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-tls",
            &["a_client_that_would_resume_its_session_shows_its_certificate_again"],
        )],
        smoke: false,
    },
    Mutation {
        name: "mistyped-set-frees-a-host",
        bug: "a host's certificate with a mistyped set is taken as one without sets: it may use all of them",
        rule: "TLS-T4",
        edits: &[Edit {
            file: "crates/tls/src/role.rs",
            old: "is_ours(uri) && !is_known(uri)",
            new: "is_ours(uri) && !is_known(uri) && uri.starts_with(SET_URI)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_uri_of_ours_that_is_mistyped_makes_a_certificate_invalid"])],
        smoke: false,
    },
    Mutation {
        name: "door-asks-for-no-certificate",
        bug: "the settings that a door gets when files change ask no client for a certificate",
        rule: "LIVE-C3",
        edits: &[Edit {
            file: "crates/tls/src/stream.rs",
            old: "let chain = verifier.build().map_err(|error| error.to_string())?;",
            new: "let chain = verifier.allow_unauthenticated().build().map_err(|error| error.to_string())?;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_client_without_a_certificate_is_refused_after_a_change_too"])],
        smoke: false,
    },
];
