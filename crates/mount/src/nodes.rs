//! The files and directories that the kernel knows, by their numbers.
//!
//! Promise: a number stands for one file under one name as long as the kernel knows it. The file
//! that replaces it under the name has another number. A number is a digest of both, so that a file
//! has the same one after the kernel has forgotten it, and after the next mount.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tactus_client::Stat;

use crate::open_file::OpenFile;

/// The number of the mount's own directory.
pub(crate) const ROOT: u64 = 1;

/// The table.
pub(crate) struct Nodes(Mutex<Table>);

struct Table {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Key, u64>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    parent: u64,
    name: Box<str>,
    /// Zero for a directory.
    file: u64,
}

struct Node {
    key: Key,
    /// References of the kernel.
    lookups: u64,
    /// Nodes below it.
    children: u64,
    /// The facts as the server has told them last.
    stat: Stat,
    open: Weak<OpenFile>,
    /// The version whose pages the kernel keeps.
    cached: u64,
}

impl Nodes {
    /// The table with the mount's own directory, which is never forgotten.
    pub(crate) fn new(root: Stat) -> Self {
        let key = Key { parent: 0, name: "".into(), file: 0 };
        let node = Node::new(key, root, 1);
        Self(Mutex::new(Table { nodes: HashMap::from([(ROOT, node)]), numbers: HashMap::new() }))
    }

    /// The path of a node from the mount's directory on, which is `/`. `None` if it is not known.
    pub(crate) fn path(&self, number: u64) -> Option<String> {
        self.table().path(number)
    }

    /// The path of the name `name` in the directory `parent`.
    pub(crate) fn path_of(&self, parent: u64, name: &str) -> Option<String> {
        let mut path = self.table().path(parent)?;
        if !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(name);
        Some(path)
    }

    /// The directory of a node.
    pub(crate) fn parent(&self, number: u64) -> Option<u64> {
        if number == ROOT {
            return Some(ROOT);
        }
        Some(self.table().nodes.get(&number)?.key.parent)
    }

    /// The number that a name has, or would have.
    pub(crate) fn number(&self, parent: u64, name: &str, stat: &Stat) -> u64 {
        self.table().number(&Key::new(parent, name, stat))
    }

    /// The kernel gets to know a name: one more reference. `None` if its directory is not known.
    pub(crate) fn enter(&self, parent: u64, name: &str, stat: &Stat) -> Option<u64> {
        let key = Key::new(parent, name, stat);
        let mut table = self.table();
        let number = table.number(&key);
        if let Some(node) = table.nodes.get_mut(&number) {
            node.lookups += 1;
            node.stat = stat.clone();
            return Some(number);
        }
        table.nodes.get_mut(&parent)?.children += 1;
        table.numbers.insert(key.clone(), number);
        table.nodes.insert(number, Node::new(key, stat.clone(), 1));
        Some(number)
    }

    /// The kernel gets one more reference of a node. False if it is not known.
    pub(crate) fn refer(&self, number: u64) -> bool {
        let mut table = self.table();
        let node = table.nodes.get_mut(&number);
        node.map(|node| node.lookups += 1).is_some()
    }

    /// The directory and the name of a node.
    pub(crate) fn name(&self, number: u64) -> Option<(u64, Box<str>)> {
        let table = self.table();
        let key = &table.nodes.get(&number)?.key;
        Some((key.parent, key.name.clone()))
    }

    /// The node stands for another file of the same name.
    pub(crate) fn change_file(&self, number: u64, file: u64) {
        let mut table = self.table();
        if let Some(node) = table.nodes.get(&number) {
            let key = Key { file, ..node.key.clone() };
            table.move_to(number, key);
        }
    }

    /// The next lookup of its name finds another node.
    pub(crate) fn detach(&self, number: u64) {
        let mut table = self.table();
        if let Some(key) = table.nodes.get(&number).map(|node| node.key.clone()) {
            table.forget_key(&key, number);
        }
    }

    /// The node has another name.
    pub(crate) fn rename(&self, number: u64, parent: u64, name: &str) {
        let mut table = self.table();
        let Some(before) = table.nodes.get(&number).map(|node| node.key.clone()) else { return };
        let Some(above) = table.nodes.get_mut(&parent) else { return };
        above.children += 1;
        table.move_to(number, Key { parent, name: name.into(), ..before.clone() });
        if let Some(above) = table.nodes.get_mut(&before.parent) {
            above.children -= 1;
        }
        table.remove_unused(before.parent);
    }

    /// The kernel gives up references.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        let mut table = self.table();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        table.remove_unused(number);
    }

    /// The facts as they were told last.
    pub(crate) fn stat(&self, number: u64) -> Option<Stat> {
        Some(self.table().nodes.get(&number)?.stat.clone())
    }

    /// Whether `stat` is of the same file.
    pub(crate) fn is_same(&self, number: u64, stat: &Stat) -> bool {
        let table = self.table();
        let node = table.nodes.get(&number);
        node.is_some_and(|node| {
            node.stat.is_directory == stat.is_directory
                && (stat.is_directory || node.key.file == stat.file)
        })
    }

    /// Newer facts of the same file.
    pub(crate) fn update(&self, number: u64, stat: &Stat) {
        if let Some(node) = self.table().nodes.get_mut(&number) {
            node.stat = stat.clone();
        }
    }

    /// The file as programs have it open.
    pub(crate) fn open(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.table().nodes.get(&number)?.open.upgrade()
    }

    /// Programs have it open.
    pub(crate) fn set_open(&self, number: u64, open: &Arc<OpenFile>) {
        if let Some(node) = self.table().nodes.get_mut(&number) {
            node.open = Arc::downgrade(open);
        }
    }

    /// Pages of `version` are going to be kept by the kernel; returns whether it has no others.
    pub(crate) fn keeps_pages(&self, number: u64, version: u64) -> bool {
        let mut table = self.table();
        let Some(node) = table.nodes.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut node.cached, version);
        version != 0 && before == version
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        let table = self.table();
        (table.nodes.len(), table.numbers.len())
    }
}

