//! Progress bar of a copy.

use crate::output::Format;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar on standard error, hidden with JSON output. `total` is 0 if unknown; `done` was copied by an earlier run. Both
/// in bytes.
pub fn bar(format: Format, what: &str, total: u64, done: u64) -> ProgressBar {
    if format == Format::Json {
        return ProgressBar::hidden();
    }
    let known = total > 0;
    let bar = if known { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
    let template = if known {
        "{prefix} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
    } else {
        "{prefix} {spinner} {binary_bytes} {binary_bytes_per_sec}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(what.to_string());
    bar.set_position(done);
    // `done` was not copied by this run: without the reset the estimate would be too short.
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_copy_starts_at_its_old_position() {
        for total in [100, 0] {
            let bar = bar(Format::Table, "import", total, 40);
            bar.inc(5);
            assert_eq!(bar.position(), 45, "of {total}");
            bar.finish_and_clear();
        }
    }
}
