//! Probes that no run has to reach, each with its reason. Keep it short: a scene, a fault or a setting of seeds that
//! reaches the state is better than a line here.

/// The name of a probe, and why no run has to reach it.
pub(super) const ALLOWED: &[(&str, &str)] = &[
    (
        "attach: a grant comes when the devices are released",
        "Only kernel devices keep a lease, and these are in virtual machines, of which no run takes the counts.",
    ),
    (
        "attach: a grant of an earlier request",
        "The keeper drops it first (`awaits`); only another thread could abandon the request between the two looks.",
    ),
    (
        "attach: a refusal of an earlier request",
        "A set has one request for its lease at a time, and begins the next one only after an answer to this one.",
    ),
    (
        "attach: a request while the lease is given back",
        "A set that ends has no room for requests; only another thread could end it between that look and the request.",
    ),
    (
        "attach: an answer of an earlier incarnation",
        "A lane is dropped with its incarnation; only a thread that stands still for a whole grant gets here.",
    ),
    (
        "collection: apply refused to retire an object in use",
        "What no root names can never be named again; for a leader that is wrong. `late-commands` shows the refusal.",
    ),
    (
        "conn: a request comes when the set is no longer served",
        "The connection looks as it is polled; only another thread could end the serving within this one poll.",
    ),
    (
        "csi: a set that was unstaged meanwhile was not attached again",
        "csi-sanity kills no attach process; it is a race of one second, whose two sides a unit test plays.",
    ),
    (
        "csi: a stage failed and left something to undo",
        "csi-sanity stages only what can be staged; a unit test has a stage that fails.",
    ),
    (
        "csi: a volume of another node was asked for again",
        "csi-sanity has one node; what the code does then is attach's own, which the scenario `two-owners` shows.",
    ),
    ("csi: a volume that another node took was refused here", "csi-sanity has one node, and takes no volume from it."),
    (
        "listing: an older state comes after a newer one",
        "A state is read and noted without a wait in between; only another thread could note a newer one meanwhile.",
    ),
    (
        "log: a truncation below what is purged",
        "openraft purges committed entries only, and never truncates these; for a bug in it.",
    ),
    (
        "log: an append that does not continue the log",
        "openraft appends in order, and truncates first where entries differ; for a bug in it.",
    ),
    (
        "machine: a rollback discards what is not in the store",
        "SET-S12 refuses a rollback unless all is in a checkpoint: there is nothing to discard then.",
    ),
    (
        "members: no quorum to end a joint membership",
        "A leader that finds a change has just heard both quorums, and one that began it waits for its entry instead.",
    ),
    (
        "pacing: a candidate that has promised something meanwhile",
        "A heartbeat between openraft's decision to stand and its vote, a moment; over real sockets in `pacer_tests`.",
    ),
    (
        "pacing: a vote is kept back: a leader was heard meanwhile",
        "A heartbeat between a voter's look at its promise and its vote: the look after it is for this moment alone.",
    ),
    (
        "pair: the boot clock went back under a tenure",
        "Pairs run beside a real etcd, on the machine's own clock, which no run moves; unit tests move it.",
    ),
    (
        "read: the data moved again and again",
        "Eight checkpoints would have to end during one read, each of them within a look at the journal.",
    ),
    (
        "read: the journal holds another operation",
        "Each record names its group, entry and place, and is checked; for a bug of the index that names it.",
    ),
    (
        "readmission: a state snapshot of a leader before the removal",
        "Its appends are refused first, so it cannot learn that one is needed; for one that was on its way before.",
    ),
    (
        "readmission: asked for when it is done",
        "A readmission is asked for by one task, which goes on once it is done; a start goes on from the note.",
    ),
    (
        "recovery: an entry leaves a gap",
        "Only a gap of more than 16 million entries is no hole that may be filled later; no journal has room for them.",
    ),
    (
        "reversion: a conflict in another term denies nothing",
        "A new leader asks about entries that a follower has, and its answer to that counts from then on.",
    ),
    (
        "reversion: a leader is wrong that a log went backwards",
        "A leader sends nothing to whom it accuses; only a next leader could bring the entry back before the word.",
    ),
    (
        "sequencer: the group does not take an entry at once",
        "openraft's queue has room for 65,536 requests, and four of them are entries at most; a unit test plays it.",
    ),
    (
        "slot: a connection of an earlier epoch",
        "A slot is taken right after its session was let in; only another thread could begin an epoch meanwhile.",
    ),
    (
        "start: a group that has ended",
        "A gateway reads the same note before it starts a group, and ends one in the same task; for another caller.",
    ),
];
