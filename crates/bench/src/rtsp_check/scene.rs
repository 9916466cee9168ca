//! What checks have in common: what the server describes, and sessions of its first medium.
//!
//! Promise: each check has a connection and a session of its own, and leaves none behind.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tactus_core::rtp::{self, rtcp};
use tactus_core::sdp::Description;

use super::address::Address;
use super::client::{Connection, Item, ONE, Response, TWO};
use super::transport::{Transport, pair};

/// How media come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TransportKind {
    Udp,
    Tcp,
}

/// A server, and what it has said of itself.
pub(super) struct Scene {
    pub(super) address: Address,
    pub(super) sdp: Description,
    pub(super) sdp_text: String,
    /// What controls stand behind.
    base: String,
    /// What answers to all media, and to the first.
    pub(super) aggregate: String,
    pub(super) control: String,
    pub(super) clock: u32,
    pub(super) payload_type: u8,
    /// Seconds of the presentation, where it says so.
    pub(super) len: Option<f64>,
    /// What OPTIONS has named.
    pub(super) methods: Vec<String>,
    /// It speaks 2.0 as well.
    pub(super) speaks_two: bool,
}

impl Scene {
    /// # Errors
    /// When there is nothing to check: no server, no description, no medium.
    pub(super) fn new(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        let url = address.url.as_str();
        let mut connection = Connection::open(&address)?;
        let options = connection.ask("OPTIONS", url, &[])?;
        let methods = options.header("Public").unwrap_or_default();
        let methods = methods.split(',').map(|method| method.trim().to_owned()).collect();
        let response = describe(&mut connection, url)?;
        let sdp_text = String::from_utf8(response.body.clone()).context("the SDP is no text")?;
        let sdp = Description::read(&sdp_text)
            .map_err(|fault| anyhow::anyhow!("the SDP breaks the rule {fault:?}:\n{sdp_text}"))?;
        let media = sdp.media.first().context("the SDP names no medium")?;
        let payload_type = media.payload_type().context("the first medium has no payload type")?;
        let clock = media.encoding().and_then(|name| name.split('/').nth(1)?.parse().ok());
        let clock = clock.context("the clock of the first medium is not known")?;
        let base = ["Content-Base", "Content-Location"];
        let base = base.into_iter().find_map(|name| response.header(name)).unwrap_or(url);
        let range = sdp.attribute("range").or(media.attribute("range"));
        let len =
            range.and_then(|range| range.strip_prefix("npt=")?.split_once('-')?.1.parse().ok());
        Ok(Self {
            speaks_two: speaks_two(&address)?,
            base: base.to_owned(),
            aggregate: resolve(base, sdp.attribute("control").unwrap_or("*")),
            control: resolve(base, media.attribute("control").unwrap_or("*")),
            address,
            sdp,
            sdp_text,
            clock,
            payload_type,
            len,
            methods,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.address.url
    }

    /// The address of a medium that is described with this `control`.
    pub(super) fn control_of(&self, control: &str) -> String {
        resolve(&self.base, control)
    }

    pub(super) fn connect(&self) -> Result<Connection> {
        Connection::open(&self.address)
    }

    /// What PLAY, PAUSE and TEARDOWN are asked of.
    pub(super) fn presentation(&self) -> &str {
        if self.sdp.media.len() == 1 && self.sdp.attribute("control").is_none() {
            &self.control
        } else {
            &self.aggregate
        }
    }

    /// A session of the first medium.
    pub(super) fn set_up(&self, kind: TransportKind) -> Result<Session<'_>> {
        self.set_up_in(ONE, kind, &[])
    }

    /// The same in 2.0, in which clients say which times they understand (RFC 7826, section 18.5).
    pub(super) fn set_up_two(&self, kind: TransportKind) -> Result<Session<'_>> {
        self.set_up_in(TWO, kind, &[("Accept-Ranges", "npt, smpte, clock")])
    }

