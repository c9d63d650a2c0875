//! The peer: ZeroFS, which also keeps its data in S3 and speaks NBD. It is built from crates.io on request, run beside
//! ours, and never linked.
//!
//! ```text
//!  NBD client ──▶ zerofs run ──▶ versitygw (its own, as each target's server is)
//!                    ▲ 9P: the file that is the export
//! ```
//! Owns: its build, configuration and start; the 9P calls that create the export. Does not own: the measurements.

use crate::binary::{cargo, root};
use crate::cluster::free_ports;
use crate::cmd::Cmd;
use crate::nbd::Uri;
use crate::process::Proc;
use crate::s3::{BUCKET, S3};
use crate::say::step;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The newest version on crates.io.
pub const VERSION: &str = "0.19.1";

/// With its default of 16, a FLUSH with that many tables of level 0 is answered with success without a write. With this
/// limit it is always durable.
const L0_MAX_SSTS: u32 = 1_000_000;

/// Disk cache, in its decimal gigabytes: more than all data.
const DISK_CACHE_GB: f64 = 8.0;

const EXPORT: &str = "vol1";

/// The program, built if missing. Fails when it cannot be fetched or built.
pub fn program() -> Result<PathBuf> {
    let to = root().join("target/peer");
    let bin = to.join("bin/zerofs");
    if !bin.is_file() {
        step(format!("cargo install zerofs {VERSION} (the peer; a quarter of an hour on two cores)"));
        // Its profile `ci` is its release profile without link-time optimisation, which would take longer than
        // everything else here.
        let install = ["install", "zerofs", "--version", VERSION, "--locked", "--profile", "ci", "--root"];
        let build = Cmd::of(cargo()).dir(std::env::temp_dir()).args(install).arg(&to);
        build.env("CARGO_TARGET_DIR", to.join("build").display().to_string()).show().context("the peer, ZeroFS")?;
    }
    Ok(bin)
}

/// Settings that are printed with its figures.
pub fn settings(cache_mib: u64) -> String {
    format!(
        "ZeroFS {VERSION} of crates.io, profile ci, one process, l0_max_ssts={L0_MAX_SSTS} (with its default of 16 a flush may write nothing), memory cache {cache_mib} MiB, \
         disk cache {DISK_CACHE_GB} GB, versitygw"
    )
}

/// One installation: its folder, its ports.
#[derive(Debug)]
pub struct Peer {
    bin: PathBuf,
    dir: PathBuf,
    nbd: String,
    ninep: String,
}

impl Peer {
    /// Configures one on an S3 server, and makes an export of `size_mib`. Fails when it does not build, does not start,
    /// or refuses a call.
    pub fn prepare(dir: &Path, s3: &S3, size_mib: u64, cache_mib: u64) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let first = free_ports(2)?;
        let [nbd, ninep] = [first, first + 1].map(|port| format!("127.0.0.1:{port}"));
        let peer = Self { bin: program()?, dir: dir.to_path_buf(), nbd, ninep };
        std::fs::write(peer.config(), peer.toml(s3, cache_mib)?)?;
        let (mut server, _) = peer.start()?;
        export(&peer.ninep, EXPORT, size_mib << 20).context("making the peer's export")?;
        server.stop(crate::process::Signal::TERM, STOP_LIMIT)?;
        Ok(peer)
    }

    fn config(&self) -> PathBuf {
        self.dir.join("zerofs.toml")
    }

    fn toml(&self, s3: &S3, cache_mib: u64) -> Result<String> {
        let env: std::collections::BTreeMap<String, String> = s3.env().into_iter().collect();
        let key = |name: &str| env.get(name).with_context(|| format!("the S3 server has no {name}"));
        #[expect(clippy::cast_precision_loss, reason = "some thousand MiB")]
        let memory_gb = cache_mib as f64 * 1.048_576e-3;
        Ok(format!(
            "[cache]\ndir = \"{dir}\"\ndisk_size_gb = {DISK_CACHE_GB:?}\nmemory_size_gb = {memory_gb:?}\n\
             [storage]\nurl = \"s3://{BUCKET}/zerofs\"\nencryption_password = \"bench-only\"\n\
             [servers.ninep]\naddresses = [\"{ninep}\"]\n[servers.nbd]\naddresses = [\"{nbd}\"]\n\
             [lsm]\nl0_max_ssts = {L0_MAX_SSTS}\n\
             [aws]\naccess_key_id = \"{access}\"\nsecret_access_key = \"{secret}\"\nendpoint = \"http://{endpoint}\"\n\
             default_region = \"us-east-1\"\nallow_http = \"true\"\n",
            dir = self.dir.join("cache").display(),
            ninep = self.ninep,
            nbd = self.nbd,
            access = key("AWS_ACCESS_KEY_ID")?,
            secret = key("AWS_SECRET_ACCESS_KEY")?,
            endpoint = s3.address(),
        ))
    }

    /// Starts it; it is ready once it listens on both ports. Fails when it does not listen within a minute.
    pub fn start(&self) -> Result<(Proc, Uri)> {
        let command = crate::cmd::cmd(&self.bin).arg("run").arg("--config").arg(self.config()).into_command();
        let mut server = Proc::spawn("zerofs", command, &self.dir.join("zerofs.log"))?;
        let open = || [&self.nbd, &self.ninep].into_iter().all(|addr| TcpStream::connect(addr).is_ok());
        server.ready_when("listening", Duration::from_secs(60), open)?;
        Ok((server, Uri { addr: self.nbd.clone(), export: EXPORT.into() }))
    }
}

