//! The common beginning of channels that belong together.
//!
//! Promise: channels of one name that become ready within two seconds begin at one time, which
//! lies far enough ahead for their first blocks. A channel whose titles are missing keeps the
//! others for no longer than that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tactus_core::units::{MonoTime, Nanos};
use tactus_sys::clock;
use tokio::sync::watch;

/// How long a ready channel waits for the others.
const WAIT: Duration = Duration::from_secs(2);
/// How long after the last of them they begin: their first blocks are read within this time.
const LEAD: Nanos = Nanos::from_millis(1000);
/// Common times are multiples of this, and of every packet time of sound.
const STEP: Nanos = Nanos::from_millis(4);

/// Channels that wait for each other, by their names for it.
#[derive(Default)]
pub(super) struct Meetings(Mutex<HashMap<String, Meeting>>);

/// Channels that wait for one beginning.
struct Meeting {
    present: usize,
    begin: Arc<watch::Sender<Option<MonoTime>>>,
}

impl Meetings {
    /// The time at which the channels of `name` begin. The caller is ready; it is one of `all`
    /// channels that do not send yet.
    pub(super) async fn meet(&self, name: &str, all: usize) -> MonoTime {
        let (mut told, begin) = {
            let mut open = self.open();
            let meeting = open
                .entry(name.to_owned())
                .or_insert_with(|| Meeting { present: 0, begin: Arc::new(watch::channel(None).0) });
            meeting.present += 1;
            let parts = (meeting.begin.subscribe(), Arc::clone(&meeting.begin));
            if meeting.present >= all {
                close(open.remove(name));
            }
            parts
        };
        let is_known = told.wait_for(Option::is_some);
        if let Ok(Ok(begin)) = tokio::time::timeout(WAIT, is_known).await {
            return begin.unwrap_or_else(begin_now);
        }
        // The first one that waits no longer ends it for all.
        let mut open = self.open();
        if open.get(name).is_some_and(|meeting| Arc::ptr_eq(&meeting.begin, &begin)) {
            close(open.remove(name));
        }
        let known = *begin.borrow();
        known.unwrap_or_else(begin_now)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<String, Meeting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close(meeting: Option<Meeting>) {
    if let Some(meeting) = meeting {
        meeting.begin.send_replace(Some(begin_now()));
    }
}

/// The earliest common time.
fn begin_now() -> MonoTime {
    MonoTime((clock::now() + LEAD).0.next_multiple_of(STEP.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn channels_that_wait_for_each_other_begin_at_one_time() {
        let meetings = Arc::new(Meetings::default());
        let meet = |all| {
            let meetings = Arc::clone(&meetings);
            tokio::spawn(async move { meetings.meet("hall", all).await })
        };
        let (one, other) = (meet(2), meet(2));
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        assert_eq!(one, other);
        assert!(one > clock::now() && one.0.is_multiple_of(STEP.0));
        // Without the third one, two begin together.
        let (one, other) = (meet(3), meet(3));
        assert_eq!(one.await.unwrap(), other.await.unwrap());
        assert!(meetings.open().is_empty());
        assert!(meet(1).await.unwrap() > MonoTime(0), "one alone waits for none");
    }
}
