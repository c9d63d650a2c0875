//! Lease calls to the gateways; the answers go to the state machine.

use super::state::News;
use super::types::Options;
use crate::admin_client::{self, AdminClients, Said, call};
use crate::lease_file::LeaseFile;
use crate::machine::{Cuts, Grant, Machine, VolumeFacts};
use crate::shared::Shared;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_types::{Epoch, Name, Owner, RequestId, Token};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time limit of one renewal; the machine decides how many failures are a loss.
const RENEW_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for finding the new owner of the set.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// Pause before the lease is requested again while our own earlier process's lease has not expired.
const EXPIRY_MARGIN: Duration = Duration::from_millis(100);

/// A grant arrived: it is stored for the next process (TOKEN-P1), and only then given to the machine, which sends under
/// it at once. A late answer is dropped: the token in the file has been used since, so the token of this answer is
/// invalid.
fn granted(
    shared: &Shared,
    kept: Option<(&LeaseFile, &Owner)>,
    request: RequestId,
    grant: Grant,
    volumes: &[(VolumeFacts, Option<String>)],
    as_of: Epoch,
) {
    if !shared.look(|machine| machine.awaits(request)) {
        tracing::debug!(epoch = %grant.epoch, "a late grant: not taken");
        return;
    }
    // GROWTH-G5. Devices that are still to be made lose nothing by earlier shrinks; for the others the shrinks were
    // checked.
    shared.saw_cuts(as_of);
    let before = shared.look(|machine| machine.lost_volumes().clone());
    let mut lost = BTreeMap::new();
    for (n, why) in volumes.iter().enumerate().filter_map(|(n, (_, why))| Some((n, why.as_ref()?))) {
        if !before.contains_key(&n) {
            tracing::error!(set = %shared.set, "{why}: its device fails from now on, the others work; detach, then attach again");
        }
        lost.insert(n, why.clone());
    }
    if let Some((file, owner)) = kept {
        let over = |n: usize| lost.contains_key(&n) || before.contains_key(&n);
        let all: Vec<_> = volumes.iter().enumerate().map(|(n, (facts, _))| (facts.clone(), over(n))).collect();
        if let Err(error) = file.granted(&shared.set, owner, grant.token, &all) {
            tracing::error!(set = %shared.set, %error, "cannot save the lease: if this process dies, its devices are lost");
        }
    }
    shared.act(|machine, now, out| machine.granted_without(now, request, grant, volumes.len(), lost, out));
}

