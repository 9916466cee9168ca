//! Tidy: the rules of the house that neither rustc nor clippy keeps.
//!
//! Promise: every rule reads what git knows plus what it does not ignore, reports each break with
//! file, line and what to do, and knows no exceptions. Style beyond these rules is taste, shown by
//! example, not checked.

mod finding;
mod source;

mod cases;
mod fences;
mod form;
mod layers;
mod links;
mod order;
mod outputs;
mod places;
mod unfinished;
mod untested;
mod words;

use std::fs;

use anyhow::{Result, bail};

use crate::step::Remark;
use crate::workspace::{Workspace, output};
use source::Source;

/// What the rules read.
struct Tree {
    /// Every text file, by its path from the root.
    texts: Vec<Text>,
    /// Every Rust file among them.
    sources: Vec<Source>,
}

/// A text file.
struct Text {
    path: String,
    text: String,
}

/// Checks the tree against every rule.
pub(crate) fn check(workspace: &Workspace) -> Result<Remark> {
    let tree = Tree::read(workspace)?;
    let graph = layers::Graph::read(workspace)?;
    let mut findings = Vec::new();
    findings.extend(layers::check(&graph));
    findings.extend(fences::check(&tree.sources, &graph.roots));
    findings.extend(form::check(&tree.sources));
    findings.extend(form::check_scripts(&tree.texts));
    findings.extend(form::check_prose(&tree.texts));
    findings.extend(order::check(&tree.sources));
    findings.extend(outputs::check(&tree.sources));
    findings.extend(unfinished::check(&tree));
    findings.extend(untested::check(&tree.sources, &graph.untested));
    findings.extend(words::check(&tree.sources));
    findings.extend(places::check(&tree.texts));
    findings.extend(links::check(workspace, &tree.texts));
    findings.extend(cases::check(&tree.texts, &tree.sources));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} rules of the house are broken", findings.len());
    }
    Ok(Some(format!(
        "{} files, {} of them Rust; {} crates in the whole tree",
        tree.texts.len(),
        tree.sources.len(),
        graph.crates_in_all
    )))
}

impl Tree {
    /// The files that git knows and the ones it would take up; what is not text is left out.
    fn read(workspace: &Workspace) -> Result<Self> {
        // A clone may belong to another user than the one who checks it.
        let listed = output(workspace.command("git").args([
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        let mut texts = Vec::new();
        for path in listed.split_terminator('\0') {
            // A file that was deleted but is still in the index cannot be read, nor can binaries.
            if let Ok(text) = fs::read_to_string(workspace.root.join(path)) {
                texts.push(Text { path: path.to_owned(), text });
            }
        }
        let rust = texts.iter().filter(|text| text.path.ends_with(".rs"));
        let sources = source::read_all(rust.map(|text| (text.path.as_str(), text.text.as_str())));
        Ok(Self { texts, sources })
    }
}
