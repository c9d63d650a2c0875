//! How far a copy is, for a person at a terminal.

use crate::output::Format;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar on standard error; nothing where no person looks. `total` is 0 where it is not known, `done` what an earlier run has copied; both in bytes.
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
    // That was no progress of this run: what is left would seem to take no time.
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_goes_on_begins_where_the_one_before_ended() {
        for total in [100, 0] {
            let bar = bar(Format::Table, "import", total, 40);
            bar.inc(5);
            assert_eq!(bar.position(), 45, "of {total}");
            bar.finish_and_clear();
        }
    }
}
