//! Who may make which call, and what is noted of it (ADR 0045).
//!
//! ```text
//!   call ─▶ Guarded: is there a rule, has the certificate one of its roles? ─▶ decoded ─▶ AdminDoor::admitted:
//!           (rules.rs, by the path; nothing is decoded yet)                               owner, set, store ─▶ handler
//!             └───────────────────────── a line for the audit log, once the outcome is known ◀──────────────┘
//! ```
//! - **ACCESS-A1** A call without a rule is not made. Each call in the proto files has a rule, or this crate does not
//!   compile.
//! - **ACCESS-A2** A host acts only under its owner names and on its sets (TLS-T4), an operator destroys no volume and
//!   gets no token, and a gateway deletes a set only for another one that has checked it. Nobody puts a set outside of
//!   `store.allowed`.
//! - **ACCESS-A3** Each call that a rule notes, and each that was refused for its certificate or for its store (between
//!   gateways, where appends have connections of their own, also for its cluster or its life), leaves one line in the
//!   audit log of the gateway that was asked, also if its caller did not wait. Calls that hosts repeat many times a
//!   second (`Rule::repeated`) leave none if they were not carried out because another gateway must be asked, or this
//!   one is busy.
//! - **ACCESS-A4** Refusals of one certificate by one method leave one line in 60 s, those by ACCESS-A5 too; the next
//!   one says how many there were meanwhile. Otherwise whoever is refused could wash out the lines of others.
//! - **ACCESS-A5** Of each method a bounded number of calls runs at a time, over all callers (`Bounds::at_once`), and
//!   as many again of connections that are proven: a flood takes no place of a gateway or of a host with a lease. One
//!   certificate of a host, a viewer or an operator has half as many at most: it keeps no other host from its lease.
//!   One more is refused, and has had no effect. An answer in pieces (`Beats`, between gateways) counts, here and in
//!   ACCESS-A6, until it has begun.
//! - **ACCESS-A6** A request has a length that its method may have, and is carried out within the method's deadline.
//!   Between gateways nothing of it is read that does not name this cluster.
//! - **ACCESS-A7** A host whose certificate names its sets is told no name of another set, of its snapshots or of its
//!   stores. Numbers of sets and groups it is told.
//! - **ACCESS-A8** While the gateways that answer have different `store.allowed`, no set is put into a store. Otherwise
//!   the list of whichever gateway leads would count, and one gateway without a list would allow everything.
//!
//! Without TLS everybody who reaches a door may do everything there. Calls inside the process pass no door, except
//! those that the page makes for its visitors ([`OnBehalf`], WEB-H5).

mod bounds;
#[cfg(test)]
mod door_tests;
mod guard;
mod named;
mod refused;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use guard::{Asked, ClusterCheck, Guard, Guarded, OnBehalf, plaintext_came};
pub(crate) use named::Names;
pub(crate) use rules::may_make;
#[cfg(test)]
pub(crate) use tests::asked;
