//! `append`'s stage: PostgreSQL on two hosts over three gateways, for as long as Jepsen runs, and the door where it asks for faults.
//!
//! ```text
//!   jepsen ── unshare --net ── jepsen --inside DIR -- java …     brings up the stage, holds it
//!                                ├─ java (Jepsen)   JDBC to HAProxy; asks at the door
//!                                └─ door            a Unix socket: one line in, one line out (jepsen/src/jepsen/holdfast/hosts.clj)
//! ```
//! Owns: faults by name, putting right what they left. Does not own: when they come, what clients see.

use crate::gateways::{self, GATEWAYS};
use crate::net::HUB;
use crate::process::wait_until;
use crate::say::note;
use crate::stage::{LIMIT, PORT, Stage, node};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// How long a question at the door may take to arrive once somebody is there.
const QUESTION: Duration = Duration::from_secs(5);

/// Between two looks whether somebody is at the door, or Jepsen has ended.
const LOOK: Duration = Duration::from_millis(20);

/// How long a host that was stopped or cut off may take until it stands by; then it is booted anew, as its operator would do.
const RECOVERS: Duration = Duration::from_secs(45);

/// A fault, as Jepsen calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillHost,
    CutHost,
    PauseHost,
    Switchover,
    KillGateway,
    CutGateway,
    PauseGateway,
    RestartGateways,
}

const FAULTS: [(&str, Fault); 8] = [
    ("kill-host", Fault::KillHost),
    ("cut-host", Fault::CutHost),
    ("pause-host", Fault::PauseHost),
    ("switchover", Fault::Switchover),
    ("kill-gateway", Fault::KillGateway),
    ("cut-gateway", Fault::CutGateway),
    ("pause-gateway", Fault::PauseGateway),
    ("restart-gateways", Fault::RestartGateways),
];

/// A question at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Begin(Fault),
    End,
    Alive,
    Logs,
}

/// Whether these are faults of this stage: names joined by `+` and `,`.
pub fn knows(nemesis: &str) -> bool {
    nemesis.split([',', '+']).all(|name| FAULTS.iter().any(|(known, _)| *known == name))
}

impl Question {
    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["begin", name] => {
                let known = || FAULTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                let fault = FAULTS.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault);
                Self::Begin(fault.with_context(|| format!("fault: found {name}, expected one of {}", known()))?)
            }
            ["end"] => Self::End,
            ["alive"] => Self::Alive,
            ["logs"] => Self::Logs,
            _ => bail!("question: found {line:?}, expected begin FAULT, end, alive or logs"),
        })
    }
}

/// Brings the stage up, runs `command` with what it needs to know of it, and gives the code that it ended with.
///
/// # Errors
/// When the stage does not come up, or the command cannot be started.
pub fn inside(bin: &Path, dir: &Path, command: &[OsString]) -> Result<i32> {
    std::fs::create_dir_all(dir)?;
    let mut stage = Stage::start(bin, dir)?;
    let door = stage.open.join("door");
    let listener = UnixListener::bind(&door).with_context(|| door.display().to_string())?;
    listener.set_nonblocking(true)?;
    let (program, args) = command.split_first().context("no command")?;
    // Ends with us, however we end.
    let mut run = Command::new("setpriv");
    run.args(["--pdeathsig", "KILL"]).arg(program).args(args);
    run.args(["--postgres", &format!("{HUB}:{PORT}"), "--door"]).arg(&door);
    let mut jepsen = run.spawn().context("Jepsen does not start")?;
    let served = serve(&mut stage, &listener, &mut jepsen);
    if served.is_err() {
        jepsen.kill()?;
    }
    let status = jepsen.wait()?;
    served?;
    status.code().with_context(|| format!("Jepsen ended with {status}"))
}

/// Answers at the door until Jepsen ends. Its caller sets how long that may take.
fn serve(stage: &mut Stage, listener: &UnixListener, jepsen: &mut Child) -> Result<()> {
    while jepsen.try_wait()?.is_none() {
        match listener.accept() {
            Ok((stream, _)) => answer(stage, stream).unwrap_or_else(|e| note(format!("at the door: {e:#}"))),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(LOOK),
            Err(e) => return Err(e).context("the door"),
        }
    }
    Ok(())
}

fn answer(stage: &mut Stage, stream: UnixStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(QUESTION))?;
    stream.set_write_timeout(Some(QUESTION))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let said = match Question::parse(&line).and_then(|question| act(stage, question)) {
        Ok(said) => format!("ok {said}"),
        Err(e) => format!("error {e:#}"),
    };
    note(format!("{}: {said}", line.trim()));
    Ok(writeln!(&stream, "{}", said.replace('\n', " "))?)
}

