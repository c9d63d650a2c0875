//! Third-party clients, if they are installed: nbdinfo, nbdcopy, nbdsh, qemu-img, qemu-io, fio.

use super::harness::{soon, until};
use crate::memory::{MemoryDevice, MemoryExports};
use crate::{Front, FrontLimits};
use holdfast_testkit::{missing, skipped};
use holdfast_types::Epoch;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tokio::process::Command;

const SIZE: u64 = 256 << 20;

/// A tool on the path; without it the test is skipped.
fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        missing(&format!("{name} is not installed"));
    }
    found
}

/// A Python with libnbd.
async fn python() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    for python in std::env::split_paths(&path).map(|folder| folder.join("python3")).filter(|file| file.is_file()) {
        let tried = Command::new(&python).args(["-c", "import nbd"]).stderr(Stdio::null()).status().await;
        if tried.is_ok_and(|status| status.success()) {
            return Some(python);
        }
    }
    missing("no python3 with libnbd is installed");
    None
}

async fn run(program: &Path, arguments: &[&str]) -> String {
    let output = soon(Command::new(program).args(arguments).kill_on_drop(true).output()).await.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} {arguments:?}: {}\n{text}", program.display(), output.status);
    text
}

struct Server {
    front: Front,
    uri: String,
    unix_uri: String,
    folder: tempfile::TempDir,
}

async fn server() -> Server {
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", Arc::new(MemoryDevice::new(SIZE)), Epoch(1), false);
    exports.put("s/w", Arc::new(MemoryDevice::new(SIZE)), Epoch(1), false);
    let front = Front::new(FrontLimits::default(), exports).unwrap();
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    front.listen_unix(&socket).await.unwrap();
    let unix_uri = format!("nbd+unix:///s/v?socket={}", socket.display());
    Server { front, uri: format!("nbd://{address}/s/v"), unix_uri, folder }
}

