//! Which list of stores a command asks for, from the one that is. Pure: no gateway is asked.

use crate::exit::CliError;
use crate::output;
use holdfast_set::recovery::Stores;
use holdfast_types::{Name, Placement};

/// What is asked for.
#[derive(Clone, Debug)]
pub enum Wish {
    /// These, and no others.
    Change(Vec<String>, Option<usize>),
    /// These behind those that are.
    Add(Vec<String>, Option<usize>),
    /// Those that are without these.
    Drain(Vec<String>, Option<usize>),
    /// The second in the place of the first.
    Replace(String, String),
}

/// A set's list of stores, as a gateway has written it.
pub fn read(set: &Name, text: &str) -> Result<Stores, CliError> {
    let next = "check that the gateways run the version of this program";
    Stores::parse(text).map_err(|error| CliError::failed(format!("stores of set {set}")).because(&error).next(next))
}

/// The list that `wish` makes of `now`, checked as gateways check it.
pub fn wished(set: &Name, now: &Stores, wish: &Wish) -> Result<Stores, CliError> {
    let named = |problem: &dyn std::error::Error| CliError::usage("stores").because(problem);
    let (urls, quorum) = match wish {
        Wish::Change(urls, quorum) => (urls.clone(), *quorum),
        Wish::Add(more, quorum) => {
            let new = more.iter().filter(|url| !now.urls().contains(url));
            let urls: Vec<String> = now.urls().iter().chain(new).cloned().collect();
            if urls.len() == now.urls().len() && quorum.is_none_or(|w| w == now.write_quorum()) {
                return Ok(now.clone());
            }
            if urls.len() == 2 {
                let error = CliError::refused(format!(
                    "set {set} would be in two stores, of which neither may be away: found one more, expected two more"
                ));
                return Err(error.next(format!(
                    "name two more: `holdfast set stores add {set} URL URL`; or another one in its place: `holdfast set stores change {set} --store URL`"
                )));
            }
            (urls, *quorum)
        }
        Wish::Drain(gone, quorum) => {
            if let Some(url) = gone.iter().find(|url| !now.urls().contains(url)) {
                return Err(not_there(set, now, url));
            }
            let urls: Vec<String> = now.urls().iter().filter(|url| !gone.contains(url)).cloned().collect();
            if urls.is_empty() {
                let error = CliError::refused(format!("set {set} would be in no store"));
                return Err(error.next(format!(
                    "`holdfast set stores replace {set} OLD NEW` puts another in its place; `holdfast set delete {set}` ends the set"
                )));
            }
            if urls.len() == 2 {
                let error =
                    CliError::refused(format!("set {set} would be in two stores, of which neither may be away"));
                return Err(error.next(format!(
                    "`holdfast set stores replace {set} OLD NEW` puts another in its place; with a second one drained as well it is in one store"
                )));
            }
            (urls, *quorum)
        }
        Wish::Replace(old, new) => {
            if !now.urls().contains(old) && now.urls().contains(new) {
                return Ok(now.clone());
            }
            if !now.urls().contains(old) {
                return Err(not_there(set, now, old));
            }
            if old != new && now.urls().contains(new) {
                let error = CliError::refused(format!("set {set} is in {new} already"));
                return Err(
                    error.next(format!("`holdfast set stores drain {set} {old}` takes one away without another"))
                );
            }
            let put = |url: &String| if url == old { new.clone() } else { url.clone() };
            (now.urls().iter().map(put).collect(), Some(now.write_quorum()))
        }
    };
    let next = "name each store once, three with a write quorum of 2, or five with 3; or one store alone";
    let to = Stores::new(urls, quorum).map_err(|error| named(&error).next(next))?;
    to.check_new().map_err(|error| named(&error).next(next))?;
    Ok(to)
}

fn not_there(set: &Name, now: &Stores, url: &str) -> CliError {
    CliError::refused(format!("set {set} is not in {url}, but in {}", now.urls().join(", ")))
        .next(format!("it may have gone before: `holdfast set stores show {set}` lists them"))
}

