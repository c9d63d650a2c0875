use super::*;

/// A text that would be markup, if it were not escaped.
const EVIL: &str = "<img src=x onerror=\"alert('1')\">";

fn new() -> Form {
    Form { id: "0123".to_string(), ticket: "89ab".to_string() }
}

fn member(id: u64, standing: &str) -> v1::Member {
    v1::Member { id, name: format!("g{id}"), standing: standing.to_string(), ..v1::Member::default() }
}

fn to_act() -> ToAct {
    let set = |name: &str, led_here: bool, leader: &str, heirs: &[&str]| SetToAct {
        name: name.to_string(),
        led_here,
        leader: leader.to_string(),
        owner: "db1".to_string(),
        heirs: heirs.iter().map(ToString::to_string).collect(),
    };
    ToAct {
        here: "g1".to_string(),
        led_here: true,
        leader: "g1".to_string(),
        members: vec![member(1, "active"), member(2, "drained"), member(3, "leaving")],
        sets: vec![
            set("demo", true, "g1", &["g2", EVIL]),
            set("away", false, "g2", &["g1"]),
            set("lone", true, "g1", &[]),
        ],
    }
}

const ALL: May = May { snapshot: true, switchover: true, drain: true };

fn shown(to_act: &ToAct, may: May) -> String {
    overview(to_act, may, new).finish()
}

#[test]
fn h5_a_form_is_shown_where_it_can_be_used_by_who_may() {
    let page = shown(&to_act(), ALL);
    assert_eq!(page.matches("value=\"snapshot\"").count(), 2, "demo and lone: {page}");
    assert_eq!(page.matches("action=\"move\"").count(), 1, "demo: {page}");
    assert!(page.contains("Served by g2: its forms are there.") && page.contains("No other gateway could serve it."));
    assert!(page.contains("<a href=\"drain?member=1\">Drain") && page.contains("<a href=\"drain?member=2\">Undrain"));
    assert!(!page.contains("member=3"), "it leaves");
    let elsewhere = ToAct { led_here: false, leader: "g3".to_string(), ..to_act() };
    let page = shown(&elsewhere, ALL);
    assert!(page.contains("The cluster is led by g3") && !page.contains("drain?member"), "{page}");
    for (may, kept) in [
        (May { snapshot: true, ..May::default() }, "value=\"snapshot\""),
        (May { switchover: true, ..May::default() }, "action=\"move\""),
        (May { drain: true, ..May::default() }, "drain?member=1"),
    ] {
        let page = shown(&to_act(), may);
        for part in ["value=\"snapshot\"", "action=\"move\"", "drain?member=1"] {
            assert_eq!(page.contains(part), part == kept, "{may:?} {part}: {page}");
        }
    }
}

#[test]
fn h6_each_form_that_acts_is_a_post_with_its_own_ticket() {
    let mut given = 0;
    let page = overview(&to_act(), ALL, || {
        given += 1;
        Form { id: format!("id{given}"), ticket: format!("ticket{given}") }
    });
    let page = page.finish();
    assert_eq!(given, page.matches("<form method=\"post\" action=\"act\">").count());
    for number in 1..=given {
        let part = format!(
            "name=\"id\" value=\"id{number}\"><input type=\"hidden\" name=\"ticket\" value=\"ticket{number}\">"
        );
        assert_eq!(page.matches(&part).count(), 1, "{part}: {page}");
    }
}

#[test]
fn h1_names_are_no_markup_in_forms() {
    let evil = |mut set: SetToAct| {
        (set.name, set.owner) = (EVIL.to_string(), EVIL.to_string());
        set
    };
    let mut all = to_act();
    all.sets = all.sets.into_iter().map(evil).collect();
    all.here = EVIL.to_string();
    all.leader = EVIL.to_string();
    let gateway = v1::Member { name: EVIL.to_string(), ..member(2, "active") };
    let step = v1::DrainStep {
        set: EVIL.to_string(),
        votes: true,
        newcomers: vec![EVIL.to_string()],
        group: 1,
        ..Default::default()
    };
    let plan = v1::DrainPlan { member: 2, refused: EVIL.to_string(), steps: vec![step] };
    let outcome = Outcome { kind: Kind::Refused, text: EVIL.to_string() };
    for page in [
        shown(&all, ALL),
        switchover(EVIL, &all.sets[0], EVIL, &new()).finish(),
        drain(EVIL, &gateway, &plan, &new()).finish(),
        undrain(EVIL, &gateway, &new()).finish(),
        done(EVIL, EVIL, Some(&outcome)).finish(),
        refused(EVIL, EVIL).finish(),
    ] {
        assert!(
            !page.contains("<img") && page.contains("&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;"),
            "{page}"
        );
    }
}

#[test]
fn a_switchover_is_asked_with_from_and_to() {
    let page = switchover("g1", &to_act().sets[0], "g2", &new()).finish();
    for part in
        ["<dt>From</dt><dd>g1</dd>", "<dt>To</dt><dd>g2</dd>", "<dt>Owner</dt><dd>db1</dd>", "value=\"switchover\""]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_drain_shows_what_would_move_and_is_asked_only_if_it_would_be_done() {
    let names = |of: &[&str]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
    let steps = vec![
        v1::DrainStep { leads: true, leaders: names(&["g2", "g3"]), ..Default::default() },
        v1::DrainStep {
            group: 1,
            set: "demo".to_string(),
            leads: true,
            leads_on: "no heir".to_string(),
            votes: true,
            ..Default::default()
        },
    ];
    let plan = v1::DrainPlan { member: 1, refused: String::new(), steps };
    let page = drain("g1", &member(1, "active"), &plan, &new()).finish();
    for part in
        [">the cluster</th>", ">to g2 or g3</td>", ">stays</td>", ">given up</td>", ">no heir</td>", "value=\"drain\""]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let refused = v1::DrainPlan { refused: "g2 is down".to_string(), ..plan };
    let page = drain("g1", &member(1, "active"), &refused, &new()).finish();
    assert!(page.contains("It would be refused: g2 is down") && !page.contains("<form"), "{page}");
}

#[test]
fn h7_an_outcome_says_whether_anything_was_changed() {
    let of = |kind| done("g1", "Drain of g2", Some(&Outcome { kind, text: "so it is".to_string() })).finish();
    let refresh = "http-equiv=\"refresh\"";
    let goes_on = done("g1", "Drain of g2", None).finish();
    assert!(goes_on.contains(refresh) && goes_on.contains("goes on"));
    for (kind, words) in [(Kind::Done, "Done"), (Kind::Refused, "nothing was changed"), (Kind::Unknown, "not known")] {
        let page = of(kind);
        assert!(page.contains(words) && page.contains("so it is") && !page.contains(refresh), "{page}");
    }
}
