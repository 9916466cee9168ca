//! Checks `[rtsp]`: principals, permissions and groups.

use std::path::Path;

use tactus_control::class::{Classes, SendOptions};
use tactus_control::rights::Readers;
use tactus_control::settings::Memory;
use tactus_notation::checks::{
    Checked, PLAIN_NAME, RATES, burst, dscp, in_range, interface, is_plain_name, number, quantity,
};
use tactus_notation::error::Mistake;
use tactus_notation::net::Net;
use tactus_rtsp::settings::{Principal, RtspSettings};
use toml::Spanned;

use super::address;
use super::uploads::paths;
use crate::raw;

/// Checks the section; by default its readers are as restricted as those of HTTP.
pub(super) fn rtsp(
    raw: raw::Rtsp,
    base: &Path,
    (classes, memory): (&Classes, &Memory),
    readers_of_http: Readers,
) -> Checked<RtspSettings> {
    let addresses = match raw.address {
        None => vec![],
        Some(list) => {
            let span = list.span();
            let list = list.into_inner().0;
            let is_off = list.iter().all(|text| text == "off");
            let list = if is_off { vec![] } else { list };
            list.iter().map(|text| address(text, span.clone())).collect::<Checked<_>>()?
        }
    };
    let nets = |list: Vec<Spanned<String>>| {
        let net = |text: Spanned<String>| {
            Net::parse(text.get_ref()).map_err(|message| Mistake::at(text.span(), message))
        };
        list.into_iter().map(|text| Ok((text.span(), net(text)?))).collect::<Checked<Vec<_>>>()
    };
    let groups = nets(raw.groups.map(Spanned::into_inner).unwrap_or_default())?;
    for (span, net) in &groups {
        let all = net.nth(net.len() - 1).is_some_and(|last| last.is_multicast());
        if !net.first.is_multicast() || !all {
            let message = "these are not multicast groups; write a network like \"239.192.7.0/28\"";
            return Err(Mistake::at(span.clone(), message));
        }
    }
    let group_port = match raw.group_port {
        None => RtspSettings::default().group_port,
        Some(port) => {
            let span = port.span();
            let port = in_range(port.into_inner(), span.clone(), 1024..=65534)?;
            if !port.is_multiple_of(2) {
                let message = "RTP has an even port, and RTCP the next; write an even one";
                return Err(Mistake::at(span, message));
            }
            port as u16
        }
    };
    let mut principals: Vec<Principal> = Vec::with_capacity(raw.principal.len());
    for written in raw.principal {
        let span = written.name.span();
        let name = written.name.into_inner();
        if !is_plain_name(&name) {
            return Err(Mistake::at(span, PLAIN_NAME));
        }
        if principals.iter().any(|known| known.name == name) {
            let message = format!(
                "the principal {name:?} is defined twice; give each its own \
                name"
            );
            return Err(Mistake::at(span, message));
        }
        let password = base.join(written.password_file.into_inner());
        let destinations = nets(written.destinations)?.into_iter().map(|(_, net)| net).collect();
        let records = written.records;
        let paths = paths(written.paths)?;
        principals.push(Principal { name, password, destinations, records, paths });
    }
    let class = raw.class.as_ref().map(|name| name.get_ref().as_str());
    let send_options = classes.send_options(class, burst(raw.burst)?, dscp(raw.dscp)?);
    let span = raw.class.as_ref().map_or(0..0, Spanned::span);
    let SendOptions { class, burst, dscp } =
        send_options.map_err(|message| Mistake::at(span, message))?;
    let default = RtspSettings::default();
    Ok(RtspSettings {
        addresses,
        readers: raw.readers.unwrap_or(readers_of_http),
        groups: groups.into_iter().map(|(_, net)| net).collect(),
        group_port,
        interface: interface(raw.interface)?,
        hops: number(raw.hops, default.hops.into(), 1..=254)? as u8,
        class,
        dscp,
        burst,
        connections_max: number(raw.connections_max, default.connections_max, 1..=1_000_000)?,
        connections_per_address_max: number(
            raw.connections_per_address_max,
            default.connections_per_address_max,
            1..=1_000_000,
        )?,
        // The limit of streams, and as many sessions that wait.
        sessions_max: number(raw.sessions_max, 2 * memory.streams_max, 1..=2_000_000)?,
        recorders: raw.recorders.unwrap_or_default(),
        record_rate: quantity(raw.record_rate, default.record_rate, RATES)?,
        recordings_max: number(raw.recordings_max, default.recordings_max, 1..=1_000)?,
        overwrite: raw.overwrite.unwrap_or(default.overwrite),
        principals,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn a_title_can_be_asked_for_where_it_is_configured_only() {
        let parse = |text: &str| Config::parse(Path::new("t.toml"), text);
        assert!(Config::unconfigured().rtsp.addresses.is_empty(), "off unless configured");
        let on = parse("[rtsp]\naddress = [\"127.0.0.1:8554\", \"[::1]:8554\"]\n").expect("right");
        assert_eq!(on.rtsp.addresses.len(), 2);
        for (text, said) in [
            ("[rtsp]\naddress = \"here\"\n", "not an address"),
            ("[rtsp]\ngroups = [\"10.0.0.0/8\"]\n", "not multicast groups"),
            ("[rtsp]\ngroups = [\"232.0.0.0/3\"]\n", "bits behind"),
            ("[rtsp]\ngroup_port = 5005\n", "even"),
            ("[rtsp]\nhops = 255\n", "out of range"),
            ("[[rtsp.principal]]\nname = \"a b\"\npassword_file = \"p\"\n", "a name"),
            (
                "[[rtsp.principal]]\nname = \"a\"\npassword_file = \"p\"\ndestinations = [\"x\"]\n",
                "no address",
            ),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
