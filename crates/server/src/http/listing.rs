//! A directory as an answer: HTML for people, JSON for programs.

mod html;
mod json;

use tactus_core::path::RequestPath;
use tactus_core::units::{BitRate, Bytes, Nanos};

use crate::catalogue::Listing;

use super::fields::Fields;
use super::query;
use super::response::Response;

/// Nothing on the page can load or run anything, whatever a file is called.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The same for a page with an upload form: its own script, and requests to this server.
const POLICY_UPLOADS: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; \
                              style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                              frame-ancestors 'none'";

/// Where the script of the upload form is served.
pub(super) const SCRIPT: &str = "/api/v1/upload.js";

/// That script.
pub(super) fn script() -> Response {
    Response::new(200, "text/javascript; charset=utf-8", include_str!("listing/upload.js"))
        .with("Cache-Control", "no-cache")
}

/// The answer for `listing`, the content of the directory `path`, in the form that is asked for.
pub(super) fn answer(
    path: &RequestPath,
    query: Option<&str>,
    fields: &Fields,
    listing: &Listing,
    takes_uploads: bool,
) -> Response {
    let form = match query::values(query, "format").next().flatten().as_deref() {
        Some("json") => Form::Json,
        Some("html") => Form::Html,
        _ => preferred(fields),
    };
    let response = match form {
        Form::Json => Response::json(200, &json::Document::new(path, listing)),
        Form::Html => {
            let page = html::page(path, listing, takes_uploads);
            let policy = if takes_uploads { POLICY_UPLOADS } else { POLICY };
            Response::new(200, "text/html; charset=utf-8", page)
                .with("Content-Security-Policy", policy)
                .with("Referrer-Policy", "no-referrer")
        }
    };
    response.with("Vary", "Accept").with("Cache-Control", "no-cache")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Html,
    Json,
}

/// Which form the `Accept` fields prefer (RFC 9110 section 12.5.1); HTML when both are as good.
fn preferred(fields: &Fields) -> Form {
    let weight = |media_type: &str| {
        fields
            .list("accept")
            .filter_map(|range| std::str::from_utf8(range).ok())
            .filter_map(|range| weight_for(range, media_type))
            .max()
            .map_or(0, |(_, weight)| weight)
    };
    if weight("application/json") > weight("text/html") { Form::Json } else { Form::Html }
}

/// How well a media range fits a type, and its weight in thousandths; none when it does not fit.
fn weight_for(range: &str, media_type: &str) -> Option<(u8, u16)> {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next()?.to_ascii_lowercase();
    let fit = match name.as_str() {
        "*/*" => 1,
        _ if name == media_type => 3,
        _ => {
            let (kind, rest) = name.split_once('/')?;
            (rest == "*" && media_type.starts_with(kind)).then_some(2)?
        }
    };
    let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1000), thousandths);
    Some((fit, weight.unwrap_or(0)))
}

/// A weight of at most three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u16 = whole.parse().ok().filter(|&whole| whole <= 1)?;
    let plain = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let fraction: u16 = format!("{fraction:0<3}").parse().ok().filter(|_| plain)?;
    Some((whole * 1000 + fraction).min(1000))
}

/// How long a title of `len` bytes plays at `rate`. Rounds up.
fn duration(len: Bytes, rate: BitRate) -> Nanos {
    rate.time_for(len)
}

#[cfg(test)]
mod tests;
