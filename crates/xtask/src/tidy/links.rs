//! Links in the documents lead somewhere.
//!
//! Promise: a relative link in a Markdown file names a file or directory of the tree, and its
//! anchor a heading of that file. Links to other sites are not followed: CI has no business there.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::Text;
use super::finding::Finding;
use super::source::numbered;
use crate::workspace::Workspace;

/// Checks all Markdown files.
pub(super) fn check(workspace: &Workspace, texts: &[Text]) -> Vec<Finding> {
    let documents: HashMap<_, _> = texts
        .iter()
        .filter(|text| text.path.ends_with(".md"))
        .map(|text| (text.path.as_str(), prose(&text.text)))
        .collect();
    let mut findings = Vec::new();
    for (&path, prose) in &documents {
        for (number, line) in numbered(prose) {
            for link in links(line) {
                if let Some(fault) = fault(path, link, &documents, &workspace.root) {
                    findings.push(Finding::at(path, number, fault));
                }
            }
        }
    }
    findings
}

/// What is wrong with `link` in the document at `path`.
fn fault(path: &str, link: &str, documents: &HashMap<&str, String>, root: &Path) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        PathBuf::from(path)
    } else {
        let Some(target) = resolve(path, file) else {
            return Some(format!("{link} leads out of the tree"));
        };
        target
    };
    if !root.join(&target).exists() {
        return Some(format!("{link} leads nowhere"));
    }
    let text = documents.get(target.to_str()?)?;
    let found = anchor.is_empty() || headings(text).any(|heading| heading == anchor);
    (!found).then(|| format!("{} has no heading #{anchor}", target.display()))
}

/// `file` as seen from the document at `path`, from the root of the tree.
fn resolve(path: &str, file: &str) -> Option<PathBuf> {
    let mut target = PathBuf::from(path).parent()?.to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !target.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

/// The document with its code blanked: indented drawings stay, they hold no links.
fn prose(text: &str) -> String {
    let mut in_fence = false;
    let mut prose = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fence && !in_fence {
            // Every second piece between backticks is code.
            prose.extend(line.split('`').step_by(2));
        }
        in_fence ^= fence;
        prose.push('\n');
    }
    prose
}

/// Targets of `[text](target)` and `[name]: target`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let named = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .map(|(_, target)| target.trim());
    inline.chain(named)
}

/// Anchors of the headings, as forges make them: lower case, punctuation dropped, spaces to dashes.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        line.trim_start_matches('#')
            .trim()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        let root = tempfile::tempdir().unwrap();
        let mut texts = Vec::new();
        for (path, text) in files {
            let at = root.path().join(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(at, text).unwrap();
            texts.push(Text { path: (*path).to_owned(), text: (*text).to_owned() });
        }
        let root = root.path().to_path_buf();
        let target = root.join("target");
        check(&Workspace { root, target, unattended: true }, &texts).len()
    }

    #[test]
    fn a_link_names_a_file_of_the_tree() {
        assert_eq!(count(&[("docs/a.md", "[b](b.md), [up](../c.rs)"), ("docs/b.md", "")]), 1);
        assert_eq!(count(&[("docs/a.md", "[up](../c.rs)"), ("c.rs", "")]), 0);
        assert_eq!(count(&[("docs/a.md", "[out](../../etc/passwd)")]), 1);
        assert_eq!(count(&[("docs/a.md", "[named]: b.md")]), 1);
    }

    #[test]
    fn an_anchor_names_a_heading() {
        assert_eq!(count(&[("a.md", "# The byte clock, exact\n[x](#the-byte-clock-exact)")]), 0);
        assert_eq!(count(&[("a.md", "[x](b.md#no)"), ("b.md", "# Yes")]), 1);
    }

    #[test]
    fn other_sites_and_code_are_left_alone() {
        assert_eq!(count(&[("a.md", "[x](https://example.org/y) `[z](z.md)`")]), 0);
        assert_eq!(count(&[("a.md", "```\n[z](z.md)\n```\n[z](z.md)")]), 1);
    }
}