impl Table {
    fn path(&self, number: u64) -> Option<String> {
        let mut names = vec![];
        let mut at = number;
        while at != ROOT {
            let key = &self.nodes.get(&at)?.key;
            names.push(&*key.name);
            at = key.parent;
        }
        names.push("");
        names.reverse();
        let path = names.join("/");
        Some(if path.is_empty() { "/".to_owned() } else { path })
    }

    fn number(&self, key: &Key) -> u64 {
        if let Some(&number) = self.numbers.get(key) {
            return number;
        }
        let mut number = key.digest();
        // Another node has this digest, or it is a number with a meaning of its own.
        while number <= ROOT || self.nodes.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        number
    }

    fn forget_key(&mut self, key: &Key, number: u64) {
        if self.numbers.get(key) == Some(&number) {
            self.numbers.remove(key);
        }
    }

    fn move_to(&mut self, number: u64, key: Key) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let before = std::mem::replace(&mut node.key, key.clone());
        self.forget_key(&before, number);
        self.numbers.insert(key, number);
    }

    /// Removes nodes without references, and directories that are not needed for a path any more.
    fn remove_unused(&mut self, mut number: u64) {
        while number != ROOT {
            let is_used = |node: &Node| node.lookups > 0 || node.children > 0;
            if self.nodes.get(&number).is_none_or(is_used) {
                return;
            }
            let node = self.nodes.remove(&number).expect("it was just there");
            self.forget_key(&node.key, number);
            number = node.key.parent;
            if let Some(parent) = self.nodes.get_mut(&number) {
                parent.children -= 1;
            }
        }
    }
}

impl Key {
    fn new(parent: u64, name: &str, stat: &Stat) -> Self {
        let file = if stat.is_directory { 0 } else { stat.file };
        Self { parent, name: name.into(), file }
    }

    /// FNV-1a with 64 bits (RFC 9923).
    fn digest(&self) -> u64 {
        let numbers = [self.parent, self.file].map(u64::to_le_bytes);
        let bytes = numbers.as_flattened().iter().chain(self.name.as_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl Node {
    fn new(key: Key, stat: Stat, lookups: u64) -> Self {
        Self { key, lookups, children: 0, stat, open: Weak::new(), cached: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Stat {
        Stat { is_directory: true, ..Stat::default() }
    }

    fn title(file: u64) -> Stat {
        Stat { file, ..Stat::default() }
    }

    #[test]
    fn a_number_stays_while_it_is_known_and_comes_back() {
        let nodes = Nodes::new(directory());
        let films = nodes.enter(ROOT, "films", &directory()).unwrap();
        let one = nodes.enter(films, "one.ts", &title(5)).unwrap();
        assert_eq!(nodes.path(one).as_deref(), Some("/films/one.ts"));
        assert_eq!((nodes.path(ROOT).as_deref(), nodes.parent(one)), (Some("/"), Some(films)));
        assert_eq!(nodes.path_of(ROOT, "a").as_deref(), Some("/a"));
        assert_eq!(nodes.enter(films, "one.ts", &title(5)), Some(one));
        let replaced = nodes.enter(films, "one.ts", &title(6)).unwrap();
        assert_ne!(replaced, one, "another file");
        assert!(nodes.is_same(one, &title(5)) && !nodes.is_same(one, &title(6)));
        assert!(!nodes.is_same(one, &directory()));

        nodes.forget(one, 1);
        assert!(nodes.stat(one).is_some(), "known twice");
        nodes.forget(one, 1);
        assert_eq!(nodes.path(one), None);
        assert_eq!(nodes.enter(films, "one.ts", &title(5)), Some(one), "the same after that");
    }

    #[test]
    fn nothing_is_left_when_the_kernel_has_forgotten_all() {
        let nodes = Nodes::new(directory());
        let mut known = vec![];
        let mut parent = ROOT;
        for depth in 0..50 {
            parent = nodes.enter(parent, &format!("d{depth}"), &directory()).unwrap();
            known.push(parent);
            known.push(nodes.enter(parent, "title", &title(depth)).unwrap());
        }
        // Directories first: their names are needed for the paths of what is below.
        known.sort_unstable();
        for number in known {
            assert!(nodes.path(number).is_some());
            nodes.forget(number, 1);
        }
        nodes.forget(ROOT, 5);
        assert_eq!(nodes.len(), (1, 0));
        assert_eq!(nodes.enter(parent, "late", &title(1)), None, "its directory is not known");
    }

    #[test]
    fn pages_are_kept_for_one_version() {
        let nodes = Nodes::new(directory());
        let one = nodes.enter(ROOT, "one.ts", &title(5)).unwrap();
        let kept = [7, 7, 8, 0, 0].map(|version| nodes.keeps_pages(one, version));
        assert_eq!(kept, [false, true, false, false, false]);
    }
}
