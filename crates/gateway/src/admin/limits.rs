//! Limits of clients: of a volume, or of all volumes of a set together (SET-S18).

use super::AdminDoor;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{BURST_MS_DEFAULT, Limit, SetAnswer, SetCommand};
use holdfast_types::VolumeId;

/// A limit for an answer. `None`: nothing is limited.
pub(super) fn limit_message(limit: Limit) -> Option<v1::Limit> {
    let Limit { iops, bytes_per_s: bytes_per_second, burst_ms } = limit;
    (!limit.is_none()).then_some(v1::Limit { iops, bytes_per_second, burst_ms })
}

/// What a request asks for.
fn limit_of(message: Option<&v1::Limit>) -> Limit {
    let asked = message.map_or(Limit::NONE, |limit| Limit {
        iops: limit.iops,
        bytes_per_s: limit.bytes_per_second,
        burst_ms: if limit.burst_ms == 0 { BURST_MS_DEFAULT } else { limit.burst_ms },
    });
    if asked.is_none() { Limit::NONE } else { asked }
}

impl AdminDoor {
    pub(super) async fn change_limit(&self, request: v1::ChangeLimitRequest) -> Result<v1::ChangeLimitReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let volume = (request.volume != 0).then_some(VolumeId(request.volume));
        let command = SetCommand::SetLimit { volume, limit: limit_of(request.limit.as_ref()), request: id };
        match set.command("a limit", &command).await {
            Ok(SetAnswer::LimitSet) => {
                // Those that are connected have it with the answer.
                set.follow();
                let limit = set.host.with(|m| {
                    let limits = &m.state().limits;
                    volume.map_or(limits.set, |volume| limits.of(volume))
                });
                Ok(v1::ChangeLimitReply { limit: limit_message(limit) })
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_not_limited_and_a_burst_has_a_default() {
        let message = |iops, bytes_per_second, burst_ms| v1::Limit { iops, bytes_per_second, burst_ms };
        assert_eq!(limit_of(None), Limit::NONE);
        assert_eq!(limit_of(Some(&message(0, 0, 500))), Limit::NONE, "a burst alone is no limit");
        let limit = limit_of(Some(&message(100, 0, 0)));
        assert_eq!(limit, Limit { iops: 100, bytes_per_s: 0, burst_ms: 1000 });
        assert_eq!(limit_message(limit), Some(message(100, 0, 1000)));
        assert_eq!(limit_message(Limit::NONE), None);
        // Apply refuses it; here it stays what was asked for.
        assert_eq!(limit_of(Some(&message(0, 1, 1))), Limit { iops: 0, bytes_per_s: 1, burst_ms: 1 });
    }
}
