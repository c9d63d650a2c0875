//! `holdfast key rotate-data`, and the table of sets with several data keys.

use super::list::list;
use crate::cli::Common;
use crate::client::{Client, Effect};
use crate::command::connect::connect;
use crate::command::console::{confirm, tell};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::{ByteSize, Name};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Poll interval until every gateway has the new key.
const LOOK: Duration = Duration::from_millis(300);

fn of<'a>(keys: &'a v1::ListKeysReply, set: &Name) -> Option<&'a v1::SetKeys> {
    keys.sets.iter().find(|found| found.name == set.as_str())
}

fn newest(set: &v1::SetKeys) -> u32 {
    set.keys.iter().copied().max().unwrap_or(0)
}

/// Gives the set a new data key, and waits until new data is encrypted with it.
pub(super) async fn rotate(common: &Common, set: Name, yes: bool) -> Result<(), CliError> {
    let mut api = connect(common).patient();
    let before = list(&mut api).await?;
    let known = of(&before, &set)
        .ok_or_else(|| CliError::refused(format!("there is no set {set}")).next("`holdfast set list` shows all"))?;
    let after = newest(known);
    if !yes {
        confirm(&format!(
            "Set {set} gets data key {}. Data under older keys is rewritten in the background, within the limits of [space]; then the older keys are \
             destroyed permanently. Continue?",
            after + 1
        ))?;
    }
    let request = v1::RotateDataKeyRequest { set: set.to_string(), after };
    let call = async |mut client: Client| client.rotate_data_key(request.clone()).await;
    let mut keys = api.call(&format!("rotate the data key of set {set}"), Effect::Changes, call).await?;
    while of(&keys, &set).is_some_and(|found| found.seals <= after) && Instant::now() + LOOK < api.deadline() {
        sleep(LOOK).await;
        keys = list(&mut api).await.map_err(|error| error.after_a_change("the change of the key has begun"))?;
    }
    let found = of(&keys, &set).ok_or_else(|| CliError::failed(format!("set {set} was deleted")))?;
    if found.seals <= after {
        let waits = if found.waits.is_empty() { "the cluster's leader".to_string() } else { found.waits.join("; ") };
        return Err(CliError::failed(format!("data key {} is not in use yet; it waits for: {waits}", newest(found)))
            .next("it continues when every gateway has the key: `holdfast key list` shows the progress"));
    }
    output::show(common.output, &keys, || describe(&keys))?;
    tell(
        common,
        &format!(
            "new data of set {set} is encrypted with data key {}; `holdfast key list` shows how much is still under older keys",
            found.seals
        ),
    );
    Ok(())
}

fn bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// The sets with several data keys, and what needs the older keys; "" if there are none.
pub(super) fn describe(keys: &v1::ListKeysReply) -> String {
    let changing: Vec<&v1::SetKeys> = keys.sets.iter().filter(|set| set.keys.len() > 1).collect();
    if changing.is_empty() {
        return String::new();
    }
    let rows = changing.iter().flat_map(|set| {
        let needs = set.needs.clone().unwrap_or_default();
        let uses: BTreeMap<u32, v1::DataKeyUse> = needs.uses.iter().map(|usage| (usage.key, *usage)).collect();
        let row = move |key: &u32| {
            let usage = uses.get(key).copied().unwrap_or_default();
            let counted = |text: String| if set.needs.is_some() { text } else { "?".to_string() };
            let held: Vec<&str> = needs.held.iter().filter(|held| held.key == *key).map(|held| &*held.what).collect();
            let state = match (set.seals.cmp(key), *key == newest(set)) {
                (std::cmp::Ordering::Equal, _) => "in use".to_string(),
                (std::cmp::Ordering::Less, _) => "new".to_string(),
                _ => reason(usage.objects, &held, set.needs.is_some()),
            };
            [
                set.name.clone(),
                key.to_string(),
                counted(usage.objects.to_string()),
                counted(bytes(usage.stored_bytes)),
                counted(bytes(usage.live_bytes)),
                state,
            ]
        };
        set.keys.iter().map(row).collect::<Vec<_>>()
    });
    let table = output::table(["SET", "DATA KEY", "OBJECTS", "STORED", "LIVE", "STATE"], rows);
    let waits = changing.iter().flat_map(|set| set.waits.iter().map(|why| format!("\n  {} waits for {why}", set.name)));
    format!("{table}{}", waits.collect::<String>())
}

/// Why an older key still exists.
fn reason(objects: u64, held: &[&str], known: bool) -> String {
    let rest = (objects > 0).then_some("its data is being rewritten");
    let all: Vec<&str> = rest.into_iter().chain(held.iter().copied()).collect();
    match (known, all.is_empty()) {
        (false, _) => "unknown".to_string(),
        (true, true) => "no longer needed, will be destroyed".to_string(),
        (true, false) => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(key: u32, objects: u64, stored_bytes: u64, live_bytes: u64) -> v1::DataKeyUse {
        v1::DataKeyUse { key, objects, stored_bytes, live_bytes }
    }

    #[test]
    fn a_set_with_one_key_is_not_listed() {
        let sets = vec![v1::SetKeys { name: "demo".into(), keys: vec![1], seals: 1, ..Default::default() }];
        assert_eq!(describe(&v1::ListKeysReply { sets, ..Default::default() }), "");
    }

    #[test]
    fn data_under_each_key_and_its_users_are_listed() {
        let held = vec![v1::DataKeyHeld { key: 1, what: "snapshot monday".into() }];
        let uses = vec![usage(1, 3, 48 << 20, 40 << 20), usage(2, 1, 16 << 20, 16 << 20)];
        let needs = Some(v1::DataKeyNeeds { root: 2, uses, held, ..Default::default() });
        let mut set = v1::SetKeys { name: "demo".into(), keys: vec![1, 2], seals: 2, needs, ..Default::default() };
        let text = describe(&v1::ListKeysReply { sets: vec![set.clone()], ..Default::default() });
        assert!(
            text.contains("demo  1         3        48MiB   40MiB  its data is being rewritten, snapshot monday"),
            "{text}"
        );
        assert!(text.contains("demo  2         1        16MiB   16MiB  in use"), "{text}");
        (set.seals, set.needs) = (1, None);
        set.waits = vec!["gateway g3: has not got data key 2 yet".into()];
        let text = describe(&v1::ListKeysReply { sets: vec![set], ..Default::default() });
        assert!(text.contains("demo  1         ?        ?       ?     in use"), "{text}");
        assert!(text.ends_with("new\n  demo waits for gateway g3: has not got data key 2 yet"), "{text}");
    }
}