/// Whether the set is there already, whatever the number of its list.
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
    let table = output::table(["STORE", "NOW", "THEN", "PART"], rows);
    format!("{table}\nan object counts once it is in: {} now, {} then", quorum(now), quorum(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    const THREE: &str = "c=3 w=2 file:///a file:///b file:///c";

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("file:///{name}")).collect()
    }

    fn made(now: &str, wish: &Wish) -> Result<String, Exit> {
        let set = Name::new("demo").unwrap();
        let to = wished(&set, &read(&set, now).unwrap(), wish).map_err(|error| error.exit)?;
        Ok(format!("{} {}", to.write_quorum(), to.urls().iter().map(|url| &url[8..]).collect::<String>()))
    }

    #[test]
    fn each_form_makes_the_whole_list_in_its_order() {
        let one = "file:///a";
        let five = "w=3 file:///a file:///b file:///c file:///d file:///e";
        let cases = [
            (one, Wish::Change(urls(&["x", "y", "z"]), None), "2 xyz"),
            (one, Wish::Change(urls(&["x"]), None), "1 x"),
            (one, Wish::Add(urls(&["x", "y"]), None), "2 axy"),
            (one, Wish::Add(urls(&["a"]), None), "1 a"),
            (THREE, Wish::Add(urls(&["x"]), None), "3 abcx"),
            (THREE, Wish::Add(urls(&["b", "x", "y"]), Some(4)), "4 abcxy"),
            (THREE, Wish::Add(urls(&["b"]), None), "2 abc"),
            (five, Wish::Drain(urls(&["b"]), None), "3 acde"),
            (five, Wish::Drain(urls(&["e", "a"]), None), "2 bcd"),
            (THREE, Wish::Drain(urls(&["a", "c"]), None), "1 b"),
            (THREE, Wish::Replace("file:///b".into(), "file:///x".into()), "2 axc"),
            (one, Wish::Replace("file:///a".into(), "file:///x".into()), "1 x"),
            (THREE, Wish::Replace("file:///x".into(), "file:///b".into()), "2 abc"),
        ];
        for (now, wish, to) in cases {
            assert_eq!(made(now, &wish).as_deref(), Ok(to), "{now} {wish:?}");
        }
        let refused = [
            (one, Wish::Add(urls(&["x"]), None), Exit::Refused),
            (one, Wish::Drain(urls(&["a"]), None), Exit::Refused),
            (THREE, Wish::Drain(urls(&["a"]), None), Exit::Refused),
            (THREE, Wish::Drain(urls(&["x"]), None), Exit::Refused),
            (THREE, Wish::Replace("file:///x".into(), "file:///y".into()), Exit::Refused),
            (THREE, Wish::Replace("file:///a".into(), "file:///b".into()), Exit::Refused),
            (THREE, Wish::Change(urls(&["a", "b"]), None), Exit::Usage),
            (THREE, Wish::Change(urls(&["a", "a", "b"]), None), Exit::Usage),
            (THREE, Wish::Change(urls(&["a", "b", "x"]), Some(3)), Exit::Usage),
            (five, Wish::Add(urls(&["x"]), None), Exit::Usage),
        ];
        for (now, wish, exit) in refused {
            assert_eq!(made(now, &wish), Err(exit), "{now} {wish:?}");
        }
    }

    #[test]
    fn before_and_after_stand_side_by_side() {
        let set = Name::new("demo").unwrap();
        let now = read(&set, THREE).unwrap();
        let to = wished(&set, &now, &Wish::Replace("file:///b".into(), "file:///x".into())).unwrap();
        assert_eq!(leaving(&now, &to), ["file:///b"]);
        let lines = [
            "STORE      NOW  THEN  PART",
            "file:///a  1    1     stays",
            "file:///b  2    -     leaves",
            "file:///c  3    3     stays",
            "file:///x  -    2     joins",
            "an object counts once it is in: 2 of 3 now, 2 of 3 then",
        ];
        assert_eq!(table(&now, &to).lines().collect::<Vec<_>>(), lines);
    }
}
