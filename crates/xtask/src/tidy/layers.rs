//! Which crate may import which: the table of ARCHITECTURE.md, read from `cargo metadata`.
//!
//! Promise: a crate imports only crates of a lower layer, never sideways or up, also for tests; a
//! crate that is not in the table is an error; no exceptions. Crates with an executor reach only
//! the server and the bench. The number of crates that are trusted stays bounded.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::finding::Finding;
use crate::workspace::{Workspace, output};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Layer {
    /// Decisions without memory; memory without decisions.
    Bottom,
    /// Servers and cores without devices; devices without servers.
    Middle,
    /// How values are written; what a title is.
    Media,
    /// Which titles there are.
    Storage,
    /// What is admitted, and how it is started.
    Control,
    /// What the server sends and records on its own account.
    Playout,
    /// Protocols of clients.
    Protocol,
    /// What the operator has written.
    Config,
    /// Wires, simulates, measures.
    Top,
    /// Imports nothing of ours, and nothing imports it.
    Outside,
}

/// Only tests may import it.
const TESTKIT: &str = "tactus-testkit";

const TABLE: [(&str, Layer); 22] = [
    ("tactus-core", Layer::Bottom),
    ("tactus-ring", Layer::Bottom),
    (TESTKIT, Layer::Bottom),
    ("tactus-engine", Layer::Middle),
    ("tactus-sys", Layer::Middle),
    ("tactus-client", Layer::Middle),
    ("tactus-notation", Layer::Media),
    ("tactus-media", Layer::Media),
    ("tactus-storage", Layer::Storage),
    ("tactus-control", Layer::Control),
    ("tactus-playout", Layer::Playout),
    ("tactus-rtsp", Layer::Protocol),
    ("tactus-http", Layer::Protocol),
    ("tactus-local", Layer::Protocol),
    ("tactus-mount", Layer::Protocol),
    ("tactus-config", Layer::Config),
    ("tactus", Layer::Top),
    ("tactus-sim", Layer::Top),
    ("tactus-bench", Layer::Top),
    ("tactus-client-c", Layer::Top),
    ("tactus-client-python", Layer::Top),
    ("xtask", Layer::Outside),
];

/// Crates of ours that may wait.
const MAY_WAIT: [&str; 10] = [
    "tactus-media",
    "tactus-storage",
    "tactus-config",
    "tactus-control",
    "tactus-playout",
    "tactus-rtsp",
    "tactus-http",
    "tactus-local",
    "tactus",
    "tactus-bench",
];
/// Crates that bring a scheduler, or are of no use without one.
const EXECUTORS: [&str; 14] = [
    "actix-rt",
    "async-executor",
    "async-io",
    "async-std",
    "axum",
    "compio",
    "embassy-executor",
    "futures-executor",
    "glommio",
    "hyper",
    "monoio",
    "smol",
    "tokio",
    "tokio-uring",
];

/// Most crates that the binary of any package of the workspace is built from, all together.
const CRATES_MAX: usize = 450;
/// Most crates of others below the data path.
const CRATES_BELOW_DATA_PATH_MAX: usize = 60;
const DATA_PATH: [&str; 4] = ["tactus-core", "tactus-ring", "tactus-sys", "tactus-engine"];

/// The packages of the workspace and what they import.
pub(super) struct Graph {
    /// Paths of the root files of the workspace's libraries and binaries.
    pub(super) roots: Vec<String>,
    /// Targets of the workspace that Cargo does not test.
    pub(super) untested: Vec<UntestedTarget>,
    /// Crates in the whole tree, ours among them.
    pub(super) crates_in_all: usize,
    packages: Vec<Package>,
}

/// A library or a binary of which Cargo runs no unit tests or no examples.
pub(super) struct UntestedTarget {
    /// The path of its root file.
    pub(super) root: String,
    pub(super) has_tests: bool,
    /// Also for a binary, which has none.
    pub(super) has_examples: bool,
}

/// A package of the workspace.
struct Package {
    name: String,
    manifest: String,
    /// What it imports itself, for whatever purpose.
    imports: BTreeSet<String>,
    /// What its library or binary is built from, near and far, without what only tests use.
    built_from: BTreeSet<String>,
}

