//! Computes the new list of stores from the present one and the command. Pure: contacts no gateway.

use crate::exit::CliError;
use crate::output;
use holdfast_set::recovery::Stores;
use holdfast_types::{Name, Placement};

/// A change of the list.
#[derive(Clone, Debug)]
pub enum ListChange {
    /// Use exactly these.
    Change(Vec<String>, Option<usize>),
    /// Append these.
    Add(Vec<String>, Option<usize>),
    /// Remove these.
    Drain(Vec<String>, Option<usize>),
    /// Replace the first by the second.
    Replace(String, String),
}

/// Parses a set's list of stores from a gateway.
pub fn read(set: &Name, text: &str) -> Result<Stores, CliError> {
    let next = "check that the gateways run the same version as this program";
    Stores::parse(text).map_err(|error| CliError::failed(format!("stores of set {set}")).because(&error).next(next))
}

/// Applies `change` to `now`, with the checks that gateways make.
pub fn new_list(set: &Name, now: &Stores, change: &ListChange) -> Result<Stores, CliError> {
    let named = |problem: &(dyn std::error::Error + 'static)| CliError::usage("stores").because(problem);
    let (urls, quorum) = match change {
        ListChange::Change(urls, quorum) => (urls.clone(), *quorum),
        ListChange::Add(more, quorum) => {
            let new = more.iter().filter(|url| !now.urls().contains(url));
            let urls: Vec<String> = now.urls().iter().chain(new).cloned().collect();
            if urls.len() == now.urls().len() && quorum.is_none_or(|w| w == now.write_quorum()) {
                return Ok(now.clone());
            }
            if urls.len() == 2 {
                let error = CliError::refused(format!(
                    "set {set} would have two stores and could not survive the loss of either: found 1 new store, expected 2"
                ));
                return Err(error.next(format!(
                    "add two stores: `holdfast set stores add {set} URL URL`; or move to another store: `holdfast set stores change {set} --store URL`"
                )));
            }
            (urls, *quorum)
        }
        ListChange::Drain(gone, quorum) => (drained(set, now, gone)?, *quorum),
        ListChange::Replace(old, new) => {
            if !now.urls().contains(old) && now.urls().contains(new) {
                return Ok(now.clone());
            }
            if !now.urls().contains(old) {
                return Err(not_there(set, now, old));
            }
            if old != new && now.urls().contains(new) {
                let error = CliError::refused(format!("{new} is a store of set {set} already"));
                return Err(error
                    .next(format!("to remove a store without a new one use `holdfast set stores drain {set} {old}`")));
            }
            let put = |url: &String| if url == old { new.clone() } else { url.clone() };
            (now.urls().iter().map(put).collect(), Some(now.write_quorum()))
        }
    };
    let next = "use one store, three stores with a write quorum of 2, or five with 3; name each store once";
    let to = Stores::new(urls, quorum).map_err(|error| named(&error).next(next))?;
    to.check_new().map_err(|error| named(&error).next(next))?;
    Ok(to)
}

/// The stores that remain without `gone`.
fn drained(set: &Name, now: &Stores, gone: &[String]) -> Result<Vec<String>, CliError> {
    if let Some(url) = gone.iter().find(|url| !now.urls().contains(url)) {
        return Err(not_there(set, now, url));
    }
    let urls: Vec<String> = now.urls().iter().filter(|url| !gone.contains(url)).cloned().collect();
    if urls.is_empty() {
        let error = CliError::refused(format!("set {set} would have no store"));
        return Err(error.next(format!(
            "to replace it use `holdfast set stores replace {set} OLD NEW`; to delete the set use `holdfast set delete {set}`"
        )));
    }
    if urls.len() == 2 {
        let error =
            CliError::refused(format!("set {set} would have two stores and could not survive the loss of either"));
        return Err(error.next(format!(
            "replace it with `holdfast set stores replace {set} OLD NEW`, or drain two stores at once"
        )));
    }
    Ok(urls)
}

fn not_there(set: &Name, now: &Stores, url: &str) -> CliError {
    CliError::refused(format!("{url} is no store of set {set}; its stores are {}", now.urls().join(", ")))
        .next(format!("it may have been removed before: `holdfast set stores show {set}` lists the stores"))
}

/// Whether both lists have the same stores and quorum, ignoring the number of changes.
pub fn same(one: &Stores, other: &Stores) -> bool {
    (one.urls(), one.write_quorum()) == (other.urls(), other.write_quorum())
}

/// Those of `now` that are not among `to`.
pub fn leaving<'a>(now: &'a Stores, to: &Stores) -> Vec<&'a str> {
    now.urls().iter().filter(|url| !to.urls().contains(url)).map(String::as_str).collect()
}

