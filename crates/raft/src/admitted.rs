//! A connection between gateways, as a door hands it over.

/// Tells a door what a connection has shown.
pub type Known = Box<dyn FnOnce() + Send>;

/// A connection that is complete.
pub struct Admitted<C> {
    /// The connection.
    pub connection: C,
    /// Why its peer may send no appends.
    pub may_append: Result<(), String>,
    /// Called once, when its first append stream has begun: its peer is a member of this cluster.
    pub known: Known,
    /// Called once, if it ends since its peer may not append: for its certificate, its cluster or its life.
    pub refused: Known,
}

impl<C> Admitted<C> {
    /// For a door that gives all connections the same rank.
    pub fn new(connection: C, may_append: Result<(), String>) -> Self {
        Self { connection, may_append, known: Box::new(|| ()), refused: Box::new(|| ()) }
    }
}
