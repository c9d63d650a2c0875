//! Grants as history tells them, and which of their tokens open the last one.

use holdfast_types::{Epoch, LogIndex, Token};

/// What was granted, as history tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    pub owner: u8,
    pub epoch: Epoch,
    pub request: u8,
    pub token: Token,
    pub from: Option<Token>,
    pub used: bool,
    /// Its token continued it: whoever has it may have shown it.
    pub shown: bool,
    pub renewed: LogIndex,
    pub over: bool,
}

/// SET-S3 by history: a grant's token opens the last grant if each grant after it continued one of them, and none of
///     those was used, or shown to continue.
pub fn opens(grants: &[Granted], grant: usize) -> bool {
    grants[grant + 1..].iter().all(|later| later.from.is_some() && !later.used && !later.shown)
}
