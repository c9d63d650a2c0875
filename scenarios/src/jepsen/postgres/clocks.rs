//! Wrong clocks, separate for each gateway: jepsen/clock/clock.c replaces the clocks of its process, and a file per
//! gateway has the error.

use super::fault::{Wrong, draw};
use crate::chaos::seed::Seeded;
use crate::cmd::cmd;
use crate::gateways::{GATEWAYS, name};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Clock rate errors of the gateways in millionths: as far apart as two may be, and less. Leases hold for clocks up to
/// 10 % off (R3).
const RATES: [i64; GATEWAYS] = [80_000, -80_000, 30_000];

/// A jump in milliseconds: nothing may depend on the time of day.
const JUMP_MIN: i64 = 60_000;
const JUMP_SPREAD: usize = 12 * 3_600_000;

/// Output of the tool.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
struct Reading {
    ahead_ms: i64,
    /// How often its gateway was told the time.
    realtime: u64,
    boottime: u64,
}

impl Reading {
    /// Number of readings of the wrong clock: leases use CLOCK_BOOTTIME.
    fn handed(&self, wrong: Wrong) -> u64 {
        match wrong {
            Wrong::Jump => self.realtime,
            Wrong::Drift => self.boottime,
        }
    }
}

/// The changed clocks, and their readings before.
#[derive(Clone, Debug)]
pub struct Turned {
    wrong: Wrong,
    by: [i64; GATEWAYS],
    before: Vec<u64>,
}

/// How wrong each is.
#[derive(Debug)]
pub struct Clocks {
    tool: PathBuf,
    files: Vec<PathBuf>,
    preload: PathBuf,
}

impl Clocks {
    /// Right clocks, with files in `dir` and the build of clock.c in `tools`. Fails when the tool is missing.
    pub fn make(tools: &Path, dir: &Path) -> Result<Self> {
        let files = (0..GATEWAYS).map(|gateway| dir.join(format!("{}.clock", name(gateway)))).collect();
        let clocks = Self { tool: tools.join("clock"), files, preload: tools.join("clock.so") };
        anyhow::ensure!(clocks.preload.is_file(), "found no {}", clocks.preload.display());
        // A gateway that starts without its file exits at once.
        (0..GATEWAYS).try_for_each(|gateway| clocks.turn(gateway, &[]).map(drop))?;
        Ok(clocks)
    }

    /// For a gateway's process.
    pub fn env(&self, gateway: usize) -> Vec<(String, String)> {
        let env = [("LD_PRELOAD", &self.preload), ("HOLDFAST_CLOCK", &self.files[gateway])];
        env.map(|(key, path)| (key.into(), path.display().to_string())).into()
    }

    /// Makes all of them wrong, or only reports so. Fails when one cannot be changed.
    pub fn begin(&self, wrong: Wrong, really: bool, chance: &mut Seeded) -> Result<(Turned, String)> {
        let by = amounts(wrong, chance);
        let mut before = Vec::new();
        for (gateway, amount) in by.iter().enumerate() {
            let amount = if really { *amount } else { 0 };
            before.push(self.turn(gateway, &[verb(wrong), &amount.to_string()])?.handed(wrong));
        }
        let unit = if wrong == Wrong::Jump { "ms ahead" } else { "millionths too fast" };
        let told: Vec<String> =
            by.iter().enumerate().map(|(g, amount)| format!("{} {amount} {unit}", name(g))).collect();
        Ok((Turned { wrong, by: if really { by } else { [0; GATEWAYS] }, before }, told.join(", ")))
    }

    /// Makes them right; returns how often each wrong clock was read, and whether all were. Fails when one cannot be
    /// changed.
    pub fn end(&self, turned: &Turned) -> Result<(String, bool)> {
        let mut told = Vec::new();
        let mut hit = true;
        for gateway in 0..GATEWAYS {
            let now = self.turn(gateway, &[verb(turned.wrong), "0"])?;
            let read = now.handed(turned.wrong).saturating_sub(turned.before[gateway]);
            let read = if turned.by[gateway] == 0 { 0 } else { read };
            hit &= read > 0;
            told.push(format!("{} read it wrong {read} times ({} ms ahead)", name(gateway), now.ahead_ms));
        }
        Ok((told.join(", "), hit))
    }

    fn turn(&self, gateway: usize, how: &[&str]) -> Result<Reading> {
        let said = cmd(&self.tool).arg(&self.files[gateway]).args(how).out()?;
        serde_json::from_str(&said).with_context(|| format!("{}: found {said:?}", self.tool.display()))
    }
}

fn verb(wrong: Wrong) -> &'static str {
    match wrong {
        Wrong::Jump => "wall",
        Wrong::Drift => "rate",
    }
}

/// The error of each gateway: all are wrong, in different directions.
fn amounts(wrong: Wrong, chance: &mut Seeded) -> [i64; GATEWAYS] {
    let mut amounts = match wrong {
        Wrong::Drift => RATES,
        Wrong::Jump => [1, -1, 1].map(|sign| {
            let spread = i64::try_from(draw(chance, JUMP_SPREAD)).unwrap_or_default();
            sign * (JUMP_MIN + spread)
        }),
    };
    chance.shuffle(&mut amounts);
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clocks_are_wrong_and_drifts_stay_within_what_is_promised() {
        let mut chance = Seeded::new(9, 0);
        for _ in 0..50 {
            let drift = amounts(Wrong::Drift, &mut chance);
            assert!(drift.iter().all(|ppm| *ppm != 0 && ppm.abs() <= 100_000), "{drift:?}");
            let jump = amounts(Wrong::Jump, &mut chance);
            assert!(jump.iter().all(|ms| ms.abs() >= JUMP_MIN), "{jump:?}");
            assert!(jump.iter().any(|ms| *ms < 0) && jump.iter().any(|ms| *ms > 0), "{jump:?}");
        }
    }

    #[test]
    fn what_the_tool_says_is_read() -> Result<()> {
        let said = r#"{"ppm":80000,"ahead_ms":41,"wall_ms":0,"realtime":5,"monotonic":6,"boottime":7}"#;
        let reading: Reading = serde_json::from_str(said)?;
        assert_eq!((reading.ahead_ms, reading.handed(Wrong::Jump), reading.handed(Wrong::Drift)), (41, 5, 7));
        Ok(())
    }
}