/// A file with data in some places and holes between them, like a disk image.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0u8; SIZE as usize];
    let mut state = 1u64;
    for (from, len) in [(0, 1 << 20), (3 << 20, 4096), (64 << 20, 10 << 20), (SIZE as usize - 512, 512)] {
        for byte in &mut bytes[from..from + len] {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 40) as u8;
        }
    }
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nbdinfo_sees_what_we_offer() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let server = server().await;
    for uri in [&server.uri, &server.unix_uri] {
        let text = run(&nbdinfo, &[uri]).await;
        for line in [
            "export-size: 268435456",
            "base:allocation",
            "can_cache: true",
            "can_df: true",
            "can_fast_zero: true",
            "can_flush: true",
            "can_fua: true",
            "can_multi_conn: true",
            "can_trim: true",
            "can_zero: true",
            "is_read_only: false",
            "block_size_minimum: 512",
            "block_size_preferred: 4096",
            "block_size_maximum: 33554432",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
    let list = run(&nbdinfo, &["--list", server.uri.trim_end_matches("/s/v")]).await;
    assert!(list.contains("export=\"s/v\"") && list.contains("export=\"s/w\""), "{list}");
    assert!(run(&nbdinfo, &["--map", &server.uri]).await.contains("hole,zero"));
    server.front.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nbdcopy_there_and_back() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let server = server().await;
    let (there, back) = (server.folder.path().join("there.img"), server.folder.path().join("back.img"));
    let bytes = image(&there);
    run(&nbdcopy, &["--connections=4", "--requests=64", &there.to_string_lossy(), &server.uri]).await;
    run(&nbdcopy, &[&server.uri, &back.to_string_lossy()]).await;
    assert!(std::fs::read(&back).unwrap() == bytes);
    if let Some(nbdinfo) = tool("nbdinfo") {
        let map = run(&nbdinfo, &["--map", &server.uri]).await;
        assert!(map.lines().count() >= 7, "holes stayed holes: {map}");
    }
    server.front.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qemu_reads_and_writes() {
    let (Some(qemu_img), Some(qemu_io)) = (tool("qemu-img"), tool("qemu-io")) else { return };
    let server = server().await;
    let file = server.folder.path().join("image");
    image(&file);
    let name = file.to_string_lossy();
    run(&qemu_img, &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", &name, &server.uri]).await;
    let same = run(&qemu_img, &["compare", "-f", "raw", "-F", "raw", &name, &server.uri]).await;
    assert!(same.contains("identical"), "{same}");
    let commands = [
        "write -P 0xaa 1M 128k",
        "write -P 0xbb 1030144 1k",
        "read -P 0xaa 1M 128k",
        "write -z 1M 4k",
        "read -P 0 1M 4k",
        "write -z -u 2M 64k",
        "discard 8M 32M",
        "flush",
        "aio_write -P 0xcc 20M 1M",
        "aio_write -P 0xdd 21M 1M",
        "aio_flush",
        "read -P 0xcc 20M 1M",
        "read -P 0xdd 21M 1M",
        "write -f -P 0xee 22M 32M",
        "read -P 0xee 22M 32M",
    ];
    let arguments: Vec<&str> = ["-f", "raw"].into_iter().chain(commands.iter().flat_map(|c| ["-c", c])).collect();
    let text = run(&qemu_io, &[&arguments[..], &[&server.uri]].concat()).await;
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    server.front.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn libnbd_by_its_own_hands() {
    let Some(python) = python().await else { return };
    let server = server().await;
    let script = r#"
import errno, nbd, sys
uri = sys.argv[1]
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.set_strict_mode(0)
h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation")
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
    else:
        raise AssertionError("did not fail")
h.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 0, nbd.CMD_FLAG_DF) == b"a" * 4096
h.zero(4096, 8192, nbd.CMD_FLAG_FUA)
h.zero(4096, 16384, nbd.CMD_FLAG_NO_HOLE)
fails(errno.ENOTSUP, lambda: h.zero(4096, 16384, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO))
h.zero(4096, 16384, nbd.CMD_FLAG_FAST_ZERO)
h.cache(1 << 20, 0)
h.trim(4096, 0)
h.flush()
fails(errno.EINVAL, lambda: h.pread(512, h.get_size()))
fails(errno.EINVAL, lambda: h.pread(100, 7))
fails(errno.ENOSPC, lambda: h.pwrite(b"x" * 512, h.get_size()))
fails(errno.ENOSPC, lambda: h.zero(512, h.get_size()))
fails(errno.EINVAL, lambda: h.trim(512, h.get_size()))
fails(errno.EINVAL, lambda: h.pwrite(b"x" * 512, 0, 1 << 9))
seen = []
h.block_status(h.get_size(), 0, lambda context, offset, entries, error: seen.append(entries))
assert len(seen) == 1 and sum(seen[0][0::2]) == h.get_size(), seen
seen.clear()
h.block_status(1 << 20, 0, lambda context, offset, entries, error: seen.append(entries), nbd.CMD_FLAG_REQ_ONE)
assert len(seen[0]) == 2 and seen[0][0] <= 1 << 20, seen
# Many in flight, answered in whatever order.
buffers, cookies = [], []
for n in range(200):
    h.pwrite(bytes([n]) * 4096, n * 4096)
for n in range(200):
    buffer = nbd.Buffer(4096)
    buffers.append(buffer)
    cookies.append(h.aio_pread(buffer, n * 4096))
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
for n, buffer in enumerate(buffers):
    assert bytes(buffer.to_bytearray()) == bytes([n]) * 4096, n
h.shutdown()
# TLS is refused, and going on without it works.
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
h.set_export_name("s/none")
fails(errno.ENOENT, lambda: h.opt_go())
names = []
h.opt_list(lambda name, text: names.append(name))
assert names == ["s/v", "s/w"], names
h.set_export_name("s/w")
h.set_full_info(True)
h.opt_info()
assert h.get_canonical_export_name() == "s/w"
h.opt_go()
assert h.pread(512, 0) == b"\0" * 512
h.shutdown()
print("all well")
"#;
    let text = run(&python, &["-c", script, &server.uri]).await;
    assert!(text.contains("all well"), "{text}");
    server.front.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fio_verifies_what_it_wrote() {
    let Some(fio) = tool("fio") else { return };
    if !run(&fio, &["--enghelp"]).await.contains("nbd") {
        skipped("fio has no nbd engine");
        return;
    }
    let server = server().await;
    for (workload, block, depth) in [("randwrite", "4k", "32"), ("randrw", "512-64k", "16"), ("write", "1m", "8")] {
        let arguments = [
            "--name=verify",
            "--ioengine=nbd",
            &format!("--uri={}", server.uri),
            "--size=48m",
            &format!("--rw={workload}"),
            &if block.contains('-') { format!("--bsrange={block}") } else { format!("--bs={block}") },
            &format!("--iodepth={depth}"),
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=64",
        ];
        let text = run(&fio, &arguments).await;
        assert!(text.contains("err= 0"), "{text}");
    }
    server.front.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_killed_disturb_nobody() {
    let (Some(nbdcopy), Some(qemu_io)) = (tool("nbdcopy"), tool("qemu-io")) else { return };
    let server = server().await;
    let file = server.folder.path().join("image");
    image(&file);
    let other = server.uri.replace("/s/v", "/s/w");
    for _ in 0..5 {
        let mut victim = Command::new(&nbdcopy)
            .args(["--connections=4", "--allocated", &*file.to_string_lossy(), &other])
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // Killed in the middle of its work: it is connected, and a copy takes longer than the following steps.
        until(|| !server.front.connections().is_empty() || victim.try_wait().unwrap().is_some()).await;
        victim.start_kill().unwrap();
        let commands = ["-f", "raw", "-c", "write -P 0x5a 1M 1M", "-c", "read -P 0x5a 1M 1M", &server.uri];
        let text = run(&qemu_io, &commands).await;
        assert!(!text.contains("failed"), "{text}");
        soon(victim.wait()).await.unwrap();
    }
    until(|| server.front.connections().is_empty()).await;
    until(|| server.front.shared_bytes_held() == 0).await;
    server.front.close().await;
}
