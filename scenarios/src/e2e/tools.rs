//! Common NBD clients on one volume, each of which checks what another wrote.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cmd::cmd;
use crate::nbd::{nbdsh, pattern};
use crate::say::note;
use anyhow::{Context, Result};

const MIB: u64 = 1 << 20;
const SIZE_MIB: u64 = 64;

/// Script for nbdsh: every command of the protocol that libnbd has, and an expected refusal.
const NBDSH: &str = r#"
assert h.get_size() == 64 * 1024 * 1024, h.get_size()
assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero(), "flags"
assert h.can_multi_conn(), "multi-conn"
assert h.can_df() and h.can_cache() and h.can_fast_zero(), "flags of what came later"
assert h.get_structured_replies_negotiated(), "structured replies"
assert h.can_meta_context("base:allocation"), "base:allocation"
data = bytes(range(256)) * 64
h.pwrite(data, 1024 * 1024, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(len(data), 1024 * 1024) == data, "read back"
h.pwrite(b"x" * 512, 512)
assert h.pread(1024, 0)[512:] == b"x" * 512, "one sector"
h.zero(8192, 1024 * 1024)
assert h.pread(8192, 1024 * 1024) == bytes(8192), "zeroed"
h.zero(4096, 1024 * 1024 + 8192, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, 1024 * 1024 + 8192) == bytes(4096), "zeroed, allocated"
h.trim(4096, 1024 * 1024 + 12288)
h.cache(65536, 0)
# As zeroes are quick in each form, none is refused with ENOTSUP.
for flags in (nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE):
    h.pwrite(b"z" * 65536, 4 * 1024 * 1024)
    h.zero(65536, 4 * 1024 * 1024, flags)
    assert h.pread(65536, 4 * 1024 * 1024) == bytes(65536), "zeroed, fast"
# Data, and what was never written behind it: two pieces, or one where the client asks for it whole.
here = 8 * 1024 * 1024
h.pwrite(b"d" * 4096, here)
def pieces(flags):
    found = []
    piece = lambda part, offset, status, error: found.append((offset - here, len(part), status))
    read = h.pread_structured(65536, here, piece, flags)
    assert read == b"d" * 4096 + bytes(61440), "data and a hole"
    return found
assert len(pieces(0)) > 1, pieces(0)
assert pieces(nbd.CMD_FLAG_DF) == [(0, 65536, nbd.READ_DATA)], pieces(nbd.CMD_FLAG_DF)
one = []
h.block_status(65536, here, lambda context, offset, entries, error: one.append(list(entries)), nbd.CMD_FLAG_REQ_ONE)
assert len(one) == 1 and len(one[0]) == 2 and 4096 <= one[0][0] <= 65536, one
seen = []
h.block_status(4 * 1024 * 1024, 0, lambda context, offset, entries, error: seen.append((context, list(entries))))
assert seen and sum(seen[0][1][0::2]) >= 512, seen
big = bytes(1024 * 1024) + b"\xa5" * (31 * 1024 * 1024)
h.pwrite(big, 32 * 1024 * 1024)
assert h.pread(len(big), 32 * 1024 * 1024) == big, "32 MiB at once"
try:
    h.set_strict_mode(0)
    h.pread(512, 64 * 1024 * 1024)
except nbd.Error as e:
    assert e.errno in ("EINVAL", "EIO"), e.errno
else:
    raise AssertionError("a read behind the end was answered")
h.pwrite(b"y" * 512, 0)
assert h.pread(512, 0) == b"y" * 512, "still alive after a refusal"
h.shutdown()
"#;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster(&format!("{SIZE_MIB}MiB"))?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.to_string();
    let bytes = SIZE_MIB * MIB;

    let info: serde_json::Value = serde_json::from_str(&cmd("nbdinfo").args(["--json", &uri]).out()?)?;
    let size = &info["exports"][0]["export-size"];
    anyhow::ensure!(size.as_u64() == Some(bytes), "nbdinfo: size {size}, expected {bytes}");
    let list = cmd("nbdinfo").args(["--list", &cluster.gateways[serving].nbd.with_export("").to_string()]).out()?;
    anyhow::ensure!(list.contains("demo/vol1"), "nbdinfo --list does not name demo/vol1: {list}");
    note("nbdinfo: size and list");

    nbdsh().args(["--base-allocation", "-u", &uri, "-c", NBDSH]).run()?;
    note("nbdsh: each command with each of its flags, 32 MiB requests, a refusal");

    // A sparse image with data at both ends and in the middle.
    let (image, back) = (lab.dir.join("image.raw"), lab.dir.join("back.raw"));
    let mut content = vec![0; usize::try_from(bytes)?];
    for at in [0, 20 * MIB, bytes - MIB] {
        let place = usize::try_from(at)?;
        content[place..place + usize::try_from(MIB)?].copy_from_slice(&pattern(at + 1, at, usize::try_from(MIB)?));
    }
    std::fs::write(&image, &content)?;
    cmd("nbdcopy").arg("--flush").arg(&image).arg(&uri).run()?;
    cmd("nbdcopy").arg(&uri).arg(&back).run()?;
    anyhow::ensure!(std::fs::read(&back)? == content, "nbdcopy there and back: contents differ");
    let map: serde_json::Value = serde_json::from_str(&cmd("nbdinfo").args(["--map", "--json", &uri]).out()?)?;
    let extents = map.as_array().context("nbdinfo --map: no list")?;
    let total: u64 = extents.iter().filter_map(|e| e["length"].as_u64()).sum();
    anyhow::ensure!(total == bytes, "nbdinfo --map covers {total} of {bytes} bytes");
    note(format!("nbdcopy there and back; nbdinfo --map in {} extents", extents.len()));

    for command in [
        "write -P 0xa5 1M 3M",
        "read -P 0xa5 1M 3M",
        "write -z 2M 64k",
        "read -P 0 2M 64k",
        "discard 3M 64k",
        "write -f -P 0x5a 4095k 8k",
        "read -P 0x5a 4095k 8k",
        "flush",
    ] {
        let said = cmd("qemu-io").args(["-f", "raw", "-c", command, &uri]).out()?;
        anyhow::ensure!(!said.contains("failed"), "qemu-io {command}: {said}");
    }
    note("qemu-io: write, zero, discard, FUA, flush");

    let raw = ["-f", "raw", "-O", "raw"];
    cmd("qemu-img").args(["convert", "-n", "-W", "-m", "8"]).args(raw).arg(&image).arg(&uri).run()?;
    let same = || cmd("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&image).arg(&uri);
    same().run()?;
    // The comparison must be able to fail.
    cmd("qemu-io").args(["-f", "raw", "-c", "write -P 0x11 30M 512", &uri]).run()?;
    anyhow::ensure!(!same().succeeds(), "qemu-img compare finds no difference where there is one");
    note("qemu-img convert, compare");
    cluster.stop()?;
    Ok(())
}
