//! `holdfast gateway drain --dry-run`: what would move, and why something would stay.

use crate::cli::Common;
use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;

/// Asks the leader of the cluster, and shows its answer.
pub(super) async fn show(
    common: &Common,
    api: &mut ClusterClient,
    gateway: &v1::Member,
    force: bool,
) -> Result<(), CliError> {
    let member = gateway.id;
    let call = async |mut client: Client| client.plan_drain(v1::PlanDrainRequest { member, force }).await;
    let plan = api.call("show what a drain would move", Effect::Reads, call).await?;
    output::show(common.output, &plan, || describe(&gateway.name, &plan))
}

/// Where something goes: `to` one or more gateways, or nowhere.
fn cell(has: bool, to: &[String], between: &str, stays: &str, nowhere: &str) -> String {
    match (has, stays.is_empty(), to.is_empty()) {
        (false, ..) => String::new(),
        (true, false, _) => "stays".to_string(),
        (true, true, true) => nowhere.to_string(),
        (true, true, false) => format!("to {}", to.join(between)),
    }
}

fn row(step: &v1::DrainStep) -> [String; 4] {
    let group = if step.group == 0 { "(cluster)".to_string() } else { step.set.clone() };
    let why: Vec<&str> = [step.leads_on.as_str(), &step.votes_on].into_iter().filter(|why| !why.is_empty()).collect();
    [
        group,
        cell(step.leads, &step.leaders, " or ", &step.leads_on, "unknown"),
        cell(step.votes, &step.newcomers, ", ", &step.votes_on, "given up"),
        why.join("; "),
    ]
}

fn describe(name: &str, plan: &v1::DrainPlan) -> String {
    let count = |of: fn(&v1::DrainStep) -> bool| plan.steps.iter().filter(|step| of(step)).count();
    let (leads, leads_on) = (count(|step| step.leads), count(|step| step.leads && !step.leads_on.is_empty()));
    let (votes, votes_on) = (count(|step| step.votes), count(|step| step.votes && !step.votes_on.is_empty()));
    let said = match plan.refused.as_str() {
        "" => format!(
            "As things are now, a drain of {name} would move {} of {leads} leaderships and {} of {votes} votes. Nothing was changed.",
            leads - leads_on,
            votes - votes_on
        ),
        why => format!("A drain of {name} would be refused now, and nothing was changed: {why}"),
    };
    if plan.steps.is_empty() {
        return said;
    }
    let header = ["SET", "LEADERSHIP", "VOTE", "WHY IT STAYS"];
    format!("{said}\n\n{}", output::table_with_messages(header, plan.steps.iter().map(row), &[3], 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> v1::DrainPlan {
        let names = |of: &[&str]| of.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        let step = |group, set: &str| v1::DrainStep { group, set: set.to_string(), ..Default::default() };
        let steps = vec![
            v1::DrainStep { leads: true, leaders: names(&["g1", "g3"]), ..step(0, "") },
            v1::DrainStep {
                leads: true,
                leads_on: "no heir".into(),
                votes: true,
                newcomers: names(&["g4"]),
                ..step(1, "demo")
            },
            v1::DrainStep { votes: true, votes_on: "nobody may have it".into(), ..step(2, "test") },
            v1::DrainStep { votes: true, ..step(3, "five") },
        ];
        v1::DrainPlan { member: 2, refused: String::new(), steps }
    }

    #[test]
    fn what_moves_and_what_stays_is_a_table() {
        let text = describe("g2", &plan());
        assert!(
            text.starts_with("As things are now, a drain of g2 would move 1 of 2 leaderships and 2 of 3 votes."),
            "{text}"
        );
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(3)
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(rows[0], ["(cluster)", "to g1 or g3", "-", "-"]);
        assert_eq!(rows[1], ["demo", "stays", "to g4", "no heir"]);
        assert_eq!(rows[2], ["test", "-", "stays", "nobody may have it"]);
        assert_eq!(rows[3], ["five", "-", "given up", "-"]);
    }

    #[test]
    fn a_refusal_comes_first() {
        let refused = v1::DrainPlan { refused: "g1 is down".into(), ..plan() };
        assert!(
            describe("g2", &refused)
                .starts_with("A drain of g2 would be refused now, and nothing was changed: g1 is down\n")
        );
        let nothing = v1::DrainPlan { steps: Vec::new(), ..plan() };
        assert_eq!(describe("g2", &nothing).lines().count(), 1);
    }
}
