//! `holdfast set place`: a set's policy, its voters, and what is violated.

use super::connect::connect;
use super::text::since;
use crate::cli::{Common, PlaceArgs, PolicyArgs};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// The policy of these options, over an earlier one.
fn over(mut policy: v1::Policy, args: &PolicyArgs) -> v1::Policy {
    if let Some(survive) = &args.survive {
        policy.survive = if survive == "auto" { String::new() } else { survive.clone() };
    }
    policy.voters = args.voters.unwrap_or(policy.voters);
    if let Some(home) = &args.home {
        policy.home = home.to_string();
    }
    policy.forbidden_regions.extend(args.forbid.iter().map(Name::to_string));
    policy.forbidden_regions.sort();
    policy.forbidden_regions.dedup();
    policy
}

/// The policy of a new set; `None` without options.
pub fn of_new_set(args: &PolicyArgs) -> Option<v1::Policy> {
    (*args != PolicyArgs::default()).then(|| over(v1::Policy::default(), args))
}

fn changed(policy: &v1::Policy, args: &PlaceArgs) -> v1::Policy {
    let mut policy = policy.clone();
    policy.forbidden_regions.retain(|region| !args.allow.iter().any(|allowed| allowed.as_str() == region.as_str()));
    if args.no_home {
        policy.home.clear();
    }
    over(policy, &args.policy)
}

/// A set's voters, from the leader of the cluster.
pub async fn placing(api: &mut ClusterClient, set: &str) -> Result<v1::Placing, CliError> {
    let request = v1::GetPlacingRequest { set: set.into() };
    let call = async |mut client: Client| client.get_placing(request.clone()).await;
    api.call(&format!("show the voters of set {set}"), Effect::Reads, call).await
}

fn check(args: &PlaceArgs) -> Result<(), CliError> {
    match args.policy.forbid.iter().find(|region| args.allow.contains(region)) {
        Some(region) => Err(CliError::usage(format!(
            "region {region}: found --forbid-region and --allow-region, expected one of them"
        ))),
        None => Ok(()),
    }
}

/// Runs the command.
pub async fn run(common: &Common, args: PlaceArgs) -> Result<(), CliError> {
    check(&args)?;
    let mut api = connect(common);
    let seen = placing(&mut api, args.set.as_str()).await?;
    let expected = seen.policy.clone().unwrap_or_default();
    let policy = changed(&expected, &args);
    let placing = if policy == expected {
        seen
    } else {
        let (set, policy, expected) = (args.set.to_string(), Some(policy), Some(expected));
        let request = v1::ChangePolicyRequest { set, policy, expected, request_id: request_id() };
        let call = async |mut client: Client| client.change_policy(request.clone()).await;
        api.call(&format!("place set {}", args.set), Effect::Changes, call).await?
    };
    output::show(common.output, &placing, || format!("{}\n{}", output::fact("set", &placing.set), describe(&placing)))
}

fn policy_text(policy: &v1::Policy) -> String {
    let survive = if policy.survive.is_empty() { "auto" } else { policy.survive.as_str() };
    let home = if policy.home.is_empty() { String::new() } else { format!(", home {}", policy.home) };
    let forbidden: String = policy.forbidden_regions.iter().map(|region| format!(", not in {region}")).collect();
    format!("survive {survive}, {} voters{home}{forbidden}", policy.voters)
}

/// The policy, the voters and the violations as text.
pub fn describe(placing: &v1::Placing) -> String {
    let mut facts = vec![output::fact("policy", &placing.policy.as_ref().map(policy_text).unwrap_or_default())];
    let mut reasons = placing.reasons.iter();
    facts.extend(reasons.next().map(|whole| output::fact("placing", whole)));
    facts.extend(reasons.map(|voter| output::fact("voter", voter)));
    facts.extend(placing.violations.iter().map(|violation| {
        output::fact("violated", &format!("{}; first seen {}", violation.text, since(violation.since_unix_ms)))
    }));
    if !placing.next.is_empty() {
        facts.push(output::fact("moves", &placing.next));
    } else if placing.moving {
        facts.push(output::fact("moves", "under way, or not known yet: no gateway reports these voters"));
    }
    facts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn what_is_not_given_stays() {
        let policy =
            v1::Policy { survive: "region".into(), voters: 5, home: "eu".into(), forbidden_regions: vec!["us".into()] };
        let args = |policy: PolicyArgs| PlaceArgs { set: name("demo"), policy, no_home: false, allow: vec![] };
        assert_eq!(changed(&policy, &args(PolicyArgs::default())), policy);
        let given =
            PolicyArgs { survive: Some("auto".into()), forbid: vec![name("ap"), name("us")], ..Default::default() };
        let forbidden_regions = vec!["ap".to_string(), "us".to_string()];
        let expected = v1::Policy { survive: String::new(), forbidden_regions, ..policy.clone() };
        assert_eq!(changed(&policy, &args(given)), expected);
        let freed = PlaceArgs { no_home: true, allow: vec![name("us")], ..args(PolicyArgs::default()) };
        let expected = v1::Policy { home: String::new(), forbidden_regions: vec![], ..policy };
        assert_eq!(changed(&expected, &freed), expected);
        assert!(check(&freed).is_ok());
        let both = PlaceArgs { policy: PolicyArgs { forbid: vec![name("us")], ..Default::default() }, ..freed };
        assert!(check(&both).unwrap_err().message.contains("--forbid-region and --allow-region"));
    }

    #[test]
    fn a_new_set_without_options_asks_for_nothing() {
        assert_eq!(of_new_set(&PolicyArgs::default()), None);
        let asked = of_new_set(&PolicyArgs { voters: Some(5), home: Some(name("eu")), ..Default::default() });
        assert_eq!(asked.map(|policy| policy_text(&policy)).as_deref(), Some("survive auto, 5 voters, home eu"));
    }

    #[test]
    fn violations_are_shown_with_their_age() {
        let violation = v1::PlacingViolation { text: "g3 in region=ap does not answer".into(), since_unix_ms: 0 };
        let placing = v1::Placing {
            set: "demo".into(),
            policy: Some(v1::Policy { survive: "zone".into(), voters: 3, ..Default::default() }),
            reasons: vec!["all well".into(), "g1: zone eu/a".into()],
            violations: vec![violation],
            next: "g1 g2 -> g1 g3: a voter is drained".into(),
            ..Default::default()
        };
        let shown = describe(&placing);
        for part in
            ["survive zone, 3 voters", "all well", "g1: zone eu/a", "answer; first seen unknown", "a voter is drained"]
        {
            assert!(shown.contains(part), "{part:?} in {shown}");
        }
        let placing = v1::Placing { next: String::new(), moving: true, ..placing };
        assert!(describe(&placing).contains("under way, or not known yet"));
    }
}
