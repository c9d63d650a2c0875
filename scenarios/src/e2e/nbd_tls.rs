//! NBD over TLS with clients of others: libnbd (nbdinfo, nbdcopy), nbdkit and QEMU, and with our own. First where TLS
//! is optional, then where it is required; who has no certificate for it is not served (R10).

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET, VOLUME};
use crate::cmd::{Cmd, cmd};
use crate::nbd::{Client, NbdError, pattern};
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SIZE_MIB: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);
/// The DNS name in a gateway's certificate.
const GATEWAY: &str = "gateway.holdfast.internal";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let dir = lab.dir.join("cluster");
    certificates(lab, &dir.join("tls"), &["--host", "db1", "--admin", "admin", "--gateway", "spare"])?;
    certificates(lab, &dir.join("other"), &["--host", "mallory"])?;
    for (of, name) in [("tls", "db1"), ("tls", "spare"), ("other", "mallory")] {
        as_others_want(&dir, of, name)?;
    }
    let at = |file: &str| dir.join("tls").join(file).display().to_string();
    let env = vec![
        ("HOLDFAST_TLS_CA".to_string(), at("ca.pem")),
        ("HOLDFAST_TLS_CERTIFICATE".to_string(), at("admin.pem")),
        ("HOLDFAST_TLS_KEY".to_string(), at("admin.key")),
    ];
    let mut cluster = Cluster::start(Options { gateways: 1, env, ..lab.options(&format!("{SIZE_MIB}MiB"), &[]) })?;
    says_its_mode(&cluster, "optional")?;
    libnbd(lab, &cluster, &dir)?;
    qemu(lab, &cluster, &dir)?;

    // As an operator does it.
    let settings = dir.join("g1.toml");
    let text = std::fs::read_to_string(&settings)?;
    anyhow::ensure!(text.matches("nbd = \"optional\"").count() == 1, "g1.toml has no `nbd = \"optional\"`:\n{text}");
    std::fs::write(&settings, text.replace("nbd = \"optional\"", "nbd = \"required\""))?;
    cluster.kill(0)?;
    cluster.restart(0)?;
    refused(&cluster, &dir)?;
    own(lab, &cluster, &dir)?;
    cluster.stop()?;
    Ok(())
}

fn certificates(lab: &Lab, into: &Path, names: &[&str]) -> Result<()> {
    cmd(&lab.bin).args(["cluster", "certificates", "--dir"]).arg(into).args(names).run().context("certificates")
}

/// The folder of a certificate, with the file names that gnutls's users share.
fn folder(dir: &Path, name: &str) -> PathBuf {
    dir.join("nbd").join(name)
}

/// Always with this cluster's authority: whoever has another one's certificate can still get this file.
fn as_others_want(dir: &Path, of: &str, name: &str) -> Result<()> {
    let into = folder(dir, name);
    std::fs::create_dir_all(&into)?;
    std::fs::copy(dir.join("tls/ca.pem"), into.join("ca-cert.pem"))?;
    std::fs::copy(dir.join(of).join(format!("{name}.pem")), into.join("client-cert.pem"))?;
    std::fs::copy(dir.join(of).join(format!("{name}.key")), into.join("client-key.pem"))?;
    Ok(())
}

/// The URI of an export through TLS.
fn uri(cluster: &Cluster, dir: &Path, name: &str) -> String {
    let at = &cluster.gateways[0].nbd.addr;
    format!("nbds://{at}/{SET}/{VOLUME}?tls-certificates={}", folder(dir, name).display())
}

/// Waits until the gateway serves `command`, which may come before its first election.
fn served(what: &str, mut command: impl FnMut() -> Cmd) -> Result<()> {
    let mut last = None;
    let came = wait_until(TAKEOVER_LIMIT, || match command().out() {
        Ok(_) => true,
        Err(error) => {
            last = Some(error);
            false
        }
    });
    if came { Ok(()) } else { Err(last.unwrap_or_else(|| anyhow::anyhow!("never tried"))).context(what.to_string()) }
}

fn says_its_mode(cluster: &Cluster, mode: &str) -> Result<()> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let found = &status["members"][0]["node"]["nbd_tls"];
    anyhow::ensure!(found == mode, "cluster status: NBD's TLS is {found}, expected {mode}");
    Ok(())
}

/// They check the gateway's certificate by the address that they connected to.
fn libnbd(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    let uri = uri(cluster, dir, "db1");
    served("nbdinfo through TLS", || cmd("nbdinfo").args(["--size", &uri]))?;
    let info = cmd("nbdinfo").arg(&uri).out()?;
    anyhow::ensure!(info.contains("with TLS"), "nbdinfo does not tell of TLS: {info}");
    let (there, back) = (lab.dir.join("there"), lab.dir.join("back"));
    std::fs::write(&there, pattern(7, 0, SIZE_MIB << 20))?;
    cmd("nbdcopy").args(["--connections=4", "--requests=16"]).arg(&there).arg(&uri).run()?;
    cmd("nbdcopy").arg(&uri).arg(&back).run()?;
    anyhow::ensure!(std::fs::read(&there)? == std::fs::read(&back)?, "nbdcopy read other bytes than it wrote");
    // What they wrote through TLS, a client in plain text reads.
    let mut plain = Client::connect(&cluster.gateways[0].nbd, PATIENCE).context("plain, where TLS is optional")?;
    anyhow::ensure!(plain.read(0, 4096)? == pattern(7, 0, 4096), "another content in plain text");
    plain.disconnect();
    std::fs::remove_file(&back)?;
    note(format!("nbdinfo and nbdcopy: {SIZE_MIB} MiB there and back through TLS"));

    let (host, port) = cluster.gateways[0].nbd.addr.split_once(':').context("HOST:PORT")?;
    let certificates = format!("tls-certificates={}", folder(dir, "db1").display());
    let (host, port, export) = (format!("hostname={host}"), format!("port={port}"), format!("export={SET}/{VOLUME}"));
    let through = ["-U", "-", "nbd", "tls=require", &certificates, &host, &port, &export];
    let size = cmd("nbdkit").args(through).args(["--run", "nbdinfo --size \"$uri\""]).out().context("nbdkit")?;
    anyhow::ensure!(size.trim() == (SIZE_MIB << 20).to_string(), "nbdkit's nbd plugin: size {size}");
    note("nbdkit: opens the volume through TLS");
    Ok(())
}

