//! What a connection costs whose client has begun a TLS handshake and does not go on: the growth of a process's memory,
//! divided by the number of such connections. The server has done its part of the handshake by then, which is the most
//! that somebody without a certificate can make it do.

use crate::process::resident_bytes;
use crate::say::note;
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of one connection, at most.
const BYTES_MAX: u64 = 64 << 10;

/// A door gives a handshake five seconds; all connections are made before the first one ends.
const OPENING: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(3);

/// Connections before the measurement, so that what is needed once is there.
const FIRST: usize = 8;

/// With fewer, what else the process does would be the larger part.
const OPEN_MIN: u64 = 40;

const OPT_STARTTLS: u8 = 5;
const REP_ACK: [u8; 4] = [0, 0, 0, 1];
/// The kind of a TLS record with a part of a handshake.
const HANDSHAKE: u8 = 22;

/// A door, and how many connections it is given: fewer than it lets newcomers have.
pub(super) struct Door {
    pub(super) address: String,
    /// Whether TLS begins by NBD's option for it.
    pub(super) nbd: bool,
    pub(super) count: usize,
}

/// A process and doors of it.
pub(super) struct Process {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) doors: Vec<Door>,
}

/// Measures, prints, and checks. Fails when a connection costs too much, or too few stayed open to say anything.
pub(super) fn measure(process: &Process) -> Result<()> {
    let name = &process.name;
    for door in &process.doors {
        (0..FIRST).try_for_each(|_| begun(door).map(drop)).with_context(|| format!("{name} at {}", door.address))?;
    }
    let resident = || resident_bytes(process.pid).with_context(|| format!("no memory figure of {name}"));
    let (before, since) = (resident()?, Instant::now());
    let mut clients = Vec::new();
    for door in &process.doors {
        for _ in 0..door.count {
            if since.elapsed() < OPENING {
                clients.push(begun(door).with_context(|| format!("{name} at {}", door.address))?);
            }
        }
    }
    let growth = resident()?.saturating_sub(before);
    let open = clients.iter().filter(|client| is_open(client)).count() as u64;
    anyhow::ensure!(open >= OPEN_MIN, "{name}: only {open} of {} half-open connections stayed", clients.len());
    let each = growth / open;
    note(format!("{name}: {open} half-open TLS connections, {} KiB more resident, {each} bytes each", growth >> 10));
    anyhow::ensure!(each < BYTES_MAX, "{name}: a half-open connection costs {each} bytes, expected below {BYTES_MAX}");
    Ok(())
}

/// A connection whose server has answered the beginning of a TLS handshake.
fn begun(door: &Door) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(&door.address)?;
    stream.set_read_timeout(Some(ANSWER))?;
    if door.nbd {
        stream.read_exact(&mut [0; 18]).context("NBD's greeting")?;
        let flags_and_option = [&[0_u8, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, OPT_STARTTLS, 0, 0, 0, 0]].concat();
        stream.write_all(&flags_and_option)?;
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).context("the reply to NBD_OPT_STARTTLS")?;
        anyhow::ensure!(reply[12..16] == REP_ACK, "NBD_OPT_STARTTLS was answered with {reply:?}");
    }
    stream.write_all(&client_hello())?;
    let mut kind = [0];
    stream.read_exact(&mut kind).context("the answer to a ClientHello")?;
    anyhow::ensure!(kind == [HANDSHAKE], "a ClientHello was answered with a record of kind {}", kind[0]);
    Ok(stream)
}

/// Takes what has come, and sees whether that is all.
fn is_open(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 4096];
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// The beginning of TLS 1.3, by hand: a library would go on.
fn client_hello() -> Vec<u8> {
    let extension = |number: u8, data: &[u8]| [&[0, number][..], &length(data), data].concat();
    // Any point of X25519: nobody computes the secret.
    let share = [&[0_u8, 0x24, 0, 0x1d, 0, 0x20, 9][..], &[0; 31]].concat();
    let extensions = [
        extension(0x2b, &[2, 3, 4]),
        extension(0x0a, &[0, 2, 0, 0x1d]),
        extension(0x0d, &[0, 10, 4, 3, 5, 3, 8, 7, 8, 4, 4, 1]),
        extension(0x33, &share),
    ]
    .concat();
    // Version, random, no session, three ciphers, no compression.
    let ciphers: [u8; 8] = [0, 6, 0x13, 1, 0x13, 2, 0x13, 3];
    let body = [&[3_u8, 3][..], &[0x5a; 32], &[0], &ciphers, &[1, 0], &length(&extensions), &extensions].concat();
    let message = [&[1_u8, 0][..], &length(&body), &body].concat();
    [&[HANDSHAKE, 3, 1][..], &length(&message), &message].concat()
}

fn length(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_a_client_hello_fit() {
        let hello = client_hello();
        let at = |from: usize| usize::from(u16::from_be_bytes([hello[from], hello[from + 1]]));
        assert_eq!(hello.len(), 5 + at(3), "of the record");
        assert_eq!(hello.len(), 9 + at(7), "of the message, after its kind");
        // Before the extensions: version, random, session, ciphers, compression.
        let extensions = 9 + 2 + 32 + 1 + 8 + 2;
        assert_eq!(hello.len(), extensions + 2 + at(extensions), "of the extensions");
    }
}
