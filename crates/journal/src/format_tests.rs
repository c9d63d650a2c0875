//! The format's codec tests.
