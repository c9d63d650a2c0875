//! Courses: which events a walk has, how often, and with which clock rates. One walk with everything would be too large
//! to finish, so each course has the events of its guards, and little else.

use super::{READ_BY_ANOTHER, READ_STOPPED, Step};

/// How often each event may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    pub ticks: u8,
    pub frozen: u8,
    pub asleep: u8,
    pub beats: u8,
    pub elections: u8,
    pub handovers: u8,
    pub restarts: u8,
    pub retimes: u8,
    pub grants: u8,
    pub writes: u8,
    pub renewals: u8,
    pub judgements: u8,
    pub reads: u8,
}

const NONE: Left = Left {
    ticks: 0,
    frozen: 0,
    asleep: 0,
    beats: 0,
    elections: 0,
    handovers: 0,
    restarts: 0,
    retimes: 0,
    grants: 0,
    writes: 0,
    renewals: 0,
    judgements: 0,
    reads: 0,
};

impl Left {
    /// Counts `step`.
    pub fn spend(&mut self, step: Step) {
        let count = match step {
            Step::Tick => &mut self.ticks,
            Step::TickFrozen(_) => {
                self.ticks -= 1;
                &mut self.frozen
            }
            Step::TickAsleep(_) => {
                self.ticks -= 1;
                &mut self.asleep
            }
            Step::Beat(_) => &mut self.beats,
            Step::Elect { .. } | Step::ElectByHandover { .. } => &mut self.elections,
            Step::Handover { .. } => &mut self.handovers,
            Step::Restart(_) => &mut self.restarts,
            Step::Retime(_) => &mut self.retimes,
            Step::Grant(_) => &mut self.grants,
            Step::Write(_) => &mut self.writes,
            Step::Renew(_) => &mut self.renewals,
            Step::Judge(_) => &mut self.judgements,
            Step::Read(_) => &mut self.reads,
            Step::Hear { .. }
            | Step::Ack { .. }
            | Step::GiveUpHandover(_)
            | Step::Lose(_)
            | Step::Apply(_)
            | Step::AddVoters
            | Step::Answer => return,
        };
        *count -= 1;
    }
}

/// One walk.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    pub name: &'static str,
    /// How fast each node's clock runs, in percent.
    pub speeds: [u64; super::NODES],
    /// It begins with one voter.
    pub alone: bool,
    pub left: Left,
    /// Marks that some history must reach.
    pub marks: &'static [&'static str],
    /// Fewer states than this mean that the course has shrunk.
    pub states: usize,
}

pub const COURSES: &[Course] = &[
    // The first leader's clock as slow as allowed, the others' as fast. Time for a lease, an embargo, and one tick
    // more.
    Course {
        name: "drift",
        speeds: [90, 110, 110],
        alone: false,
        left: Left { ticks: 5, beats: 1, elections: 1, restarts: 1, grants: 1, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 600_000,
    },
    // The same clocks, and followers whose times get longer and shorter again.
    Course {
        name: "times",
        speeds: [90, 110, 110],
        alone: false,
        left: Left { ticks: 5, beats: 1, elections: 1, retimes: 2, grants: 1, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 100_000,
    },
    // No time passes: a transfer needs no wait.
    Course {
        name: "handover",
        speeds: [100, 100, 100],
        alone: false,
        left: Left { beats: 1, elections: 2, handovers: 1, grants: 2, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 250_000,
    },
    // The same with one more election: leadership moves away, back, and away again.
    Course {
        name: "return",
        speeds: [100, 100, 100],
        alone: false,
        left: Left { beats: 1, elections: 3, handovers: 1, grants: 2, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 1_300_000,
    },
    Course {
        name: "clock",
        speeds: [100, 100, 100],
        alone: false,
        left: Left { ticks: 5, frozen: 2, beats: 1, elections: 1, grants: 1, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 250_000,
    },
    Course {
        name: "alone",
        speeds: [90, 110, 110],
        alone: true,
        left: Left { ticks: 1, beats: 1, elections: 1, grants: 1, writes: 1, reads: 1, ..NONE },
        marks: &[READ_BY_ANOTHER, READ_STOPPED],
        states: 40_000,
    },
    // The judge's clock as fast as allowed.
    Course {
        name: "expiry",
        speeds: [110, 110, 110],
        alone: false,
        left: Left { ticks: 8, asleep: 2, elections: 1, grants: 1, renewals: 1, judgements: 1, ..NONE },
        marks: &[super::JUDGED],
        states: 300_000,
    },
];

/// The course of this name.
pub fn course(name: &str) -> &'static Course {
    COURSES.iter().find(|course| course.name == name).unwrap_or_else(|| panic!("no course {name:?}"))
}

impl Course {
    /// The same with one more of each event that it has.
    pub fn wider(&self) -> Course {
        let more = |count: u8| if count > 0 { count + 1 } else { 0 };
        let left = Left {
            ticks: more(self.left.ticks),
            frozen: more(self.left.frozen),
            asleep: more(self.left.asleep),
            beats: more(self.left.beats),
            elections: more(self.left.elections),
            handovers: more(self.left.handovers),
            restarts: more(self.left.restarts),
            retimes: more(self.left.retimes),
            grants: more(self.left.grants),
            writes: more(self.left.writes),
            renewals: more(self.left.renewals),
            judgements: more(self.left.judgements),
            reads: more(self.left.reads),
        };
        Course { left, ..*self }
    }
}