impl Graph {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let text = output(&mut workspace.cargo(&[
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform=x86_64-unknown-linux-gnu",
        ]))?;
        let metadata = serde_json::from_str(&text).context("cargo metadata writes JSON")?;
        Self::of(&metadata).context("cargo metadata has another shape than this reads")
    }

    fn of(metadata: &Value) -> Option<Self> {
        let root = format!("{}/", metadata["workspace_root"].as_str()?);
        let members = metadata["workspace_members"].as_array()?;
        let nodes = Nodes::of(metadata)?;
        let (mut roots, mut untested) = (Vec::new(), Vec::new());
        let mut packages = Vec::new();
        for package in metadata["packages"].as_array()? {
            if !members.contains(&package["id"]) {
                continue;
            }
            for target in package["targets"].as_array()? {
                let kinds = target["kind"].as_array()?;
                let is_program = kinds.iter().any(|kind| kind == "bin");
                // A library has its kinds of output in place of `lib`.
                let is_library = target["src_path"].as_str()?.ends_with("/src/lib.rs");
                let path = || target["src_path"].as_str()?.strip_prefix(&root).map(str::to_owned);
                if is_program || kinds.iter().any(|kind| kind == "lib") {
                    roots.push(path()?);
                }
                let [has_tests, has_examples] =
                    [&target["test"], &target["doctest"]].map(|runs| runs != false);
                let has_examples = has_examples || is_program;
                if (is_program || is_library) && !(has_tests && has_examples) {
                    untested.push(UntestedTarget { root: path()?, has_tests, has_examples });
                }
            }
            packages.push(Package {
                name: package["name"].as_str()?.to_owned(),
                manifest: package["manifest_path"].as_str()?.strip_prefix(&root)?.to_owned(),
                imports: package["dependencies"]
                    .as_array()?
                    .iter()
                    .map(|import| import["name"].as_str().map(str::to_owned))
                    .collect::<Option<_>>()?,
                built_from: nodes.built_from(package["id"].as_str()?),
            });
        }
        Some(Self { roots, untested, crates_in_all: nodes.0.len(), packages })
    }
}

/// Per package id: its name, and the ids of what it is built from.
struct Nodes<'a>(BTreeMap<&'a str, (&'a str, Vec<&'a str>)>);

impl<'a> Nodes<'a> {
    fn of(metadata: &'a Value) -> Option<Self> {
        let mut names = BTreeMap::new();
        for package in metadata["packages"].as_array()? {
            names.insert(package["id"].as_str()?, package["name"].as_str()?);
        }
        let mut nodes = BTreeMap::new();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let id = node["id"].as_str()?;
            let mut below = Vec::new();
            for dependency in node["deps"].as_array()? {
                if dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"] != "dev") {
                    below.push(dependency["pkg"].as_str()?);
                }
            }
            nodes.insert(id, (*names.get(id)?, below));
        }
        Some(Self(nodes))
    }

    fn built_from(&self, id: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            for &below in self.0.get(id).map_or(&[][..], |(_, below)| below) {
                if seen.insert(below) {
                    waiting.push(below);
                }
            }
        }
        seen.into_iter().filter_map(|id| Some(self.0.get(id)?.0.to_owned())).collect()
    }
}

/// Checks every package of the workspace.
pub(super) fn check(graph: &Graph) -> Vec<Finding> {
    let mut findings: Vec<_> = graph.packages.iter().flat_map(check_package).collect();
    if graph.crates_in_all > CRATES_MAX {
        let what = format!("{} crates in all, at most {CRATES_MAX}", graph.crates_in_all);
        findings.push(Finding::of("Cargo.lock", what));
    }
    let below: BTreeSet<_> = graph
        .packages
        .iter()
        .filter(|package| DATA_PATH.contains(&package.name.as_str()))
        .flat_map(|package| &package.built_from)
        .filter(|name| layer_of(name).is_none())
        .collect();
    if below.len() > CRATES_BELOW_DATA_PATH_MAX {
        let what = format!(
            "{} crates below the data path, at most {CRATES_BELOW_DATA_PATH_MAX}",
            below.len()
        );
        findings.push(Finding::of("Cargo.lock", what));
    }
    findings
}

fn check_package(package: &Package) -> Vec<Finding> {
    let Package { name, manifest, .. } = package;
    let Some(layer) = layer_of(name) else {
        let what = format!("{name} has no layer: give it one in the table of tidy, or no crate");
        return vec![Finding::of(manifest, what)];
    };
    let mut findings = Vec::new();
    for import in &package.imports {
        let lower = match (layer_of(import), layer) {
            (None, _) => true,
            (Some(_), Layer::Outside) => false,
            (Some(imported), _) => imported < layer,
        };
        if !lower {
            let what = format!("{name} may not import {import}: imports go downwards only");
            findings.push(Finding::of(manifest, what));
        }
    }
    if package.built_from.contains(TESTKIT) {
        let what = format!("{name} may import {TESTKIT} as a dev-dependency only");
        findings.push(Finding::of(manifest, what));
    }
    if !MAY_WAIT.contains(&name.as_str()) {
        let near_and_far = package.built_from.union(&package.imports);
        for import in near_and_far.filter(|import| EXECUTORS.contains(&import.as_str())) {
            let what = format!("{name} may not use {import}: only the server waits");
            findings.push(Finding::of(manifest, what));
        }
    }
    findings
}

