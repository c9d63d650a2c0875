//! `holdfast gateway list`.

use super::cluster::status;
use super::connect::connect;
use super::status::group_name;
use super::text::member_text;
use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use serde::Serialize;

/// One gateway in `holdfast gateway list`.
#[derive(Serialize)]
struct Row {
    member: u64,
    name: String,
    region: String,
    /// `region=NAME[,zone=NAME][,host=NAME]`.
    locality: String,
    role: String,
    standing: String,
    reachable: bool,
    /// Why it is not ready; "" if it is.
    trouble: String,
    version: String,
    api: String,
    /// The newest feature level that its build knows; 0 if it is unreachable.
    feature_level: u32,
    /// Groups that it leads: names of sets, and `cluster`; `gN` for a set whose name is not told to this certificate.
    leads: Vec<String>,
    /// Number of groups.
    groups: usize,
    votes_in: usize,
    entries_behind: Option<u64>,
}

fn row(status: &v1::ClusterStatusReply, member: &v1::MemberStatus) -> Row {
    let known = member.member.clone().unwrap_or_default();
    let name = |group: &v1::GroupSummary| group_name(group.group, &group.set);
    let leads = status.groups.iter().filter(|group| group.leader == known.id).map(name).collect();
    let votes = |group: &&v1::GroupSummary| {
        let leads = |m: &&v1::MemberStatus| m.member.as_ref().map_or(0, |leader| leader.id) == group.leader;
        let leader = status.members.iter().find(leads).and_then(|m| m.node.as_ref());
        let seen = leader.and_then(|node| node.groups.iter().find(|seen| seen.group == group.group));
        seen.is_some_and(|seen| seen.voters.contains(&known.id))
    };
    let node = member.node.clone().unwrap_or_default();
    Row {
        member: known.id,
        name: known.name.clone(),
        region: known.region,
        locality: known.locality,
        role: known.role,
        standing: known.standing,
        reachable: member.reachable,
        trouble: if member.reachable { node.not_ready } else { member.error.clone() },
        feature_level: node.level,
        version: node.version,
        api: known.addresses.map_or(String::new(), |addresses| addresses.api),
        leads,
        groups: status.groups.len(),
        votes_in: status.groups.iter().filter(votes).count(),
        entries_behind: member.reachable.then(|| member.lags.iter().map(|lag| lag.entries).sum()),
    }
}

/// The region of a gateway, with its zone and its host if they have names.
fn stands(row: &Row) -> String {
    row.locality.strip_prefix("region=").unwrap_or(&row.region).to_string()
}

/// Runs the command.
pub async fn run(common: &Common) -> Result<(), CliError> {
    let status = status(&mut connect(common)).await?;
    let rows: Vec<Row> = status.members.iter().map(|member| row(&status, member)).collect();
    let json = serde_json::json!({ "cluster_id": status.cluster_id, "feature_level": status.level, "gateways": &rows });
    output::show(common.output, &json, || {
        let cells = rows.iter().map(|row| {
            let state = match (row.reachable, row.trouble.as_str()) {
                (false, why) => format!("unreachable: {why}"),
                (true, "") => "ready".to_string(),
                (true, why) => why.to_string(),
            };
            [
                member_text(row.member),
                row.name.clone(),
                stands(row),
                row.role.clone(),
                row.standing.clone(),
                format!("{}/{}", row.votes_in, row.groups),
                row.entries_behind.map_or_else(|| "?".to_string(), |behind| behind.to_string()),
                row.leads.join(","),
                row.version.clone(),
                row.api.clone(),
                state,
            ]
        });
        let head = [
            "MEMBER",
            "GATEWAY",
            "REGION",
            "ROLE",
            "MEMBERSHIP",
            "VOTES",
            "BEHIND",
            "LEADS",
            "VERSION",
            "API",
            "STATE",
        ];
        output::table_with_messages(head, cells, &[10], 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_where_each_gateway_stands() {
        let mut member = v1::Member { region: "eu".into(), ..Default::default() };
        let of = |member: &v1::Member| {
            let seen = v1::MemberStatus { member: Some(member.clone()), ..Default::default() };
            stands(&row(&v1::ClusterStatusReply::default(), &seen))
        };
        assert_eq!(of(&member), "eu", "an older gateway answers");
        member.locality = "region=eu,zone=a,host=h1".into();
        assert_eq!(of(&member), "eu,zone=a,host=h1");
    }

    /// ACCESS-A7: a host is told that the group is there, not its name.
    #[test]
    fn a_group_whose_name_is_not_told_is_listed_by_its_number() {
        let group = |group: u64, set: &str| v1::GroupSummary {
            group,
            set: set.to_string(),
            leader: 1,
            ..v1::GroupSummary::default()
        };
        let groups = vec![group(0, ""), group(1, "demo"), group(2, "")];
        let status = v1::ClusterStatusReply { groups, ..v1::ClusterStatusReply::default() };
        let known = v1::Member { id: 1, ..v1::Member::default() };
        let seen = v1::MemberStatus { member: Some(known), ..v1::MemberStatus::default() };
        assert_eq!(row(&status, &seen).leads, ["cluster", "demo", "g2"]);
    }
}
