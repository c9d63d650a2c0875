//! `holdfast csi`: the driver of crate `csi`, with the cluster of `--api` behind it.

mod admin;

use crate::cli::{Common, CsiArgs, CsiServices};
use crate::exit::CliError;
use crate::serve;
use admin::Admin;
use holdfast_csi::{Controller, Driver, Node, NodeOptions, Refused};
use holdfast_types::Owner;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Default log filter: includes refused calls.
pub const LOG: &str = "warn,holdfast=info,holdfast_csi=info,holdfast_tls=info";

fn failed(refused: &Refused) -> CliError {
    CliError::failed(refused.text.clone())
}

/// Arguments of `holdfast attach` with the gateways and the certificate of this process.
fn connection(common: &Common) -> Vec<String> {
    let mut args = vec!["--api".to_string(), common.api.join(",")];
    let files =
        [("--tls-ca", &common.tls_ca), ("--tls-certificate", &common.tls_certificate), ("--tls-key", &common.tls_key)];
    for (flag, file) in files {
        if let Some(file) = file {
            args.extend([flag.to_string(), file.display().to_string()]);
        }
    }
    args
}

fn this_host() -> Result<Owner, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Owner::new(name.trim()).map_err(|error| {
        CliError::usage("this host's name cannot be used as owner")
            .because(&error)
            .next("give the node's name with --node")
    })
}

fn node(common: &Common, args: &CsiArgs) -> Result<Node, CliError> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("holdfast"));
    let options = NodeOptions {
        node: args.node.clone().map_or_else(this_host, Ok)?,
        locality: args.locality.clone(),
        dir: args.dir.clone(),
        device: args.device.into(),
        program,
        connection: connection(common),
        volumes_max: usize::from(args.max_volumes),
    };
    let node = Node::start(options).map_err(|refused| failed(&refused))?;
    // Said at once, not only when the first pod waits for its volume. Served all the same: the module may come.
    if let Err(refused) = node.check() {
        tracing::error!("{}", refused.text);
    }
    Ok(node)
}

/// Runs it until SIGINT or SIGTERM. Attached volumes stay attached.
pub async fn run(common: &Common, args: CsiArgs) -> Result<(), CliError> {
    serve::ignore_hangup()?;
    serve::without_core_dumps();
    serve::follow_certificate(&common.dialer);
    let controller = (args.serve != CsiServices::Node).then(|| {
        let admin = Arc::new(Admin::new(common.clone()));
        Controller::new(admin, args.set_prefix.clone(), args.store.clone())
    });
    let node = if args.serve == CsiServices::Controller { None } else { Some(node(common, &args)?) };
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let signals = serve::stop_signal();
    tokio::spawn(async move {
        match signals.await {
            Ok(which) => tracing::info!(signal = which, "stopping"),
            Err(error) => tracing::error!(error = error.message, "stopping"),
        }
        signalled.cancel();
    });
    tracing::info!(socket = %args.endpoint.display(), services = ?args.serve, "serving");
    let served = holdfast_csi::serve(Driver::new(controller, node), &args.endpoint, stop).await;
    served.map_err(|error| {
        CliError::failed("").because(&error).next("give another --endpoint, or stop the other process")
    })
}
