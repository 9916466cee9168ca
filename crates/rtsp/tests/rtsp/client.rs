//! A client of RTSP that does what a test says, and a receiver of what is sent to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use socket2::{Domain, Socket, Type};
use tactus_core::rtp::{self, rtcp};
use tactus_sys::udp_input::{InputOptions, UdpInput};

/// Longer than anything takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    pub(crate) cseq: u32,
    pub(crate) url: String,
    pub(crate) credentials: Option<(String, String)>,
    /// Packets of RTP that came in frames before an answer.
    pub(crate) kept: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields(name).first().copied().unwrap_or_else(|| panic!("no {name}: {}", self.head))
    }

    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        let value = |line: &'_ str| -> Option<usize> {
            let (known, _) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(known.len() + 1)
        };
        self.head.lines().filter_map(|line| Some(line[value(line)?..].trim())).collect()
    }

    pub(crate) fn session(&self) -> String {
        self.field("Session").split(';').next().expect("a name").to_owned()
    }

    /// `name=value` of a field's parameters.
    pub(crate) fn parameter(&self, field: &str, name: &str) -> String {
        let found =
            self.field(field).split(';').find_map(|part| part.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("no {name} in {}", self.field(field))).to_owned()
    }
}

impl Client {
    /// A client that asks for the title at `url`.
    pub(crate) fn connect(address: SocketAddr, url: String) -> Self {
        Self::by(TcpStream::connect(address).expect("the server listens"), url)
    }

