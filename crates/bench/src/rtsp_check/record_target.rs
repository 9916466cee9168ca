//! What checks of recording have in common: an announcement, and sessions that send video frames.
//!
//! Promise: each check has a connection and a session of its own, and ends it. What it has sent
//! stays with the server.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use tactus_core::rtp::rtcp::{Compound, NtpTime, SenderInfo};
use tactus_core::rtp::{Header, frame};
use tactus_core::units::WallTime;

use super::address::Address;
use super::client::{Connection, Item, Response};
use super::scene::{TransportKind, session};
use super::transport::{Transport, pair};
use super::video_frame::{self, picture_parameters, sequence_parameters};

/// Where one check records to.
pub(super) struct RecordTarget {
    pub(super) address: Address,
}

const PAYLOAD_TYPE: u8 = 96;
const CLOCK: u32 = 90_000;
const SOURCE: u32 = 0x7ac7_0501;
/// What the one medium is called.
const CONTROL: &str = "streamid=0";

impl RecordTarget {
    /// The place for the check of this name, which stands where `url` has `{}`.
    pub(super) fn new(url: &str, name: &str) -> Result<Self> {
        Ok(Self { address: Address::parse(&url.replace("{}", name))? })
    }

    pub(super) fn url(&self) -> &str {
        &self.address.url
    }

    /// What SETUP is asked of.
    pub(super) fn control(&self) -> String {
        format!("{}/{CONTROL}", self.url())
    }

    pub(super) fn connect(&self) -> Result<Connection> {
        Connection::open(&self.address)
    }

    /// Video frames, and nothing else.
    pub(super) fn description(&self) -> String {
        let [sequence, picture] = [sequence_parameters(), picture_parameters()];
        let sets = format!("{},{}", BASE64.encode(&sequence), BASE64.encode(&picture));
        format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=rtsp-check\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n\
             a=control:*\r\n\
             m=video 0 RTP/AVP {PAYLOAD_TYPE}\r\nb=AS:128\r\n\
             a=rtpmap:{PAYLOAD_TYPE} H264/{CLOCK}\r\n\
             a=fmtp:{PAYLOAD_TYPE} \
             packetization-mode=1;profile-level-id=42C00A;sprop-parameter-sets={sets}\r\n\
             a=control:{CONTROL}\r\n"
        )
    }

    pub(super) fn announce(&self, connection: &mut Connection) -> Result<Response> {
        let headers = [("Content-Type", "application/sdp")];
        connection.ask_with("ANNOUNCE", self.url(), &headers, &self.description())
    }

    /// ANNOUNCE and SETUP.
    pub(super) fn set_up(&self, kind: TransportKind) -> Result<RecordSession<'_>> {
        let mut connection = self.connect()?;
        self.announce(&mut connection)?.expect(&[200], "ANNOUNCE")?;
        let (offer, sockets) = match kind {
            TransportKind::Tcp => {
                ("RTP/AVP/TCP;unicast;interleaved=0-1;mode=record".to_owned(), None)
            }
            TransportKind::Udp => {
                let sockets = pair(connection.own()?.ip())?;
                let port = sockets[0].local_addr()?.port();
                let offer = format!("RTP/AVP;unicast;client_port={port}-{};mode=record", port + 1);
                (offer, Some(sockets))
            }
        };
        let response = connection.ask("SETUP", &self.control(), &[("Transport", &offer)])?;
        let response = response.expect(&[200], "SETUP")?;
        let transport = Transport::parse(response.need("Transport")?)?;
        let (id, _) = session(response.need("Session")?)?;
        let is_over = false;
        let sent = SentCounts::default();
        Ok(RecordSession { record_target: self, connection, id, transport, sockets, sent, is_over })
    }
}

/// What has been sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct SentCounts {
    video_frames: u32,
    packets: u32,
    bytes: u32,
}

/// A session that records.
pub(super) struct RecordSession<'a> {
    record_target: &'a RecordTarget,
    pub(super) connection: Connection,
    pub(super) id: String,
    pub(super) transport: Transport,
    pub(super) sockets: Option<[UdpSocket; 2]>,
    sent: SentCounts,
    pub(super) is_over: bool,
}

