//! Uploads that arrive at a rate and cannot wait: recordings.
//!
//! Promise: [`Appender::space_now`] and [`Appender::tend`] do not wait. Quota and space are taken
//! ahead of the data. The journal has received data after a bounded time, however slowly it
//! arrives. This module does not decide about data without room: its caller does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::recording::{AHEAD_MIN, RecordingSpec};
use super::{Appender, Principal, ResumeError, Store, StoreId};
use crate::store::Inner;
use crate::store::fault::too_large;
use crate::store::medium::now;
use crate::store::upload::claim_more;

/// An upload that an earlier run has left unfinished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftoverUpload {
    /// Its identifier.
    pub id: StoreId,
    /// Its owner.
    pub principal: Principal,
    /// The path of the future title.
    pub path: String,
    /// Bytes that are durable.
    pub len: u64,
}

/// Data that arrives too slowly to fill a slot is written after this time.
const ROUNDED_AFTER: Duration = Duration::from_secs(4);

/// The interval when no data has come for this long: an unchanged state is not written twice.
const STILL_AFTER: Duration = Duration::from_secs(1);

/// The period of the check for due work.
const LOOK: Duration = Duration::from_millis(100);

impl Store {
    /// Opens an upload without data for writing at its rate.
    ///
    /// # Errors
    /// As [`Store::append`], and when there is no room for the data of the next seconds.
    pub async fn append_live(
        &self,
        id: &StoreId,
        principal: &Principal,
        live: &RecordingSpec,
    ) -> Result<Appender, ResumeError> {
        let mut appender = self.append_as(id, principal, 0, Some(live)).await?;
        appender.take_room()?;
        let recording = appender.recording.as_mut().expect("it comes at a rate");
        if let Some(short) = recording.short.take() {
            return Err(short.into());
        }
        let parts = appender.parts.as_mut().expect("only the end takes it apart");
        if let Some(first) = &mut parts.setting_aside {
            let set_aside = first.await;
            parts.setting_aside = None;
            appender.have_room(set_aside.map_err(super::stopped)??);
        }
        Ok(appender)
    }

    /// Uploads without a name whose metadata begins with this prefix, in the order in which they
    /// began.
    #[must_use]
    pub fn left(&self, metadata: &[u8]) -> Vec<LeftoverUpload> {
        self.inner.journal.look(|table| {
            let unnamed = table.entries().filter(|(_, entry)| {
                entry.named.is_none() && entry.created.metadata.starts_with(metadata)
            });
            let left = unnamed.filter_map(|(&id, entry)| {
                let (path, len) = (entry.created.path.clone()?, entry.mark.len);
                let left =
                    LeftoverUpload { id, principal: entry.created.principal.clone(), path, len };
                // All have the same time to live: the order of expiry is the order of beginning.
                Some((entry.created.expires, left))
            });
            let mut left: Vec<_> = left.collect();
            left.sort_by(|a, b| (a.0, &a.1.path).cmp(&(b.0, &b.1.path)));
            left.into_iter().map(|(_, left)| left).collect()
        })
    }
}

impl Appender {
    /// Memory for the next bytes, without a wait. None while no slot is free, or while the file
    /// system has not yet allocated blocks.
    ///
    /// # Errors
    /// When no more bytes are permitted, or a write has failed. Received bytes can still be
    /// committed.
    ///
    /// # Panics
    /// When the upload has no rate.
    pub fn space_now(&mut self) -> Result<Option<&mut [u8]>, ResumeError> {
        let recording = self.recording.as_mut().expect("it comes at a rate");
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        parts.inner.writable()?;
        let room = recording.room.saturating_sub(parts.write_buffer.len());
        if room == 0 {
            return recording.short.take().map_or(Ok(None), |short| Err(short.into()));
        }
        let ready =
            parts.write_buffer.ready_now().map_err(|error| parts.inner.write_failed(error))?;
        if !ready {
            return Ok(None);
        }
        let space = parts.write_buffer.space_there();
        let room = space.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(Some(&mut space[..room]))
    }