fn act(stage: &mut Stage, question: Question) -> Result<String> {
    match question {
        Question::Begin(fault) => begin(stage, fault),
        Question::End => end(stage),
        Question::Alive => {
            let state = |lives| if lives { "up" } else { "down" };
            let of = |g| format!("{}={}", gateways::name(g), state(stage.gateways.lives(g)));
            Ok((0..GATEWAYS).map(of).collect::<Vec<_>>().join(" "))
        }
        Question::Logs => {
            let of = |g| format!("{}={}", gateways::name(g), stage.gateways.log(g).display());
            let host = |h: &crate::hosts::Host| format!("{}={}", h.name, h.log().display());
            let all: Vec<String> = (0..GATEWAYS).map(of).chain(stage.hosts.iter().map(host)).collect();
            Ok(all.join("\t"))
        }
    }
}

/// Makes a fault; what it hit.
fn begin(stage: &mut Stage, fault: Fault) -> Result<String> {
    if fault == Fault::RestartGateways {
        (0..GATEWAYS).try_for_each(|gateway| stage.gateways.kill(gateway))?;
        return Ok("all gateways".into());
    }
    let primary = stage.primary()?;
    let name = stage.hosts[primary].name;
    let other = stage.hosts[1 - primary].name;
    let gateway = |stage: &Stage| stage.serving(primary);
    Ok(match fault {
        Fault::KillHost => {
            let (_, had) = stage.hosts[primary].kill()?;
            format!("{name}, {had} processes")
        }
        Fault::CutHost => {
            stage.net.isolate(node(primary))?;
            name.into()
        }
        Fault::PauseHost => format!("{name}, {} processes", stage.hosts[primary].pause()?),
        // A refusal is an answer: something stands against it now.
        Fault::Switchover => match stage.hosts[primary].holdfast(&["agent", "switchover", "--to", other, "--yes"]) {
            Ok(_) => format!("{name} to {other}"),
            Err(e) => format!("not done: {e:#}"),
        },
        Fault::KillGateway => {
            let gateway = gateway(stage)?;
            stage.gateways.kill(gateway)?;
            gateways::name(gateway)
        }
        Fault::CutGateway => {
            let gateway = gateway(stage)?;
            stage.net.isolate(gateway)?;
            gateways::name(gateway)
        }
        Fault::PauseGateway => {
            let gateway = gateway(stage)?;
            stage.gateways.pause(gateway)?;
            gateways::name(gateway)
        }
        Fault::RestartGateways => bail!("not a fault of one host"),
    })
}

/// Puts everything right; who is primary then. The next fault finds everybody there.
fn end(stage: &mut Stage) -> Result<String> {
    stage.net.heal()?;
    stage.gateways.heal(&stage.net)?;
    for host in &mut stage.hosts {
        if host.is_on() {
            host.proceed();
        } else {
            host.boot()?;
        }
    }
    stage.caught_up()?;
    // A host that comes back may say for a moment what it was before.
    let settled = wait_until(RECOVERS, || {
        let primaries = [stage.hosts[0].is_primary(), stage.hosts[1].is_primary()];
        primaries[0] != primaries[1] && stage.hosts[usize::from(primaries[0])].asks("/readiness") == 200
    });
    let primary = stage.primary()?;
    let (name, other) = (stage.hosts[primary].name, &mut stage.hosts[1 - primary]);
    if settled {
        return Ok(format!("{name} is primary"));
    }
    other.kill()?;
    other.boot()?;
    other.stands_by(LIMIT)?;
    Ok(format!("{name} is primary; {} did not stand by and was booted anew", other.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_and_wrong_ones_are_told_what_was_expected() {
        assert_eq!(Question::parse("begin kill-host\n").ok(), Some(Question::Begin(Fault::KillHost)));
        assert_eq!(Question::parse("end\n").ok(), Some(Question::End));
        let said = |line| Question::parse(line).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said("begin fire").contains("found fire, expected one of kill-host"), "{}", said("begin fire"));
        assert!(said("stop\n").contains("expected begin FAULT"), "{}", said("stop\n"));
    }

    #[test]
    fn the_faults_are_those_that_the_test_asks_for() {
        let text = include_str!("../../../jepsen/src/jepsen/holdfast/hosts.clj");
        for (name, _) in FAULTS {
            assert!(text.contains(&format!("\"{name}\" ")), "hosts.clj has no {name}");
        }
        let there = text.split("(def faults").nth(1).and_then(|rest| rest.split("})").next());
        assert_eq!(there.map(|faults| faults.lines().filter(|l| l.contains('"')).count()), Some(FAULTS.len()));
    }
}
