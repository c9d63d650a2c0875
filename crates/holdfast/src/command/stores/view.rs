//! The stores of a set and the progress of a change, as text.

use super::list;
use crate::command::text::store_text;
use crate::output;
use holdfast_api::v1;
use holdfast_set::recovery::Stores;
use holdfast_types::{Placement, PlacementPhase};
use serde::Serialize;

/// A set's stores, as `set stores show` prints them.
#[derive(Debug, Serialize)]
pub struct Shown {
    set: String,
    id: u64,
    /// By the set's leader; otherwise the view of one gateway, which may be outdated.
    confirmed: bool,
    /// As stored in group 0.
    placement: String,
    /// settled, filling or ending.
    phase: &'static str,
    write_quorum: usize,
    /// During a change: the write quorum of the new list.
    next_write_quorum: Option<usize>,
    /// What the change waits for, from the set's leader; "" if nothing.
    waits: String,
    /// Argument for `cluster recover --from-store` at this time.
    from_store: String,
    stores: Vec<OneStore>,
}

/// One of them.
#[derive(Debug, Serialize)]
struct OneStore {
    store: String,
    /// stays, joins or leaves; "" without a change.
    part: &'static str,
    /// From the gateway that serves the set, if it reports it.
    health: Option<v1::StoreReplica>,
}

/// The word for a phase, for programs and tables.
pub fn phase_word(placement: &Placement) -> &'static str {
    match placement.next {
        None => "settled",
        Some((PlacementPhase::Filling, _)) => "filling",
        Some((PlacementPhase::Ending, _)) => "ending",
    }
}

/// The phase as a sentence; "" without a change.
pub fn phase_text(placement: &Placement) -> &'static str {
    match placement.next {
        None => "",
        Some((PlacementPhase::Filling, _)) => {
            "filling: copying to the new stores; the old list is valid; `set stores abandon` cancels the change"
        }
        Some((PlacementPhase::Ending, _)) => {
            "ending: the change is decided; all objects are compared once more, then the new list becomes valid"
        }
    }
}

/// A line for lists of sets, if the stores of this set are being changed.
pub fn line(set: &v1::SetSummary, health: Option<&v1::StoreHealth>) -> Option<String> {
    let placement = Placement::parse(&set.store);
    placement.next.as_ref()?;
    let waits = health.map_or("", |health| health.placement_waits.as_str());
    let waits = if waits.is_empty() { String::new() } else { format!("; waits for: {waits}") };
    Some(format!("{}{waits}", phase_text(&placement)))
}

/// The stores for a recovery: the old list during `filling`; both lists during `ending`, when either may be the valid
/// one.
pub fn from_store(placement: &Placement) -> String {
    match placement.next {
        Some((PlacementPhase::Filling, _)) => placement.stores.clone(),
        _ => placement.to_string(),
    }
}

/// From the status of the set.
pub fn of(status: &v1::SetStatus) -> Shown {
    let set = status.set.clone().unwrap_or_default();
    let placement = Placement::parse(&set.store);
    let quorum = |text: &str| Stores::parse(text).map_or(1, |list| list.write_quorum());
    // A gateway that does not know the latest step yet reports other stores, or another order.
    let health = status.store_health.as_ref().filter(|health| health.placement == set.store);
    let all = list::both(&placement);
    let alone = |health: &v1::StoreHealth| v1::StoreReplica {
        store: set.store.clone(),
        now: health.now.clone(),
        last: health.last.clone(),
        compared: true,
        ..Default::default()
    };
    let of_store = |at: usize| {
        let health = health?;
        if health.replicas.is_empty() { Some(alone(health)) } else { health.replicas.get(at).cloned() }
    };
    let stores = all.into_iter().enumerate();
    let stores = stores.map(|(at, (store, part))| OneStore { health: of_store(at), store, part }).collect();
    let late = match (&placement.next, &status.store_health) {
        (Some(_), Some(found)) if found.placement != set.store => {
            "the gateway that serves the set opens the new stores"
        }
        _ => "",
    };
    let waits = health.map_or_else(|| late.to_string(), |health| health.placement_waits.clone());
    Shown {
        id: set.id,
        confirmed: status.confirmed,
        phase: phase_word(&placement),
        write_quorum: quorum(&placement.stores),
        next_write_quorum: placement.next.as_ref().map(|(_, to)| quorum(to)),
        waits,
        from_store: from_store(&placement),
        placement: set.store,
        set: set.name,
        stores,
    }
}

fn lacks(health: &v1::StoreReplica) -> String {
    let stuck = match health.stuck_objects {
        0 => String::new(),
        stuck => format!(", {stuck} of them intact in no other store"),
    };
    match (health.missing_objects, health.compared) {
        (0, true) => "none".to_string(),
        (0, false) => "not compared yet".to_string(),
        (objects, _) => format!("{objects} objects, {}{stuck}", output::bytes(health.missing_bytes)),
    }
}

