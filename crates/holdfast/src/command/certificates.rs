//! `holdfast cluster certificates`: a private certificate authority and its certificates.

use super::certificate::advice_on_key;
use crate::cli::{CertificatesArgs, Common};
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_tls::Role;
use holdfast_tls::make::{self, Wanted};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// One certificate, as printed.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    role: String,
    certificate: PathBuf,
    key: PathBuf,
}

/// The result, as printed.
#[derive(Debug, Serialize)]
struct Report {
    ca: PathBuf,
    authority_made: bool,
    made: Vec<Line>,
}

/// Runs `holdfast cluster certificates`.
pub fn run(common: &Common, args: &CertificatesArgs) -> Result<(), CliError> {
    // The authority's key is read here.
    serve::without_core_dumps();
    let gateways = args
        .gateway
        .iter()
        .map(|one| Wanted { hosts: one.hosts.clone(), ..Wanted::new(one.name.as_str(), Role::Gateway) });
    let others = [
        (Role::Host, &args.host),
        (Role::Viewer, &args.viewer),
        (Role::Operator, &args.operator),
        (Role::Admin, &args.admin),
    ];
    let others =
        others.into_iter().flat_map(|(role, names)| names.iter().map(move |name| Wanted::new(name.as_str(), role)));
    let mut wanted: Vec<Wanted> = gateways.chain(others).collect();
    for host in wanted.iter_mut().filter(|one| one.role == Role::Host) {
        host.owners = args.owner.iter().map(ToString::to_string).collect();
        host.sets = args.set.iter().map(ToString::to_string).collect();
    }
    for (at, one) in wanted.iter().enumerate() {
        if one.name == "ca" || wanted[..at].iter().any(|other| other.name == one.name) {
            let error = CliError::usage(format!("name {}: found twice, or reserved for the CA", one.name));
            return Err(error.next("give each gateway, host and person a different name, and none the name ca"));
        }
    }
    let made = make::certificates(&args.dir, &wanted, args.days).map_err(|error| {
        let failed = CliError::failed("certificates not created from here on").because(&error);
        if failed.next.is_some() {
            return failed;
        }
        let kept = "existing files are kept: move a file away to create it again, or use another --dir";
        failed.next(advice_on_key(&error).unwrap_or_else(|| kept.to_string()))
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
        let whose = if report.authority_made { "created" } else { "exists already" };
        let mut text = format!("CA: {} ({whose})", report.ca.display());
        for line in &report.made {
            let _ =
                write!(text, "\n{} {}: {} {}", line.role, line.name, line.certificate.display(), line.key.display());
        }
        text
    })
}
