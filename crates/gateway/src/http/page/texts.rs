//! Numbers and times as people read them.

/// Longest text of another program on the page, in characters.
const CHARS_MAX: usize = 300;

/// A text that is not too long for the page.
pub(super) fn cut(text: &str) -> String {
    if text.chars().nth(CHARS_MAX).is_none() {
        return text.to_string();
    }
    text.chars().take(CHARS_MAX).chain(['\u{2026}']).collect()
}

/// So many of something: `1 set`, `2 sets`.
pub(super) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Bytes: `512 B`, `1.5 GiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64, "");
    for next in UNITS {
        if !unit.is_empty() && value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// A time span: its largest unit alone.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// How long before `now` something was. Clocks of gateways differ: what lies ahead is now.
pub(super) fn ago(now_unix_ms: u64, unix_ms: u64) -> String {
    if unix_ms == 0 {
        return "at an unknown time".to_string();
    }
    format!("{} ago", duration(now_unix_ms.saturating_sub(unix_ms)))
}

/// When a certificate ends.
pub(super) fn days_text(days: i64) -> String {
    if days < 0 { "has expired".to_string() } else { format!("expires in {days} days") }
}

/// An address that may be put into a link: HOST:PORT and nothing that a browser would read as more.
pub(super) fn host_and_port(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let is_host = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_' | ':' | '[' | ']');
    let unspecified = matches!(host, "0.0.0.0" | "[::]");
    (port.parse::<u16>().is_ok() && !host.is_empty() && host.chars().all(is_host) && !unspecified).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let sizes = [0, 1023, 1024, 1536 << 20, 3 << 40, 5 << 52].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "3.0 TiB", "20480.0 TiB"]);
        let spans = [999, 119_999, 120_000, 7_200_000, 172_800_000].map(duration);
        assert_eq!(spans, ["0 s", "119 s", "2 min", "2 h", "2 days"]);
        assert_eq!([count(0, "set"), count(1, "set"), count(2, "set")], ["0 sets", "1 set", "2 sets"]);
        let times = [ago(10_000, 4000), ago(1, 5), ago(1, 0)];
        assert_eq!(times, ["6 s ago", "0 s ago", "at an unknown time"]);
        assert_eq!([days_text(-1), days_text(3)], ["has expired", "expires in 3 days"]);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ä".repeat(CHARS_MAX);
        assert_eq!(cut(&long), long);
        assert_eq!(cut(&format!("{long}x")), format!("{long}\u{2026}"));
    }

    #[test]
    fn only_addresses_become_links() {
        for good in ["g1.example:7402", "10.0.0.1:7402", "[fd00::1]:7402"] {
            assert_eq!(host_and_port(good), Some(good));
        }
        for bad in ["", "g1", ":7402", "g1:x", "0.0.0.0:7402", "evil/:1", "a@b:1", "a b:1", "g1:99999", "javascript:1)"]
        {
            assert_eq!(host_and_port(bad), None, "{bad:?}");
        }
    }
}