    /// Whether a slot is being filled.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.parts().write_buffer.has_place()
    }

    /// Continues in a slot that uploads do not need, if there is one. Returns the bytes that it
    /// holds: they use nothing of the recording's reservation.
    ///
    /// # Panics
    /// When a slot is being filled.
    pub fn hurry(&mut self) -> u64 {
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        parts.write_buffer.spare_now()
    }

    /// Does the work that is due, without a wait. Call it before each write, and several times a
    /// second while no data arrives. Returns whether a check was due.
    ///
    /// # Errors
    /// When received data cannot be made durable.
    ///
    /// # Panics
    /// When the upload has no rate.
    pub fn tend(&mut self, now: Instant) -> Result<bool, ResumeError> {
        let recording = self.recording.as_mut().expect("it comes at a rate");
        if recording.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK) {
            return Ok(false);
        }
        recording.looked = Some(now);
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        parts.write_buffer.reap().map_err(|error| parts.inner.write_failed(error))?;
        let len = parts.write_buffer.len();
        if recording.seen.0 != len {
            recording.seen = (len, now);
        }
        let is_due = now.saturating_duration_since(recording.handed_over) >= ROUNDED_AFTER
            || now.saturating_duration_since(recording.seen.1) >= STILL_AFTER;
        if self.wanted.is_none()
            && is_due
            && len > recording.told_len
            && let Some(end) = parts.write_buffer.round_off()
        {
            recording.handed_over = now;
            self.wanted = Some((end, parts.advanced()));
        }
        if let Some((_, advanced)) = &self.wanted
            && advanced.mark.len > recording.told_len
        {
            (recording.told, recording.told_len) = (now, advanced.mark.len);
        }
        self.check()?;
        self.take_room()?;
        Ok(true)
    }

    /// The length in the journal: a start after a power failure finds at least this.
    #[must_use]
    pub fn durable(&self) -> u64 {
        let parts = self.parts();
        let mark = |entry: &super::Entry| entry.mark.len;
        parts.inner.journal.look(|table| table.find(&parts.id).map_or(0, mark))
    }

    /// Requests more room when half of the earlier room is used.
    fn take_room(&mut self) -> Result<(), ResumeError> {
        let recording = self.recording.as_mut().expect("it comes at a rate");
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        if let Some(setting) = &mut parts.setting_aside {
            if setting.is_finished()
                && let Some(ended) = now(setting)
            {
                parts.setting_aside = None;
                match ended.map_err(super::stopped)? {
                    Ok(set_aside) => self.have_room(set_aside),
                    Err(error) => recording.short = Some(error),
                }
            }
            return Ok(());
        }
        let claim = parts.writer.claim.as_mut().ok_or(ResumeError::NotFound)?;
        let (len, file) = (parts.write_buffer.len(), Arc::clone(parts.write_buffer.file()));
        if recording.room.saturating_sub(len) > recording.ahead / 2 {
            return Ok(());
        }
        let title_max = parts.inner.quotas.limits().title_max;
        if recording.room >= title_max.0 {
            recording.short = Some(too_large(title_max));
            return Ok(());
        }
        let best = (recording.room + recording.ahead).min(title_max.0);
        if let Err(short) = claim_more(claim, best, (recording.room + AHEAD_MIN).min(title_max.0)) {
            recording.short = Some(short);
            return Ok(());
        }
        recording.short = None;
        let (from, inner) = (recording.room, Arc::clone(&parts.inner));
        let more = claim.reserved() - from;
        let set_aside = async move { Inner::set_aside(&inner, &file, from, more).await };
        parts.setting_aside = Some(tokio::spawn(set_aside));
        Ok(())
    }

    /// Records that the file has room for the whole claim.
    fn have_room(&mut self, is_set_aside: bool) {
        let recording = self.recording.as_mut().expect("it comes at a rate");
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        if let Some(claim) = &mut parts.writer.claim {
            recording.room = claim.reserved();
            if is_set_aside {
                claim.allocated();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tactus_core::units::BitRate;

    use super::*;
    use crate::store::medium::Medium;
    use crate::store::{Create, PlainMedium, Precondition, StoreOptions, Verdict, verify};

    /// A padded sector is written again with the bytes that follow; the order of the two writes is
    /// kept.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_rounded_off_is_written_over_by_what_comes_next_at_any_byte() {
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let medium: Arc<dyn Medium> = Arc::new(PlainMedium::new(16, 64 * 1024));
        let opening = Store::open(directory.path(), Arc::clone(&medium), StoreOptions::default());
        let (store, _) = opening.await.unwrap();
        let principal = Principal::new("ann");
        let create = Create {
            path: Some("live.ts".into()),
            len: None,
            precondition: Precondition::Any,
            principal: principal.clone(),
            metadata: Vec::new(),
        };
        let id = store.create(create).await.unwrap();
        let live = RecordingSpec { rate: BitRate(8_000_000), medium };
        let mut appender = store.append_live(&id, &principal, &live).await.unwrap();
        let (mut all, mut state) = (Vec::new(), 1u32);
        for number in 0..1500 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = match state >> 30 {
                0 => 1,
                1 => 4096,
                _ => (state >> 16) as usize % 9000 + 1,
            };
            let bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
            appender.append(&bytes).await.unwrap();
            all.extend(bytes);
            if state.is_multiple_of(3) {
                let parts = appender.parts.as_mut().unwrap();
                // None while all slots are under way: then no write has begun.
                if let Some(end) = parts.write_buffer.round_off() {
                    assert!(end >= all.len() as u64 && end - (all.len() as u64) < 4096);
                }
            }
        }
        assert_eq!(appender.commit().await.unwrap(), all.len() as u64);
        store.declare(&id, &principal, all.len() as u64).await.unwrap();
        store.finish(&id, &principal).await.unwrap();
        assert!(std::fs::read(directory.path().join("live.ts")).unwrap() == all);
        let verdict = verify(directory.path(), "live.ts", &mut |_| {}).unwrap();
        assert!(matches!(verdict, Verdict::Whole(_)), "{verdict:?}");
        store.close().await;
    }
}
