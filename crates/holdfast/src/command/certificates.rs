//! `holdfast cluster certificates`: an authority of one's own, and what it signs.

use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use clap::Args;
use holdfast_tls::Role;
use holdfast_tls::make::{self, DAYS_MAX, Wanted};
use holdfast_types::Name;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// `holdfast cluster certificates`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").args(["gateway", "host", "admin"]).required(true).multiple(true)))]
pub struct CertificatesArgs {
    /// Where authority, certificates and keys are, or are made
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// A gateway's name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub gateway: Vec<Name>,
    /// A PostgreSQL host's name, for its attach and its agent; may be given several times
    #[arg(long, value_name = "NAME")]
    pub host: Vec<Name>,
    /// Someone who uses the commands; may be given several times
    #[arg(long, value_name = "NAME")]
    pub admin: Vec<Name>,
    /// Days that the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    pub days: u64,
}

/// One certificate, as printed.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    role: String,
    certificate: PathBuf,
    key: PathBuf,
}

/// What was made, as printed.
#[derive(Debug, Serialize)]
struct Report {
    ca: PathBuf,
    authority_made: bool,
    made: Vec<Line>,
}

/// Runs `holdfast cluster certificates`.
pub fn run(common: &Common, args: &CertificatesArgs) -> Result<(), CliError> {
    let all = [(Role::Gateway, &args.gateway), (Role::Host, &args.host), (Role::Admin, &args.admin)];
    let wanted: Vec<Wanted> = all
        .into_iter()
        .flat_map(|(role, names)| names.iter().map(move |name| Wanted { name: name.to_string(), role }))
        .collect();
    for (at, one) in wanted.iter().enumerate() {
        if one.name == "ca" || wanted[..at].iter().any(|other| other.name == one.name) {
            return Err(CliError::usage(format!("{}: found twice, expected a name of its own for each", one.name)));
        }
    }
    let made = make::certificates(&args.dir, &wanted, args.days).map_err(|error| {
        CliError::failed("no certificate made for this and what follows")
            .because(&error)
            .next("what is there is kept: move a file away to have it made anew, or use another --dir")
    })?;
    let line = |(one, certificate, key): (Wanted, PathBuf, PathBuf)| Line {
        name: one.name,
        role: one.role.to_string(),
        certificate,
        key,
    };
    let report =
        Report { ca: made.ca, authority_made: made.authority_made, made: made.files.into_iter().map(line).collect() };
    output::show(common.output, &report, || {
        let whose = if report.authority_made { "made" } else { "was there" };
        let mut text = format!("authority: {} ({whose})", report.ca.display());
        for line in &report.made {
            let _ =
                write!(text, "\n{} {}: {} {}", line.role, line.name, line.certificate.display(), line.key.display());
        }
        text
    })
}
