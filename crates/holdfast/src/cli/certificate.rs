//! Arguments of `holdfast certificate`.

use clap::{Args, Subcommand};
use holdfast_tls::make::DAYS_MAX;
use holdfast_types::Name;
use std::path::PathBuf;

/// `holdfast certificate`.
#[derive(Debug, Subcommand)]
pub enum CertificateCommand {
    /// Show the certificate of each gateway (name, issuer, days left), and what is revoked
    #[command(visible_alias = "show", after_long_help = LIST)]
    List,
    /// Shut a certificate out: no gateway takes it any more, and its connections end within a second
    #[command(after_long_help = REVOKE)]
    Revoke {
        /// Which
        #[command(flatten)]
        which: WhichArgs,
        /// Why, for those who read the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Also if a gateway of this cluster uses it, as long as more than half of them are left
        #[arg(long)]
        force: bool,
    },
    /// Issue new certificates with new keys in the place of old ones, with the same names, by the CA in the same
    /// directory; contacts no gateway
    #[command(after_long_help = RENEW)]
    Renew {
        /// Directory of the CA with its key, and of the certificates, as `holdfast cluster certificates` made it
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Base name of the files NAME.pem and NAME.key
        #[arg(required = true, value_name = "NAME")]
        names: Vec<Name>,
        /// Validity of the certificates in days
        #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
    },
    /// Take a certificate off the list: it is valid again until it expires
    #[command(after_long_help = UNREVOKE)]
    Unrevoke {
        /// Which
        #[command(flatten)]
        which: WhichArgs,
    },
}

/// One certificate, or all of a name.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct WhichArgs {
    /// The certificate of this serial number, in hex
    #[arg(long, value_name = "HEX", value_parser = holdfast_tls::serial_of)]
    pub serial: Option<String>,
    /// All certificates of this common name, also future ones
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

const LIST: &str = "\
Examples:
  holdfast certificate list
  holdfast certificate list --output json | jq '.gateways[] | select(.certificate.expires_soon) | .name'

DAYS LEFT has a ! below 30, or in the last third of its life if that is shorter. ISSUER is the
SHA-256 of the authority's certificate, shortened:
openssl x509 -in ca.pem -noout -fingerprint -sha256
";

const RENEW: &str = "\
Examples:
  holdfast certificate renew --dir tls g1 g2 g3
  holdfast certificate renew --dir tls --days 90 db1 ann

Copy NAME.key and NAME.pem to the machine NAME afterwards, in the place of the old ones: gateways,
attaches and agents read them within seconds. Certificates of cert-manager or step-ca are renewed by
those.
";

const REVOKE: &str = "\
Examples:
  holdfast certificate revoke --serial 4F2A9C --reason lost
  holdfast certificate revoke --name db1

openssl x509 -in db1.pem -noout -serial prints a serial number; those of gateways are in
`holdfast certificate list`. After --name, a new certificate of the same name is refused too: use
--serial to replace one. You cannot revoke your own certificate, so one administrator is always
left. Gateways and hosts check the list; commands do not: if a gateway's key was stolen, replace the
CA too.
";

const UNREVOKE: &str = "\
Example:
  holdfast certificate unrevoke --serial 4F2A9C
";
