//! Texts that commands share: times, epochs, leases, stores.

use crate::output;
use crate::timestamp::Timestamp;
use holdfast_api::{expires_soon, v1};

/// `m2`, or "" for no member.
pub fn member_text(id: u64) -> String {
    if id == 0 { String::new() } else { holdfast_types::MemberId(id).to_string() }
}

/// `e17`, or "" before the first grant.
pub fn epoch_text(epoch: u64) -> String {
    if epoch == 0 { String::new() } else { holdfast_types::Epoch(epoch).to_string() }
}

/// Days until a certificate expires, with a mark where somebody should act; "" if unknown.
pub fn days_text(certificate: Option<&v1::NodeCertificate>) -> String {
    let soon = certificate.is_some_and(expires_soon);
    match certificate.and_then(|own| own.days_left) {
        None => String::new(),
        Some(..0) => "expired !".to_string(),
        Some(days) if soon => format!("{days} !"),
        Some(days) => days.to_string(),
    }
}

/// What happened to something that is to exist.
pub fn created_text(created: bool) -> &'static str {
    if created { "created" } else { "exists already" }
}

/// A set's volumes without their space.
pub fn describe_volumes(status: &v1::SetStatus) -> String {
    let volumes = status.volumes.iter().map(|volume| [volume.name.clone(), output::bytes(volume.size_bytes)]);
    output::table(["VOLUME", "SIZE"], volumes)
}

/// A store's health in one line.
pub fn store_text(health: &v1::StoreHealth) -> String {
    let over = |last: &v1::StoreTrouble| format!("ok ({} until {})", last.kind, since(last.ended_unix_ms));
    match (&health.now, &health.last) {
        (Some(now), _) => {
            let who = if now.needs_operator { "OPERATOR MUST ACT" } else { "will be retried" };
            let failures = now.failures;
            format!(
                "{}, since {}, {failures} failures in a row, {who}: {}",
                now.kind,
                since(now.since_unix_ms),
                now.error
            )
        }
        (None, Some(last)) => over(last),
        (None, None) => "ok".to_string(),
    }
}

/// A lease in one line.
pub fn lease_text(lease: &v1::Lease) -> String {
    let kind = if lease.plain {
        "plain export".to_string()
    } else {
        format!("{} of {} ms left", lease.remaining_ms, lease.ttl_ms)
    };
    let place = if lease.locality.is_empty() { String::new() } else { format!(" in {}", lease.locality) };
    format!(
        "{}{place} at {}, epoch {} ({kind}), since {}",
        lease.owner,
        lease.gateway_name,
        epoch_text(lease.epoch),
        since(lease.since_unix_ms)
    )
}

/// How fast clients may go.
pub fn limit_text(limit: Option<&v1::Limit>) -> String {
    let Some(limit) = limit else { return "none".to_string() };
    let iops = (limit.iops > 0).then(|| format!("{} IOPS", limit.iops));
    let bytes = (limit.bytes_per_second > 0).then(|| format!("{}/s", output::bytes(limit.bytes_per_second)));
    let burst = Some(format!("burst {:?}", std::time::Duration::from_millis(limit.burst_ms.into())));
    [iops, bytes, burst].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A time for people: how long ago, by this machine's clock.
pub fn since(unix_ms: u64) -> String {
    ago(holdfast_host::unix_ms(), unix_ms)
}

fn ago(now_ms: u64, then_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(then_ms) / 1000;
    match seconds {
        _ if then_ms == 0 => "unknown".to_string(),
        0..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        7200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Unix milliseconds as UTC, such as `2026-03-01T12:00:00Z`.
pub fn time(unix_ms: u64) -> String {
    Timestamp(unix_ms).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_store_is_shown_with_its_reason() {
        let mut health = v1::StoreHealth { set: "demo".into(), ..Default::default() };
        assert_eq!(store_text(&health), "ok");
        let full =
            v1::StoreTrouble { kind: "full".into(), error: "put: HTTP 507".into(), failures: 7, ..Default::default() };
        health.now = Some(v1::StoreTrouble { needs_operator: true, ..full.clone() });
        assert_eq!(store_text(&health), "full, since unknown, 7 failures in a row, OPERATOR MUST ACT: put: HTTP 507");
        health.now = None;
        health.last = Some(full);
        assert_eq!(store_text(&health), "ok (full until unknown)");
    }

    #[test]
    fn a_certificate_is_marked_that_ends_soon() {
        let text = |days_left, expires_soon| {
            days_text(Some(&v1::NodeCertificate { days_left, expires_soon, ..Default::default() }))
        };
        assert_eq!(days_text(None), "");
        assert_eq!([text(Some(20), Some(false)), text(Some(0), Some(true))], ["20", "0 !"]);
        // An older gateway gives the days alone.
        let shown = [None, Some(-1), Some(0), Some(29), Some(30)].map(|days| text(days, None));
        assert_eq!(shown, ["", "expired !", "0 !", "29 !", "30"]);
    }

    #[test]
    fn limits_for_people() {
        let limit = v1::Limit { iops: 300, bytes_per_second: 10 << 20, burst_ms: 1500 };
        assert_eq!(limit_text(Some(&limit)), "300 IOPS, 10MiB/s, burst 1.5s");
        assert_eq!(limit_text(Some(&v1::Limit { iops: 0, burst_ms: 100, ..limit })), "10MiB/s, burst 100ms");
        assert_eq!(limit_text(None), "none");
    }

    #[test]
    fn times_for_people() {
        let shown = [5_000, 300_000, 7_200_000, 200_000_000].map(|age| ago(1_000_000_000, 1_000_000_000 - age));
        assert_eq!(shown, ["5 s ago", "5 min ago", "2 h ago", "2 days ago"]);
        assert_eq!(ago(5, 0), "unknown");
        assert_eq!(ago(5, 9_999), "0 s ago");
    }

    #[test]
    fn times_of_day() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_767_225_599_999), "2025-12-31T23:59:59Z");
        assert_eq!(time(4_107_542_400_000), "2100-03-01T00:00:00Z");
    }
}
