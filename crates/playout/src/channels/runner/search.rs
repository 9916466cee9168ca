//! Searches the next title: timed, next in the rundown, or the fill.
//!
//! Promise: each step tries one title and takes about two seconds at most, so that ends and orders
//! are handled between steps. Each search is bounded.

use super::*;

/// The engine releases the resources of a title within this time.
const RETURN: Duration = Duration::from_millis(300);

impl Runner {
    /// Continues the search, or starts one with the current list.
    async fn search(&mut self, is_timed: bool) -> Search {
        match self.search.take().filter(|search| search.is_timed == is_timed) {
            Some(search) => search,
            None => {
                self.read_list().await;
                Search::new(Instant::now(), is_timed)
            }
        }
    }

    /// Tries one timed title: primes it, or starts it when its time has come.
    pub(super) async fn find_timed(&mut self) {
        let mut search = self.search(true).await;
        let Facts { now, timed, .. } = self.facts();
        let Some(time) = timed else { return };
        let nth = search.next(now, usize::MAX);
        let Some((nth, item)) = nth.and_then(|nth| Some((nth, self.rundown.timed(nth)?))) else {
            self.timed_again = time.min(now + AGAIN);
            if time <= now {
                // A missing timed title interrupts nothing.
                self.rundown.pass_timed();
                self.again = now;
            }
            return;
        };
        let path = item.path.clone();
        let found = if self.now.is_none() && now < time {
            self.ask(&item).await.map(|()| None).map_err(Miss::from)
        } else {
            self.prime(item).await.map(Some)
        };
        match found {
            Ok(Some(playing)) => {
                self.rundown.take_timed(nth, &playing.item);
                // The list continues after it.
                self.rest = None;
                self.take(playing, Some(time));
            }
            Ok(None) => self.timed_again = time.min(now + AGAIN),
            Err(Miss::Late) => self.timed_again = Instant::now() + REST,
            Err(Miss::Because(reason)) => {
                self.board.skip(&path, &reason);
                self.search = Some(search);
            }
        }
    }

    /// Tries the next title of the rundown: primes it, or starts it if nothing is sent. Falls back
    /// to the fill.
    pub(super) async fn find_next(&mut self) {
        let mut search = self.search(false).await;
        if let Some((item, title, content)) = self.rest.take()
            && let Ok(playing) = self.prime_range(item, title, content).await
        {
            return self.take(playing, None);
        }
        let is_tried = search.next(Instant::now(), self.rundown.len()).is_some();
        let Some(item) = is_tried.then(|| self.rundown.next()).flatten() else {
            return self.fill(search.why).await;
        };
        match self.prime(item.clone()).await {
            Ok(playing) => {
                self.rundown.take(&item);
                self.take(playing, self.cut());
            }
            Err(Miss::Late) => {
                self.rundown.give_back(item);
                self.again = Instant::now() + REST;
            }
            Err(Miss::Because(reason)) => {
                self.board.skip(&item.path, &reason);
                search.miss(&item.path, &reason);
                self.search = Some(search);
            }
        }
    }

    /// When the found title cuts the current one; `None` at its natural end.
    fn cut(&self) -> Option<Instant> {
        let now = self.now.as_ref()?;
        let is_left = now.item.is_endless || now.is_left || now.is_unwanted;
        is_left.then(Instant::now)
    }

    /// Primes the fill, as no other title can be sent, for the reason `why`.
    async fn fill(&mut self, mut why: Option<String>) {
        self.rundown.try_again();
        self.again = Instant::now() + AGAIN;
        let fill = self.rundown.fill();
        let is_sent = |fill: &Item| self.now.as_ref().is_some_and(|now| now.item == *fill);
        if let Some(fill) = fill.clone().filter(|fill| !is_sent(fill)) {
            let path = fill.path.clone();
            match self.prime(fill).await {
                Ok(playing) => return self.take(playing, self.cut()),
                Err(Miss::Late) => return,
                Err(Miss::Because(reason)) => why = why.or(Some(format!("{path}: {reason}"))),
            }
        }
        if let Some(now) = &mut self.now {
            // The skip is void, since no title followed it: a later title does not cut the current
            // one.
            now.is_left = false;
            if fill.is_none() && now.item.is_fill() {
                self.stop();
            }
            return;
        }
        // No title continues this session.
        if let Some(before) = self.before.take() {
            drop(before);
            self.again = Instant::now() + RETURN;
        }
        self.close_session();
        match (why, self.rundown.time()) {
            (Some(why), _) => self.board.wait(why),
            (None, _) if self.rundown.is_over() => {
                self.live.finish();
                self.board.end();
            }
            (None, Some(_)) => self.board.wait("the start time has not come".into()),
            (None, None) => self.board.wait("the playlist has no title to send".into()),
        }
    }
}
