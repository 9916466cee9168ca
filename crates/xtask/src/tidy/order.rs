//! The order of the modules of a crate: a list of modules begins with the lowest, and each module
//! imports only from modules of its own group or of groups above, in no circle.
//!
//! Promise: every path in the code that begins with `crate` or `super`, and what a parent
//! re-exports of its children, is followed to the module that is meant. A group is what stands
//! without a blank line between; within it the formatter orders by name. A parent and its own
//! children may know each other. Paths written by macros and paths inside `mod x { .. }` are not
//! seen; tests may import what they like.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::source::{Source, numbered};

/// Names from the crate's root down.
type Place = Vec<String>;

/// Checks all crates.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<File>> = BTreeMap::new();
    for source in sources {
        if let Some(file) = File::of(source) {
            crates.entry(source.crate_directory()).or_default().push(file);
        }
    }
    crates.into_values().flat_map(|files| Modules::of(files).findings()).collect()
}

/// A module in a file of its own.
struct File {
    path: String,
    place: Place,
    /// Its code, with tests and modules inside it blanked.
    code: String,
    /// The modules that it declares in files of their own, with the number of their group.
    children: BTreeMap<String, usize>,
}

impl File {
    fn of(source: &Source) -> Option<Self> {
        let inner = source.path.strip_prefix(source.crate_directory())?.strip_prefix("/src/")?;
        let mut place: Place = inner.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
        if place.last().is_some_and(|name| ["lib", "main", "mod"].contains(&name.as_str())) {
            place.pop();
        }
        let mut code = String::new();
        for (number, line) in numbered(&source.code) {
            // As many lines as before, so that findings name the right ones.
            code.push_str(if source.is_test(number) { "" } else { line });
            code.push('\n');
        }
        let code = without_inner_modules(code);
        let children = groups(&code);
        Some(Self { path: source.path.clone(), place, code, children })
    }
}

/// The modules declared in `code`, with the number of the group that each stands in.
fn groups(code: &str) -> BTreeMap<String, usize> {
    let (mut found, mut group, mut is_open) = (BTreeMap::new(), 0, false);
    for line in code.lines() {
        if let Some(name) = declared(line) {
            group += usize::from(!is_open);
            is_open = true;
            found.insert(name.to_owned(), group);
        } else if !line.trim_start().starts_with('#') {
            is_open = false;
        }
    }
    found
}

/// The name in `pub(crate) mod name;`.
fn declared(line: &str) -> Option<&str> {
    let (before, name) = line.trim().strip_suffix(';')?.split_once("mod ")?;
    let before = before.trim_end();
    (before.is_empty() || before.starts_with("pub")).then_some(name.trim())
}

/// `code` with everything between the braces of `mod name { .. }` blanked.
fn without_inner_modules(code: String) -> String {
    let mut kept = String::new();
    let mut depth: Option<usize> = None;
    for line in code.split_inclusive('\n') {
        let opens = line.trim().split_once("mod ").is_some_and(|(before, rest)| {
            (before.is_empty() || before.starts_with("pub")) && rest.ends_with('{')
        });
        if depth.is_none() && opens {
            depth = Some(0);
        }
        match &mut depth {
            None => kept.push_str(line),
            Some(open) => {
                *open += line.matches('{').count();
                *open = open.saturating_sub(line.matches('}').count());
                if *open == 0 {
                    depth = None;
                }
                kept.push('\n');
            }
        }
    }
    kept
}

/// The modules of one crate.
struct Modules {
    files: Vec<File>,
    places: BTreeSet<Place>,
    /// What a module re-exports, or imports, of its children: by its place and the name.
    from_children: BTreeMap<(Place, String), Place>,
}

/// One module imports a sibling, or something below it.
#[derive(Debug)]
struct Import {
    parent: Place,
    importer: String,
    imported: String,
    path: String,
    line: usize,
}

impl Modules {
    fn of(files: Vec<File>) -> Self {
        let places: BTreeSet<_> = files.iter().map(|file| file.place.clone()).collect();
        let mut from_children = BTreeMap::new();
        for file in &files {
            for (_, path) in paths(&file.code, |word| file.children.contains_key(word)) {
                let (Some(child), Some(name)) = (path.first(), path.last()) else { continue };
                let place = [&file.place[..], &[(*child).to_owned()]].concat();
                from_children.insert((file.place.clone(), (*name).to_owned()), place);
            }
        }
        Self { files, places, from_children }
    }

