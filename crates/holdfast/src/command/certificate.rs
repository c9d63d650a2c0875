//! `holdfast certificate`: the certificates in use, and what is revoked.

use super::connect::connect;
use super::console::tell;
use super::text::{days_text, member_text, time};
use crate::cli::{CertificateCommand, Common, WhichArgs};
use crate::client::{Client, Effect};
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_api::v1;
use holdfast_tls::TlsError;
use holdfast_types::Name;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Digits of a fingerprint in a table: enough to tell authorities apart.
const SHORT_DIGITS: usize = 16;

/// Runs one of `holdfast certificate`'s commands.
pub async fn run(common: &Common, command: CertificateCommand) -> Result<(), CliError> {
    match command {
        CertificateCommand::List => {
            let call = async |mut client: Client| client.list_certificates(v1::ListCertificatesRequest {}).await;
            let reply = connect(common).call("list the certificates", Effect::Reads, call).await?;
            output::show(common.output, &reply, || describe(&reply))
        }
        CertificateCommand::Revoke { which, reason, force } => {
            let (serial, name) = which.parts();
            let request = v1::RevokeCertificateRequest { serial, name, reason, force };
            let call = async |mut client: Client| client.revoke_certificate(request.clone()).await;
            let reply = connect(common).call("revoke the certificate", Effect::Changes, call).await?;
            output::show(common.output, &reply, || revoked(&reply.revoked))?;
            tell(common, "its connections end as each gateway learns of it, within a second");
            Ok(())
        }
        CertificateCommand::Renew { dir, names, days } => renew(common, &dir, &names, days),
        CertificateCommand::Unrevoke { which } => {
            let (serial, name) = which.parts();
            let request = v1::UnrevokeCertificateRequest { serial, name };
            let call = async |mut client: Client| client.unrevoke_certificate(request.clone()).await;
            let reply = connect(common).call("take the certificate off the list", Effect::Changes, call).await?;
            output::show(common.output, &reply, || revoked(&reply.revoked))
        }
    }
}

/// What to do about an authority's key that others can use. It must not be made again: that would be another authority.
pub(super) fn advice_on_key(error: &TlsError) -> Option<String> {
    let TlsError::Exposed { path, .. } = error else { return None };
    let path = path.display();
    Some(format!("keep the file: `chmod 600 {path}`, and `chown` it to yourself if it is another user's"))
}

/// A renewed certificate, as printed.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    certificate: PathBuf,
    key: PathBuf,
    /// The serial number of the one before.
    before: String,
}

fn renew(common: &Common, dir: &Path, names: &[Name], days: u64) -> Result<(), CliError> {
    serve::without_core_dumps();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    if names.iter().any(|name| name == "ca") {
        return Err(CliError::usage("name ca: the authority is not renewed by this command")
            .next("see \"A new authority\" in docs/operating/tls.md"));
    }
    let renewed = holdfast_tls::renew(dir, &names, days).map_err(|error| {
        let needed = "the directory has to have ca.pem, ca.key and the certificates";
        CliError::failed("certificates not renewed from here on")
            .because(&error)
            .next(advice_on_key(&error).unwrap_or_else(|| needed.to_string()))
    })?;
    let line = |one: holdfast_tls::Renewed| Line {
        name: one.name,
        certificate: one.certificate,
        key: one.key,
        before: one.before,
    };
    let lines: Vec<Line> = renewed.into_iter().map(line).collect();
    output::show(common.output, &lines, || {
        let rows = lines.iter().map(|line| {
            [
                line.name.clone(),
                line.certificate.display().to_string(),
                line.key.display().to_string(),
                line.before.clone(),
            ]
        });
        output::table(["NAME", "CERTIFICATE", "KEY", "OLD SERIAL"], rows)
    })
}

impl WhichArgs {
    /// Serial number and name, one of them empty.
    fn parts(self) -> (String, String) {
        (self.serial.unwrap_or_default(), self.name.unwrap_or_default())
    }
}

fn describe(reply: &v1::CertificatesReply) -> String {
    let rows = reply.gateways.iter().map(|gateway| {
        let Some(own) = &gateway.certificate else {
            let why = if gateway.error.is_empty() { "no TLS".to_string() } else { gateway.error.clone() };
            return [
                gateway.name.clone(),
                member_text(gateway.member),
                why,
                String::new(),
                String::new(),
                String::new(),
            ];
        };
        let issuer =
            if own.issuer.is_empty() { "unknown".to_string() } else { own.issuer.chars().take(SHORT_DIGITS).collect() };
        let name = if own.trouble.is_empty() { own.name.clone() } else { format!("{} ({})", own.name, own.trouble) };
        let left = days_text(Some(own));
        [gateway.name.clone(), member_text(gateway.member), name, own.serial.clone(), issuer, left]
    });
    let head = ["GATEWAY", "MEMBER", "CERTIFICATE", "SERIAL NUMBER", "ISSUER", "DAYS LEFT"];
    let gateways = output::table_with_messages(head, rows, &[2], 1);
    format!("{gateways}\n\n{}", revoked(&reply.revoked))
}

fn revoked(list: &[v1::RevokedCertificate]) -> String {
    if list.is_empty() {
        return "nothing is revoked".to_string();
    }
    let rows = list.iter().map(|one| {
        let what = if one.name.is_empty() { format!("serial {}", one.serial) } else { format!("name {}", one.name) };
        [what, time(one.at_unix_ms), one.by.clone(), one.reason.clone()]
    });
    output::table_with_messages(["REVOKED", "SINCE", "BY", "REASON"], rows, &[3], 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_attention_is_marked() {
        let own = |days_left| v1::NodeCertificate {
            name: "g1".into(),
            serial: "0a".into(),
            issuer: "ab".repeat(32),
            days_left,
            ..Default::default()
        };
        let gateway = |name: &str, certificate| v1::GatewayCertificate {
            member: 1,
            name: name.into(),
            certificate,
            ..Default::default()
        };
        let mut reply = v1::CertificatesReply {
            gateways: vec![gateway("g1", Some(own(Some(29)))), gateway("g2", Some(own(Some(30)))), gateway("g3", None)],
            ..Default::default()
        };
        let text = describe(&reply);
        let words = |line: usize| text.lines().nth(line).unwrap_or("").split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1), ["g1", "m1", "g1", "0a", "abababababababab", "29", "!"]);
        assert_eq!(words(2).last(), Some(&"30"));
        assert_eq!(words(3), ["g3", "m1", "no", "TLS", "-", "-", "-"]);
        assert!(text.ends_with("nothing is revoked"), "{text}");
        reply.revoked.push(v1::RevokedCertificate { name: "db1".into(), by: "ann".into(), ..Default::default() });
        assert!(describe(&reply).contains("name db1"));
    }
}
