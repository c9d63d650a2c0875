//! What goes into the packages, whatever their format.

use crate::program::Program;
use crate::release::Release;
use std::path::PathBuf;

/// What goes into the packages.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub release: Release,
    pub program: Program,
    /// The SBOM.
    pub sbom: String,
    /// The licences of what is linked.
    pub notices: String,
    /// The lower layer of the image; `None` where no image is made.
    pub base: Option<PathBuf>,
}

impl Inputs {
    /// The same for another version.
    pub fn of(&self, release: Release) -> Self {
        Self { release, ..self.clone() }
    }
}
