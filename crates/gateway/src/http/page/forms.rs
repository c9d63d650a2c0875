//! The pages of actions as HTML: pure functions of what was found. Their links are those of a path below `/page/`.

use super::html::Html;
use super::outcomes::{Kind, Outcome};
use crate::access::may_make;
use crate::admin::{SETS_MAX, SetToAct, ToAct};
use holdfast_api::v1;
use holdfast_tls::Caller;

/// Longest name of a snapshot, in characters.
const NAME_CHARS: &str = "63";

/// Which of the actions a visitor may ask for, by the table of the admin API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct May {
    pub snapshot: bool,
    pub switchover: bool,
    pub drain: bool,
}

impl May {
    pub(super) fn of(caller: &Caller) -> Self {
        let may = |method| may_make(method, caller);
        Self { snapshot: may("CreateSnapshot"), switchover: may("Switchover"), drain: may("DrainMember") }
    }

    pub(super) fn any(self) -> bool {
        self.snapshot || self.switchover || self.drain
    }
}

/// What a form brings back beside its fields (WEB-H6).
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub id: String,
    pub ticket: String,
}

/// A page with this title around `content`. `again`: the browser loads it again after two seconds.
fn page(here: &str, title: &str, again: bool, content: impl FnOnce(&mut Html)) -> Html {
    let mut html = Html::default();
    html.markup(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    html.markup(if again { "<meta http-equiv=\"refresh\" content=\"2\">\n" } else { "" });
    html.line("title", &format!("{title} - {here} - Holdfast"));
    html.markup(
        "\n<link rel=\"icon\" href=\"icon.svg\">\n<link rel=\"stylesheet\" href=\"style.css\">\n</head>\n<body>\n\
         <header><h1>Holdfast</h1> <span>actions at ",
    );
    html.line("b", here);
    html.markup("</span> <a href=\"../\">The page</a> <a href=\"actions\">Actions</a></header>\n<main>\n");
    content(&mut html);
    html.markup("</main>\n</body>\n</html>\n");
    html
}

fn hidden(html: &mut Html, name: &str, value: &str) {
    html.void("input type=\"hidden\"", &[("name", name), ("value", value)]);
}

/// A form that asks for an action, with these fields, and a button with this text.
fn form(html: &mut Html, form: &Form, fields: &[(&str, &str)], more: impl FnOnce(&mut Html), button: &str) {
    html.within("form method=\"post\" action=\"act\"", |html| {
        for (name, value) in fields {
            hidden(html, name, value);
        }
        hidden(html, "id", &form.id);
        hidden(html, "ticket", &form.ticket);
        more(html);
        html.line("button", button);
    });
}

/// Something that is known by a term, as in a list of them.
fn entry(html: &mut Html, term: &'static str, text: &str) {
    html.line("dt", term);
    html.line("dd", if text.is_empty() { "nobody" } else { text });
}

/// All forms of this gateway that the visitor may use.
pub(super) fn overview(to_act: &ToAct, may: May, mut new: impl FnMut() -> Form) -> Html {
    page(&to_act.here, "Actions", false, |html| {
        if may.snapshot || may.switchover {
            html.within("section", |html| {
                html.line("h2", "Sets");
                if to_act.sets.is_empty() {
                    html.line("p class=\"quiet\"", "There is no set on this gateway.");
                }
                for set in &to_act.sets {
                    html.within("article class=\"act\"", |html| set_forms(html, set, may, &mut new));
                }
                if to_act.sets.len() >= SETS_MAX {
                    html.line("p class=\"quiet\"", "If there are more sets here: commands are for all of them.");
                }
            });
        }
        if may.drain {
            html.within("section", |html| {
                html.line("h2", "Gateways");
                gateways(html, to_act);
            });
        }
        html.within("section", |html| {
            html.line("h2", "PostgreSQL");
            html.line("p class=\"quiet\"", "A move to another host is for its agents, which take no orders from here:");
            html.within("p", |html| html.line("code", "holdfast agent switchover --to HOST"));
        });
    })
}

fn set_forms(html: &mut Html, set: &SetToAct, may: May, new: &mut impl FnMut() -> Form) {
    html.line("h3", &set.name);
    if !set.led_here {
        let where_to = if set.leader.is_empty() { "another gateway" } else { set.leader.as_str() };
        html.line("p class=\"quiet\"", &format!("Served by {where_to}: its forms are there."));
        return;
    }
    if may.snapshot {
        let fields = [("action", "snapshot"), ("set", set.name.as_str())];
        let name = |html: &mut Html| {
            html.within("label", |html| {
                html.text("Name ");
                let attributes = [("maxlength", NAME_CHARS)];
                html.void("input name=\"name\" required autocomplete=\"off\"", &attributes);
            });
            html.markup(" ");
        };
        form(html, &new(), &fields, name, "Take a snapshot");
    }
    if may.switchover && set.heirs.is_empty() {
        html.line("p class=\"quiet\"", "No other gateway could serve it.");
    } else if may.switchover {
        html.within("form method=\"get\" action=\"move\"", |html| {
            hidden(html, "set", &set.name);
            html.within("label", |html| {
                html.text("Serve it from ");
                html.within("select name=\"to\"", |html| {
                    for heir in &set.heirs {
                        html.with("option", &[("value", heir.as_str())], |html| html.text(heir));
                    }
                });
            });
            html.markup(" ");
            html.line("button", "Switch over\u{2026}");
        });
    }
}

fn gateways(html: &mut Html, to_act: &ToAct) {
    if !to_act.led_here {
        let where_to = if to_act.leader.is_empty() { "another gateway" } else { to_act.leader.as_str() };
        html.line("p class=\"quiet\"", &format!("The cluster is led by {where_to}: gateways are drained there."));
        return;
    }
    html.within("ul", |html| {
        for member in &to_act.members {
            html.within("li", |html| {
                html.line("b", &member.name);
                html.text(&format!(" ({}) ", member.standing));
                let place = format!("drain?member={}", member.id);
                let word = match member.standing.as_str() {
                    "active" => "Drain\u{2026}",
                    "drained" => "Undrain\u{2026}",
                    _ => return,
                };
                html.with("a", &[("href", place.as_str())], |html| html.text(word));
            });
        }
    });
}

/// Asks before a set is served from another gateway.
pub(super) fn switchover(here: &str, set: &SetToAct, to: &str, new: &Form) -> Html {
    page(here, "Switchover", false, |html| {
        html.within("section", |html| {
            html.line("h2", &format!("Serve set {} from {to}?", set.name));
            html.within("dl", |html| {
                entry(html, "From", here);
                entry(html, "To", to);
                entry(html, "Owner", &set.owner);
            });
            html.line("p", "Open requests are answered first. The owner keeps its lease, and goes on there.");
            let fields = [("action", "switchover"), ("set", set.name.as_str()), ("to", to)];
            form(html, new, &fields, |_| {}, &format!("Switch over to {to}"));
        });
    })
}

/// Asks before a gateway is drained, with what would move; without a form if it would be refused.
pub(super) fn drain(here: &str, member: &v1::Member, plan: &v1::DrainPlan, new: &Form) -> Html {
    let name = member.name.as_str();
    page(here, "Drain", false, |html| {
        html.within("section", |html| {
            html.line("h2", &format!("Drain {name}?"));
            if plan.steps.is_empty() {
                html.line("p", "It leads nothing, and votes in no set: nothing would move.");
            } else {
                html.line("p class=\"quiet\"", "What would move, as things are now. Nothing was changed.");
                steps(html, plan);
            }
            if plan.refused.is_empty() {
                let member = member.id.to_string();
                let fields = [("action", "drain"), ("member", member.as_str())];
                form(html, new, &fields, |_| {}, &format!("Drain {name}"));
            } else {
                html.line("p class=\"word bad\"", &format!("It would be refused: {}", plan.refused));
                html.line("p class=\"quiet\"", "A command can pass that over, if others can continue at all:");
                html.within("p", |html| html.line("code", &format!("holdfast gateway drain {name} --force")));
            }
        });
    })
}

fn steps(html: &mut Html, plan: &v1::DrainPlan) {
    html.within("table", |html| {
        html.within("thead", |html| {
            html.within("tr", |html| {
                for head in ["Set", "Leadership", "Vote", "Why it stays"] {
                    html.line("th scope=\"col\"", head);
                }
            });
        });
        html.within("tbody", |html| {
            for step in &plan.steps {
                html.within("tr", |html| {
                    html.line("th scope=\"row\"", if step.group == 0 { "the cluster" } else { &step.set });
                    let leader = goes(step.leads, &step.leaders, " or ", &step.leads_on, "unknown");
                    html.line("td data-label=\"Leadership\"", &leader);
                    let vote = goes(step.votes, &step.newcomers, ", ", &step.votes_on, "given up");
                    html.line("td data-label=\"Vote\"", &vote);
                    let why = [step.leads_on.as_str(), step.votes_on.as_str()];
                    let why: Vec<&str> = why.into_iter().filter(|why| !why.is_empty()).collect();
                    html.line("td data-label=\"Why it stays\"", &why.join("; "));
                });
            }
        });
    });
}

/// Where something goes, in the words of `holdfast gateway drain --dry-run`.
fn goes(has: bool, to: &[String], between: &str, stays: &str, nowhere: &str) -> String {
    match (has, stays.is_empty(), to.is_empty()) {
        (false, ..) => "\u{2013}".to_string(),
        (true, false, _) => "stays".to_string(),
        (true, true, true) => nowhere.to_string(),
        (true, true, false) => format!("to {}", to.join(between)),
    }
}

/// Asks before a drained gateway may lead again.
pub(super) fn undrain(here: &str, member: &v1::Member, new: &Form) -> Html {
    let name = member.name.as_str();
    page(here, "Undrain", false, |html| {
        html.within("section", |html| {
            html.line("h2", &format!("Undrain {name}?"));
            html.line(
                "p",
                "It may lead again. Sets come back by themselves only where they follow an owner or a home.",
            );
            let member = member.id.to_string();
            let fields = [("action", "undrain"), ("member", member.as_str())];
            form(html, new, &fields, |_| {}, &format!("Undrain {name}"));
        });
    })
}

/// What came of an action; it is loaded again until that is known.
pub(super) fn done(here: &str, what: &str, outcome: Option<&Outcome>) -> Html {
    page(here, what, outcome.is_none(), |html| {
        let (class, word) = match outcome.map(|outcome| outcome.kind) {
            None => ("section class=\"verdict\"", "\u{2026} goes on"),
            Some(Kind::Done) => ("section class=\"verdict good\"", "\u{2714} Done"),
            Some(Kind::Refused) => ("section class=\"verdict bad\"", "\u{2716} Refused: nothing was changed"),
            Some(Kind::Unknown) => ("section class=\"verdict bad\"", "? It is not known whether it has happened"),
        };
        html.within(class, |html| {
            html.line("h2", word);
            html.line("p class=\"quiet\"", what);
            if let Some(outcome) = outcome {
                html.line("p", &outcome.text);
            }
            if outcome.is_some_and(|outcome| outcome.kind == Kind::Unknown) {
                html.line("p", "Look at the page before you ask again.");
            }
        });
    })
}

/// Why there is no such page, or why a form was not taken. Nothing was changed.
pub(super) fn refused(here: &str, why: &str) -> Html {
    page(here, "Refused", false, |html| {
        html.within("section class=\"verdict bad\"", |html| {
            html.line("h2", "\u{2716} Nothing was changed");
            html.line("p", why);
        });
    })
}

#[cfg(test)]
#[path = "forms_tests.rs"]
mod tests;
