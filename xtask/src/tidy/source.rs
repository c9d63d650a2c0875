//! A file of the repository.

/// Its path from the top of the tree, and its text.
#[derive(Debug)]
pub(super) struct Source {
    pub path: String,
    pub text: String,
}
