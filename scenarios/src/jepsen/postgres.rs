//! The stage of `append`: PostgreSQL on two hosts over three gateways while Jepsen runs, and a socket (the door) at
//! which Jepsen requests faults.
//!
//! ```text
//!   jepsen ── unshare --net ── jepsen --inside DIR -- java …     starts the stage and keeps it running
//!                                ├─ java (Jepsen)   JDBC to HAProxy; sends requests to the door
//!                                └─ door            a Unix socket: one line in, one line out (jepsen/src/jepsen/holdfast/hosts.clj)
//!
//!   fault ── scene ─┬─ stage: hosts, gateways, packet rules
//!    (names)        ├─ members, spoil: members of the cluster, damage on their disks
//!                   ├─ ground: disks, clocks, late, store      only if a fault of the run needs it
//!                   └─ trouble: whether clients must be served now
//! ```
//! Owns: the door and its requests. Does not own: faults (`scene`), their schedule, what clients see.

mod changed;
mod clocks;
mod disks;
mod fault;
mod ground;
mod late;
mod members;
mod scene;
mod spoil;
mod store;
mod trouble;

pub use fault::{is_own, knows};

use crate::gateways::{self, GATEWAYS};
use crate::net::HUB;
use crate::say::note;
use crate::stage::PORT;
use anyhow::{Context, Result, bail};
use fault::{FAULTS, Fault, Needs, called};
use scene::Scene;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// Timeout for a request after a connection to the door.
const QUESTION: Duration = Duration::from_secs(5);

/// Pause between two checks for a connection or for the end of Jepsen.
const LOOK: Duration = Duration::from_millis(20);

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub bin: &'a Path,
    /// The folder for all files.
    pub dir: &'a Path,
    /// The faults of the run.
    pub nemesis: &'a str,
    /// The folder with the tools of the faults: `between`, `clock`, `clock.so`.
    pub tools: &'a Path,
    pub seed: u64,
}

/// A request at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Begin(Fault),
    /// Answers as if the fault began, without making it.
    Miss(Fault),
    End,
    Alive,
    Logs,
}

impl Question {
    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let fault = |name: &str| {
            let known = || FAULTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            called(name).with_context(|| format!("fault: found {name}, expected one of {}", known()))
        };
        Ok(match words[..] {
            ["begin", name] => Self::Begin(fault(name)?),
            ["miss", name] => Self::Miss(fault(name)?),
            ["end"] => Self::End,
            ["alive"] => Self::Alive,
            ["logs"] => Self::Logs,
            _ => bail!("question: found {line:?}, expected begin FAULT, miss FAULT, end, alive or logs"),
        })
    }
}

/// Starts the stage, runs `command` with the stage's addresses, and returns its exit code. Fails when the stage or the
/// command does not start.
pub fn inside(wanted: &Wanted<'_>, command: &[OsString]) -> Result<i32> {
    let Wanted { bin, dir, nemesis, tools, seed } = *wanted;
    std::fs::create_dir_all(dir)?;
    let mut scene = Scene::start(bin, dir, Needs::of(nemesis), tools, seed)?;
    let door = scene.stage.open.join("door");
    let listener = UnixListener::bind(&door).with_context(|| door.display().to_string())?;
    listener.set_nonblocking(true)?;
    let (program, args) = command.split_first().context("no command")?;
    // Ends when this process ends, in whichever way.
    let mut run = Command::new("setpriv");
    run.args(["--pdeathsig", "KILL"]).arg(program).args(args);
    run.args(["--postgres", &format!("{HUB}:{PORT}"), "--door"]).arg(&door);
    let mut jepsen = run.spawn().context("Jepsen does not start")?;
    let served = serve(&mut scene, &listener, &mut jepsen);
    if served.is_err() {
        jepsen.kill()?;
    }
    let status = jepsen.wait()?;
    served?;
    status.code().with_context(|| format!("Jepsen ended with {status}"))
}

/// Answers requests at the door until Jepsen ends. The caller limits how long that may take.
fn serve(scene: &mut Scene, listener: &UnixListener, jepsen: &mut Child) -> Result<()> {
    while jepsen.try_wait()?.is_none() {
        match listener.accept() {
            Ok((stream, _)) => answer(scene, stream).unwrap_or_else(|e| note(format!("at the door: {e:#}"))),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(LOOK),
            Err(e) => return Err(e).context("the door"),
        }
    }
    Ok(())
}

fn answer(scene: &mut Scene, stream: UnixStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(QUESTION))?;
    stream.set_write_timeout(Some(QUESTION))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let said = match Question::parse(&line).and_then(|question| act(scene, question)) {
        Ok(said) => format!("ok {said}"),
        Err(e) => format!("error {e:#}"),
    };
    note(format!("{}: {said}", line.trim()));
    Ok(writeln!(&stream, "{}", said.replace('\n', " "))?)
}

fn act(scene: &mut Scene, question: Question) -> Result<String> {
    match question {
        Question::Begin(fault) => scene.begin(fault, true).map(|said| said.to_string()),
        Question::Miss(fault) => scene.begin(fault, false).map(|said| said.to_string()),
        Question::End => scene.end().map(|said| said.to_string()),
        Question::Alive => {
            let state = |lives| if lives { "up" } else { "down" };
            let mut all: Vec<String> = (0..GATEWAYS)
                .map(|g| format!("{}={}", gateways::name(g), state(scene.stage.gateways.lives(g))))
                .collect();
            all.extend(scene.spoilt.map(|g| format!("spoilt={}", gateways::name(g))));
            Ok(all.join(" "))
        }
        Question::Logs => {
            let of = |g| format!("{}={}", gateways::name(g), scene.stage.gateways.log(g).display());
            let host = |h: &crate::hosts::Host| format!("{}={}", h.name, h.log().display());
            let all: Vec<String> = (0..GATEWAYS).map(of).chain(scene.stage.hosts.iter().map(host)).collect();
            Ok(all.join("\t"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_and_wrong_ones_are_told_what_was_expected() {
        assert_eq!(Question::parse("begin kill-host\n").ok(), Some(Question::Begin(Fault::KillHost)));
        assert_eq!(Question::parse("miss loss\n").ok(), Some(Question::Miss(Fault::Loss)));
        assert_eq!(Question::parse("end\n").ok(), Some(Question::End));
        let said = |line| Question::parse(line).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said("begin fire").contains("found fire, expected one of kill-host"), "{}", said("begin fire"));
        assert!(said("stop\n").contains("expected begin FAULT"), "{}", said("stop\n"));
    }
}
