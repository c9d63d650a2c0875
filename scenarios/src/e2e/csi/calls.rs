//! Calls of the Container Storage Interface, as Kubernetes makes them: gRPC over a Unix socket, by curl. Only the
//! fields that a test of ours needs (proto/csi.proto has the numbers).

use crate::cmd::cmd;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// gRPC's code for a call that is not possible as things are.
pub(super) const FAILED_PRECONDITION: u32 = 9;

/// Limit of one call: staging waits 20 s for a lease, and for a device.
const CALL_LIMIT: Duration = Duration::from_secs(90);

/// A number as protobuf writes it: seven bits a byte, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(((value & 0x7f) as u8) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with a length: a text, or a message.
pub(super) fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [varint((number << 3) | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field with a number.
pub(super) fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// A block device for one node that writes.
pub(super) fn block() -> Vec<u8> {
    const SINGLE_NODE_WRITER: u64 = 1;
    [field(1, &[]), field(3, &number(1, SINGLE_NODE_WRITER))].concat()
}

/// The answer to a call.
pub(super) struct Answer {
    /// gRPC's code; 0 is success.
    pub(super) code: u32,
    /// Its text, with the escapes of gRPC.
    pub(super) text: String,
    /// The message, without gRPC's five bytes.
    pub(super) message: Vec<u8>,
}

impl Answer {
    /// The message of a call that must have succeeded.
    pub(super) fn good(self, what: &str) -> Result<Vec<u8>> {
        anyhow::ensure!(self.code == 0, "{what}: found code {} ({}), expected success", self.code, self.text);
        Ok(self.message)
    }
}

/// A driver's socket, and a folder for what curl reads and writes.
pub(super) struct Csi {
    socket: PathBuf,
    dir: PathBuf,
}

impl Csi {
    pub(super) fn new(socket: &Path, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        Ok(Self { socket: socket.to_owned(), dir: dir.to_owned() })
    }

    /// Makes a call, such as `Node/NodeStageVolume`.
    pub(super) fn call(&self, method: &str, message: &[u8]) -> Result<Answer> {
        let at = |name: &str| self.dir.join(name);
        let length = u32::try_from(message.len())?.to_be_bytes();
        // Not compressed, the length, the message.
        std::fs::write(at("request"), [&[0_u8][..], &length, message].concat())?;
        // An answer without a message leaves no file.
        let _ = std::fs::remove_file(at("answer"));
        let data = format!("@{}", at("request").display());
        let command = cmd("curl").args(["-sS", "--http2-prior-knowledge", "--unix-socket"]).arg(&self.socket);
        let command = command.args(["--max-time", &CALL_LIMIT.as_secs().to_string(), "--data-binary", &data]);
        let command = command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
        let command = command.arg("-D").arg(at("headers")).arg("-o").arg(at("answer"));
        command.arg(format!("http://localhost/csi.v1.{method}")).run().with_context(|| method.to_owned())?;
        // The trailers, which have gRPC's code, are among them.
        let headers = std::fs::read_to_string(at("headers"))?;
        let header = |name: &str| headers.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let code = header("grpc-status:").with_context(|| format!("{method}: no gRPC code in {headers:?}"))?;
        let message = std::fs::read(at("answer")).unwrap_or_default();
        Ok(Answer {
            code: code.parse().with_context(|| format!("{method}: {code}"))?,
            text: header("grpc-message:").unwrap_or_default().to_owned(),
            message: message.get(5..).unwrap_or_default().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(field(1, b"a"), [0x0a, 1, b'a']);
        assert_eq!(number(1, 1), [0x08, 1]);
        assert_eq!(block(), [0x0a, 0, 0x1a, 2, 0x08, 1]);
    }
}
