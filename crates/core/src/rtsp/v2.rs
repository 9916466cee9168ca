//! RTSP 2.0 (RFC 7826) beyond 1.0: features, media properties, pipelined requests, and the end of a
//! stream.
//!
//! Promise: the advertised features are implemented (`play.basic` and `play.scale`, ranges in
//! `npt`, random access, immutable media). A refusal names the missing features. The pipelines of a
//! connection are bounded.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::message::whole;
use super::session::SessionId;
use super::{Status, Version};
use crate::units::MediaTime;

/// The methods; there is no recording (RFC 7826, section 13).
pub const PUBLIC: &str =
    "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER, SET_PARAMETER";
/// The supported features (section 11).
const FEATURES: [&str; 2] = ["play.basic", "play.scale"];
/// The range formats (section 18.5).
pub const ACCEPT_RANGES: &str = "npt";
/// Titles are stored, immutable, and have random access points (section 18.29).
pub const MEDIA_PROPERTIES: &str = "Random-Access, Immutable, Unlimited";
/// PLAY starts at the last random access point before the requested time (section 18.47).
pub const SEEK_STYLE: &str = "RAP";
/// The supported `Speed` (section 18.50).
pub const SPEED: &str = "1.0-1.0";
/// Pipelines of a connection: clients use one for each session.
pub const PIPELINES_MAX: usize = 16;

/// The value of `Supported` (section 18.51).
pub fn supported() -> String {
    FEATURES.join(", ")
}

/// The unsupported ones of all required features; `None` if all are supported.
pub fn unsupported<'a>(required: impl Iterator<Item = &'a str>) -> Option<String> {
    let tags = required.flat_map(|tags| tags.split(',')).map(str::trim);
    // A list may have empty elements, as lists of HTTP (RFC 9110 section 5.6.1).
    let tags = tags.filter(|tag| !tag.is_empty());
    let is_there = |tag: &str| FEATURES.iter().any(|known| known.eq_ignore_ascii_case(tag));
    let missing: Vec<_> = tags.filter(|tag| !is_there(tag)).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Whether a client with these range formats accepts `npt`.
pub fn accepts_npt(accepted: &str) -> bool {
    accepted.split(',').any(|format| format.trim().eq_ignore_ascii_case(ACCEPT_RANGES))
}

/// The number of a pipeline, which identifies a session before its id is known (section 18.33).
pub fn pipeline(value: &str) -> Option<u32> {
    whole(value)
}

/// The pipelines of a connection.
#[derive(Default, Debug)]
pub struct Pipelines {
    /// The oldest first.
    all: VecDeque<(u32, SessionId)>,
}

impl Pipelines {
    /// Binds `number` to this session.
    pub fn bind(&mut self, number: u32, id: SessionId) {
        self.all.retain(|(known, _)| *known != number);
        if self.all.len() == PIPELINES_MAX {
            self.all.pop_front();
        }
        self.all.push_back((number, id));
    }

    /// The session bound to `number`.
    pub fn find(&self, number: u32) -> Option<SessionId> {
        self.all.iter().find(|(known, _)| *known == number).map(|(_, id)| *id)
    }
}

/// `RTP-Info` of one stream (RFC 2326, section 12.33; RFC 7826, section 18.45).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RtpInfo {
    /// The URL of the stream.
    pub url: String,
    /// The SSRC.
    pub source: u32,
    /// The sequence number of a packet.
    pub sequence: u16,
    /// Its timestamp, if it is given.
    pub timestamp: Option<u32>,
}

impl RtpInfo {
    /// The value for all of `streams`.
    pub fn write(version: Version, streams: &[Self]) -> String {
        let mut text = String::new();
        for Self { url, source, sequence, timestamp } in streams {
            let is_first = text.is_empty();
            let (comma, stream) = match version {
                Version::Two => {
                    // A quote cannot end the value.
                    let url = url.replace('"', "%22");
                    (", ", format!("url=\"{url}\" ssrc={source:08X}:"))
                }
                Version::One | Version::Other => (",", format!("url={url};")),
            };
            text.push_str(if is_first { "" } else { comma });
            text.push_str(&stream);
            write!(text, "seq={sequence}").expect("a string takes what is written");
            let Some(timestamp) = timestamp else { continue };
            write!(text, ";rtptime={timestamp}").expect("a string takes what is written");
            if version == Version::Two {
                // rtspsrc of GStreamer reads the parameters between semicolons as in 1.0, and knows
                // neither the quoted URL nor the numbers after the colon. Without them it takes the
                // stream to begin before its first packet, and cuts off as much of its end. The
                // values are therefore repeated as parameters, which other clients skip.
                let name = url.rsplit('/').next().unwrap_or_default();
                write!(text, ";seq={sequence};url={name}").expect("a string takes what is written");
            }
        }
        text
    }
}