impl RecordSession<'_> {
    /// Asks within the session.
    pub(super) fn ask(&mut self, method: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let id = self.id.clone();
        let headers = [&[("Session", id.as_str())][..], headers].concat();
        self.connection.ask(method, self.record_target.url(), &headers)
    }

    pub(super) fn record(&mut self) -> Result<()> {
        self.ask("RECORD", &[("Range", "npt=0-")])?.expect(&[200], "RECORD").map(drop)
    }

    /// Sends video frames for a while, and what ties them to the time.
    pub(super) fn send(&mut self, span: Duration) -> Result<()> {
        let begin = Instant::now();
        let first = self.sent.video_frames;
        self.report()?;
        let count = (span.as_secs_f64() * f64::from(video_frame::RATE)) as u32;
        for nth in 0..count {
            let due = begin + Duration::from_secs(1) * nth / video_frame::RATE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.show(first + nth)?;
        }
        Ok(())
    }

    /// One video frame, with its parameters in front.
    fn show(&mut self, number: u32) -> Result<()> {
        let units = [sequence_parameters(), picture_parameters(), video_frame::video_frame(number)];
        for (unit, is_last) in units.iter().zip([false, false, true]) {
            let header = Header {
                marker: is_last,
                payload_type: PAYLOAD_TYPE,
                // Runs modulo its width.
                sequence: self.sent.packets as u16,
                timestamp: number * (CLOCK / video_frame::RATE),
                source: SOURCE,
            };
            // RFC 6184, section 5.6: a unit is the payload as it is.
            self.put(false, &[&header.write()[..], unit].concat())?;
            self.sent.packets += 1;
            self.sent.bytes += unit.len() as u32;
        }
        self.sent.video_frames = number + 1;
        Ok(())
    }

    /// A sender's report.
    fn report(&mut self) -> Result<()> {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed()?;
        let SentCounts { video_frames, packets, bytes } = self.sent;
        let info = SenderInfo {
            time: NtpTime::of(WallTime(u64::try_from(since.as_nanos())?)),
            timestamp: video_frames * (CLOCK / video_frame::RATE),
            packets,
            octets: bytes,
        };
        let report = Compound::of_sender(SOURCE, &info, &[]).name(SOURCE, "rtsp-check");
        self.put(true, &report.into_bytes())
    }

    fn put(&mut self, is_report: bool, bytes: &[u8]) -> Result<()> {
        let nth = usize::from(is_report);
        if let Some(sockets) = &self.sockets {
            let (rtp, rtcp) = self.transport.from().context("there is no server_port")?;
            let to = SocketAddr::new(self.connection.peer()?.ip(), [rtp, rtcp][nth]);
            sockets[nth].send_to(bytes, to).context("a packet cannot be sent")?;
            return Ok(());
        }
        let (rtp, rtcp) = self.transport.interleaved.unwrap_or((0, 1));
        let channel = u8::try_from([rtp, rtcp][nth]).context("a channel")?;
        let head = frame::head(channel, u16::try_from(bytes.len())?);
        self.connection.send_raw(&[&head[..], bytes].concat())
    }

    pub(super) fn tear_down(&mut self) -> Result<()> {
        self.is_over = true;
        self.ask("TEARDOWN", &[])?.expect(&[200], "TEARDOWN").map(drop)
    }

    /// What the server sends meanwhile is read: nothing but reports on their channel.
    pub(super) fn look(&mut self, span: Duration) -> Result<usize> {
        let until = Instant::now() + span;
        while let Some(item) = self.connection.next(until)? {
            match item {
                Item::Frame(frame) => self.connection.frames.push(frame),
                Item::Request(asked) => self.connection.hear(asked)?,
                Item::Response(response) => {
                    anyhow::bail!("nobody has asked for {} {}", response.status, response.reason)
                }
            }
        }
        let (_, rtcp) = self.transport.interleaved.unwrap_or((0, 1));
        for frame in &self.connection.frames {
            let channel = frame.channel;
            ensure!(u16::from(channel) == rtcp, "a frame came on channel {channel}");
        }
        Ok(self.connection.frames.len())
    }
}

impl Drop for RecordSession<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // Whatever the check has found: the server needs its place again.
            self.tear_down().ok();
        }
    }
}
