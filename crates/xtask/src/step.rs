//! One step of the gate, as the gate and whoever does the step see it.

use anyhow::Result;

use crate::workspace::Workspace;

/// Something that is checked.
pub(crate) struct Step {
    /// One word, by which it is called alone.
    pub(crate) name: &'static str,
    /// What it is, for its header.
    pub(crate) title: &'static str,
    /// Does it; not called if it runs apart.
    pub(crate) act: Act,
    /// Its arguments apart.
    pub(crate) arguments: &'static [&'static str],
    /// When it runs.
    pub(crate) turn: Turn,
}

/// When a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// After the step before it.
    Foreground,
    /// The same, but the steps after it run meanwhile: it mostly waits.
    Beside,
    /// From the set-up on, one after the other, in processor time that all other steps leave idle:
    /// it mostly computes.
    Background,
}

/// Does a step.
pub(crate) type Act = fn(&Workspace) -> Result<Remark>;

/// What a step wants said about itself in the table.
pub(crate) type Remark = Option<String>;
