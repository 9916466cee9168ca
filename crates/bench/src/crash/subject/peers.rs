//! Other servers that take uploads, under the same power failures: nginx for titles, `@tus/server`
//! for uploads that can be resumed.
//!
//! Promise: each is what its packages install, with the settings that its documentation gives for
//! this use. Neither of them has a setting for flushes.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tactus_core::units::{Nanos, SECOND};
use tempfile::TempDir;

use super::served::{self, CLIENTS, ClientLoad, Load, TUS, Uploads};
use super::{RecoveredSubject, Subject, files};
use crate::clock;
use crate::crash::client::Client;
use crate::crash::history::{History, ResumedUpload, VolumeContents};
use crate::crash::recorder::Recorder;
use crate::random::Random;

/// Those that are installed: nginx is looked for when it is asked for, `@tus/server` in `modules`.
pub(super) fn all(modules: Option<&Path>) -> Vec<Box<dyn Subject>> {
    let mut all: Vec<Box<dyn Subject>> = vec![Box::new(Nginx)];
    if let Some(modules) = modules {
        all.push(Box::new(TusServer { modules: modules.to_owned() }));
    }
    all
}

/// `ngx_http_dav_module`.
struct Nginx;

/// Where nginx keeps a body until it has its name: on the same file system, so that it is renamed.
const BODIES: &str = ".bodies";

impl Subject for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn method(&self) -> &str {
        "nginx's dav module: PUT, replace, DELETE, MOVE"
    }

    fn audio(&self) -> bool {
        false
    }

    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()> {
        let peer = Peer::start(|folder, port| {
            let (own, root) = (folder.display(), root.display());
            let file = folder.join("nginx.conf");
            let text = format!(
                "daemon off; pid {own}/pid; error_log stderr; user root; worker_processes 2;\n\
                 events {{}}\n\
                 http {{\n\
                 access_log off; client_max_body_size 0; client_body_temp_path {root}/{BODIES};\n\
                 proxy_temp_path {own}/a; fastcgi_temp_path {own}/b; uwsgi_temp_path {own}/c;\n\
                 scgi_temp_path {own}/d;\n\
                 server {{\n\
                 listen 127.0.0.1:{port};\n\
                 location / {{\n\
                 root {root}; dav_methods PUT DELETE MOVE; create_full_put_path on;\n\
                 }} }} }}\n"
            );
            fs::write(&file, text)?;
            let mut command = Command::new("nginx");
            command.arg("-c").arg(file);
            Ok(command)
        })?;
        let acts = ClientLoad { titles: 22, uploads: 0 };
        peer.work(recorder, random, acts, &Uploads::TITLES)
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        // It has no recovery of its own.
        Ok(Box::new(NginxVolume(root)))
    }
}

/// What nginx has left.
struct NginxVolume<'a>(&'a Path);

impl RecoveredSubject for NginxVolume<'_> {
    fn look(&mut self, _history: &History) -> Result<VolumeContents> {
        let mut found =
            VolumeContents { titles: served::titles(self.0)?, ..VolumeContents::default() };
        let bodies = self.0.join(BODIES);
        let left = if bodies.exists() { files(&bodies)? } else { Vec::new() };
        found.strays.extend(left.into_iter().map(|(name, _)| format!("the body {name}")));
        Ok(found)
    }
}

/// `@tus/server` with `@tus/file-store`.
struct TusServer {
    modules: PathBuf,
}

const PROGRAM: &str = r#"
import { createRequire } from "node:module";
const [modules, directory, port] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Server } = require("@tus/server");
const { FileStore } = require("@tus/file-store");
const server = new Server({ path: "/files", datastore: new FileStore({ directory }) });
server.listen({ host: "127.0.0.1", port: Number(port) });
"#;

impl TusServer {
    fn start(&self, root: &Path) -> Result<Peer> {
        Peer::start(|folder, port| {
            let file = folder.join("server.mjs");
            fs::write(&file, PROGRAM)?;
            let mut command = Command::new("node");
            command.arg(file).arg(&self.modules).arg(root).arg(port.to_string());
            Ok(command)
        })
    }
}

