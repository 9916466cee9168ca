//! The proxy for a URL, by the environment variables and rules of curl and wget.
//!
//! Promise: a server on this machine is always addressed directly.

use std::net::IpAddr;

use super::Url;

/// The proxy that the environment sets for `url`.
pub(super) fn of(url: &Url) -> Option<String> {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    choose(url, get)
}

/// Upper-case names count too, except `HTTP_PROXY`: in a CGI program a request header can set it.
fn choose(url: &Url, get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let names = match url.secure {
        true => ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => ["http_proxy", "all_proxy", "ALL_PROXY", "all_proxy"],
    };
    let proxy = names.iter().find_map(|name| get(name))?;
    let exempt = get("no_proxy").or_else(|| get("NO_PROXY")).unwrap_or_default();
    let is_exempt = is_here(&url.host)
        || exempt.split(',').map(str::trim).any(|entry| matches(entry, &url.host));
    (!is_exempt).then_some(proxy)
}

fn is_here(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// `example.org` and `.example.org` match that name and its subdomains; `*` matches everything.
fn matches(entry: &str, host: &str) -> bool {
    let (entry, host) = (entry.to_ascii_lowercase(), host.to_ascii_lowercase());
    let entry = entry.trim_start_matches('.');
    match entry {
        "" => false,
        "*" => true,
        entry => {
            host.strip_suffix(entry).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n13_the_proxy_is_that_of_the_scheme_and_never_for_this_machine() {
        let set = [
            ("http_proxy", "http://p:1"),
            ("HTTPS_PROXY", "http://p:2"),
            ("NO_PROXY", "inside.example, .lan"),
        ];
        let get = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| String::from(*value))
        };
        for (url, proxy) in [
            ("http://media.example/", Some("http://p:1")),
            ("https://media.example/", Some("http://p:2")),
            ("https://inside.example/", None),
            ("https://a.inside.example/", None),
            ("https://notinside.example/", Some("http://p:2")),
            ("http://tv.LAN/", None),
            ("http://127.0.0.1:8080/", None),
            ("http://localhost/", None),
            ("http://[::1]/", None),
        ] {
            assert_eq!(choose(&Url::parse(url).unwrap(), get).as_deref(), proxy, "{url}");
        }
        assert_eq!(choose(&Url::parse("http://h/").unwrap(), |_| None), None);
    }
}
