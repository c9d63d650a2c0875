//! The `holdfast` program: command line, configuration files, and a development cluster.
//!
//! Owns: arguments, output formats, exit codes, a client that follows leader hints with bounded retries ([`client`]),
//! the processes of `holdfast dev`.
//! Does not own: decisions of a cluster, protocols, the gateway itself. Depends on: gateway, attach, api, types.
//!
//! Without the feature `whole` it has only the commands of gateways and clusters, see Cargo.toml.

#![cfg_attr(
    not(feature = "whole"),
    allow(dead_code, unused_imports, reason = "only commands that are left out use them")
)]

mod cli;
mod client;
mod command;
mod duration;
mod exit;
mod output;
mod route;
mod serve;
mod timestamp;

use clap::Parser;
use exit::{CliError, Exit};
use std::ffi::OsString;
use std::process::ExitCode;

/// Many small buffers of mixed lifetimes across threads: mimalloc gives memory back better than the system's allocator
/// here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads for file reads and sealing. Each one keeps memory of its own in the allocator. With the default of 512,
/// scattered reads used all of them and gained nothing: the disk cannot serve so many requests at once.
const BLOCKING_THREADS_MAX: usize = 32;

fn main() -> ExitCode {
    abort_on_panic();
    let args = match cli::Cli::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version arrive here too, as success; for a usage error clap uses exit code 2, as we do.
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::from(Exit::Done as u8);
            }
            if wants_json(std::env::args_os()) {
                let text = error.render().to_string();
                return fail(output::Format::Json, &CliError::usage(text.trim_end().trim_start_matches("error: ")));
            }
            let _ = error.print();
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    let output = args.common.output;
    let workers = command::worker_threads(&args);
    let flushes = command::flushes(&args);
    if flushes {
        io_flusher();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .on_thread_start(move || {
            if flushes {
                io_flusher()
            }
        })
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(output, &CliError::failed("the runtime could not start").because(&error)),
    };
    let ended = runtime.block_on(command::run(args));
    // Tasks that still run must not delay the end: everything that had to be durable is durable.
    runtime.shutdown_background();
    match ended.and_then(|()| output::unprinted().map_or(Ok(()), Err)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(output, &error),
    }
}

/// R11: a panic is a broken invariant and ends the process in every build, whichever thread or task it happens in. The
/// release profile does the same with `panic = "abort"`. Without this, a development build would lose one task and
/// continue, and a test would not notice.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Whether the arguments ask for JSON; a guess if they are invalid. They may be no text.
fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let pair = |pair: &[String]| pair[0] == "--output" && pair[1] == "json";
    args.iter().any(|arg| arg == "--output=json") || args.windows(2).any(pair)
}

/// Marks the calling thread as part of the I/O path of a block device: when memory is short, the kernel does not make
/// it wait for pages to be written to that same device. Needs CAP_SYS_RESOURCE; without it the device works, but can
/// deadlock when memory is short.
fn io_flusher() {
    let _ = rustix::process::configure_io_flusher_behavior(true);
}

fn fail(output: output::Format, error: &CliError) -> ExitCode {
    output::complain(output, error);
    ExitCode::from(error.exit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Set in the process that is to end.
    const PANICS: &str = "HOLDFAST_TEST_PANICS";

    /// R11: also in a build whose panics end only their task, as that of tests.
    #[test]
    fn a_panic_in_a_task_ends_the_process() {
        if std::env::var_os(PANICS).is_some() {
            // The program itself, which refuses the arguments of a test, and has set its hook by then.
            let _ = main();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // Without the hook the runtime keeps the panic for whoever asks.
            let _ = runtime.block_on(async { tokio::spawn(async { panic!("on purpose") }).await });
            return;
        }
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", "tests::a_panic_in_a_task_ends_the_process", "--nocapture"]).env(PANICS, "1");
        let ended = itself.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{}: {said}", ended.status);
        assert!(said.contains("on purpose"), "{said}");
    }

    #[test]
    fn an_argument_that_is_no_text_is_no_broken_invariant() {
        let args = |last: OsString| ["holdfast".into(), "--output".into(), "json".into(), last].into_iter();
        assert!(wants_json(args(OsString::from_vec(vec![0xff]))));
        assert!(!wants_json(args(OsString::new()).skip(2)));
    }
}
