//! Channels on an engine of their own, for the tests of this folder.

use std::path::Path;
use std::sync::Arc;

use tactus_control::engine::{self, Engine};
use tactus_control::settings::{EngineSettings, Sendfile, Volume};
use tactus_core::units::{Bytes, MIB};
use tactus_media::probe;
use tactus_notation::Auto;
use tactus_playout::channel::Channel;
use tactus_playout::channels::{ChannelSettings, Channels};
use tactus_storage::catalogue::{Catalogue, CatalogueRules};

pub(crate) struct Fixture {
    pub(crate) engine: Engine,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) settings: ChannelSettings,
}

/// `channels` is text with tables `[[channel]]`.
pub(crate) fn fixture(dir: &Path, sendfile: Sendfile, channels: &str) -> Fixture {
    let volume = Volume { sendfile, ..Volume::new(dir.into()) };
    let mut engine = EngineSettings { volumes: vec![volume], ..EngineSettings::default() };
    engine.memory.arena = Auto::Set(Bytes(32 * MIB));
    engine.sends_datagrams = true;
    let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
    let catalogue = Arc::new(Catalogue::new(dir, rules).expect("a volume"));
    let engine = engine::start(&engine).expect("the engine starts");
    assert_eq!(engine.volumes[0].sendfile(), sendfile == Sendfile::On, "{:?}", engine.degraded);
    let channels = channels.split("[[channel]]\n").filter(|table| !table.is_empty());
    let channels = channels.map(|table| Channel::parse(table).expect("a channel")).collect();
    let settings = ChannelSettings { channels, ..ChannelSettings::default() };
    Fixture { engine, catalogue, settings }
}

impl Fixture {
    pub(crate) fn begin(&self) -> Channels {
        Channels::begin(&self.settings, &self.catalogue, &self.engine.broker)
    }
}
