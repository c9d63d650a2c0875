//! NBD front: listeners, connections, and the registry of connection slots.

pub mod device;
