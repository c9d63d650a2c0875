//! Ids, units and limits that every room shares.
//!
//! Owns: the newtypes whose mix-up would lose data, and the bounds that several rooms must agree on.
//! Also [`sync`]: locks without poison, which every crate needs; [`SteadyClock`]: readings of a clock that never go
//! back, for everything that counts leases; and [`pledge`]: what voters have promised to leaders.
//! Does not own: any other behaviour, any format, any I/O. Depends on no sibling.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod ids;
pub mod limits;
mod locality;
mod name;
mod placement;
pub mod pledge;
mod size;
mod steady;
pub mod sync;

pub use ids::{
    ByteOffset, Epoch, GroupId, Lba, LogId, LogIndex, MemberId, MonoTime, ObjectId, ObjectIdError, RequestId,
    SECTOR_BYTES, Sectors, SetId, Term, Token, VolumeId, WriteSeq,
};
pub use locality::{Locality, LocalityError};
pub use name::{Name, NameError, Owner};
pub use placement::{Placement, PlacementPhase};
pub use size::{ByteSize, SizeError};
pub use steady::{Reading, SteadyClock};
