//! Certificates of a cluster under test, as `holdfast cluster certificates` makes them for its operator.

use crate::cmd::cmd;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A folder with an authority and certificates.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes what `wanted` asks for, such as `["--host", "db1"]`, with the authority in `dir`; makes that if there is
    /// none.
    pub fn make(bin: &Path, dir: &Path, wanted: &[&str]) -> Result<Self> {
        let made = cmd(bin).args(["cluster", "certificates", "--dir"]).arg(dir).args(wanted).run();
        made.context("certificates")?;
        Ok(Self::of(dir))
    }

    /// Those that are in `dir` already.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    /// CA, certificate and key.
    fn files(&self, name: &str) -> [String; 3] {
        [String::from("ca.pem"), format!("{name}.pem"), format!("{name}.key")]
            .map(|file| self.dir.join(file).display().to_string())
    }

    /// Environment variables with which a command or an attach uses a certificate.
    pub fn env(&self, name: &str) -> Vec<(String, String)> {
        let names = ["HOLDFAST_TLS_CA", "HOLDFAST_TLS_CERTIFICATE", "HOLDFAST_TLS_KEY"];
        names.map(String::from).into_iter().zip(self.files(name)).collect()
    }

    /// The section of the settings of a gateway or an agent.
    pub fn section(&self, name: &str) -> String {
        let [ca, certificate, key] = self.files(name);
        format!("[tls]\nca = {ca:?}\ncertificate = {certificate:?}\nkey = {key:?}\n")
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A folder with a certificate under the file names that libnbd and QEMU expect. Fails when the files cannot be
    /// copied.
    pub fn for_others(&self, name: &str) -> Result<PathBuf> {
        let into = self.dir.join("nbd").join(name);
        std::fs::create_dir_all(&into)?;
        for (from, to) in self.files(name).iter().zip(["ca-cert.pem", "client-cert.pem", "client-key.pem"]) {
            std::fs::copy(from, into.join(to)).with_context(|| from.clone())?;
        }
        Ok(into)
    }
}
