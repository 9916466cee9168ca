//! Indexes of the movies in use, and of a few recent ones.
//!
//! Promise: an index is read once while it is in use, one index at a time, on a thread that may
//! block. Unused indexes take memory for `RECENT` movies at most.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tactus_engine::message::TitleId;
use tactus_media::movie::{Movie, MovieFault};
use tactus_storage::catalogue::OpenTitle;

/// Number of unused movies whose index stays in memory: an index of two hours takes 20 MB.
const RECENT: usize = 8;

/// The indexes in memory; clones share them.
#[derive(Clone, Default)]
pub struct Movies {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Held while an index is read.
    reading: tokio::sync::Mutex<()>,
    known: Mutex<MovieCache>,
}

#[derive(Default)]
struct MovieCache {
    movies: HashMap<TitleId, Weak<Movie>>,
    recent: VecDeque<Arc<Movie>>,
}

impl Movies {
    /// The index of `title`. It is read to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// Why its tracks cannot be sent.
    pub async fn of(&self, title: &Arc<OpenTitle>) -> Result<Arc<Movie>, MovieFault> {
        if let Some(movie) = self.shared.known(title.id) {
            return Ok(movie);
        }
        let (shared, from) = (Arc::clone(&self.shared), Arc::clone(title));
        let read = tokio::spawn(async move { shared.read(from).await });
        read.await.map_err(|error| MovieFault::Unreadable(error.to_string()))?
    }
}

impl Shared {
    async fn read(&self, title: Arc<OpenTitle>) -> Result<Arc<Movie>, MovieFault> {
        let _reading = self.reading.lock().await;
        // Another session may have read it meanwhile.
        if let Some(movie) = self.known(title.id) {
            return Ok(movie);
        }
        let id = title.id;
        let read = tokio::task::spawn_blocking(move || {
            // The title's own handle may require aligned memory.
            let file = tactus_sys::file::reopen(&title.file)
                .map_err(|error| MovieFault::Unreadable(error.to_string()))?;
            Movie::read(&File::from(file)).map(Arc::new)
        });
        let movie = read.await.map_err(|error| MovieFault::Unreadable(error.to_string()))??;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.movies.retain(|_, movie| movie.strong_count() > 0);
        known.movies.insert(id, Arc::downgrade(&movie));
        if known.recent.len() == RECENT {
            known.recent.pop_front();
        }
        known.recent.push_back(Arc::clone(&movie));
        Ok(movie)
    }

    fn known(&self, title: TitleId) -> Option<Arc<Movie>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.movies.get(&title).and_then(Weak::upgrade)
    }
}