    fn set_up_in(
        &self,
        version: &'static str,
        kind: TransportKind,
        more: &[(&str, &str)],
    ) -> Result<Session<'_>> {
        let mut connection = self.connect()?;
        connection.version = version;
        let (offer, sockets) = match kind {
            TransportKind::Tcp => ("RTP/AVP/TCP;unicast;interleaved=0-1".to_owned(), None),
            TransportKind::Udp => {
                let sockets = pair(connection.own()?.ip())?;
                let port = sockets[0].local_addr()?.port();
                let ports = match version {
                    TWO => format!("dest_addr=\":{port}\"/\":{}\"", port + 1),
                    _ => format!("client_port={port}-{}", port + 1),
                };
                (format!("RTP/AVP;unicast;{ports}"), Some(sockets))
            }
        };
        let headers = [&[("Transport", offer.as_str())][..], more].concat();
        let response = connection.ask("SETUP", &self.control, &headers)?;
        let response = response.expect(&[200], "SETUP")?;
        let transport = Transport::parse(response.need("Transport")?)?;
        let (id, timeout) = session(response.need("Session")?)?;
        Ok(Session {
            scene: self,
            connection,
            id,
            timeout,
            transport,
            answer: response,
            sockets,
            arrivals: vec![],
            is_over: false,
        })
    }
}

/// Whether a server speaks 2.0: what it says to the simplest request.
fn speaks_two(address: &Address) -> Result<bool> {
    let mut connection = Connection::open(address)?;
    connection.version = TWO;
    // One that closes the connection does not.
    let options = connection.ask("OPTIONS", &address.url, &[]);
    Ok(options.is_ok_and(|response| response.version == TWO && response.status == 200))
}

/// What `Session` says: the name, and for how long it lives.
pub(super) fn session(header: &str) -> Result<(String, Duration)> {
    let (id, rest) = header.split_once(';').unwrap_or((header, ""));
    let timeout = rest.split(';').find_map(|part| part.trim().strip_prefix("timeout="));
    let timeout = timeout.map(str::parse).transpose().context("the time-out of the session")?;
    Ok((id.trim().to_owned(), Duration::from_secs(timeout.unwrap_or(60))))
}

/// DESCRIBE, as everybody asks it.
pub(super) fn describe(connection: &mut Connection, url: &str) -> Result<Response> {
    let response = connection.ask("DESCRIBE", url, &[("Accept", "application/sdp")])?;
    response.expect(&[200], "DESCRIBE")
}

/// The address that `control` means (RFC 2326, appendix C.1.1).
fn resolve(base: &str, control: &str) -> String {
    if control == "*" {
        return base.to_owned();
    }
    if control.starts_with("rtsp://") {
        return control.to_owned();
    }
    // Servers that mean a directory end with a slash; those that do not mean one all the same.
    format!("{}/{}", base.trim_end_matches('/'), control.trim_start_matches('/'))
}

/// What has come for the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) is_control: bool,
    /// Where it was sent from; none in a connection.
    pub(super) from: Option<SocketAddr>,
    pub(super) bytes: Vec<u8>,
}

/// The part of a packet that checks look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    pub(super) at: Instant,
    pub(super) sequence: u16,
    pub(super) timestamp: u32,
    pub(super) source: u32,
    pub(super) payload_type: u8,
}

/// What PLAY has answered for the first medium.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlayResponse {
    pub(super) response: Response,
    /// Seconds, from and to.
    pub(super) range: Option<(f64, Option<f64>)>,
    pub(super) sequence: Option<u16>,
    pub(super) timestamp: Option<u32>,
}

pub(super) struct Session<'a> {
    scene: &'a Scene,
    pub(super) connection: Connection,
    pub(super) id: String,
    pub(super) timeout: Duration,
    pub(super) transport: Transport,
    /// To SETUP.
    pub(super) answer: Response,
    pub(super) sockets: Option<[UdpSocket; 2]>,
    arrivals: Vec<Arrival>,
    pub(super) is_over: bool,
}

