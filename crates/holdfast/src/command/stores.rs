//! `holdfast set stores`: shows and changes the stores of a set. The gateways carry out a change; this module requests
//! it and shows its progress.

mod list;
mod view;

use super::connect::connect;
use super::console::{confirm, tell};
use super::set_calls::{several, status};
use crate::cli::{Common, HowArgs, StoresCommand};
use crate::client::{Client, ClusterClient, Effect};
use crate::exit::{CliError, Exit};
use crate::output;
use holdfast_api::v1;
use holdfast_types::{Name, Placement, PlacementPhase};
use indicatif::{ProgressBar, ProgressStyle};
use list::ListChange;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub use view::{line, phase_word};

/// Poll interval of a wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Time limit of one poll.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for the answer of the set's leader, before the view of any gateway is shown.
const CONFIRMED_LIMIT: Duration = Duration::from_secs(5);

/// Without a terminal: the shortest interval between progress lines of the same phase.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Runs one of `holdfast set stores`' commands.
pub async fn run(common: &Common, command: StoresCommand) -> Result<(), CliError> {
    match command {
        StoresCommand::Show { set } => show(common, &set).await,
        StoresCommand::Change { set, stores, quorum, how } => {
            let to = several(stores, quorum.write_quorum)?;
            let wanted = ListChange::Change(to.urls().to_vec(), Some(to.write_quorum()));
            change(common, &set, &wanted, how).await
        }
        StoresCommand::Add { set, urls, quorum, how } => {
            change(common, &set, &ListChange::Add(urls, quorum.write_quorum), how).await
        }
        StoresCommand::Drain { set, urls, quorum, how } => {
            change(common, &set, &ListChange::Drain(urls, quorum.write_quorum), how).await
        }
        StoresCommand::Replace { set, old, new, how } => {
            change(common, &set, &ListChange::Replace(old, new), how).await
        }
        StoresCommand::Abandon { set, dry_run } => abandon(common, &set, dry_run).await,
    }
}

async fn show(common: &Common, set: &Name) -> Result<(), CliError> {
    let mut quick = ClusterClient::new(&common.dialer, &common.api, common.timeout().min(CONFIRMED_LIMIT));
    let found = match status(&mut quick, set.as_str(), false).await {
        Err(error) if error.exit == Exit::Unreachable => {
            let found = status(&mut connect(common), set.as_str(), true).await?;
            tell(common, &format!("the view of one gateway, which may be outdated: {}", error.message));
            // Only the leader knows the health of the stores.
            v1::SetStatus { store_health: None, ..found }
        }
        answer => answer?,
    };
    let shown = view::of(&found);
    output::show(common.output, &shown, || shown.text())
}

/// The set, from group 0.
async fn listed(api: &mut ClusterClient, set: &Name) -> Result<v1::SetSummary, CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = api.call("list the sets", Effect::Reads, call).await?;
    listed
        .sets
        .into_iter()
        .find(|found| found.name == set.as_str())
        .ok_or_else(|| CliError::refused(format!("there is no set {set}")).next("`holdfast set list` shows all"))
}

async fn ask(common: &Common, request: v1::ChangeStoresRequest) -> Result<v1::ChangeStoresReply, CliError> {
    let what = format!("change the stores of set {}", request.set);
    let call = async |mut client: Client| client.change_stores(request.clone()).await;
    // The gateway checks the new stores before it answers.
    connect(common).patient().call(&what, Effect::Changes, call).await
}

