//! One step of the gate, as the gate and whoever does the step see it.

use anyhow::Result;

use crate::workspace::Workspace;

/// Something that is checked.
pub(crate) struct Step {
    /// One word, by which it is called alone.
    pub(crate) name: &'static str,
    /// What it is, for its header.
    pub(crate) title: &'static str,
    /// Does it.
    pub(crate) act: fn(&Workspace) -> Result<Remark>,
    /// Mostly waits: the steps after it run meanwhile.
    pub(crate) waits: bool,
}

/// What a step wants said about itself in the table.
pub(crate) type Remark = Option<String>;
