//! Probes that no run has to reach, each with its reason. Keep it short: a scene, a fault or a setting of seeds that
//! reaches the state is better than a line here.

/// The name of a probe, and why no run has to reach it.
pub(super) const ALLOWED: &[(&str, &str)] = &[];
