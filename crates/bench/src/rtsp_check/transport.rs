//! What is said of transports, and the ports that a client has for them.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};

/// What a server has made of an offer (RFC 2326, section 12.39).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Transport {
    pub(super) spec: String,
    pub(super) is_unicast: bool,
    pub(super) interleaved: Option<(u16, u16)>,
    pub(super) client_port: Option<(u16, u16)>,
    pub(super) server_port: Option<(u16, u16)>,
    pub(super) source: Option<String>,
    pub(super) ssrc: Option<u32>,
    pub(super) mode: Option<String>,
    /// As 2.0 has them: addresses of RTP and of RTCP (RFC 7826, section 18.54).
    pub(super) dest_addr: Vec<String>,
    pub(super) src_addr: Vec<String>,
}

impl Transport {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(';').map(str::trim);
        let spec = parts.next().unwrap_or_default().to_owned();
        let mut this = Self { spec, ..Self::default() };
        let two = |value: &str| -> Result<(u16, u16)> {
            let (one, other) = value.split_once('-').unwrap_or((value, value));
            Ok((one.parse()?, other.parse()?))
        };
        for part in parts {
            let (name, quoted) = part.split_once('=').unwrap_or((part, ""));
            let value = quoted.trim_matches('"');
            match name.to_ascii_lowercase().as_str() {
                "unicast" => this.is_unicast = true,
                "interleaved" => this.interleaved = Some(two(value).context(text.to_owned())?),
                "client_port" => this.client_port = Some(two(value).context(text.to_owned())?),
                "server_port" => this.server_port = Some(two(value).context(text.to_owned())?),
                "dest_addr" => this.dest_addr = addresses(quoted),
                "src_addr" => this.src_addr = addresses(quoted),
                "mode" => this.mode = Some(value.to_ascii_lowercase()),
                "source" => this.source = Some(value.to_owned()),
                "ssrc" => {
                    let ssrc = u32::from_str_radix(value, 16);
                    this.ssrc = Some(ssrc.with_context(|| format!("ssrc of {text}"))?);
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// The ports of RTP and RTCP that are sent from, in either version.
    pub(super) fn from(&self) -> Option<(u16, u16)> {
        self.server_port.or_else(|| ports(&self.src_addr))
    }
}

/// `"host:port"/"host:port"`.
fn addresses(quoted: &str) -> Vec<String> {
    quoted.split('/').map(|one| one.trim_matches('"').to_owned()).collect()
}

/// The ports of a pair of addresses.
pub(super) fn ports(pair: &[String]) -> Option<(u16, u16)> {
    let port = |one: &String| one.rsplit_once(':')?.1.parse().ok();
    Some((port(pair.first()?)?, port(pair.get(1)?)?))
}

/// Two ports, the first of them even.
pub(super) fn pair(own: IpAddr) -> Result<[UdpSocket; 2]> {
    for _ in 0..1000 {
        let first = UdpSocket::bind(SocketAddr::new(own, 0))?;
        let port = first.local_addr()?.port();
        if port % 2 == 0
            && let Ok(second) = UdpSocket::bind(SocketAddr::new(own, port + 1))
        {
            rustix::net::sockopt::set_socket_recv_buffer_size(&first, 4 << 20)?;
            return Ok([first, second]);
        }
    }
    anyhow::bail!("there are no two free ports")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_read() {
        let text = "RTP/AVP;unicast;client_port=4-5;server_port=6-7;ssrc=00FF00AA;mode=\"PLAY\"";
        let read = Transport::parse(text).expect("it is one");
        assert_eq!((read.client_port, read.server_port), (Some((4, 5)), Some((6, 7))));
        assert_eq!((read.ssrc, read.is_unicast, read.interleaved), (Some(0x00ff_00aa), true, None));
        assert_eq!((read.from(), read.mode.as_deref()), (Some((6, 7)), Some("play")));
        assert!(Transport::parse("RTP/AVP;client_port=x").is_err());
        let text = "RTP/AVP;unicast;dest_addr=\":4\"/\":5\";src_addr=\"[::1]:6\"/\"[::1]:7\"";
        let read = Transport::parse(text).expect("it is one");
        assert_eq!((read.dest_addr, read.server_port), (vec![":4".into(), ":5".into()], None));
        assert_eq!(ports(&read.src_addr), Some((6, 7)));
    }
}
