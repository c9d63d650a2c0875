//! Two owners of one set.

use super::Lab;
use anyhow::Result;

pub(super) fn run(_lab: &Lab) -> Result<()> {
    anyhow::bail!("waits for the lease commands")
}