impl Session<'_> {
    /// Asks within the session.
    pub(super) fn ask(&mut self, method: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let id = self.id.clone();
        let headers = [&[("Session", id.as_str())][..], headers].concat();
        let response = self.connection.ask(method, self.scene.presentation(), &headers)?;
        if let (200, Some(named)) = (response.status, response.header("Session")) {
            let named = named.split(';').next().unwrap_or_default().trim();
            ensure!(named == id, "{method} is answered with Session {named}, which is {id}");
        }
        Ok(response)
    }

    pub(super) fn play(&mut self, headers: &[(&str, &str)]) -> Result<PlayResponse> {
        let response = self.ask("PLAY", headers)?.expect(&[200], "PLAY")?;
        played(response, &self.scene.control)
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        self.ask("PAUSE", &[])?.expect(&[200], "PAUSE").map(drop)
    }

    pub(super) fn tear_down(&mut self) -> Result<()> {
        self.is_over = true;
        self.ask("TEARDOWN", &[])?.expect(&[200], "TEARDOWN").map(drop)
    }

    /// What has come, and what comes for so long.
    pub(super) fn listen(&mut self, span: Duration) -> Result<Vec<Arrival>> {
        self.listen_until(span, |_| false)
    }

    /// The same, until something has come.
    pub(super) fn listen_until(
        &mut self,
        span: Duration,
        is_enough: impl Fn(&[Arrival]) -> bool,
    ) -> Result<Vec<Arrival>> {
        let until = Instant::now() + span;
        let mut came = std::mem::take(&mut self.arrivals);
        loop {
            self.take_frames(&mut came)?;
            let now = Instant::now();
            if now >= until || is_enough(&came) {
                return Ok(came);
            }
            match &self.sockets {
                None => {
                    if let Some(item) = self.connection.next(until.min(now + LOOK))? {
                        self.put(item)?;
                    }
                }
                Some(sockets) => {
                    for (nth, socket) in sockets.iter().enumerate() {
                        receive(socket, nth == 1, &mut came)?;
                    }
                    if self.connection.version == ONE {
                        // A server may close its connection before it stops to send.
                        std::thread::sleep(PAUSE);
                    } else if let Some(item) = self.connection.next(now + PAUSE)? {
                        self.put(item)?;
                    }
                }
            }
        }
    }

    fn put(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Frame(frame) => self.connection.frames.push(frame),
            Item::Request(asked) => self.connection.hear(asked)?,
            Item::Response(response) => {
                anyhow::bail!("nobody has asked for {} {}", response.status, response.reason)
            }
        }
        Ok(())
    }

    fn take_frames(&mut self, came: &mut Vec<Arrival>) -> Result<()> {
        let (data, control) = self.transport.interleaved.unwrap_or((0, 1));
        for frame in self.connection.frames.drain(..) {
            let channel = u16::from(frame.channel);
            ensure!(
                self.sockets.is_none() && (channel == data || channel == control),
                "a frame came on channel {channel}, on which nothing was agreed"
            );
            let is_control = channel == control;
            came.push(Arrival { at: frame.at, is_control, from: None, bytes: frame.bytes });
        }
        Ok(())
    }

    /// The packets of the medium among what has come.
    pub(super) fn packets(&self, came: &[Arrival]) -> Result<Vec<Packet>> {
        let data = came.iter().filter(|arrival| !arrival.is_control);
        let read = data.map(|arrival| {
            let packet = rtp::Packet::read(&arrival.bytes);
            let packet = packet.map_err(|fault| anyhow::anyhow!("no packet of RTP: {fault:?}"))?;
            let rtp::Packet { sequence, timestamp, source, payload_type, .. } = packet;
            Ok(Packet { at: arrival.at, sequence, timestamp, source, payload_type })
        });
        read.collect()
    }

    /// The first packets; fails when there are none.
    pub(super) fn first_packets(&mut self, count: usize) -> Result<Vec<Packet>> {
        let enough =
            |came: &[Arrival]| came.iter().filter(|each| !each.is_control).count() >= count;
        let came = self.listen_until(Duration::from_secs(15), enough)?;
        let packets = self.packets(&came)?;
        ensure!(packets.len() >= count, "{} packets came in 15 s", packets.len());
        Ok(packets)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // Whatever the check has found: the server needs its place again.
            self.tear_down().ok();
        }
    }
}