    /// The same from another address of this host.
    pub(crate) fn connect_from(address: SocketAddr, from: &str, url: String) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from: IpAddr = from.parse().expect("an address");
        socket.bind(&SocketAddr::new(from, 0).into()).expect("an address of ours");
        socket.connect(&address.into()).expect("the server listens");
        Self::by(socket.into(), url)
    }

    fn by(socket: TcpStream, url: String) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { socket, cseq: 0, url, credentials: None, kept: vec![] }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the server reads");
    }

    /// None when the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        let head = self.head()?;
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        let mut reply = Reply { status, head, body: String::new() };
        let length = reply.fields("content-length").first().map(|text| text.parse::<usize>());
        if let Some(length) = length {
            let mut body = vec![0; length.expect("a length")];
            self.socket.read_exact(&mut body).expect("a body");
            reply.body = String::from_utf8(body).expect("text");
        }
        Some(reply)
    }

    /// What the server asks, which is answered: it has no status.
    pub(crate) fn hear(&mut self) -> Reply {
        let head = self.head().expect("the server asks");
        let asked = Reply { status: 0, head, body: String::new() };
        let cseq = asked.field("CSeq").to_owned();
        self.send(format!("RTSP/2.0 200 OK\r\nCSeq: {cseq}\r\n\r\n").as_bytes());
        asked
    }

    /// The next head; frames before it are kept.
    fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match self.socket.read(&mut byte) {
                Ok(1) if head.is_empty() && byte[0] == b'$' => {
                    if let (4, packet) = self.frame() {
                        self.kept.push(packet);
                    }
                }
                Ok(1) => head.push(byte[0]),
                Ok(_) => {
                    assert!(head.is_empty(), "{:?}", String::from_utf8_lossy(&head));
                    return None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
        Some(String::from_utf8(head).expect("text"))
    }

    /// What is behind the sign of a frame: its channel and its bytes.
    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 3];
        self.socket.read_exact(&mut head).expect("a frame");
        let mut bytes = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        self.socket.read_exact(&mut bytes).expect("a frame");
        (head[0], bytes)
    }

    /// Waits for so many packets on `channel`, those that were kept first.
    pub(crate) fn frames(&mut self, channel: u8, count: usize) -> Vec<Vec<u8>> {
        let mut packets = std::mem::take(&mut self.kept);
        while packets.len() < count {
            let mut sign = [0];
            self.socket.read_exact(&mut sign).expect("a frame");
            assert_eq!(sign, *b"$");
            let (of, bytes) = self.frame();
            if of == channel {
                packets.push(bytes);
            }
        }
        packets
    }

    /// Waits for a goodbye on channel 5; who says it. What comes before it on channel 4 is given
    /// back.
    pub(crate) fn goodbye(&mut self) -> (u32, Vec<Vec<u8>>) {
        let mut packets = std::mem::take(&mut self.kept);
        loop {
            let mut sign = [0];
            self.socket.read_exact(&mut sign).expect("a frame");
            assert_eq!(sign, *b"$");
            match self.frame() {
                (4, bytes) => packets.push(bytes),
                (_, bytes) => {
                    if let Some(gone) = gone(&bytes) {
                        return (gone, packets);
                    }
                }
            }
        }
    }

    pub(crate) fn ask(&mut self, method: &str, url: &str, fields: &str) -> Reply {
        self.ask_in("RTSP/1.0", method, url, fields)
    }

    pub(crate) fn ask_in(&mut self, version: &str, method: &str, url: &str, fields: &str) -> Reply {
        self.cseq += 1;
        let cseq = self.cseq;
        self.send(format!("{method} {url} {version}\r\nCSeq: {cseq}\r\n{fields}\r\n").as_bytes());
        let reply = self.receive().expect("an answer");
        assert_eq!(reply.field("CSeq"), cseq.to_string());
        reply
    }

    /// Asks with a body.
    pub(crate) fn ask_about(&mut self, method: &str, url: &str, body: &str) -> Reply {
        self.cseq += 1;
        let (cseq, len) = (self.cseq, body.len());
        let fields = format!("CSeq: {cseq}\r\nContent-Length: {len}\r\n");
        self.send(format!("{method} {url} RTSP/1.0\r\n{fields}\r\n{body}").as_bytes());
        self.receive().expect("an answer")
    }

    /// Asks, and once more with a digest when that is wanted.
    pub(crate) fn ask_for(&mut self, method: &str, url: &str, fields: &str) -> Reply {
        let reply = self.ask(method, url, fields);
        let Some((name, password)) = self.credentials.clone().filter(|_| reply.status == 401)
        else {
            return reply;
        };
        let challenge = *reply.fields("WWW-Authenticate").last().expect("a challenge");
        let digest = digest(challenge, &name, &password, method, url);
        self.ask(method, url, &format!("{fields}Authorization: {digest}\r\n"))
    }

    pub(crate) fn set_up(&mut self, ports: u16) -> Reply {
        let url = format!("{}/track1", self.url);
        let transport = format!("RTP/AVP;unicast;client_port={ports}-{}", ports + 1);
        self.ask_for("SETUP", &url, &format!("Transport: {transport}\r\n"))
    }

    pub(crate) fn play(&mut self, session: &str, range: &str) -> Reply {
        let range = if range.is_empty() { String::new() } else { format!("Range: {range}\r\n") };
        let url = self.url.clone();
        self.ask_for("PLAY", &url, &format!("Session: {session}\r\n{range}"))
    }

    pub(crate) fn order(&mut self, method: &str, session: &str) -> Reply {
        let url = self.url.clone();
        self.ask_for(method, &url, &format!("Session: {session}\r\n"))
    }
}