/// Asks for the lease. Waits for the end of a lease that our own owner's earlier process left: our lock shows that the
/// process has ended.
pub(super) async fn acquire(
    shared: &Shared,
    doors: &AdminClients,
    options: &Options,
    kept: Option<&LeaseFile>,
    request: RequestId,
    force: bool,
) -> Result<(), Refusal> {
    loop {
        let at = options.locality.as_ref();
        let message = admin_client::acquire(&options.set, &options.owner, options.ttl, request, force, at);
        let call = call!(acquire_lease, message);
        let (api, asked) = doors.ask_all(call, admin_client::is_final).await;
        let refusal = match asked {
            Ok(reply) => {
                let Some((grant, volumes)) = admin_client::grant_of(&api, &reply) else {
                    let message = format!("{api}: the grant lacks a lease, a token, or names of volumes");
                    return Err(Refusal::new(RefusalCode::Failed, message));
                };
                shared.set_volumes(&volumes);
                let all: Vec<_> = volumes.into_iter().map(|facts| (facts, None)).collect();
                granted(shared, kept.map(|file| (file, &options.owner)), request, grant, &all, Epoch(reply.as_of));
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        let lease = if refusal.code == RefusalCode::Held { lease(doors, &options.set).await } else { None };
        match lease {
            Some(lease) if lease.owner == options.owner.to_string() => {
                let left = Duration::from_millis(u64::from(lease.remaining_ms)) + EXPIRY_MARGIN;
                tracing::info!(set = %options.set, ?left, "waiting until an earlier lease of this owner expires");
                tokio::time::sleep(left).await;
            }
            _ => return Err(refusal),
        }
    }
}

/// The devices' volumes, and the reason for each that cannot continue under the grant of `epoch`.
fn gone_on_with(
    shared: &Shared,
    epoch: Epoch,
    volumes: &[VolumeFacts],
    told: &Cuts,
) -> Vec<(VolumeFacts, Option<String>)> {
    let ours = shared.all_facts();
    // GROWTH-G5: after the sizes. If it is not known: the devices had their sizes when the grant was requested.
    let since = shared.cuts_seen().unwrap_or(epoch);
    let lost = |facts: &VolumeFacts| facts.lost_in(volumes).or_else(|| facts.cut_in(&told.cuts, since));
    let with_reason = |facts: VolumeFacts| {
        let lost = lost(&facts);
        (facts, lost)
    };
    ours.into_iter().map(with_reason).collect()
}

/// Continues the lease.
pub(super) async fn carry_on(
    shared: &Shared,
    doors: &AdminClients,
    options: &Options,
    kept: Option<&LeaseFile>,
    request: RequestId,
    token: Token,
) {
    let message = admin_client::continuation(&options.set, &options.owner, token, request, options.locality.as_ref());
    let call = call!(continue_lease, message);
    let (api, asked) = doors.ask_all(call, admin_client::is_ended).await;
    match asked {
        Ok(reply) => match admin_client::grant_of(&api, &reply) {
            Some((grant, volumes)) => {
                // The devices stay the same, in the same order (ATTACH-M8).
                let told = admin_client::cuts_of(&reply.cuts, reply.as_of);
                let ours = gone_on_with(shared, grant.epoch, &volumes, &told);
                granted(shared, kept.map(|file| (file, &options.owner)), request, grant, &ours, told.as_of);
            }
            None => tracing::error!(api, "the grant lacks a lease, a token, or names of volumes"),
        },
        Err(refusal) => shared.act(|machine, _, out| machine.refused(request, &refusal.message, out)),
    }
}

/// The set's volumes, from the answer to renewal `number`. A late answer is outdated: a volume may have shrunk since.
fn named(shared: &Shared, number: u64, reply: &v1::RenewLeaseReply) -> Option<News> {
    let counts = |machine: &Machine| machine.awaits_renewal(number).then(|| machine.incarnation());
    let incarnation = shared.look(counts)?;
    let (volumes, cuts) = (admin_client::volumes_of(&reply.volumes)?, admin_client::cuts_of(&reply.cuts, reply.as_of));
    Some(News::Volumes { incarnation, volumes, cuts })
}

/// Renews it once. The answer has the volumes' present sizes.
pub(super) async fn renew(
    shared: &Shared,
    doors: &AdminClients,
    news: &mpsc::UnboundedSender<News>,
    number: u64,
    epoch: Epoch,
    token: Token,
    api: &str,
) {
    let request = v1::RenewLeaseRequest { set: shared.set.to_string(), epoch: epoch.0, token: token.to_text() };
    let call = call!(renew_lease, request);
    let said = doors.ask(api, RENEW_LIMIT, &call).await;
    if let Said::Done(reply) = &said
        && let Some(named) = named(shared, number, reply)
    {
        let _ = news.send(named);
    }
    shared.act(|machine, now, out| match said {
        Said::Done(_) => machine.renewed(now, number, out),
        // Accepted, but the outcome is unknown: the gateway is there, and the next renewal shows more.
        Said::Refused(refusal) if refusal.code == RefusalCode::Unknown => machine.renew_failed(now, number, None, out),
        Said::Refused(refusal) => machine.renew_failed(now, number, Some(refusal.message), out),
        Said::Nothing(why) => {
            tracing::debug!(why, "not renewed");
            machine.renew_failed(now, number, None, out);
        }
    });
}

async fn lease(doors: &AdminClients, set: &Name) -> Option<v1::Lease> {
    let request = v1::GetLeaseRequest { set: set.to_string() };
    let call = call!(get_lease, request);
    let asked = tokio::time::timeout(LOOK_LIMIT, doors.ask_all(call, admin_client::is_final)).await;
    asked.ok().and_then(|(_, reply)| reply.ok()).and_then(|reply| reply.lease)
}

/// The set's owner, as text.
pub(super) async fn holder(doors: &AdminClients, set: &Name) -> Option<String> {
    let lease = lease(doors, set).await?;
    Some(format!("{} at gateway {} under {}", lease.owner, lease.gateway_name, Epoch(lease.epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Action, Bounds, Cut, Lost};
    use std::cell::{Cell, RefCell};
    use std::path::PathBuf;

    fn grant(epoch: u64, token: u128) -> Grant {
        Grant {
            epoch: Epoch(epoch),
            token: Token(token),
            ttl: Duration::from_secs(3),
            gateway: "g1".into(),
            api: "127.0.0.1:1".into(),
            nbd: "127.0.0.1:2".into(),
        }
    }

    #[test]
    fn a_late_grant_is_not_kept_for_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let (shared, mut actions) = Shared::new(set, machine, holdfast_host::boot_ns);
        shared.act(|machine, now, out| machine.begin(now, false, out));
        let Some(Action::Acquire { request, .. }) = actions.blocking_recv() else { panic!("no question") };
        let file = LeaseFile::open(dir.path()).unwrap();
        let vol1 = VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 };
        let lost = Some("volume vol1 was deleted".to_string());
        let answer = |request, grant, lost| {
            granted(&shared, Some((&file, &owner)), request, grant, &[(vol1.clone(), lost)], Epoch(0));
        };
        let kept = || file.lease().map(|lease| (lease.token(), lease.lost().count()));

        answer(RequestId(request.0 ^ 1), grant(9, 9), lost.clone());
        assert_eq!(kept(), None, "an answer to another question");
        answer(request, grant(2, 2), None);
        assert_eq!(kept(), Some((Some(Token(2)), 0)));
        // Two gateways got the same request, and the second answer comes when the first is in use.
        answer(request, grant(1, 1), lost);
        assert_eq!(kept(), Some((Some(Token(2)), 0)));
        assert_eq!(shared.look(|machine| machine.lost_volumes().len()), 0);
    }

    /// TOKEN-P1: the first use of a token ends the one before it. If it were used before it is in the file, a process
    /// that dies in between would leave a token that no gateway accepts, and its devices would be lost. The clock is
    /// read right before the machine gets a grant: the file must have the token by then.
    #[test]
    fn a_token_is_in_the_file_before_it_is_used() {
        thread_local! {
            static DIR: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
            static IN_FILE: Cell<Option<Token>> = const { Cell::new(None) };
        }
        fn clock() -> u64 {
            let lease = DIR.with_borrow(|dir| dir.as_deref().and_then(|dir| LeaseFile::open(dir).unwrap().lease()));
            IN_FILE.set(lease.and_then(|lease| lease.token()));
            holdfast_host::boot_ns()
        }
        let dir = tempfile::tempdir().unwrap();
        DIR.set(Some(dir.path().to_path_buf()));
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let (shared, mut actions) = Shared::new(set, machine, clock);
        let file = LeaseFile::open(dir.path()).unwrap();
        let volumes = [(VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 }, None::<String>)];
        // Answers the last question with this grant. Returns the token that the file had as the machine got the grant.
        let mut answer = |grant: Grant| {
            let mut told = std::iter::from_fn(|| actions.try_recv().ok());
            let request = told.find_map(|action| match action {
                Action::Acquire { request, .. } | Action::Continue { request, .. } => Some(request),
                _ => None,
            });
            granted(&shared, Some((&file, &owner)), request.unwrap(), grant, &volumes, Epoch(0));
            IN_FILE.get()
        };
        shared.act(|machine, now, out| machine.begin(now, false, out));
        assert_eq!(answer(grant(1, 7)), Some(Token(7)));
        shared.act(|machine, now, out| {
            machine.lost(now, 1, &Lost::Connection("reset".into()), out);
            machine.tick(now.plus(Duration::from_secs(1)), out);
        });
        assert_eq!(answer(grant(2, 8)), Some(Token(8)), "the gateway ends the token 7 as soon as 8 is used");
        assert_eq!(shared.look(Machine::epoch), Some(Epoch(2)), "the machine has it");
    }

    /// GROWTH-G5: a device has no data before the answer by which it is made. That may be the answer to a later copy of
    /// the request (R12).
    #[test]
    fn what_was_cut_before_its_devices_were_made_counts_against_none() {
        let vol1 = VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 100 };
        let shared = || {
            let machine = Machine::new(RequestId(1), 1, Bounds::default());
            let (shared, actions) = Shared::new(Name::new("demo").unwrap(), machine, holdfast_host::boot_ns);
            shared.set_volumes(std::slice::from_ref(&vol1));
            (shared, actions)
        };
        let lost = |shared: &Shared, at: u64| {
            let told = Cuts { as_of: Epoch(at), cuts: vec![Cut { volume: 1, at: Epoch(at), size: 50 }] };
            gone_on_with(shared, Epoch(20), std::slice::from_ref(&vol1), &told)[0].1.is_some()
        };
        let (made, mut actions) = shared();
        made.act(|machine, now, out| machine.begin(now, false, out));
        let Some(Action::Acquire { request, .. }) = actions.blocking_recv() else { panic!("no question") };
        let answer = |request, as_of| granted(&made, None, request, grant(10, 2), &[(vol1.clone(), None)], as_of);
        answer(RequestId(request.0 ^ 1), Epoch(99));
        assert_eq!(made.cuts_seen(), None, "an answer to another question");
        answer(request, Epoch(13));
        assert!(!lost(&made, 11), "after the grant, and before its answer");
        assert!(!lost(&made, 13));
        assert!(lost(&made, 14));
        // An earlier process's devices existed when the grant was requested.
        let (found, _actions) = shared();
        assert!(!lost(&found, 20));
        assert!(lost(&found, 21));
    }

    #[test]
    fn volumes_that_a_late_answer_to_a_renewal_names_are_not_told_of() {
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let (shared, _actions) = Shared::new(Name::new("demo").unwrap(), machine, holdfast_host::boot_ns);
        shared.act(|machine, now, out| {
            machine.begin(now, false, out);
            machine.granted(now, RequestId(2), grant(1, 1), 1, out);
            machine.tick(now, out);
        });
        let volumes = vec![v1::Volume { id: 1, name: "vol1".into(), size_bytes: 2 << 30 }];
        let reply = v1::RenewLeaseReply { volumes, ..Default::default() };
        let told = |number| match named(&shared, number, &reply) {
            Some(News::Volumes { incarnation, volumes, .. }) => Some((incarnation, volumes)),
            _ => None,
        };
        let vol1 = VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 2 << 30 };
        assert_eq!(told(1), Some((1, vec![vol1])));
        assert_eq!(told(2), None, "nobody asked");
        shared.act(|machine, now, out| machine.lost(now, 1, &Lost::Connection("reset".into()), out));
        assert_eq!(told(1), None, "what it says is of before the loss");
        shared.act(|machine, now, out| {
            machine.tick(now.plus(Duration::from_secs(1)), out);
            machine.granted(now, RequestId(3), grant(2, 2), 1, out);
            machine.tick(now, out);
        });
        assert_eq!(told(1), None);
        assert_eq!(told(2).map(|(incarnation, _)| incarnation), Some(2));
        shared.act(|machine, now, out| machine.renewed(now, 2, out));
        assert_eq!(told(2), None, "it was answered");
    }
}
