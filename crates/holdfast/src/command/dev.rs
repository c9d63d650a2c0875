//! `holdfast dev`: a whole cluster on one machine.
//!
//! ```text
//!   DIR/dev.lock      held while it runs: one at a time
//!   DIR/cluster.toml  the plan, as for `cluster bootstrap`
//!   DIR/cluster.key   the cluster key, generated once
//!   DIR/g1.toml ...   settings of each gateway, with its ports; may be edited
//!   DIR/g1/ ...       its data       DIR/g1.log ...  its log
//!   DIR/store/        the store, unless another one was given
//!   DIR/tls/          the cluster's CA and certificates, with --tls or --secure
//!   DIR/g1.audit.log  its audit log, with --secure
//!   DIR/dev.json      what `--output json` prints, while it runs
//! ```
//! 1. Create missing files. 2. Start the gateways. 3. Bootstrap from the plan.
//! 4. Wait until every gateway is ready and accepts NBD connections. 5. Print how to attach, and keep running.
//!
//! A gateway that exits is restarted only with `--respawn`: tests kill gateways on purpose.

mod children;
mod layout;
mod secure;

use crate::cli::{Common, DevArgs};
use crate::client::ClusterClient;
use crate::command::bootstrap::{self, Report, Step};
use crate::exit::CliError;
use crate::{output, serve};
use children::Children;
use holdfast_tls::Dialer;
use layout::Layout;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Poll interval of a wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What `--output json` prints on one line when everything is ready.
#[derive(Debug, Serialize)]
struct Ready {
    /// NBD address of the first volume of the first set at each gateway.
    nbd: Vec<String>,
    api: Vec<String>,
    pids: Vec<u32>,
    http: Vec<String>,
    gateways: Vec<String>,
    /// NBD addresses of every volume at each gateway.
    exports: BTreeMap<String, Vec<String>>,
    /// The gateway that serves each set.
    serving: BTreeMap<String, String>,
    dir: String,
    /// Certificates for commands and hosts, with TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<layout::DevTls>,
}

/// `holdfast dev`.
pub async fn run(common: &Common, args: DevArgs) -> Result<(), CliError> {
    let layout = Layout::prepare(&args)?;
    let common = &layout.common(common)?;
    // Before the first child, so that a signal stops all of them cleanly.
    let stop = serve::terminal_signal();
    tokio::pin!(stop);
    let mut children = Children::start(&layout, args.respawn)?;
    let ready = {
        let made = make_ready(common, &layout);
        tokio::select! {
            made = made => made,
            ended = children.any_end() => Err(children.failed_to_start(ended)),
            which = &mut stop => Err(CliError::failed(format!("stopped by {} before it was ready", which?))),
        }
    };
    let ended = match ready {
        Ok(report) => stay(common, &layout, &report, &mut children, stop).await,
        Err(error) => Err(error),
    };
    children.stop().await;
    layout.forget_ready();
    ended
}

/// Prints how to attach, then waits for a signal.
async fn stay(
    common: &Common,
    layout: &Layout,
    report: &Report,
    children: &mut Children,
    stop: std::pin::Pin<&mut impl Future<Output = Result<&'static str, CliError>>>,
) -> Result<(), CliError> {
    let ready = ready(layout, report, children);
    layout.keep_ready(&ready)?;
    output::show(common.output, &ready, || describe(&ready))?;
    let watch = async {
        loop {
            let (name, how) = children.any_end().await;
            output::remark(&format!("gateway {name} {how}"));
            if let Some(pid) = children.respawn(&name).await? {
                output::remark(&format!("gateway {name} restarted as process {pid}"));
            }
        }
    };
    tokio::select! {
        which = stop => which.map(|which| output::remark(&format!("{which}: stopping the gateways"))),
        failed = watch => failed,
    }
}

/// Steps 3 and 4.
async fn make_ready(common: &Common, layout: &Layout) -> Result<Report, CliError> {
    let deadline = Instant::now() + common.dev_timeout();
    let left = || deadline.saturating_duration_since(Instant::now());
    let dialer = &common.dialer;
    for gateway in &layout.gateways {
        // Bootstrap skips gateways that do not answer; here all of them are starting.
        crate::command::node(&mut ClusterClient::new(dialer, &[gateway.config.api_address()], left())).await?;
    }
    let mut show = |step: &Step| {
        if common.output == output::Format::Table && step.changed {
            output::remark(&format!("{}: {}", step.subject, step.what));
        }
    };
    let report = bootstrap::carry_out(dialer, &layout.plan, left(), &mut show).await?;
    for (name, member) in &report.replaced {
        let api = layout
            .gateways
            .iter()
            .find(|gateway| gateway.name() == name)
            .map_or(String::new(), |gateway| gateway.config.api_address());
        output::remark(&format!(
            "gateway {name} has an empty disk; to add it again use `holdfast gateway replace m{member} --by {api}`"
        ));
    }
    for gateway in
        layout.gateways.iter().filter(|gateway| !report.replaced.iter().any(|(name, _)| name == gateway.name()))
    {
        wait_until_ready(dialer, gateway, deadline).await?;
    }
    Ok(report)
}