/// QEMU checks the name that it is told.
fn qemu(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    let (host, port) = cluster.gateways[0].nbd.addr.split_once(':').context("HOST:PORT")?;
    let tls = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", folder(dir, "db1").display());
    let volume = format!(
        "driver=raw,file.driver=nbd,file.server.type=inet,file.server.host={host},file.server.port={port},\
         file.export={SET}/{VOLUME},file.tls-creds=tls0,file.tls-hostname={GATEWAY}"
    );
    let file = format!("driver=raw,file.filename={}", lab.dir.join("there").display());
    let said = cmd("qemu-img").args(["compare", "--object", &tls, "--image-opts", &file, &volume]).out()?;
    anyhow::ensure!(said.contains("identical"), "qemu-img compare through TLS: {said}");
    note("qemu-img: reads the same through TLS");
    Ok(())
}

fn refused(cluster: &Cluster, dir: &Path) -> Result<()> {
    served("nbdinfo, where TLS is required", || cmd("nbdinfo").args(["--size", &uri(cluster, dir, "db1")]))?;
    says_its_mode(cluster, "required")?;
    match Client::connect(&cluster.gateways[0].nbd, PATIENCE) {
        Err(NbdError::Refused(words)) => {
            anyhow::ensure!(words.contains("demands TLS"), "a plain client was told: {words}");
        }
        Err(other) => anyhow::bail!("a plain client was not told why: {other}"),
        Ok(_) => anyhow::bail!("R10: a plain client was served where TLS is required"),
    }
    for (who, name) in [("a gateway's certificate", "spare"), ("another authority's certificate", "mallory")] {
        let tried = cmd("nbdinfo").args(["--size", &uri(cluster, dir, name)]).out();
        anyhow::ensure!(tried.is_err(), "R10: {who} opened a volume");
    }
    note("plain text, a gateway's certificate, another authority's certificate: none was served");
    Ok(())
}

/// Waits for the end of the lease that a connection without a token had.
fn free(cluster: &Cluster) -> Result<()> {
    let free = || cluster.holdfast(&["lease", "show", SET]).is_ok_and(|said| said["lease"].is_null());
    anyhow::ensure!(wait_until(PATIENCE, free), "somebody holds the lease of {SET} all the time");
    Ok(())
}

/// Import, export and attach, where TLS is required.
fn own(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    free(cluster)?;
    let (image, back) = (lab.dir.join("there"), lab.dir.join("exported"));
    std::fs::write(&image, pattern(8, 0, SIZE_MIB << 20))?;
    let path = |path: &Path| path.display().to_string();
    let volume = format!("{SET}/{VOLUME}");
    let import = ["volume", "import", &path(&image), &volume, "--overwrite"].map(String::from);
    cluster.holdfast(&import.each_ref().map(String::as_str)).context("import through TLS")?;
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@now")])?;
    let export = ["volume", "export", &format!("{volume}@now"), &path(&back)].map(String::from);
    cluster.holdfast(&export.each_ref().map(String::as_str)).context("export through TLS")?;
    anyhow::ensure!(std::fs::read(&image)? == std::fs::read(&back)?, "the export is not what was imported");
    std::fs::remove_file(&image)?;
    std::fs::remove_file(&back)?;
    note("imported and exported through TLS");
    free(cluster)?;

    let run_dir = lab.dir.join("attach");
    let at = |file: &str| dir.join("tls").join(file);
    let command = cmd(&lab.bin).args(["attach", SET, "--owner", "db1", "--device", "none", "--api"]);
    let command = command.arg(&cluster.gateways[0].api).arg("--dir").arg(&run_dir);
    let command = command.arg("--tls-ca").arg(at("ca.pem")).arg("--tls-certificate").arg(at("db1.pem"));
    let command = command.arg("--tls-key").arg(at("db1.key"));
    let mut attached = Proc::spawn("holdfast attach", command.into_command(), &lab.dir.join("attach.log"))?;
    let socket = run_dir.join(format!("{VOLUME}.sock"));
    attached.ready_when("its socket", PATIENCE, || socket.exists())?;
    let local = format!("nbd+unix:///{SET}/{VOLUME}?socket={}", socket.display());
    let work = ["-c", "write -P 0x5a 0 16M", "-c", "flush", "-c", "read -P 0x5a 0 16M"];
    cmd("qemu-io").args(["-f", "raw"]).args(work).arg(&local).run().context("write and read through attach")?;
    attached.stop(Signal::TERM, Duration::from_secs(30))?;
    note("attached through TLS, wrote, read and detached");
    Ok(())
}
