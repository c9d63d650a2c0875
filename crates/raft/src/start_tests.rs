//! What a member does right after its start, tested over a real socket: it has forgotten its promises (R3).

use crate::group_tests::{GROUP, Host, listeners};
use crate::proto;
use crate::proto::peer_client::PeerClient;
use holdfast_types::MemberId;
use std::time::Duration;

/// Longer than any test, so that nothing here depends on the speed of the machine.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_no_vote_and_no_leadership_is_taken_before_the_embargo_is_over() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (listeners, addresses) = listeners(2).await?;
    let asking = Host::node(dir.path(), 9)?;
    let (mut votes, mut transfers) = (Vec::new(), Vec::new());
    let mut hosts = Vec::new();
    for (member, (embargo, listener)) in (1..).zip([LONG, Duration::ZERO].into_iter().zip(listeners)) {
        let node = Host::node_under(dir.path(), member, embargo)?;
        hosts.push(Host::with(node, listener).await?);
        let member = MemberId(member);
        let mut peer = PeerClient::new(asking.channels().get(member, &addresses[&member], false)?);
        let vote = Some(proto::Vote { term: 5, member: 9, committed: false });
        for pre in [true, false] {
            let last = Some(proto::LogId { term: 4, index: 100 });
            let request = proto::VoteRequest { vote, last, pre, ..Default::default() };
            votes.push(
                peer.vote(asking.channels().request(request, GROUP, member)).await.map(drop).map_err(|e| e.to_string()),
            );
        }
        let request = proto::TransferRequest { from: vote, to: member.0, last: None };
        transfers.push(peer.transfer(asking.channels().request(request, GROUP, member)).await?.into_inner());
    }
    for refused in &votes[..2] {
        assert!(refused.as_ref().is_err_and(|why| why.contains("vote embargo")), "R3: {refused:?}");
    }
    assert!(!transfers[0].accepted && transfers[0].reason.contains("vote embargo"), "R3: {:?}", transfers[0]);
    // The same questions to a member without the embargo: so the embargo alone is the reason.
    assert!(votes[2..].iter().all(Result::is_ok), "{votes:?}");
    assert!(!transfers[1].reason.contains("embargo"), "{:?}", transfers[1]);
    for host in hosts {
        host.end().await;
    }
    asking.stop().await;
    Ok(())
}