/// Limit for writing what it has in memory.
pub const STOP_LIMIT: Duration = Duration::from_secs(120);

/// Creates `.nbd/NAME` of `size` bytes: each file of that folder is an export. Fails when the server refuses a call, or
/// does not answer within 30 s.
fn export(addr: &str, name: &str, size: u64) -> Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    for (what, kind, body) in calls(name, size) {
        let refused = |e: anyhow::Error| e.context(format!("9P {what}"));
        call(&mut stream, kind, &body).map_err(refused)?;
    }
    Ok(())
}

/// Calls of 9P2000.L (message types and layouts: its protocol page at github.com/chaos/diod), in order: hello, attach,
/// walk to the folder, create the file, set its size.
fn calls(name: &str, size: u64) -> [(&'static str, u8, Vec<u8>); 5] {
    let text =
        |text: &str| [&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes()[..], text.as_bytes()].concat();
    let number = |n: u32| n.to_le_bytes().to_vec();
    let (root, file, none) = (number(0), number(1), number(u32::MAX));
    const SIZE: u32 = 0x8;
    const READ_WRITE: u32 = 0o2;
    [
        ("version", 100, [number(8192), text("9P2000.L")].concat()),
        ("attach", 104, [root.clone(), none, text("root"), text(""), number(0)].concat()),
        ("walk to .nbd", 110, [root, file.clone(), 1_u16.to_le_bytes().to_vec(), text(".nbd")].concat()),
        ("create", 14, [file.clone(), text(name), number(READ_WRITE), number(0o644), number(0)].concat()),
        (
            "setattr",
            26,
            // mode, uid, gid; size; then two times of two numbers each, unset.
            [file, number(SIZE), vec![0; 12], size.to_le_bytes().to_vec(), vec![0; 32]].concat(),
        ),
    ]
}

/// Sends one call and reads its answer, which must match the call.
fn call(stream: &mut (impl Read + Write), kind: u8, body: &[u8]) -> Result<()> {
    const HEADER: usize = 7;
    const ERROR: u8 = 7;
    const VERSION_CALL: u8 = 100;
    let tag: u16 = if kind == VERSION_CALL { u16::MAX } else { 1 };
    let length = u32::try_from(HEADER + body.len())?;
    stream.write_all(&[&length.to_le_bytes()[..], &[kind], &tag.to_le_bytes(), body].concat())?;
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    anyhow::ensure!((HEADER..=8192).contains(&length), "found an answer of {length} bytes, expected 7 to 8192");
    let mut answer = vec![0; length - HEADER];
    stream.read_exact(&mut answer)?;
    match (header[4], answer.first_chunk::<4>()) {
        (ERROR, Some(code)) => anyhow::bail!("refused with error {}", u32::from_le_bytes(*code)),
        (found, _) => anyhow::ensure!(found == kind + 1, "found an answer of type {found}, expected {}", kind + 1),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with prepared answers.
    struct Ready {
        answers: std::io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Ready {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            self.answers.read(to)
        }
    }

    impl Write for Ready {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.heard.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn asked(answer: &[u8], kind: u8, body: &[u8]) -> (Result<()>, Vec<u8>) {
        let mut server = Ready { answers: std::io::Cursor::new(answer.to_vec()), heard: Vec::new() };
        let result = call(&mut server, kind, body);
        (result, server.heard)
    }

    #[test]
    fn a_call_is_framed_and_its_answer_is_read() {
        let (result, heard) = asked(&[7, 0, 0, 0, 15, 1, 0], 14, b"ab");
        result.expect("answered");
        assert_eq!(heard, [9, 0, 0, 0, 14, 1, 0, b'a', b'b']);
        // The first call has no tag.
        assert_eq!(asked(&[7, 0, 0, 0, 101, 255, 255], 100, b"").1[5..], [255, 255]);
        for (answer, expected) in [
            (&[11, 0, 0, 0, 7, 1, 0, 17, 0, 0, 0][..], "refused with error 17"),
            (&[7, 0, 0, 0, 99, 1, 0], "found an answer of type 99, expected 15"),
            (&[3, 0, 0, 0, 15, 1, 0], "found an answer of 3 bytes, expected 7 to 8192"),
        ] {
            assert_eq!(asked(answer, 14, b"").0.expect_err("refused").to_string(), expected);
        }
    }

    #[test]
    fn calls_are_as_long_as_their_fields() {
        let lengths = calls("vol1", 1 << 30).map(|(what, _, body)| (what, body.len()));
        assert_eq!(lengths, [("version", 14), ("attach", 20), ("walk to .nbd", 16), ("create", 22), ("setattr", 60)]);
    }
}
