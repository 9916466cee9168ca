//! Pins: titles and directories that the operator keeps in memory.
//!
//! Promise: what a pin covers is in memory, or its state says why not. A new version of a title
//! takes the place of the old one, a new title of a pinned directory is read as well, and what is
//! deleted is released, within five seconds. A pin that does not fit is refused and changes
//! nothing. Pins that are asked for last until the server ends; those of the configuration come
//! back. A path that cannot be read at the moment releases nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tactus_core::path::RequestPath;
use tactus_core::units::Bytes;
use tactus_engine::message::TitleId;
use tactus_storage::catalogue::{Catalogue, ListingScope, OpenFault, OpenTitle, PathObject};
use tactus_storage::conditions::Kind;

use crate::broker::{Broker, KeepFault};

/// Time between two comparisons of the pins with the titles that exist.
const EVERY: Duration = Duration::from_secs(5);
/// Most titles of one pin. Each holds a place of the stream table.
const TITLES_MAX: usize = 1000;
/// Entries of a directory that are read at a time.
const ENTRIES: usize = 256;

/// The pins of a server. Clones share them.
#[derive(Clone)]
pub struct Pins {
    inner: Arc<Inner>,
}

struct Inner {
    catalogue: Arc<Catalogue>,
    broker: Broker,
    pins: Mutex<BTreeMap<String, Pin>>,
    /// One comparison at a time; the titles that are kept.
    kept: tokio::sync::Mutex<HashSet<TitleId>>,
}

/// A pin, and what was found at its path.
#[derive(Clone, Default)]
struct Pin {
    is_configured: bool,
    titles: Vec<(TitleId, Bytes)>,
    problem: Option<String>,
}

/// The state of a pin, for people and programs.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct PinStatus {
    /// The path of the title or directory, without slashes at its ends.
    pub path: String,
    /// Whether it is in the configuration file.
    pub is_configured: bool,
    /// Titles that it covers.
    pub titles: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that are wholly in memory.
    pub titles_in_memory: u64,
    /// The streams of these titles.
    pub viewers: u64,
    /// Why a title is not in memory.
    pub problem: Option<String>,
}

/// Why a pin was not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// There is nothing at its path.
    #[error("{0}")]
    NotFound(OpenFault),
    /// It covers too many titles.
    #[error("the directory has more than {TITLES_MAX} titles; pin some of its directories")]
    TooMany,
    /// The title is still being stored.
    #[error("the title is still growing; it is pinned when it is whole")]
    Growing,
    /// A title cannot be kept.
    #[error("{title}: {fault}")]
    Refused {
        /// Its path.
        title: String,
        /// The reason.
        fault: KeepFault,
    },
}

impl PinError {
    /// Whether the pin covers nothing any more. After other errors its titles may still be there.
    fn is_gone(&self) -> bool {
        matches!(self, Self::NotFound(OpenFault::NotFound))
    }
}

impl Pins {
    /// Begins to keep `configured` paths in memory.
    pub fn begin(configured: &[String], catalogue: &Arc<Catalogue>, broker: &Broker) -> Self {
        let pin = |path: &String| {
            let name = path.trim_matches('/').to_owned();
            (name, Pin { is_configured: true, ..Pin::default() })
        };
        let inner = Arc::new(Inner {
            catalogue: Arc::clone(catalogue),
            broker: broker.clone(),
            pins: Mutex::new(configured.iter().map(pin).collect()),
            kept: tokio::sync::Mutex::default(),
        });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Some(inner) = weak.upgrade() {
                inner.compare().await;
                drop(inner);
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { inner }
    }

    /// Keeps what is at the path `name`, decoded and without outer slashes, in memory.
    ///
    /// # Errors
    /// If there is nothing, or it does not fit; nothing has changed then.
    pub async fn add(&self, name: &str) -> Result<PinStatus, PinError> {
        let is_new = !self.inner.pins().contains_key(name);
        self.inner.pins().entry(name.to_owned()).or_default();
        let refused = self.inner.compare().await.remove(name);
        // The memory that running streams have comes back, and the time of the disk.
        let is_final = |error: &PinError| match error {
            PinError::Refused { fault, .. } => {
                !matches!(fault, KeepFault::Busy | KeepFault::SlowDisk)
            }
            _ => true,
        };
        if let Some(error) = refused.filter(is_final)
            && is_new
        {
            self.remove(name).await;
            return Err(error);
        }
        self.one(name).ok_or(PinError::NotFound(OpenFault::NotFound))
    }

    /// No longer keeps what is at a path; false if it is not pinned. Titles that another pin covers
    /// stay.
    pub async fn remove(&self, name: &str) -> bool {
        let found = self.inner.pins().remove(name).is_some();
        if found {
            self.inner.catalogue.conditions().clear(Kind::NotPinned, &format!("/{name}"));
            self.inner.compare().await;
        }
        found
    }

    /// All pins, by path.
    #[must_use]
    pub fn all(&self) -> Vec<PinStatus> {
        self.inner.pins().iter().map(|(name, pin)| self.inner.status(name, pin)).collect()
    }

    /// The pin of a path.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<PinStatus> {
        self.inner.pins().get(name).map(|pin| self.inner.status(name, pin))
    }
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.inner.pins().keys()).finish()
    }
}