fn layer_of(name: &str) -> Option<Layer> {
    TABLE.iter().find(|(known, _)| *known == name).map(|&(_, layer)| layer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn findings(name: &str, imports: &[&str]) -> Vec<String> {
        let package = Package {
            name: name.to_owned(),
            manifest: "crates/x/Cargo.toml".to_owned(),
            imports: imports.iter().map(|&import| import.to_owned()).collect(),
            built_from: BTreeSet::new(),
        };
        check_package(&package).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn imports_go_downwards() {
        assert_eq!(findings("tactus", &["tactus-engine", "tactus-sys", "tactus-core"]).len(), 0);
        assert_eq!(findings("tactus-engine", &["tactus-core", "tactus-ring"]).len(), 0);
        assert_eq!(findings("tactus-core", &["libm"]).len(), 0);
    }

    #[test]
    fn imports_never_go_sideways_or_up() {
        assert_eq!(findings("tactus-engine", &["tactus-sys"]).len(), 1);
        assert_eq!(findings("tactus-ring", &["tactus-core"]).len(), 1);
        assert_eq!(findings("tactus-core", &["tactus-engine"]).len(), 1);
        assert_eq!(findings("tactus-sim", &["tactus-bench"]).len(), 1);
        assert_eq!(findings("tactus", &["xtask"]).len(), 1);
        assert_eq!(findings("xtask", &["tactus-core"]).len(), 1);
    }

    #[test]
    fn only_tests_import_the_testkit() {
        assert_eq!(findings("tactus-sys", &[TESTKIT]).len(), 0);
        let package = Package {
            name: "tactus-sys".to_owned(),
            manifest: "crates/sys/Cargo.toml".to_owned(),
            imports: BTreeSet::from([TESTKIT.to_owned()]),
            built_from: BTreeSet::from([TESTKIT.to_owned()]),
        };
        assert_eq!(check_package(&package).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_is_an_error() {
        assert_eq!(findings("tactus-extra", &[]).len(), 1);
    }

    #[test]
    fn executors_reach_only_the_server_and_the_bench() {
        assert_eq!(findings("tactus", &["tokio"]).len(), 0);
        assert_eq!(findings("tactus-bench", &["tokio"]).len(), 0);
        assert_eq!(findings("tactus-engine", &["tokio"]).len(), 1);
        assert_eq!(findings("tactus-sim", &["tokio"]).len(), 1);
    }

    #[test]
    fn what_a_package_is_built_from_is_followed_to_the_end_but_not_through_tests() {
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let deps: Vec<_> = deps
                .iter()
                .map(|(pkg, kind)| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] }))
                .collect();
            json!({ "id": id, "deps": deps })
        };
        let package = |id: &str| {
            json!({ "id": id, "name": id, "dependencies": [{ "name": "a" }], "targets": [
                { "kind": ["lib"], "test": true, "doctest": false,
                  "src_path": format!("/t/crates/{id}/src/lib.rs") },
                { "kind": ["bin"], "test": true, "doctest": false,
                  "src_path": format!("/t/crates/{id}/src/main.rs") },
                { "kind": ["test"], "src_path": format!("/t/crates/{id}/tests/a.rs") },
            ], "manifest_path": format!("/t/crates/{id}/Cargo.toml") })
        };
        let metadata = json!({
            "workspace_root": "/t",
            "workspace_members": ["tactus-sim"],
            "packages": [package("tactus-sim"), package("a"), package("b"), package("tokio")],
            "resolve": { "nodes": [
                node("tactus-sim", &[("a", None)]),
                node("a", &[("b", Some("build")), ("tokio", Some("dev"))]),
                node("b", &[]),
                node("tokio", &[]),
            ] },
        });
        let graph = Graph::of(&metadata).unwrap();
        assert_eq!(
            graph.roots,
            ["lib", "main"].map(|name| format!("crates/tactus-sim/src/{name}.rs"))
        );
        let [untested] = &graph.untested[..] else { panic!("a program has no examples") };
        assert_eq!(untested.root, graph.roots[0]);
        assert_eq!((untested.has_tests, untested.has_examples), (true, false));
        assert_eq!(graph.crates_in_all, 4);
        assert!(graph.packages[0].built_from.iter().eq(["a", "b"]));
        assert_eq!(check(&graph).len(), 0);
    }

    #[test]
    fn the_number_of_crates_is_bounded() {
        let package = Package {
            name: "tactus-sys".to_owned(),
            manifest: "crates/sys/Cargo.toml".to_owned(),
            imports: BTreeSet::new(),
            built_from: (0..=CRATES_BELOW_DATA_PATH_MAX).map(|n| format!("a{n}")).collect(),
        };
        let (roots, untested, packages) = (vec![], vec![], vec![package]);
        let graph = Graph { roots, untested, crates_in_all: CRATES_MAX + 1, packages };
        assert_eq!(check(&graph).len(), 2);
    }
}
