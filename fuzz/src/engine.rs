//! What libFuzzer runs. `cargo xtask fuzz` builds it, and names the target by a variable of the environment.
#![no_main]

use holdfast_fuzz::{TARGET, Target};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var(TARGET).unwrap_or_default();
        holdfast_fuzz::find(&name).unwrap_or_else(|error| panic!("{TARGET}: {error}"))
    })
}

libfuzzer_sys::fuzz_target!(init: { chosen(); }, |input: &[u8]| {
    chosen().check(input);
});