impl Inner {
    fn pins(&self) -> MutexGuard<'_, BTreeMap<String, Pin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, name: &str, pin: &Pin) -> PinStatus {
        let kept = pin.titles.iter().filter_map(|&(title, _)| self.broker.kept(title));
        let (in_memory, viewers) = kept.fold((0, 0), |(in_memory, viewers), kept| {
            (in_memory + u64::from(kept.is_complete), viewers + u64::from(kept.viewers))
        });
        PinStatus {
            path: name.to_owned(),
            is_configured: pin.is_configured,
            titles: pin.titles.len() as u64,
            bytes: pin.titles.iter().map(|(_, len)| len.0).sum(),
            titles_in_memory: in_memory,
            viewers,
            problem: pin.problem.clone(),
        }
    }

    /// Keeps what the pins cover now, and releases the rest. Returns what does not fit or is not
    /// there, by pin.
    async fn compare(&self) -> BTreeMap<String, PinError> {
        let mut kept = self.kept.lock().await;
        let names: Vec<String> = self.pins().keys().cloned().collect();
        let (mut problems, mut covered) = (BTreeMap::new(), BTreeMap::new());
        let mut unread = vec![];
        for name in names {
            let found = match RequestPath::of_name(&name) {
                Ok(path) => titles(&self.catalogue, &path).await,
                Err(_) => Err(PinError::NotFound(OpenFault::NotFound)),
            };
            match found {
                Ok(found) => _ = covered.insert(name, found),
                Err(error) => {
                    if !error.is_gone() {
                        let pins = self.pins();
                        let titles = pins.get(&name).map_or(&[][..], |pin| &pin.titles);
                        unread.extend(titles.iter().map(|&(title, _)| title));
                    }
                    problems.insert(name, error);
                }
            }
        }
        let wanted = covered.values().flatten();
        let wanted: HashSet<TitleId> = wanted.map(|(_, title)| title.id).chain(unread).collect();
        for gone in kept.extract_if(|title| !wanted.contains(title)) {
            self.broker.release(gone);
        }
        for (name, titles) in &covered {
            for (path, title) in titles {
                match self.broker.keep(title) {
                    Ok(()) => _ = kept.insert(title.id),
                    Err(fault) => {
                        let refused = PinError::Refused { title: path.clone(), fault };
                        problems.entry(name.clone()).or_insert(refused);
                    }
                }
            }
        }
        self.note(&covered, &problems);
        problems
    }

    /// Notes what a comparison has found.
    fn note(&self, covered: &Covered, problems: &BTreeMap<String, PinError>) {
        for (name, pin) in self.pins().iter_mut() {
            let found = covered.get(name);
            if found.is_some() || problems.get(name).is_none_or(PinError::is_gone) {
                let titles = found.into_iter().flatten();
                pin.titles = titles.map(|(_, title)| (title.id, title.len)).collect();
            }
            pin.problem = problems.get(name).map(ToString::to_string);
            let subject = format!("/{name}");
            let message = pin
                .problem
                .as_ref()
                .map(|problem| format!("not in memory, though pinned: {problem}"));
            self.catalogue.conditions().set(Kind::NotPinned, &subject, message);
        }
    }
}

/// The titles of each pin, with their paths.
type Covered = BTreeMap<String, Vec<(String, Arc<OpenTitle>)>>;

/// The titles at and below a path.
async fn titles(
    catalogue: &Arc<Catalogue>,
    path: &RequestPath,
) -> Result<Vec<(String, Arc<OpenTitle>)>, PinError> {
    let mut found = vec![];
    let mut directories = vec![];
    match catalogue.find(path).await.map_err(PinError::NotFound)? {
        // Its length is not known.
        PathObject::Title(title) if title.following.is_some() => return Err(PinError::Growing),
        PathObject::Title(title) => found.push((path.name().to_owned(), title)),
        PathObject::Directory(directory) => directories.push((path.name().to_owned(), directory)),
    }
    while let Some((above, directory)) = directories.pop() {
        let mut scroll = catalogue.scroll(directory, ListingScope::Shown, None);
        while !scroll.is_over() {
            for entry in scroll.next(ENTRIES).await.map_err(PinError::NotFound)? {
                let name = match above.is_empty() {
                    true => entry.name,
                    false => format!("{above}/{}", entry.name),
                };
                let Ok(path) = RequestPath::of_name(&name) else { continue };
                match catalogue.find(&path).await {
                    Ok(PathObject::Title(title)) if title.following.is_none() => {
                        found.push((name, title));
                    }
                    Ok(PathObject::Directory(directory)) => directories.push((name, directory)),
                    // It has gone, or is not served.
                    Ok(PathObject::Title(_)) | Err(_) => {}
                }
                if found.len() > TITLES_MAX {
                    return Err(PinError::TooMany);
                }
            }
        }
    }
    Ok(found)
}
