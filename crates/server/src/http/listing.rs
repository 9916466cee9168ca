//! A directory as an answer: HTML for people, JSON for programs, a playlist for players.

mod html;
mod json;
mod playlist;

use tactus_core::path::RequestPath;

use crate::catalogue::Listing;

use super::fields::Fields;
use super::query;
use super::response::Response;

/// The page runs the server's own scripts and nothing else, whatever a file is called; it asks this server
/// only, and plays what it has got from it.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; \
                      style-src 'self'; media-src 'self' blob:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// A page without a script.
const POLICY_NOTHING: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; \
                              form-action 'none'; frame-ancestors 'none'";

/// Where the page's scripts and styles are served.
const ASSETS: &str = "/api/v1/";

/// A script or style of the page; none when `path` is another. mpegts.js is that of npm, version 1.8.2,
/// with its licence (Apache-2.0) beside it.
pub(super) fn asset(path: &str) -> Option<Response> {
    let (media_type, content) = match path.strip_prefix(ASSETS)? {
        "page.css" => ("text/css; charset=utf-8", include_str!("listing/page.css")),
        "page.js" => (SCRIPT, include_str!("listing/page.js")),
        "upload.js" => (SCRIPT, include_str!("listing/upload.js")),
        "mpegts.js" => (SCRIPT, include_str!("listing/vendor/mpegts.js")),
        "mpegts.js.LICENSE.txt" => {
            ("text/plain; charset=utf-8", include_str!("listing/vendor/mpegts.js.LICENSE.txt"))
        }
        _ => return None,
    };
    Some(Response::new(200, media_type, content).with("Cache-Control", "no-cache"))
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What a page says besides the entries.
pub(super) struct Page<'a> {
    /// The directory.
    pub(super) path: &'a RequestPath,
    /// What the client calls this server.
    pub(super) host: Option<&'a str>,
    /// The URL of this server, without a slash at its end, as far as the client has said it.
    pub(super) base: Option<&'a str>,
    pub(super) takes_uploads: bool,
}

/// The answer for `listing`, the content of the directory, in the form that is asked for.
pub(super) fn answer(
    page: &Page<'_>,
    query: Option<&str>,
    fields: &Fields,
    listing: &Listing,
) -> Response {
    let form = match query::values(query, "format").next().flatten().as_deref() {
        Some("json") => Form::Json,
        Some("html") => Form::Html,
        Some("m3u") => Form::Playlist,
        _ => preferred(fields),
    };
    let response = match form {
        Form::Json => Response::json(200, &json::Document::new(page.path, listing)),
        Form::Playlist => {
            let list = playlist::of(page, listing);
            Response::new(200, "audio/x-mpegurl; charset=utf-8", list)
                .with("Content-Disposition", "attachment; filename=\"tactus.m3u\"")
        }
        Form::Html => Response::new(200, "text/html; charset=utf-8", html::page(page, listing))
            .with("Content-Security-Policy", POLICY)
            .with("Referrer-Policy", "no-referrer"),
    };
    response.with("Vary", "Accept").with("Cache-Control", "no-cache")
}

/// What stands for a 404 before people: `answer` itself to everybody who does not ask for a page.
pub(super) fn not_found(path: &RequestPath, fields: &Fields, answer: Response) -> Response {
    let wants_page = fields.list("accept").any(|range| range.starts_with(b"text/html"));
    if !wants_page || preferred(fields) != Form::Html {
        return answer.with("Vary", "Accept");
    }
    let said = String::from_utf8_lossy(answer.content()).trim().to_owned();
    let page = html::nothing(path, host(fields), &said);
    Response::new(404, "text/html; charset=utf-8", page)
        .with("Content-Security-Policy", POLICY_NOTHING)
        .with("Referrer-Policy", "no-referrer")
        .with("Vary", "Accept")
}

/// What the client calls this server.
pub(super) fn host(fields: &Fields) -> Option<&str> {
    std::str::from_utf8(fields.one("host")?).ok().filter(|host| !host.is_empty())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Html,
    Json,
    Playlist,
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

#[cfg(test)]
mod tests;
