//! A server in this process: titles, an engine, a site, and a port.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tactus_control::engine::{self, Engine};
use tactus_control::recording::Recorder;
use tactus_control::rights::{Readers, Rights};
use tactus_control::settings::{ClientShare, EngineSettings, Sendfile, UnfinishedTitles, Volume};
use tactus_core::units::{Bytes, MIB};
use tactus_http::settings::{Principal, Rate, Token, Upload, UploadSettings};
use tactus_http::{
    self, Abuse, Control, Counters, Internal, Limits, Response, Site, Store, Uploads,
};
use tactus_notation::Auto;
use tactus_playout::ingest::Recordings;
use tactus_storage::catalogue::{Catalogue, CatalogueRules};
use tactus_storage::store;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::Client;

/// What a case changes before the server starts.
pub(crate) struct Plan {
    pub(crate) engine: EngineSettings,
    pub(crate) rate: Rate,
    pub(crate) upload: Upload,
    /// Who may read titles.
    pub(crate) readers: Readers,
    pub(crate) limits: Limits,
    /// The directory that is served; the server's own, unless a case says otherwise.
    pub(crate) root: PathBuf,
    /// Which way its blocks go.
    pub(crate) sendfile: Sendfile,
    /// Whether those of `upload` may put titles there.
    pub(crate) uploads: bool,
    /// Whether titles can be read while they come in.
    pub(crate) unfinished: UnfinishedTitles,
    /// Whether directories are shown to everybody.
    pub(crate) listing: bool,
}

pub(crate) struct TestServer {
    // Dropped in this order: first the connections, then the engine under them, then its files.
    runtime: Option<Runtime>,
    pub(crate) engine: Engine,
    pub(crate) counters: Arc<Counters>,
    pub(crate) address: SocketAddr,
    /// The address for the PROXY protocol.
    pub(crate) proxied: SocketAddr,
    store: Option<store::Store>,
    directory: TempDir,
}

/// Who may upload, where somebody may: `alice`, and `bob` with the other.
pub(crate) const TOKEN: &str = "correct-horse-battery-staple";
pub(crate) const OTHER_TOKEN: &str = "another-secret-of-somebody-else";

/// Answers one path, as metrics would.
struct Echo;

impl Internal for Echo {
    fn answer(&self, path: &str, query: Option<&str>, _: Option<&str>) -> Option<Response> {
        (path == "/api/v1/echo").then(|| Response::text(200, query.unwrap_or("nothing")))
    }
}

/// A quick disk, written down, so that no case waits for measurements or depends on them.
const MODEL: &str = r#"
version = 1
measured = "for the cases"
device = "none"
probes = false
[model]
visit = "30 us"
sweep = "0 ns"
read_mib = "600 us"
write_mib = "600 us"
depth = 16
"#;