fn trouble(health: &v1::StoreReplica) -> String {
    let text =
        store_text(&v1::StoreHealth { now: health.now.clone(), last: health.last.clone(), ..Default::default() });
    if health.head_behind { format!("heads differ between the stores; {text}") } else { text }
}

impl Shown {
    /// For people.
    pub fn text(&self) -> String {
        let placement = Placement::parse(&self.placement);
        let quorum = match self.next_write_quorum {
            None => format!("{} of {}", self.write_quorum, self.stores.len()),
            Some(next) => {
                let count = |but: &str| self.stores.iter().filter(|store| store.part != but).count();
                format!("{} of {} now, {next} of {} then", self.write_quorum, count("joins"), count("leaves"))
            }
        };
        let mut facts = vec![
            output::fact("set", &format!("{} (group {})", self.set, self.id)),
            output::fact("write quorum", &quorum),
        ];
        if placement.next.is_some() {
            facts.push(output::fact("change", phase_text(&placement)));
            facts.push(output::fact("waits for", &self.waits));
        }
        // On one line, to be copied.
        facts.push(format!("{:<22}--from-store '{}'", "for a recovery use", self.from_store));
        let changing = placement.next.is_some();
        let rows = self.stores.iter().map(|one| {
            let part = if changing { one.part } else { "" };
            let health = one.health.as_ref();
            let unknown = || "unknown".to_string();
            [
                one.store.clone(),
                part.to_string(),
                health.map_or_else(unknown, lacks),
                health.map_or_else(unknown, trouble),
            ]
        });
        let table = output::table_with_messages(["STORE", "CHANGE", "MISSING", "HEALTH"], rows, &[3], 1);
        format!("{}\n\n{table}", facts.join("\n"))
    }

    /// Known missing objects and bytes of the stores in the new list, and whether all stores have been compared.
    pub fn lacking(&self) -> (u64, u64, bool) {
        let to_be = self.stores.iter().filter(|store| store.part != "leaves");
        to_be.fold((0, 0, true), |(objects, bytes, all), one| match &one.health {
            Some(health) => (
                objects + health.missing_objects,
                bytes + health.missing_bytes,
                all && (health.compared || health.missing_objects > 0),
            ),
            None => (objects, bytes, false),
        })
    }

    /// What the change waits for.
    pub fn waits(&self) -> &str {
        &self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(store: &str, missing: u64, compared: bool) -> v1::StoreReplica {
        v1::StoreReplica {
            store: store.into(),
            missing_objects: missing,
            missing_bytes: missing << 20,
            compared,
            ..Default::default()
        }
    }

    fn status(text: &str, seen: &str, waits: &str, replicas: Vec<v1::StoreReplica>) -> v1::SetStatus {
        let set = v1::SetSummary { id: 1, name: "demo".into(), store: text.into(), ..Default::default() };
        let health =
            v1::StoreHealth { placement: seen.into(), placement_waits: waits.into(), replicas, ..Default::default() };
        v1::SetStatus { set: Some(set), store_health: Some(health), ..Default::default() }
    }

    const FILLING: &str = "file:///a | c=2 w=2 file:///b file:///a file:///c";

    #[test]
    fn a_change_is_shown_with_the_part_of_each_store() {
        let replicas = vec![replica("a", 0, true), replica("b", 3, true), replica("c", 0, false)];
        let shown = of(&status(FILLING, FILLING, "b lacks 3 objects", replicas));
        let text = shown.text();
        for words in [
            "1 of 1 now, 2 of 3 then",
            "filling: copying to the new stores",
            "waits for             b lacks 3 objects",
            "--from-store 'file:///a'",
            "\nfile:///a  stays   none              ok",
            "\nfile:///b  joins   3 objects, 3MiB   ok",
            "\nfile:///c  joins   not compared yet  ok",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
        assert_eq!(shown.lacking(), (3, 3 << 20, false));
        let ending = FILLING.replace(" | ", " => ");
        let shown = of(&status(&ending, &ending, "", vec![]));
        assert_eq!((shown.phase, shown.from_store.as_str()), ("ending", ending.as_str()), "both lists");
    }

    #[test]
    fn the_report_of_an_outdated_gateway_is_not_shown() {
        let shown = of(&status(FILLING, "file:///a", "", vec![replica("a", 0, true)]));
        assert!(shown.stores.iter().all(|store| store.health.is_none()));
        assert!(shown.waits().contains("opens the new stores"), "{}", shown.waits());
    }

    #[test]
    fn a_single_store_has_the_health_of_its_set() {
        let shown = of(&status("file:///a", "file:///a", "", vec![]));
        assert_eq!((shown.phase, shown.from_store.as_str()), ("settled", "file:///a"));
        assert!(shown.text().ends_with("\nfile:///a  -       none     ok"), "{}", shown.text());
    }

    #[test]
    fn a_view_that_may_be_outdated_is_told_to_programs() {
        let mut seen = status("file:///a", "file:///a", "", vec![]);
        for confirmed in [false, true] {
            seen.confirmed = confirmed;
            assert_eq!(serde_json::to_value(of(&seen)).unwrap()["confirmed"], confirmed);
        }
    }
}
