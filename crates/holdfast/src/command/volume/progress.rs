//! How far a copy is, for a person at a terminal.

use crate::output::Format;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar on standard error; nothing where no person looks. `total` is 0 where it is not known.
pub fn bar(format: Format, what: &str, total: u64) -> ProgressBar {
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
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