/// Step 4, for one gateway.
async fn wait_until_ready(dialer: &Dialer, gateway: &layout::DevGateway, deadline: Instant) -> Result<(), CliError> {
    let api = gateway.config.api_address();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let node = crate::command::node(&mut ClusterClient::new(dialer, std::slice::from_ref(&api), left)).await?;
        let mut why = node.not_ready;
        if why.is_empty() {
            match gateway.config.nbd_address() {
                Some(nbd) => match tokio::net::TcpStream::connect(&nbd).await {
                    Ok(_) => return Ok(()),
                    Err(error) => why = format!("{nbd}: {error}"),
                },
                None => return Ok(()),
            }
        }
        if Instant::now() >= deadline {
            let error = CliError::unreachable(format!("gateway {} is not ready: {why}", gateway.name()));
            return Err(error.next(format!("its log is {}", gateway.log.display())));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn ready(layout: &Layout, report: &Report, children: &Children) -> Ready {
    let each = |address: fn(&layout::DevGateway) -> Option<String>| {
        layout.gateways.iter().filter_map(address).collect::<Vec<_>>()
    };
    let doors = each(|gateway| gateway.config.nbd_address());
    let scheme = if layout.tls.as_ref().is_some_and(layout::DevTls::is_secure) { "nbds" } else { "nbd" };
    let by_all = |export: &str| doors.iter().map(|door| format!("{scheme}://{door}/{export}")).collect::<Vec<_>>();
    let volumes =
        layout.plan.sets.iter().flat_map(|set| set.volumes.keys().map(move |volume| format!("{}/{volume}", set.name)));
    Ready {
        nbd: volumes.clone().next().map_or_else(Vec::new, |export| by_all(&export)),
        api: each(|gateway| Some(gateway.config.api_address())),
        pids: children.pids(),
        http: each(|gateway| gateway.config.http_address()),
        gateways: layout.gateways.iter().map(|gateway| gateway.name().to_string()).collect(),
        exports: volumes.map(|export| (export.clone(), by_all(&export))).collect(),
        serving: report.serving.clone(),
        dir: layout.dir.display().to_string(),
        tls: layout.tls.clone(),
    }
}

fn describe(ready: &Ready) -> String {
    let scheme = if ready.tls.as_ref().is_some_and(layout::DevTls::is_secure) { "https" } else { "http" };
    let gateways = ready.gateways.iter().zip(&ready.api).zip(&ready.pids).zip(&ready.http);
    let rows = gateways
        .map(|(((name, api), pid), http)| [name.clone(), pid.to_string(), api.clone(), format!("{scheme}://{http}/")]);
    let gateways = output::table(["GATEWAY", "PID", "API", "PAGE"], rows);
    let serving: Vec<String> =
        ready.serving.iter().map(|(set, gateway)| format!("{set} is served by {gateway}")).collect();
    let mut text = format!("Ready. {}.\n\n{gateways}\n", serving.join("; "));
    let (set, gateway) =
        ready.serving.first_key_value().map_or(("", ""), |(set, gateway)| (set.as_str(), gateway.as_str()));
    match ready.tls.as_ref().filter(|tls| tls.is_secure()) {
        Some(tls) => text.push_str(&next_secure(ready, tls, set)),
        None => text.push_str(&next_plain(ready, gateway)),
    }
    if let Some(other) = ready.gateways.iter().find(|name| *name != gateway) {
        text.push_str(&format!("  holdfast switchover {set} --to {other}\n"));
    }
    text.push_str(&format!("\nCtrl-C stops the cluster; its data stays in {}.", ready.dir));
    text
}

/// How to attach where nothing is asked for, and how to command.
fn next_plain(ready: &Ready, gateway: &str) -> String {
    let exports = ready.exports.iter().map(|(export, by)| format!("  {export}\n    {}", by.join("\n    ")));
    let exports = exports.collect::<Vec<_>>().join("\n");
    let mut text =
        format!("\nVolumes at each gateway (only the gateway that serves the set accepts connections):\n{exports}\n");
    let at = ready.gateways.iter().position(|name| name == gateway).unwrap_or(0);
    if let Some(address) = ready.nbd.get(at) {
        text.push_str(&format!("\nTry:\n  nbdinfo {address}\n  nbdcopy some.img {address}\n"));
        if let Some((door, export)) = address.strip_prefix("nbd://").and_then(|rest| rest.split_once('/')) {
            let (host, port) = holdfast_api::host_port(door).unwrap_or((door, 10809));
            text.push_str(&format!(
                "  nbd-client -b 4096 -N {export} {host} {port} /dev/nbd0     if the kernel has nbd\n"
            ));
        }
    }
    text.push_str(&format!("\n  export HOLDFAST_API={}\n  holdfast cluster status\n", ready.api.join(",")));
    text
}

/// Like `next_plain`, where everybody needs a certificate.
fn next_secure(ready: &Ready, tls: &layout::DevTls, set: &str) -> String {
    let (api, ca) = (ready.api.join(","), tls.ca.display());
    let [host, host_key] = tls.host.each_ref().map(|path| path.display());
    let [admin, admin_key] = tls.admin.each_ref().map(|path| path.display());
    let owner = tls.host[0].file_stem().unwrap_or_default().to_string_lossy();
    let folder = tls.ca.parent().unwrap_or(&tls.ca).display();
    format!(
        "\nEverything is on: TLS for everybody, roles, tokens for exports, allowed stores, audit logs \
         ({dir}/g1.audit.log and so on).\n\n\
         As host {owner}, in another terminal:\n  \
         holdfast attach {set} --owner {owner} --api {api} \\\n    \
         --tls-ca {ca} --tls-certificate {host} --tls-key {host_key}\n\n\
         For another host, or another person:\n  \
         holdfast cluster certificates --dir {folder} --host db2 --set {set} --viewer eve\n\n\
         As administrator (operator.pem and viewer.pem, with their keys, are beside it and may do less):\n  \
         export HOLDFAST_API={api}\n  \
         export HOLDFAST_TLS_CA={ca} HOLDFAST_TLS_CERTIFICATE={admin} \\\n    \
         HOLDFAST_TLS_KEY={admin_key}\n  \
         holdfast cluster status\n  \
         holdfast lease acquire {set} --owner {owner}     prints nbds:// addresses with a token, for libnbd\n",
        dir = ready.dir,
    )
}