impl Subject for TusServer {
    fn name(&self) -> &str {
        "tus-server"
    }

    fn method(&self) -> &str {
        "@tus/server with @tus/file-store: uploads in parts"
    }

    fn audio(&self) -> bool {
        false
    }

    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()> {
        let acts = ClientLoad { titles: 0, uploads: 22 };
        self.start(root)?.work(recorder, random, acts, &Uploads { at: "/files", stay: true })
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        Ok(Box::new(Offsets { peer: self.start(root)?, root }))
    }
}

/// What `@tus/server` says that it has.
struct Offsets<'a> {
    peer: Peer,
    root: &'a Path,
}

impl RecoveredSubject for Offsets<'_> {
    fn look(&mut self, history: &History) -> Result<VolumeContents> {
        let mut client = self.peer.client();
        let mut found = VolumeContents::default();
        for (url, _, version) in history.uploads() {
            let answer = client.ask("HEAD", url, TUS, &[])?;
            // An empty description is answered with 500; to a client the upload is gone, too.
            if answer.status != 200 {
                continue;
            }
            let offset = answer.field("upload-offset").context("an upload without an offset")?;
            let offset: u64 = offset.parse()?;
            let id = url.rsplit('/').next().context("an upload without a name")?;
            let bytes = fs::read(self.root.join(id))?;
            let below = &bytes[..bytes.len().min(offset as usize)];
            let short = (below.len() < offset as usize).then_some(below.len() as u64);
            let wrong_at = match offset > version.length() {
                true => Some(version.length()),
                false => version.differs(below).or(short),
            };
            found.uploads.insert(url.clone(), ResumedUpload { offset, wrong_at });
        }
        Ok(found)
    }
}

/// A running server.
struct Peer {
    child: Child,
    address: SocketAddr,
    /// Its configuration and its output.
    folder: TempDir,
}

const PATIENCE: Nanos = SECOND.times(20);

impl Peer {
    /// Starts what `command` says for a folder and a port, and waits until it listens.
    fn start(command: impl FnOnce(&Path, u16) -> Result<Command>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tactus-crash-peer-").tempdir()?;
        // Free a moment ago; whoever takes it meanwhile makes the start fail.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let log = File::create(folder.path().join("output.log"))?;
        let mut command = command(folder.path(), address.port())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut peer = Self { child, address, folder };
        let deadline = clock::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = peer.child.try_wait()? {
                bail!("it ended with {status}: {}", peer.output());
            }
            ensure!(clock::now() < deadline, "it does not listen: {}", peer.output());
            clock::sleep(Nanos::from_millis(2));
        }
        Ok(peer)
    }

    fn client(&self) -> Client {
        Client::new(self.address, String::new())
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output.log")).unwrap_or_default()
    }

    /// Clients at work, as with ours.
    fn work(
        &self,
        recorder: &Recorder<'_>,
        random: &mut Random,
        acts: ClientLoad,
        uploads: &'static Uploads,
    ) -> Result<()> {
        let seeds: Vec<_> = (0..CLIENTS).map(|_| random.next()).collect();
        std::thread::scope(|scope| {
            let work = |(number, seed)| {
                let mut load = Load::new(number, self.client(), recorder, seed);
                load.uploads = uploads;
                scope.spawn(move || load.work(acts))
            };
            let workers: Vec<_> = seeds.into_iter().enumerate().map(work).collect();
            for worker in workers {
                let worked = worker.join().map_err(|_| anyhow!("a client panicked"))?;
                worked.with_context(|| self.output())?;
            }
            Ok(())
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Gently: nginx has processes of its own, which it ends.
        let id = self.child.id().to_string();
        let asked = Command::new("kill").arg(&id).status();
        if asked.and_then(|_| self.child.wait()).is_err() {
            eprintln!("left behind: process {id}");
        }
    }
}