fn receive(socket: &UdpSocket, is_control: bool, came: &mut Vec<Arrival>) -> Result<()> {
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 65_536];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let (at, bytes) = (Instant::now(), buffer[..len].to_vec());
        came.push(Arrival { at, is_control, from: Some(from), bytes });
    }
    Ok(())
}

/// What PLAY says of the medium `control`.
fn played(response: Response, control: &str) -> Result<PlayResponse> {
    let range = response.header("Range").and_then(|range| range.trim().strip_prefix("npt="));
    let range = range.map(|range| -> Result<_> {
        let (from, to) =
            range.split(';').next().unwrap_or_default().split_once('-').context("no -")?;
        let to = Some(to).filter(|to| !to.is_empty()).map(str::parse).transpose()?;
        Ok((from.parse().unwrap_or(0.0), to))
    });
    let range = range.transpose().context("the Range of PLAY")?;
    // Version 2.0 writes it in another way, which has a check of its own.
    let info = response.header("RTP-Info").filter(|_| response.version == ONE).unwrap_or_default();
    // Of several media the one that was set up; a single one may be called what it likes.
    let all: Vec<&str> = info.split(',').collect();
    let own = all.iter().find(|info| info.contains(control)).or(all.first()).unwrap_or(&"");
    let field = |name: &str| own.split(';').find_map(|part| part.trim().strip_prefix(name));
    let sequence = field("seq=").map(str::parse).transpose().context("seq of RTP-Info")?;
    let timestamp = field("rtptime=").map(str::parse).transpose().context("rtptime of RTP-Info")?;
    Ok(PlayResponse { response, range, sequence, timestamp })
}

/// The sender reports among what has come: when, and what they say.
pub(super) fn sender_reports(came: &[Arrival]) -> Result<Vec<(Instant, u32, rtcp::SenderInfo)>> {
    let mut reports = vec![];
    for arrival in came.iter().filter(|arrival| arrival.is_control) {
        let packets = rtcp::read(&arrival.bytes);
        let packets = packets.map_err(|fault| anyhow::anyhow!("no packet of RTCP: {fault:?}"))?;
        for packet in packets {
            if let rtcp::Packet::Sender { source, info, .. } = packet {
                reports.push((arrival.at, source, info));
            }
        }
    }
    Ok(reports)
}

/// How long one look at the connection takes at most.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at sockets.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_resolved_as_servers_mean_them() {
        let base = "rtsp://a:1/x.ts";
        assert_eq!(resolve(base, "*"), base);
        assert_eq!(resolve(base, "rtsp://b/y"), "rtsp://b/y");
        assert_eq!(resolve("rtsp://a:1/x.ts/", "stream=0"), "rtsp://a:1/x.ts/stream=0");
        assert_eq!(resolve(base, "stream=0"), "rtsp://a:1/x.ts/stream=0");
    }

    #[test]
    fn what_play_says_is_read() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let info =
            "url=rtsp://a/x/s=0;seq=7;rtptime=8, url=rtsp://a/x/s=1;seq=65535;rtptime=4294967295";
        let response = Response {
            version: "RTSP/1.0".to_owned(),
            status: 200,
            reason: String::new(),
            headers: vec![header("RTP-Info", info), header("range", "npt=1.5-9.25")],
            body: vec![],
        };
        let played = played(response, "rtsp://a/x/s=1").expect("it is well formed");
        assert_eq!((played.sequence, played.timestamp), (Some(65_535), Some(u32::MAX)));
        assert_eq!(played.range, Some((1.5, Some(9.25))));
    }
}
