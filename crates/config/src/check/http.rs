//! `[http]`: addresses, trusted proxies, access, and limits of requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;

use tactus_core::units::{Bytes, KIB, MIB, Nanos, SECOND};
use tactus_http::settings::{self, HttpSettings, Origins, Proxies, PublicUrl};
use tactus_notation::checks::{Checked, number, quantity};
use tactus_notation::error::Mistake;
use tactus_notation::net::Net;
use tactus_notation::value::{OneOrMore, SpannedKey};
use toml::Spanned;

use super::address;
use crate::raw;
use crate::unix_socket;

pub(super) fn http(raw: raw::Http, base: &Path) -> Checked<HttpSettings> {
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
    let unix_sockets = unix_socket::all(raw.unix_socket, base)?;
    let addresses = match raw.address {
        None => vec![local],
        written => {
            let (list, span) = addresses_of(written)?;
            if list.is_empty() && unix_sockets.is_empty() {
                let message = "the list is empty; write at least one address, or add an \
                               [[http.unix_socket]]";
                return Err(Mistake::at(span, message));
            }
            list
        }
    };
    let (proxy_protocol, span) = match raw.proxy_protocol {
        Some(list) if list.get_ref().0.iter().all(|text| text == "off") => (vec![], 0..0),
        written => addresses_of(written)?,
    };
    let is_unix = |text: &Spanned<String>| text.get_ref() == "unix";
    let unix = raw.trusted_proxies.iter().any(is_unix);
    let nets = raw.trusted_proxies.into_iter().filter(|text| !is_unix(text));
    let trusted = nets.map(|text| {
        let net =
            Net::parse(text.get_ref()).map_err(|message| Mistake::at(text.span(), message))?;
        match net.bits {
            0 => Err(Mistake::at(
                text.span(),
                "this trusts every client; write the addresses of the proxies only",
            )),
            _ => Ok(net),
        }
    });
    let trusted = trusted.collect::<Checked<Vec<_>>>()?;
    if !proxy_protocol.is_empty() && trusted.is_empty() {
        let message = "only trusted proxies may connect here, and there are none; add them to \
                       `trusted_proxies`";
        return Err(Mistake::at(span, message));
    }
    let public = match raw.public_url {
        None => PublicUrl::default(),
        Some(text) => {
            PublicUrl::parse(text.get_ref()).map_err(|message| Mistake::at(text.span(), message))?
        }
    };
    let mut allowed_hosts = raw.allowed_hosts.unwrap_or_default();
    if let Some(host) = public.host().filter(|_| !allowed_hosts.is_empty()) {
        allowed_hosts.push(host.to_owned());
    }
    Ok(HttpSettings {
        addresses,
        unix_sockets,
        proxy_protocol,
        proxies: Proxies { trusted, unix, field: raw.forwarded_field.unwrap_or_default() },
        public,
        allowed_hosts,
        origins: origins(raw.allowed_origins)?,
        stored_pages: raw.stored_pages.unwrap_or_default(),
        listing: raw.listing.unwrap_or(true),
        readers: raw.readers.map(Spanned::into_inner).unwrap_or_default(),
        connections_max: number(raw.connections_max, 10_000, 1..=1_000_000)?,
        connections_per_address_max: number(raw.connections_per_address_max, 100, 1..=1_000_000)?,
        abuse_score_max: number(raw.abuse_score_max, 100, 0..=1_000_000)?,
        abuse_refusal: quantity(
            raw.abuse_refusal,
            SECOND.times(60),
            SECOND..=SECOND.times(86_400),
        )?,
        request_line_max: quantity(
            raw.request_line_max,
            Bytes(8 * KIB),
            Bytes(256)..=Bytes(64 * KIB),
        )?,
        fields_max: number(raw.fields_max, 100, 8..=1_000)?,
        fields_size_max: quantity(
            raw.fields_size_max,
            Bytes(32 * KIB),
            Bytes(KIB)..=Bytes(256 * KIB),
        )?,
        body_max: quantity(raw.body_max, Bytes(64 * KIB), Bytes(0)..=Bytes(MIB))?,
        ranges_max: number(raw.ranges_max, 8, 1..=64)?,
        head_timeout: quantity(raw.head_timeout, SECOND.times(10), SECOND..=SECOND.times(300))?,
        idle_timeout: quantity(raw.idle_timeout, SECOND.times(60), SECOND..=SECOND.times(3600))?,
        drain_limit: quantity(raw.drain_limit, SECOND.times(10), Nanos(0)..=SECOND.times(86_400))?,
    })
}

/// The addresses, and where they are written.
fn addresses_of(written: SpannedKey<OneOrMore>) -> Checked<(Vec<SocketAddr>, Range<usize>)> {
    let Some(list) = written else { return Ok((vec![], 0..0)) };
    let span = list.span();
    let all = list.into_inner().0;
    let all = all.iter().map(|text| address(text, span.clone())).collect::<Checked<_>>()?;
    Ok((all, span))
}

fn origins(written: Vec<Spanned<String>>) -> Checked<Origins> {
    if let [all] = &written[..]
        && all.get_ref() == "*"
    {
        return Ok(Origins::Any);
    }
    let one = |text: &Spanned<String>| {
        settings::origin(text.get_ref()).map_err(|message| Mistake::at(text.span(), message))
    };
    let list = written.iter().map(one).collect::<Checked<Vec<_>>>()?;
    Ok(if list.is_empty() { Origins::None } else { Origins::List(list) })
}