/// `/a.ts`: not a whole number of sectors, and larger than a block.
pub(crate) const A_LEN: usize = 1_234_567;

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// One that takes uploads.
    pub(crate) fn taking_uploads() -> Self {
        Self::with(|plan| plan.uploads = true)
    }

    pub(crate) fn with(change: impl FnOnce(&mut Plan)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("dir")).unwrap();
        fs::write(root.join("a.ts"), content(A_LEN)).unwrap();
        fs::write(root.join("dir/b.mp4"), content(5000)).unwrap();
        fs::write(root.join("empty.ts"), b"").unwrap();

        let mut engine = EngineSettings::default();
        let (mut rate, mut upload) = (Rate::default(), Upload::default());
        engine.memory.arena = Auto::Set(Bytes(64 * MIB));
        engine.memory.streams_max = 256;
        engine.best_effort.streams_max = Auto::Set(128);
        // All cases come from this host.
        engine.best_effort.client_share = ClientShare::All;
        rate.asked.client_share = ClientShare::All;
        // The cases share the machine with each other.
        engine.cores.realtime = false;
        engine.memory.lock = false;
        // All cases come from this host, and one of them must not shut out the others.
        let limits = Limits { abuse_score_max: u32::MAX, ..Limits::default() };
        for (name, token) in [("alice", TOKEN), ("bob", OTHER_TOKEN)] {
            let file = directory.path().join(name);
            fs::write(&file, token).unwrap();
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&file, private).unwrap();
            let (name, token) = (name.to_owned(), Token::File(file));
            upload.principals.push(Principal { name, token, quota: None, rights: Rights::all() });
        }
        let sendfile = Sendfile::Auto;
        let (uploads, unfinished) = (false, UnfinishedTitles::Hidden);
        let listing = true;
        let readers = Readers::default();
        let mut plan = Plan {
            engine,
            rate,
            upload,
            readers,
            limits,
            root,
            sendfile,
            uploads,
            unfinished,
            listing,
        };
        change(&mut plan);
        let model = directory.path().join("disk-model.toml");
        fs::write(&model, MODEL).unwrap();
        let volumes = vec![Volume {
            model,
            sendfile: plan.sendfile,
            uploads: plan.uploads,
            unfinished: plan.unfinished,
            ..Volume::new(plan.root.clone())
        }];
        plan.engine.volumes.clone_from(&volumes);
        plan.engine.start_burst = plan.rate.title.start_burst;

        let engine = engine::start(&plan.engine).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let uploads = plan.uploads.then(|| {
            let write_path = engine.write_paths[0].clone().expect("the volume takes uploads");
            let media = [Some(Arc::new(write_path) as Arc<dyn store::Medium>)];
            let settings = UploadSettings {
                upload: plan.upload.clone(),
                readers: plan.readers,
                volumes: volumes.clone(),
                state: None,
                records: false,
            };
            runtime.block_on(Uploads::open(&settings, &media)).unwrap().expect("somebody may")
        });
        let rules = CatalogueRules { probe: tactus_media::probe::probe, ..Default::default() };
        let catalogue = Arc::new(Catalogue::new(&plan.root, rules).unwrap());
        if let Some(uploads) = &uploads {
            uploads.show_unfinished(&volumes, &catalogue);
            uploads.read_by_plan(&engine.broker, &catalogue);
        }
        let within = runtime.enter();
        let recorder = uploads.as_ref().map(|uploads| {
            let recorder = Recorder::new(engine.broker.clone(), Arc::clone(&uploads.volumes));
            recorder.finish_left();
            recorder
        });
        drop(within);
        let mut control = Control::default();
        if let (Some(uploads), Some(recorder)) = (&uploads, &recorder) {
            let (catalogue, volumes) = (Arc::clone(&catalogue), Arc::clone(&uploads.volumes));
            let recordings =
                Recordings::new(vec![plan.root.clone()], catalogue, volumes, recorder.clone());
            control.recordings = Some(recordings);
        }
        let store = Store {
            catalogue,
            broker: engine.broker.clone(),
            rates: plan.rate,
            listing: plan.listing,
            uploads: uploads.clone(),
            control,
            watchdog: engine.watchdog.clone(),
            recorder: recorder.clone(),
        };
        let counters = Arc::new(Counters::default());
        let site = Site::new(plan.limits, Arc::clone(&counters), Some(store), Arc::new(Echo));
        let site = Arc::new(site);
        let bind = || runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let (listener, of_proxies) = (bind(), bind());
        let address = listener.local_addr().unwrap();
        let proxied = of_proxies.local_addr().unwrap();
        runtime.spawn(tactus_http::serve(listener, Arc::clone(&site)));
        runtime.spawn(tactus_http::serve_proxies(of_proxies, site));
        let store = uploads.and_then(|uploads| uploads.volumes[0].clone());
        Self { runtime: Some(runtime), engine, counters, address, proxied, store, directory }
    }

    /// The store behind it, where uploads are taken.
    pub(crate) fn store(&self) -> &store::Store {
        self.store.as_ref().expect("a case about uploads")
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it runs until the end").block_on(work)
    }

    /// Bytes of the titles that every server has.
    pub(crate) fn stored_before(&self) -> u64 {
        A_LEN as u64 + 5000
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Outside of what is served.
    pub(crate) fn outside(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A client with an address of its own: this host answers to all of 127/8.
    pub(crate) fn client_from(&self, last: [u8; 2]) -> Client {
        let from = IpAddr::V4(Ipv4Addr::new(127, 1, last[0], last[1]));
        Client::connect_from(self.address, from, None)
    }

    pub(crate) fn count(&self, abuse: Abuse) -> u64 {
        self.counters.abuse(abuse)
    }

    /// Waits until a condition holds; a case that waits in vain fails by its message.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..4000 {
            if holds(self) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("waited in vain until {what}");
    }

    /// After whatever a case did, the server answers others.
    pub(crate) fn serves_others(&self) {
        let mut client = self.client_from([255, 1]);
        let answer = client.get("/dir/b.mp4?rate=max", "");
        assert_eq!((answer.status, answer.body), (200, content(5000)));
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }
}

/// Bytes of which no two places look alike.
pub(crate) fn content(len: usize) -> Vec<u8> {
    tactus_testkit::content(0, len)
}