/// All of both, each once, in the order in which gateways show them.
pub fn both(placement: &Placement) -> Vec<(String, &'static str)> {
    let urls = |text: &str| Stores::parse(text).map_or_else(|_| vec![text.to_string()], |list| list.urls().to_vec());
    let now = urls(&placement.stores);
    let Some((_, next)) = &placement.next else { return now.into_iter().map(|url| (url, "")).collect() };
    let to = urls(next);
    let part = |url: &String| if to.contains(url) { "stays" } else { "leaves" };
    let mut all: Vec<(String, &'static str)> = now.iter().map(|url| (url.clone(), part(url))).collect();
    all.extend(to.iter().filter(|url| !now.contains(url)).map(|url| (url.clone(), "joins")));
    all
}

/// Before and after, side by side.
pub fn table(now: &Stores, to: &Stores) -> String {
    let placement =
        Placement { stores: now.to_string(), next: Some((holdfast_types::PlacementPhase::Filling, to.to_string())) };
    let place = |list: &Stores, url: &String| {
        list.urls().iter().position(|other| other == url).map_or(String::new(), |at| (at + 1).to_string())
    };
    let rows = both(&placement).into_iter().map(|(url, part)| {
        let (before, after) = (place(now, &url), place(to, &url));
        [url, before, after, part.to_string()]
    });
    let quorum = |list: &Stores| format!("{} of {}", list.write_quorum(), list.urls().len());
    let table = output::table(["STORE", "NOW", "THEN", "CHANGE"], rows);
    format!("{table}\nwrite quorum: {} now, {} then", quorum(now), quorum(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    const THREE: &str = "c=3 w=2 file:///a file:///b file:///c";

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("file:///{name}")).collect()
    }

    fn made(now: &str, change: &ListChange) -> Result<String, Exit> {
        let set = Name::new("demo").unwrap();
        let to = new_list(&set, &read(&set, now).unwrap(), change).map_err(|error| error.exit)?;
        Ok(format!("{} {}", to.write_quorum(), to.urls().iter().map(|url| &url[8..]).collect::<String>()))
    }

    #[test]
    fn each_form_makes_the_whole_list_in_its_order() {
        let one = "file:///a";
        let five = "w=3 file:///a file:///b file:///c file:///d file:///e";
        let cases = [
            (one, ListChange::Change(urls(&["x", "y", "z"]), None), "2 xyz"),
            (one, ListChange::Change(urls(&["x"]), None), "1 x"),
            (one, ListChange::Add(urls(&["x", "y"]), None), "2 axy"),
            (one, ListChange::Add(urls(&["a"]), None), "1 a"),
            (THREE, ListChange::Add(urls(&["x"]), None), "3 abcx"),
            (THREE, ListChange::Add(urls(&["b", "x", "y"]), Some(4)), "4 abcxy"),
            (THREE, ListChange::Add(urls(&["b"]), None), "2 abc"),
            (five, ListChange::Drain(urls(&["b"]), None), "3 acde"),
            (five, ListChange::Drain(urls(&["e", "a"]), None), "2 bcd"),
            (THREE, ListChange::Drain(urls(&["a", "c"]), None), "1 b"),
            (THREE, ListChange::Replace("file:///b".into(), "file:///x".into()), "2 axc"),
            (one, ListChange::Replace("file:///a".into(), "file:///x".into()), "1 x"),
            (THREE, ListChange::Replace("file:///x".into(), "file:///b".into()), "2 abc"),
        ];
        for (now, change, to) in cases {
            assert_eq!(made(now, &change).as_deref(), Ok(to), "{now} {change:?}");
        }
        let refused = [
            (one, ListChange::Add(urls(&["x"]), None), Exit::Refused),
            (one, ListChange::Drain(urls(&["a"]), None), Exit::Refused),
            (THREE, ListChange::Drain(urls(&["a"]), None), Exit::Refused),
            (THREE, ListChange::Drain(urls(&["x"]), None), Exit::Refused),
            (THREE, ListChange::Replace("file:///x".into(), "file:///y".into()), Exit::Refused),
            (THREE, ListChange::Replace("file:///a".into(), "file:///b".into()), Exit::Refused),
            (THREE, ListChange::Change(urls(&["a", "b"]), None), Exit::Usage),
            (THREE, ListChange::Change(urls(&["a", "a", "b"]), None), Exit::Usage),
            (THREE, ListChange::Change(urls(&["a", "b", "x"]), Some(3)), Exit::Usage),
            (five, ListChange::Add(urls(&["x"]), None), Exit::Usage),
        ];
        for (now, change, exit) in refused {
            assert_eq!(made(now, &change), Err(exit), "{now} {change:?}");
        }
    }

    #[test]
    fn before_and_after_stand_side_by_side() {
        let set = Name::new("demo").unwrap();
        let now = read(&set, THREE).unwrap();
        let to = new_list(&set, &now, &ListChange::Replace("file:///b".into(), "file:///x".into())).unwrap();
        assert_eq!(leaving(&now, &to), ["file:///b"]);
        let lines = [
            "STORE      NOW  THEN  CHANGE",
            "file:///a  1    1     stays",
            "file:///b  2    -     leaves",
            "file:///c  3    3     stays",
            "file:///x  -    2     joins",
            "write quorum: 2 of 3 now, 2 of 3 then",
        ];
        assert_eq!(table(&now, &to).lines().collect::<Vec<_>>(), lines);
    }
}
