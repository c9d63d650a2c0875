//! Arguments that every command takes.

use super::values::address;
use crate::exit::CliError;
use crate::{duration, output};
use clap::Args;
use holdfast_tls::{Dialer, Role, Tls, TlsError, TlsFiles};
use std::path::PathBuf;
use std::time::Duration;

/// Default admin address of a gateway.
pub const DEFAULT_API: &str = "127.0.0.1:7400";

const COMMON: &str = "Common options";

/// Last line of the help of each command but `holdfast` itself.
const SEE: &str = "Common options (--api, --output, --timeout, logs, TLS) and exit codes: see `holdfast --help`";

/// Default of `--timeout`: time for the whole command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Default of `--timeout` for `holdfast dev`, which starts several gateways on one machine.
const DEV_TIMEOUT: Duration = Duration::from_secs(60);

/// Advice if the TLS files cannot be used.
pub const GIVE_TLS: &str =
    "give --tls-ca, --tls-certificate and --tls-key (or HOLDFAST_TLS_CA, ..._CERTIFICATE, ..._KEY) of one cluster";

impl Common {
    /// Loads the certificate files that the arguments name, for all connections of the command.
    ///
    /// # Errors
    /// A file cannot be used, or not all three are given.
    pub fn load_certificate(&mut self, role: Role) -> Result<(), CliError> {
        self.certificate_by(|files| files.load(role))
    }

    /// Like `load_certificate`, for `attach`: it looks itself whether the files can be used, since devices may wait for
    /// it (LIVE-C4).
    ///
    /// # Errors
    /// Not all three are given.
    pub fn load_certificate_or_later(&mut self, role: Role) -> Result<(), CliError> {
        self.certificate_by(|files| files.load_or_later(role))
    }

    fn certificate_by(
        &mut self,
        load: impl FnOnce(&TlsFiles) -> Result<Option<Tls>, TlsError>,
    ) -> Result<(), CliError> {
        let (ca, certificate, key) = (self.tls_ca.clone(), self.tls_certificate.clone(), self.tls_key.clone());
        let tls = load(&TlsFiles { ca, certificate, key })
            .map_err(|error| CliError::usage("TLS").because(&error).next(GIVE_TLS))?;
        self.dialer = Dialer::from(tls.as_ref());
        Ok(())
    }

    /// Scheme of an NBD address for people: whoever has a certificate uses TLS.
    pub fn nbd_scheme(&self) -> &'static str {
        if self.dialer.connector().is_some() { "nbds" } else { "nbd" }
    }

    /// Time for the whole command.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// Time until `holdfast dev` is ready.
    pub fn dev_timeout(&self) -> Duration {
        self.timeout.unwrap_or(DEV_TIMEOUT)
    }
}

/// Arguments that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Admin addresses of one or more gateways of the cluster; the command finds the right gateway from any of them
    #[arg(long, global = true, env = "HOLDFAST_API", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = address,
          default_value = DEFAULT_API, help_heading = COMMON)]
    pub api: Vec<String>,

    /// Format of the result on standard output; errors on standard error have the same format
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, help_heading = COMMON)]
    pub output: output::Format,

    /// Time limit of the whole command, retries included; for `dev` until it is ready [default: 30s; `dev` 1m; `cluster
    /// recover` 2m; 10m for `set delete` and `gateway add`, `replace`, `remove` and `drain` while they wait]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse, help_heading = COMMON)]
    pub timeout: Option<Duration>,

    /// Log filter for standard error, such as `debug` or `holdfast_raft=debug,info` [default: info,openraft=error for
    /// gateways, warn for other commands]
    #[arg(long, global = true, env = "HOLDFAST_LOG", hide_env_values = true, value_name = "FILTER", help_heading = COMMON)]
    pub log: Option<String>,

    /// Format of the log on standard error
    #[arg(long, global = true, value_enum, env = "HOLDFAST_LOG_FORMAT", hide_env_values = true, value_name = "FORMAT", default_value_t, help_heading = COMMON)]
    pub log_format: output::LogFormat,

    /// TLS: CA certificate of the cluster (PEM); requires --tls-certificate and --tls-key
    #[arg(long, global = true, env = "HOLDFAST_TLS_CA", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_ca: Option<PathBuf>,

    /// TLS: client certificate (PEM) with the role admin; `attach` uses the role host
    #[arg(long, global = true, env = "HOLDFAST_TLS_CERTIFICATE", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_certificate: Option<PathBuf>,

    /// TLS: private key of the client certificate (PEM)
    #[arg(long, global = true, env = "HOLDFAST_TLS_KEY", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_key: Option<PathBuf>,

    /// Connects to gateways, with the three files above
    #[arg(skip)]
    pub dialer: Dialer,
}

/// Hides the common options from the help of a command below `holdfast`, which ends with where to find them. They are
/// still accepted there.
pub fn explained_once(command: clap::Command) -> clap::Command {
    let common = Common::augment_args(clap::Command::new("common"));
    let hidden: Vec<_> =
        common.get_arguments().map(|arg| arg.clone().hide_short_help(true).hide_long_help(true)).collect();
    see(command.args(hidden))
}

fn see(command: clap::Command) -> clap::Command {
    let examples = command.get_after_long_help().map(|text| format!("{}\n\n", text.to_string().trim_end()));
    let long = format!("{}{SEE}", examples.unwrap_or_default());
    command.after_help(SEE).after_long_help(long).mut_subcommands(see)
}
