//! Bugs of a journal that is written without a thread that waits.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const BEGUN: Test = file(Layer::Crash, "holdfast-log", &["--test", "log"], &["begun::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "short-write-counts-as-whole",
        bug: "of a batch that io_uring wrote in part, the rest is never written, and all of it is acknowledged",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/uring.rs",
            old: "Ok(written) if written >= left =>",
            new: "Ok(written) if written >= left.min(4096) =>",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["uring::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "end-of-another-write",
        bug: "the kernel's answer to an earlier request of io_uring counts for the write that is under way",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/uring.rs",
            old: "        assert_eq!(answer.user_data(), flight.number, \"R1: the end of another write\");\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["uring::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "cancelled-write-ends-the-journal",
        bug: "a write of io_uring is lost with the thread that began it, and the journal has failed",
        rule: "LOG-L1",
        edits: &[Edit {
            file: "crates/log/src/uring.rs",
            old: "[Errno::INTR, Errno::AGAIN, Errno::CANCELED].map(",
            new: "[Errno::INTR, Errno::AGAIN].map(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["uring::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "write-refused-twice-ends-the-journal",
        bug: "at a limit of tasks the kernel cancels what needs a thread of its own, and the journal of a good disk has failed",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/log/src/uring.rs",
            old: "By::KernelThread | By::Waiter => By::Waiter,",
            new: "By::KernelThread | By::Waiter => By::KernelThread,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["what_the_kernel_refuses_twice_is_written_by_whoever_waits"])],
        smoke: false,
    },
    Mutation {
        name: "failed-end-acknowledges",
        bug: "a batch that was begun counts as durable although its write or its sync has failed",
        rule: "R1",
        edits: &[Edit {
            file: "crates/journal/src/batch.rs",
            old: "        if let Err(error) = result {\n",
            new: "        if let Err(error) = result.or(Ok::<(), io::Error>(())) {\n",
        }],
        tests: &[BEGUN],
        smoke: false,
    },
    Mutation {
        name: "ended-while-under-way",
        bug: "a batch that was begun is acknowledged at the next look, before the disk has ended it",
        rule: "R1",
        edits: &[Edit {
            file: "crates/journal/src/batch.rs",
            old: "            None => return None,\n",
            new: "            None => (AlignedBuf::default(), Ok(())),\n",
        }],
        tests: &[BEGUN],
        smoke: false,
    },
    Mutation {
        name: "begun-behind-a-marker",
        bug: "the batch behind an idle marker is begun, which syncs only itself, and the next ones call the marker synced",
        rule: "JOURNAL-J1",
        edits: &[Edit {
            file: "crates/journal/src/batch.rs",
            old: "self.flight.is_some() || self.current.synced != self.current.end {",
            new: "self.flight.is_some() {",
        }],
        tests: &[BEGUN],
        smoke: false,
    },
    Mutation {
        name: "tidied-before-the-callbacks",
        bug: "whoever waits for a batch that io_uring has made durable waits until old files are dropped, too",
        rule: "LOG-L1",
        edits: &[Edit { file: "crates/log/src/writer.rs", old: "            self.tell_ended();\n", new: "" }],
        tests: &[BEGUN],
        smoke: false,
    },
    Mutation {
        name: "read-while-it-is-written",
        bug: "a start reads the journal while the kernel still writes the last batch of a process that was killed: it is cut, and comes back at the next start",
        rule: "JOURNAL-J4",
        edits: &[Edit {
            file: "crates/log/src/disk.rs",
            old: "            is_taken(wait_for_begun(&file))?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["an_open_waits_for_writes_that_were_begun"])],
        smoke: false,
    },
    Mutation {
        name: "io-uring-where-nothing-is-durable",
        bug: "io_uring writes the journal on a file system that does not keep the flag for durable writes",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/choice.rs",
            old: "_ if !facts.dsync =>",
            new: "JournalIo::Auto if !facts.dsync =>",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["choice::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "task-that-never-ran",
        bug: "a runtime that ends before it has begun the journal's task tells the thread nothing: nothing is written",
        rule: "LOG-L1",
        edits: &[Edit {
            file: "crates/log/src/beside.rs",
            old: "        let gone = Gone(self.queue.clone());\n        async move {\n            let _gone = gone;\n",
            new: "        async move {\n            let _gone = Gone(self.queue.clone());\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["a_task_that_was_never_begun_is_gone"])],
        smoke: false,
    },
    Mutation {
        name: "close-waits-for-a-call",
        bug: "at the close, the journal's thread waits for its task to call it, which has ended: what waited is lost",
        rule: "LOG-L1",
        edits: &[Edit {
            file: "crates/log/src/queue.rs",
            old: "        if state.closing {\n            state.by_task = false;\n",
            new: "        if false {\n            state.by_task = false;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["the_thread_takes_over_from_a_task"])],
        smoke: false,
    },
];