async fn change(common: &Common, set: &Name, change: &ListChange, how: HowArgs) -> Result<(), CliError> {
    let found = listed(&mut connect(common), set).await?;
    let placement = Placement::parse(&found.store);
    let now = list::read(set, &placement.stores)?;
    let to = list::new_list(set, &now, change)?;
    let settled = placement.next.is_none() && list::same(&now, &to);
    if !settled {
        tell(common, &list::table(&now, &to));
    }
    let leaving = list::leaving(&now, &to);
    if !leaving.is_empty() && placement.next.is_none() && !how.dry_run && !how.yes {
        confirm(&format!(
            "Change the stores of set {set} to {}, and remove {} when the copy is complete?",
            to.urls().join(", "),
            leaving.join(", ")
        ))?;
    }
    let request = v1::ChangeStoresRequest {
        set: set.to_string(),
        stores: to.urls().to_vec(),
        write_quorum: u32::try_from(to.write_quorum()).unwrap_or(u32::MAX),
        expected: found.store.clone(),
        abandon: false,
        check_only: how.dry_run,
    };
    let reply = ask(common, request).await?;
    let next = Placement::parse(&reply.placement);
    let target = next.next.as_ref().map(|(_, to)| to.clone());
    let mut done = target.is_none();
    let begun = Instant::now();
    if let (Some(to), Some(limit)) = (&target, how.wait) {
        wait(common, &found, to, Instant::now() + limit).await?;
        done = true;
    }
    let goal = target.clone().unwrap_or_else(|| reply.placement.clone());
    let json = serde_json::json!({
        "set": set, "before": reply.before, "placement": if done { &goal } else { &reply.placement }, "to": goal,
        "changed": reply.changed, "dry_run": how.dry_run, "done": done && !how.dry_run,
    });
    output::show(common.output, &json, || {
        if how.dry_run {
            return match (settled, reply.changed) {
                (true, _) => format!("set {set} has these stores already"),
                (false, true) => format!("set {set} can be changed to these stores; nothing was changed"),
                (false, false) => format!("this change of set {set} is in progress already"),
            };
        }
        if settled {
            return format!("set {set} has these stores already");
        }
        if !done {
            return text_of_begun(set, reply.changed, &next);
        }
        let seconds = begun.elapsed().as_secs();
        format!("set {set} is in the new stores only, after {seconds} s\n{}", afterwards(found.id, &leaving, &goal))
    })
}

/// What the user has to know while the change is in progress. `changed`: it began with this command.
fn text_of_begun(set: &Name, changed: bool, placement: &Placement) -> String {
    let begun = if changed { "the change has started" } else { "the change is in progress already" };
    let back = match placement.next {
        Some((PlacementPhase::Filling, _)) => {
            format!("\n`holdfast set stores abandon {set}` returns to the old stores during the phase `filling`")
        }
        _ => String::new(),
    };
    format!(
        "{begun}: new objects go to the old and the new stores, and existing objects are copied in the background\n\
         `holdfast set stores show {set}` shows the progress{back}"
    )
}

/// What the user has to know when the change is complete.
fn afterwards(id: u64, left: &[&str], text: &str) -> String {
    let left = left.iter().map(|url| {
        let place = url.split('?').next().unwrap_or(url).trim_end_matches('/');
        format!("no longer needed, and not deleted automatically: {place}/sets/{id}/\n")
    });
    format!("{}for a recovery use: --from-store '{text}'", left.collect::<String>())
}

async fn abandon(common: &Common, set: &Name, dry_run: bool) -> Result<(), CliError> {
    let found = listed(&mut connect(common), set).await?;
    let placement = Placement::parse(&found.store);
    let request = v1::ChangeStoresRequest {
        set: set.to_string(),
        expected: found.store.clone(),
        abandon: true,
        check_only: dry_run,
        ..Default::default()
    };
    let reply = ask(common, request).await?;
    let json = serde_json::json!({
        "set": set, "before": reply.before, "placement": reply.placement, "changed": reply.changed, "dry_run": dry_run,
    });
    output::show(common.output, &json, || match (reply.changed, dry_run) {
        (false, _) => format!("the stores of set {set} are not being changed; there is nothing to abandon"),
        (true, true) => format!("set {set} can return to {}; nothing was changed", placement.stores),
        (true, false) => {
            let joined = list::both(&placement).into_iter().filter(|(_, part)| *part == "joins");
            let joined: Vec<String> = joined.map(|(url, _)| url).collect();
            let joined: Vec<&str> = joined.iter().map(String::as_str).collect();
            format!("set {set} stays in its old stores\n{}", afterwards(found.id, &joined, &reply.placement))
        }
    })
}