/// The end of a stream, for PLAY_NOTIFY (section 13.5.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEnd {
    /// The URL of the stream.
    pub url: String,
    /// The session.
    pub session: SessionId,
    /// The CSeq of the PLAY.
    pub played: u32,
    /// The status of the end.
    pub status: Status,
    /// The position at the end.
    pub at: MediaTime,
    /// The scale, if it was not 1.
    pub scale: Option<String>,
    /// The last packets.
    pub last: Vec<RtpInfo>,
}

impl StreamEnd {
    /// PLAY_NOTIFY with this CSeq, sent at `date`.
    pub fn write(&self, cseq: u32, date: &str) -> Vec<u8> {
        let Self { url, session, played, status, .. } = self;
        let millis = u128::from(self.at.0) / 27_000;
        let mut text = format!("PLAY_NOTIFY {url} {}\r\n", Version::Two);
        let mut field = |name: &str, value: &str| {
            let plain: String = value.chars().filter(|c| !c.is_control()).collect();
            write!(text, "{name}: {plain}\r\n").expect("a string takes what is written");
        };
        field("CSeq", &cseq.to_string());
        field("Date", date);
        field("Session", &session.to_string());
        field("Notify-Reason", "end-of-stream");
        let reason = status.reason(Version::Two);
        field("Request-Status", &format!("cseq={played} status={} reason=\"{reason}\"", status.0));
        field("Range", &format!("npt=-{}.{:03}", millis / 1000, millis % 1000));
        if let Some(scale) = &self.scale {
            field("Scale", scale);
        }
        if !self.last.is_empty() {
            field("RTP-Info", &RtpInfo::write(Version::Two, &self.last));
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn what_is_required_is_there_or_named() {
        let missing = |fields: &[&'static str]| unsupported(fields.iter().copied());
        assert_eq!(missing(&["play.basic", "play.scale, Play.Basic"]), None);
        let both = "setup.rtp.rtcp.mux, com.example.x".to_string();
        assert_eq!(missing(&["play.basic,setup.rtp.rtcp.mux", "com.example.x"]), Some(both));
        assert_eq!(missing(&["", ", play.basic,,"]), None, "empty elements name nothing");
        assert_eq!(supported(), "play.basic, play.scale");
        assert!(accepts_npt("npt, clock, smpte, clock") && accepts_npt("smpte,NPT"));
        assert!(!accepts_npt("clock, smpte-25") && !accepts_npt(""));
    }

    #[test]
    fn packets_are_named_as_the_version_has_it() {
        let url = "rtsp://h/a.ts/track1".to_string();
        let one = RtpInfo { url, source: 0xd12_f123, sequence: 5, timestamp: Some(7) };
        let last = RtpInfo { timestamp: None, ..one.clone() };
        let both = [one, last];
        assert_eq!(
            RtpInfo::write(Version::One, &both),
            "url=rtsp://h/a.ts/track1;seq=5;rtptime=7,url=rtsp://h/a.ts/track1;seq=5"
        );
        assert_eq!(
            RtpInfo::write(Version::Two, &both),
            "url=\"rtsp://h/a.ts/track1\" ssrc=0D12F123:seq=5;rtptime=7;seq=5;url=track1, \
             url=\"rtsp://h/a.ts/track1\" ssrc=0D12F123:seq=5"
        );
    }

    #[test]
    fn an_end_is_one_message() {
        let end = StreamEnd {
            url: "rtsp://h/a.ts".into(),
            session: SessionId(1),
            played: 853,
            status: Status::OK,
            at: MediaTime(27_000 * 12_345 + 26_999),
            scale: Some("-4\r\nX: y".into()),
            last: vec![RtpInfo {
                url: "rtsp://h/a.ts/track1".into(),
                source: 1,
                sequence: 65535,
                timestamp: None,
            }],
        };
        let text = String::from_utf8(end.write(9, "Thu, 01 Jan 1970 00:00:00 GMT")).unwrap();
        assert_eq!(
            text,
            "PLAY_NOTIFY rtsp://h/a.ts RTSP/2.0\r\nCSeq: 9\r\n\
             Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
             Session: 00000000000000000000000000000001\r\nNotify-Reason: end-of-stream\r\n\
             Request-Status: cseq=853 status=200 reason=\"OK\"\r\nRange: npt=-12.345\r\n\
             Scale: -4X: y\r\n\
             RTP-Info: url=\"rtsp://h/a.ts/track1\" ssrc=00000001:seq=65535\r\n\r\n"
        );
    }

    proptest! {
        #[test]
        fn a_pipeline_is_the_session_that_was_bound_last(
            steps in proptest::collection::vec((0u32..24, 0u128..1000), 0..200),
        ) {
            let mut pipelines = Pipelines::default();
            let mut model: Vec<(u32, u128)> = vec![];
            for (number, id) in steps {
                pipelines.bind(number, SessionId(id));
                model.retain(|(known, _)| *known != number);
                model.push((number, id));
                prop_assert!(pipelines.all.len() <= PIPELINES_MAX);
                for (back, (number, id)) in model.iter().rev().enumerate() {
                    let expected = (back < PIPELINES_MAX).then_some(SessionId(*id));
                    prop_assert_eq!(pipelines.find(*number), expected);
                }
            }
        }
    }
}
