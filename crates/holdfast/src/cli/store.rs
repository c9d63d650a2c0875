//! Arguments of `holdfast store`, and of every command that reads stores without a gateway.

use super::values::stores_text;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `holdfast store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check stores: writes, replaces, reads, lists and deletes eight objects in each
    #[command(after_long_help = CHECK)]
    Check(CheckArgs),
}

/// `holdfast store check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Stores as for `set create --store`, or the stores of a set as `set list` shows them
    #[arg(value_name = "URL", value_parser = stores_text, required = true)]
    pub stores: Vec<String>,
    #[command(flatten)]
    pub access: StoreArgs,
}

const CHECK: &str = "\
Examples:
  holdfast store check s3://bucket/prefix
  holdfast store check file:///srv/store
  holdfast store check s3://a/p s3://b/p --credentials-file keys --output json | jq '.stores[].fit'

Sets need conditional PUTs (If-None-Match, If-Match): with them the store fences gateways of a
cluster that has been recovered elsewhere. This check finds stores that ignore the conditions, that
list in another order, and that do not take an object of 18 MiB. The gateways make the same check
before they create a set or add a store. The test objects are deleted afterwards; a missing
directory is created. --timeout applies to each store. Ends with 1 if a store is unfit or refuses
access, with 4 if a store does not answer.
";

/// Source of the cluster key.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "cluster_key", required = true, multiple = false)]
pub struct KeyArgs {
    /// File with the cluster key: 32 random bytes, or 64 hex digits
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// File with the passphrase
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Environment variable with the passphrase
    #[arg(long, value_name = "NAME")]
    pub passphrase_env: Option<String>,
    /// Settings of a gateway: the key is taken from [key] and [key_previous], envelopes included
    #[arg(long, value_name = "FILE")]
    pub key_config: Option<PathBuf>,
}

/// Source of the credentials of s3:// stores.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// AWS credentials file for s3:// stores, with the profile of ?profile=NAME in the URL, or of AWS_PROFILE, or
    /// `default` [default: the AWS variables, including AWS_SHARED_CREDENTIALS_FILE]
    #[arg(long, value_name = "FILE")]
    pub credentials_file: Option<PathBuf>,
}
