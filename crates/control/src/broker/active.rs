//! The running deliveries, for the status page and the metrics.

use std::sync::Arc;

use tactus_storage::catalogue::OpenTitle;

use super::Broker;

/// A delivery that the engine has begun and not retired.
#[derive(Clone, Debug)]
pub struct ActiveStream {
    /// Its slot in the stream table, which selects the engine's counters.
    pub slot: u32,
    /// The title.
    pub title: Arc<OpenTitle>,
    /// The client's address, if known; behind a proxy, that of the proxy's client.
    pub client: Option<String>,
    /// Whether it has no rate.
    pub best_effort: bool,
}

impl Broker {
    /// All running deliveries, in the order of the table.
    pub fn running(&self) -> Vec<ActiveStream> {
        let table = self.shared.table();
        let slots = (0u32..).zip(&table.slots);
        let running = slots.filter_map(|(slot, at)| {
            let output = at.output.as_ref()?;
            Some(ActiveStream {
                slot,
                title: Arc::clone(&at.title.as_ref()?.title),
                client: at.client.clone().or_else(|| Some(output.peer?.to_string())),
                best_effort: at.without_rate.is_some(),
            })
        });
        running.collect()
    }
}