    fn findings(&self) -> Vec<Finding> {
        let imports = self.imports();
        let mut edges: BTreeMap<(&Place, &str), BTreeSet<&str>> = BTreeMap::new();
        for import in &imports {
            let from = (&import.parent, import.importer.as_str());
            edges.entry(from).or_default().insert(&import.imported);
        }
        let group = |import: &Import, name: &str| {
            let parents = self.files.iter().filter(|file| file.place == import.parent);
            parents.filter_map(|file| file.children.get(name).copied()).next()
        };
        // A list of imports names the same module once for each of its items.
        let mut findings = BTreeSet::new();
        for import in &imports {
            let Import { importer, imported, parent, .. } = import;
            if reaches(&edges, parent, imported, importer) {
                let what = format!(
                    "{importer} and {imported} import each other, near or far: move down what \
                     both need"
                );
                findings.insert(Finding::at(&import.path, import.line, what));
            } else if group(import, imported) > group(import, importer) {
                let what = format!(
                    "{importer} imports {imported}, which is declared below it: the list begins \
                     with the lowest"
                );
                findings.insert(Finding::at(&import.path, import.line, what));
            }
        }
        findings.into_iter().collect()
    }

    fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for file in &self.files {
            for (at, path) in paths(&file.code, |word| word == "crate" || word == "super") {
                let Some(target) = self.resolve(&file.place, &path) else { continue };
                let common = file
                    .place
                    .iter()
                    .zip(&target)
                    .take_while(|(here, there)| here == there)
                    .count();
                if let (Some(importer), Some(imported)) =
                    (file.place.get(common), target.get(common))
                {
                    imports.push(Import {
                        parent: target[..common].to_vec(),
                        importer: importer.clone(),
                        imported: imported.clone(),
                        path: file.path.clone(),
                        line: file.code[..at].matches('\n').count() + 1,
                    });
                }
            }
        }
        imports
    }

    /// The module that `path`, written in the module at `here`, leads into.
    fn resolve(&self, here: &[String], path: &[&str]) -> Option<Place> {
        let mut place = here.to_vec();
        for (nth, &word) in path.iter().enumerate() {
            match word {
                "crate" if nth == 0 => place.clear(),
                "super" => place.pop().map(drop)?,
                "self" => {}
                _ => {
                    let child = [&place[..], &[word.to_owned()]].concat();
                    if self.places.contains(&child) {
                        place = child;
                        continue;
                    }
                    let exported = self.from_children.get(&(place.clone(), word.to_owned()));
                    return Some(exported.cloned().unwrap_or(place));
                }
            }
        }
        Some(place)
    }
}

/// Whether one import after the other leads from one child of `parent` to another.
fn reaches(
    edges: &BTreeMap<(&Place, &str), BTreeSet<&str>>,
    parent: &Place,
    from: &str,
    to: &str,
) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut waiting = vec![from];
    while let Some(name) = waiting.pop() {
        for &next in edges.get(&(parent, name)).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                waiting.push(next);
            }
        }
    }
    false
}

/// Where each path in `code` begins whose first word is wanted, and its words; a tree in braces is
/// as many paths.
fn paths(code: &str, is_first: impl Fn(&str) -> bool) -> Vec<(usize, Vec<&str>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let word = word(&code[at..]);
        if word.is_empty() {
            at += code[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let stands_first = !code[..at].trim_end().ends_with([':', '$', '.']);
        if stands_first && is_first(word) && code[at + word.len()..].starts_with("::") {
            let mut leaves = Vec::new();
            branch(&code[at..], &mut Vec::new(), &mut leaves);
            found.extend(leaves.into_iter().map(|path| (at, path)));
        }
        at += word.len();
    }
    found
}

/// Adds the paths of the tree that `code` begins with, each behind `trunk`, to `leaves`; answers
/// the bytes it took.
fn branch<'a>(code: &'a str, trunk: &mut Vec<&'a str>, leaves: &mut Vec<Vec<&'a str>>) -> usize {
    let height = trunk.len();
    let mut at = 0;
    loop {
        at += blank(&code[at..]);
        if code[at..].starts_with('{') {
            at += 1;
            // Every turn takes at least a byte, or ends.
            while at < code.len() && !code[at..].starts_with('}') {
                let taken = branch(&code[at..], trunk, leaves);
                let rest = &code[at + taken..];
                at += taken + rest.find([',', '}']).unwrap_or(rest.len());
                at += usize::from(code[at..].starts_with(','));
                at += blank(&code[at..]);
            }
            trunk.truncate(height);
            return (at + 1).min(code.len());
        }
        let word = word(&code[at..]);
        if !word.is_empty() {
            trunk.push(word);
            at += word.len();
        }
        if word.is_empty() || !code[at..].starts_with("::") {
            leaves.push(trunk.clone());
            trunk.truncate(height);
            return at;
        }
        at += 2;
    }
}

