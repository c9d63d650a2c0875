//! The limit of open file descriptors of this process.

use crate::doors;
use holdfast_control::cluster::SETS_MAX;
use holdfast_front::HANDSHAKES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for the NBD connections (1024 by default) and handshakes, all other listeners, the files of journal and
/// cache, and connections to stores and peers (one to each other voter, for each set that is led here). A small cluster
/// needs fewer. If they run out, the operations that need one wait.
const ENOUGH: u64 = 13_312;

/// Other voters of a group.
const OTHERS_MAX: usize = 4;

const _: () = assert!(ENOUGH as usize >= 1024 + HANDSHAKES + doors::CONNECTIONS + OTHERS_MAX * SETS_MAX + 1024);

/// Raises the limit of open file descriptors as far as this process may, and logs it. Call it once, before a gateway
/// runs.
pub fn raise_descriptors() {
    let before = getrlimit(Resource::Nofile);
    if let Some(wanted) = raised(&before)
        && let Err(error) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let now = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or("no limit".to_string(), |limit| limit.to_string());
    tracing::info!(limit = text(now.current), before = text(before.current), "open files");
    if now.current.is_some_and(|limit| limit < ENOUGH) {
        tracing::warn!(
            found = text(now.current),
            expected = ENOUGH,
            "the limit of open files is low: raise LimitNOFILE (systemd) or `ulimit -Hn`"
        );
    }
}

/// The limit to request, if it can be raised.
fn raised(before: &Rlimit) -> Option<Rlimit> {
    (before.current != before.maximum).then_some(Rlimit { current: before.maximum, maximum: before.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one_and_the_hard_one_stays() {
        let of = |current, maximum| Rlimit { current, maximum };
        assert_eq!(raised(&of(Some(1024), Some(524_288))), Some(of(Some(524_288), Some(524_288))));
        assert_eq!(raised(&of(Some(1024), None)), Some(of(None, None)));
        assert_eq!(raised(&of(Some(4096), Some(4096))), None);
        assert_eq!(raised(&of(None, None)), None);
    }
}