/// Waits until the set is in `to` only, and shows the progress on standard error. The change does not depend on this
/// wait.
async fn wait(common: &Common, set: &v1::SetSummary, to: &str, ends: Instant) -> Result<(), CliError> {
    let mut display = Display::new(common);
    let (mut begun, mut waits) = (false, String::new());
    loop {
        let left = ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = if waits.is_empty() { String::new() } else { format!("; it waits for: {waits}") };
            let error = CliError::unknown(format!("the change of set {} is not complete yet{why}", set.name));
            let next =
                format!("it continues in the background: `holdfast set stores show {}` shows the progress", set.name);
            return Err(error.next(next));
        }
        let mut api = ClusterClient::new(&common.dialer, &common.api, left.min(LOOK_LIMIT));
        match status(&mut api, &set.name, false).await {
            Ok(found) => {
                let summary = found.set.clone().unwrap_or_default();
                if summary.id != set.id {
                    return Err(CliError::failed(format!(
                        "set {} was deleted, and another set has its name now",
                        set.name
                    )));
                }
                let placement = Placement::parse(&summary.store);
                if placement.stores == to {
                    return Ok(());
                }
                begun |= placement.next.is_some();
                // The gateway may not know yet that the change has started.
                if begun && placement.next.is_none() {
                    return Err(CliError::failed(format!(
                        "the change was abandoned meanwhile: set {} is in {}",
                        set.name, placement.stores
                    )));
                }
                let shown = view::of(&found);
                waits = shown.waits().to_string();
                display.show(common, &placement, &shown);
            }
            // An election, or an unreachable gateway. Other errors are final.
            Err(error) if matches!(error.exit, Exit::Unreachable | Exit::Unknown) => display.lost(),
            Err(error) => return Err(error),
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// A progress bar on a terminal, otherwise a line now and then.
struct Display {
    bar: Option<ProgressBar>,
    /// The largest number of missing objects so far: the length of the bar.
    most: u64,
    said: Option<(&'static str, String, Instant)>,
}

impl Display {
    fn new(common: &Common) -> Self {
        let watched = common.output == output::Format::Table && std::io::stderr().is_terminal();
        let bar = watched.then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, most: 0, said: None }
    }

    fn lost(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message("no gateway serves the set at the moment");
        }
    }

    fn show(&mut self, common: &Common, placement: &Placement, shown: &view::Shown) {
        let (objects, bytes, known) = shown.lacking();
        self.most = self.most.max(objects);
        let word = phase_word(placement);
        let lacking = match (objects, known) {
            (0, true) => String::new(),
            (0, false) => "comparing".to_string(),
            (objects, _) => format!("{objects} objects, {} to copy", output::bytes(bytes)),
        };
        let waits = if shown.waits().is_empty() { lacking.clone() } else { shown.waits().to_string() };
        if let Some(bar) = &self.bar {
            bar.set_prefix(word);
            bar.set_length(self.most.max(1));
            bar.set_position(if known || objects > 0 { self.most.max(1) - objects } else { 0 });
            bar.set_message(if objects > 0 { lacking } else { waits });
            return;
        }
        let due = self
            .said
            .as_ref()
            .is_none_or(|(before, text, at)| *before != word || (*text != waits && at.elapsed() >= LINE_INTERVAL));
        if due {
            let about = if waits.is_empty() { String::new() } else { format!(": {waits}") };
            tell(common, &format!("{word}{about}"));
            self.said = Some((word, waits, Instant::now()));
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_objects_are_named_without_url_options() {
        let text = afterwards(7, &["s3://b/p?endpoint=http://h:1&region=x", "file:///a/"], "c=2 file:///b");
        let lines = [
            "no longer needed, and not deleted automatically: s3://b/p/sets/7/",
            "no longer needed, and not deleted automatically: file:///a/sets/7/",
            "for a recovery use: --from-store 'c=2 file:///b'",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }
}