/// The identifier that `code` begins with, or nothing.
fn word(code: &str) -> &str {
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
    &code[..end]
}

fn blank(code: &str) -> usize {
    code.len() - code.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::super::source::read_all;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let sources = read_all(files.iter().map(|(path, text)| (path.as_str(), *text)));
        check(&sources).iter().map(Finding::to_string).collect()
    }

    fn count(files: &[(&str, &str)]) -> usize {
        found(files).len()
    }

    #[test]
    fn a_module_imports_from_its_group_and_from_those_above() {
        let root = ("lib.rs", "pub mod a;\n\nmod b;\n#[cfg(unix)]\nmod c;\n");
        let b = ("b.rs", "use crate::a::f;\nuse super::c::g;\nuse super::T;");
        assert_eq!(count(&[root, ("a.rs", ""), b, ("c.rs", "use crate::a;")]), 0);
    }

    #[test]
    fn an_import_from_below_is_named_with_its_line() {
        let root = ("main.rs", "pub(crate) mod a;\n\nmod b;\n");
        let found = found(&[root, ("a.rs", "//! Why.\n\nuse crate::b::{self, T};"), ("b.rs", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/x/src/a.rs:3: a imports b, which"), "{found:?}");
    }

    #[test]
    fn a_circle_within_a_group_is_found_near_and_far() {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\n");
        let to =
            |path: &'static str, name: &str| (path, format!("fn f() -> crate::{name}::T {{}}"));
        let (a, b, c) = (to("a.rs", "b"), to("b.rs", "c"), to("c.rs", "a"));
        assert_eq!(count(&[root, (a.0, &a.1), (b.0, &b.1), ("c.rs", "")]), 0);
        let found = found(&[root, (a.0, &a.1), (b.0, &b.1), (c.0, &c.1)]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("a and b import each other"), "{found:?}");
    }

    #[test]
    fn a_list_of_imports_is_followed_into_all_its_branches() {
        let root = ("lib.rs", "mod a;\n\nmod b;\nmod c;\nmod d;\n");
        let a = "use crate::{\n    T,\n    b::{self, x::{Y, Z}},\n    c as q,\n};";
        let all = [root, ("b.rs", ""), ("c.rs", ""), ("d.rs", "")];
        assert_eq!(count(&[&all[..], &[("a.rs", a)]].concat()), 2);
        assert_eq!(count(&[&all[..], &[("a.rs", "pub(crate) use crate::d::*;")]].concat()), 1);
    }

    #[test]
    fn modules_below_one_parent_are_held_to_its_list() {
        let files = [
            ("lib.rs", "mod p;"),
            ("p.rs", "mod a;\n\nmod b;\nuse b::B;\nfn f() { a::g() }"),
            ("p/a.rs", "use super::P;"),
            ("p/b.rs", "use super::a::deep::A;\nuse crate::p::P;"),
        ];
        assert_eq!(count(&files), 0, "a parent and its children may know each other");
        let up = |path, text| [&files[..], &[(path, text)]].concat();
        assert_eq!(count(&up("p/a/deep.rs", "use super::super::b;")), 2, "one from each side");
        assert_eq!(count(&up("p/a/deep.rs", "use super::super::B;")), 2, "also by another name");
        assert_eq!(count(&up("p/a/deep.rs", "use super::super::P;")), 0);
    }

    #[test]
    fn comments_tests_and_inner_modules_are_left_alone() {
        let root = ("lib.rs", "mod a;\n\nmod b;\n#[cfg(test)]\nmod model;");
        let a = "// crate::b\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n\
                 mod x {\n    use super::super::b;\n}\nfn f() { \"crate::b\" }";
        assert_eq!(count(&[root, ("a.rs", a), ("b.rs", ""), ("model.rs", "use crate::a;")]), 0);
    }
}
