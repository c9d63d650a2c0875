//! Arguments of `holdfast watch`.

use crate::duration;
use clap::Args;
use std::time::Duration;

const WATCH: &str = "\
Examples:
  holdfast watch --api 10.0.0.1:7400,10.0.0.2:7400
  holdfast watch --output json
  holdfast watch --every 200ms --count 10

Ends with 0 on Ctrl-C, SIGTERM or SIGHUP. If no gateway answers, it reports that and keeps trying.
Give several addresses in --api, so that it works when one gateway is down. With --output json,
and if standard output is no terminal, it prints the first state and then one line for each
change.
";

/// `holdfast watch`.
#[derive(Debug, Args)]
#[command(after_long_help = WATCH)]
pub struct WatchArgs {
    /// Poll interval
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s")]
    pub every: Duration,
    /// End after this many polls [default: never]
    #[arg(long, value_name = "COUNT")]
    pub count: Option<u64>,
}