fn hash(text: &str) -> String {
    Md5::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn digest(
    challenge: &str,
    name: &str,
    password: &str,
    method: &str,
    url: &str,
) -> String {
    assert!(challenge.contains("algorithm=MD5"), "the last one is for players: {challenge}");
    let value = |key: &str| -> String {
        let rest = challenge.split(&format!("{key}=\"")).nth(1).expect("it is there");
        rest.split('"').next().expect("a value").to_owned()
    };
    let (realm, nonce) = (value("realm"), value("nonce"));
    let secret = hash(&format!("{name}:{realm}:{password}"));
    let response = hash(&format!("{secret}:{nonce}:{}", hash(&format!("{method}:{url}"))));
    format!(
        "Digest username=\"{name}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{url}\", \
         response=\"{response}\""
    )
}

/// A receiver: an even port and the next one.
pub(crate) struct Receiver {
    pub(crate) rtp: UdpInput,
    pub(crate) rtcp: UdpSocket,
    pub(crate) port: u16,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into())
    }

    pub(crate) fn at(ip: IpAddr) -> Self {
        loop {
            // More than a whole title, so that a receiver without time loses nothing.
            let to = SocketAddr::new(ip, 0);
            let wanted = InputOptions { to, source: None, interface: None, buffer: 32 << 20 };
            let rtp = UdpInput::open(&wanted).expect("a port");
            let port = rtp.address().expect("bound").port();
            if port.is_multiple_of(2)
                && let Ok(rtcp) = UdpSocket::bind((ip, port + 1))
            {
                rtcp.set_read_timeout(Some(PATIENCE)).expect("a socket");
                return Self { rtp, rtcp, port };
            }
        }
    }

    /// What is sent to a group on the loopback.
    pub(crate) fn of_group(group: SocketAddr) -> Self {
        let interface = tactus_sys::udp_input::interface("lo").ok();
        let wanted = InputOptions { to: group, source: None, interface, buffer: 32 << 20 };
        let rtp = UdpInput::open(&wanted).expect("a group");
        let rtcp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        Self { rtp, rtcp, port: group.port() }
    }

    /// Waits for `count` packets.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut came = vec![];
        let end = Instant::now() + PATIENCE;
        while came.len() < count && Instant::now() < end {
            if self.rtp.receive(|datagram| came.push(datagram.bytes.to_vec())).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(came.len() >= count, "{} of {count}", came.len());
        came
    }

    /// Waits for a report.
    pub(crate) fn report(&self) -> Vec<u8> {
        let mut bytes = [0; 1500];
        loop {
            match self.rtcp.recv_from(&mut bytes) {
                // Whoever is stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                came => return bytes[..came.expect("a report").0].to_vec(),
            }
        }
    }

    /// Waits for a goodbye; who says it.
    pub(crate) fn goodbye(&self) -> u32 {
        loop {
            if let Some(gone) = gone(&self.report()) {
                return gone;
            }
        }
    }

    /// What `source` says of itself on a port for reports, until it says goodbye.
    pub(crate) fn reports_to_goodbye(&mut self, source: u32) -> Vec<rtcp::SenderInfo> {
        let mut said = vec![];
        loop {
            // One by one: whoever else sends to the group is passed over.
            for report in self.take(1) {
                let by = rtcp::read(&report).expect("RTCP").find_map(|packet| match packet {
                    rtcp::Packet::Sender { source, info, .. } => Some((source, info)),
                    _ => None,
                });
                match by {
                    Some((by, _)) if by == source && gone(&report) == Some(by) => return said,
                    Some((by, info)) if by == source => said.push(info),
                    _ => {}
                }
            }
        }
    }

    /// What has come and what comes within a tenth of a second.
    pub(crate) fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut came = vec![];
        std::thread::sleep(Duration::from_millis(100));
        while self.rtp.receive(|datagram| came.push(datagram.bytes.to_vec())).is_ok() {}
        came
    }
}

/// Who says goodbye, if anybody does.
fn gone(report: &[u8]) -> Option<u32> {
    rtcp::read(report).expect("RTCP").find_map(|packet| match packet {
        rtcp::Packet::Bye { sources, .. } => sources.iter().next(),
        _ => None,
    })
}

/// What RTP packets carry, which must follow each other.
pub(crate) fn payload(packets: &[Vec<u8>]) -> Vec<u8> {
    for pair in packets.windows(2) {
        let [one, next] = [&pair[0], &pair[1]].map(|bytes| rtp::Packet::read(bytes).expect("RTP"));
        assert_eq!(next.sequence, one.sequence.wrapping_add(1));
        assert_eq!((next.source, next.payload_type), (one.source, rtp::MP2T));
    }
    packets
        .iter()
        .flat_map(|bytes| rtp::Packet::read(bytes).expect("RTP").payload)
        .copied()
        .collect()
}

pub(crate) fn first_matches(reply: &Reply, first: &[u8]) {
    let packet = rtp::Packet::read(first).expect("RTP");
    assert_eq!(reply.parameter("RTP-Info", "seq"), packet.sequence.to_string());
    assert_eq!(reply.parameter("RTP-Info", "rtptime"), packet.timestamp.to_string());
}
