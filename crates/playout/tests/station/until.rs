//! Waiting for a state of a channel.

use std::time::{Duration, Instant};

use tactus_playout::channels::{Channels, Status};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the status of the channel `name` is so.
pub(crate) async fn until(
    channels: &Channels,
    name: &str,
    is_so: impl Fn(&Status) -> bool,
) -> Status {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = channels.one(name).expect("it is configured");
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
