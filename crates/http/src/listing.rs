//! A directory as an answer: HTML for browsers, JSON for programs, M3U for players.
//!
//! Promise: the answer lists everything that can be requested, or is visibly truncated. The memory
//! that it holds is bounded.

mod html;
mod json;
mod playlist;

use tactus_core::path::RequestPath;
use tactus_core::units::KIB;
use tactus_storage::catalogue::{Entry, OpenFault, Position, Scroll};
use tactus_storage::warnings;

use super::answer::not_served;
use super::fields::Fields;
use super::query;
use super::response::{NextPart, Response, Source, Truncation};

/// The page runs only the server's own scripts, whatever the name of a file is, and connects only
/// to this server. `blob:` is for media that its player has fetched.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; \
                      style-src 'self'; media-src 'self' blob:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// A page without a script.
const POLICY_NOTHING: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; \
                              form-action 'none'; frame-ancestors 'none'";

/// The path of the page's scripts and styles.
const ASSETS: &str = "/api/v1/";

/// A script or style of the page; none for other paths. mpegts.js is version 1.8.2 from npm, with
/// its licence (Apache-2.0) beside it.
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

/// The content of a page besides its entries.
pub(super) struct Page {
    /// The directory.
    pub(super) path: RequestPath,
    /// The server's host name in the request.
    pub(super) host: Option<String>,
    /// The URL of this server as the client sees it, without a slash at its end, if known.
    pub(super) base: Option<String>,
    pub(super) takes_uploads: bool,
}

/// A format of listings, written entry by entry.
pub(super) trait Format: Send {
    /// Writes one entry.
    fn entry(&mut self, entry: &Entry, out: &mut String);

    /// Writes the text after the last entry.
    fn end(&mut self, end: &Footer, out: &mut String);
}

/// The content after the last entry.
#[derive(Debug, Default)]
pub(super) struct Footer {
    /// Number of names that cannot be listed.
    pub(super) unlisted: u64,
    /// The link of the next page.
    pub(super) next: Option<String>,
}

/// The answer for a directory in the requested format; `from` opens the walk.
pub(super) async fn answer(
    page: Page,
    query: Option<&str>,
    fields: &Fields,
    from: impl FnOnce(Option<Position>) -> Scroll,
) -> Response {
    let kind = kind(query, fields);
    let part = match (kind, PageRange::asked(query)) {
        (Kind::Html | Kind::Playlist, _) => PageRange::default(),
        (Kind::Json, Some(part)) => part,
        (Kind::Json, None) => {
            let text = format!(
                "limit must be a number from 1 to {PAGE_ENTRIES_MAX}, and after a link from a \
                 listing"
            );
            return Response::text(400, text);
        }
    };
    let (form, opening) = begin(kind, &page);
    let walk = from(part.after);
    let response = match part.limit {
        Some(limit) => one_page(walk, limit, form, opening).await,
        None => whole(200, kind.media_type(), walk, opening, form).await,
    };
    response.map_or_else(not_served, |response| described(response, kind))
}

fn begin(kind: Kind, page: &Page) -> (Box<dyn Format>, String) {
    match kind {
        Kind::Json => {
            let (form, opening) = json::Document::begin(&page.path);
            (Box::new(form), opening)
        }
        Kind::Playlist => {
            let (form, opening) = playlist::List::begin(page);
            (Box::new(form), opening)
        }
        Kind::Html => (Box::new(html::Rows), html::opening(page)),
    }
}

fn described(response: Response, kind: Kind) -> Response {
    let response = match kind {
        Kind::Json => response,
        Kind::Playlist => {
            response.with("Content-Disposition", "attachment; filename=\"tactus.m3u\"")
        }
        Kind::Html => {
            response.with("Content-Security-Policy", POLICY).with("Referrer-Policy", "no-referrer")
        }
    };
    response.with("Vary", "Accept").with("Cache-Control", "no-cache")
}

/// The requested range of entries.
#[derive(Default)]
struct PageRange {
    limit: Option<usize>,
    after: Option<Position>,
}

impl PageRange {
    /// Reads the query; none when it is invalid.
    fn asked(query: Option<&str>) -> Option<Self> {
        let limit = match query::values(query, "limit").next() {
            None => None,
            Some(limit) => {
                let limit = limit?.parse().ok()?;
                Some(limit).filter(|limit| (1..=PAGE_ENTRIES_MAX).contains(limit))?.into()
            }
        };
        let after = match query::values(query, "after").next() {
            None => None,
            Some(link) => Some(Position::of_link(&link?)),
        };
        Some(Self { limit, after })
    }
}

/// Most entries of a page, so that it needs no more memory than other answers.
const PAGE_ENTRIES_MAX: usize = 10_000;

/// The next `limit` entries, and the link of the next page.
async fn one_page(
    mut walk: Scroll,
    limit: usize,
    mut form: Box<dyn Format>,
    mut text: String,
) -> Result<Response, OpenFault> {
    let mut left = limit;
    let mut last = None;
    while left > 0 && !walk.is_over() {
        let entries = walk.next(left.min(PART_ENTRIES)).await?;
        left -= entries.len();
        last = entries.last().map(json::link).or(last);
        let mut entries = entries.into_iter();
        while write_part(&mut entries, &mut *form, &mut text) {
            tokio::task::yield_now().await;
        }
    }
    let last = last.filter(|_| !walk.is_over());
    // A link is already encoded so that it can stand in a query.
    let next = last.map(|last| {
        let last = last.replace('&', "%26").replace('+', "%2B");
        format!("?format=json&limit={limit}&after={last}")
    });
    form.end(&Footer { unlisted: walk.unlisted(), next: next.clone() }, &mut text);
    let response = Response::new(200, Kind::Json.media_type(), text);
    Ok(match next {
        Some(next) => response.with("Link", format!("<{next}>; rel=\"next\"")),
        None => response,
    })
}

/// All remaining entries after `text`: with its length if it is short, else generated while it is
/// sent.
pub(super) async fn whole(
    status: u16,
    media_type: &str,
    walk: Scroll,
    text: String,
    form: Box<dyn Format>,
) -> Result<Response, OpenFault> {
    let mut listed =
        ListingSource { walk, form, entries: Vec::new().into_iter(), text, is_over: false };
    while listed.text.len() < BUFFERED_MAX {
        if listed.is_over {
            return Ok(Response::new(status, media_type, listed.text));
        }
        listed.more().await?;
    }
    Ok(Response::parts(status, media_type, Box::new(listed)))
}

/// Entries that are read at a time.
const PART_ENTRIES: usize = 256;

/// Longer listings are sent while they are generated.
const BUFFERED_MAX: usize = 256 * KIB as usize;

/// Bytes that are written at a time, besides the rest of the last entry. This takes well below a
/// millisecond of the thread, which serves other connections too. An entry of a PROPFIND may have
/// 50 KiB.
pub(super) const PART_BYTES: usize = 64 * KIB as usize;

/// Writes `entries` until a part of [`PART_BYTES`] is full; returns whether more are left.
pub(super) fn write_part(
    entries: &mut std::vec::IntoIter<Entry>,
    form: &mut dyn Format,
    text: &mut String,
) -> bool {
    let full = text.len() + PART_BYTES;
    while text.len() < full
        && let Some(entry) = entries.next()
    {
        form.entry(&entry, text);
    }
    entries.len() > 0
}

/// A listing that is being sent.
struct ListingSource {
    walk: Scroll,
    form: Box<dyn Format>,
    /// Entries that are read and not yet written.
    entries: std::vec::IntoIter<Entry>,
    /// Text that is written and not yet sent.
    text: String,
    is_over: bool,
}

impl ListingSource {
    /// Writes one part. Other connections may run before it.
    async fn more(&mut self) -> Result<(), OpenFault> {
        if self.entries.len() > 0 {
            tokio::task::yield_now().await;
        } else {
            let entries = self.walk.next(PART_ENTRIES).await?;
            if entries.is_empty() {
                let end = Footer { unlisted: self.walk.unlisted(), next: None };
                self.form.end(&end, &mut self.text);
                self.is_over = true;
            }
            self.entries = entries.into_iter();
        }
        write_part(&mut self.entries, &mut *self.form, &mut self.text);
        Ok(())
    }
}

impl Source for ListingSource {
    fn next(&mut self) -> NextPart<'_> {
        Box::pin(async {
            while self.text.is_empty() && !self.is_over {
                if let Err(fault) = self.more().await {
                    if let Some(left_out) = warnings::poll("listing", "") {
                        tracing::warn!(
                            %fault,
                            left_out,
                            "a listing was truncated: cannot read its directory"
                        );
                    }
                    return Some(Err(Truncation));
                }
            }
            let part = std::mem::take(&mut self.text).into_bytes();
            (!part.is_empty()).then_some(Ok(part))
        })
    }
}

/// The requested format.
fn kind(query: Option<&str>, fields: &Fields) -> Kind {
    match query::values(query, "format").next().flatten().as_deref() {
        Some("json") => Kind::Json,
        Some("html") => Kind::Html,
        Some("m3u") => Kind::Playlist,
        _ => preferred(fields),
    }
}

/// Replaces a 404 by a page for clients that accept HTML; others get `answer`.
pub(super) fn not_found(path: &RequestPath, fields: &Fields, answer: Response) -> Response {
    let wants_page = fields.list("accept").any(|range| range.starts_with(b"text/html"));
    if !wants_page || preferred(fields) != Kind::Html {
        return answer.with("Vary", "Accept");
    }
    let said = String::from_utf8_lossy(answer.content()).trim().to_owned();
    let page = html::nothing(path, host(fields), &said);
    Response::new(404, "text/html; charset=utf-8", page)
        .with("Content-Security-Policy", POLICY_NOTHING)
        .with("Referrer-Policy", "no-referrer")
        .with("Vary", "Accept")
}

/// The server's host name in the request.
pub(super) fn host(fields: &Fields) -> Option<&str> {
    std::str::from_utf8(fields.one("host")?).ok().filter(|host| !host.is_empty())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Html,
    Json,
    Playlist,
}

impl Kind {
    fn media_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Json => "application/json",
            Self::Playlist => "audio/x-mpegurl; charset=utf-8",
        }
    }
}

/// The format that the `Accept` fields prefer (RFC 9110 section 12.5.1); HTML if both are equal.
fn preferred(fields: &Fields) -> Kind {
    let weight = |media_type: &str| {
        fields
            .list("accept")
            .filter_map(|range| std::str::from_utf8(range).ok())
            .filter_map(|range| weight_for(range, media_type))
            .max()
            .map_or(0, |(_, weight)| weight)
    };
    if weight("application/json") > weight("text/html") { Kind::Json } else { Kind::Html }
}

/// How specifically a media range matches a type, and its weight in thousandths; none if it does
/// not match.
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

/// A weight with at most three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u16 = whole.parse().ok().filter(|&whole| whole <= 1)?;
    let plain = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let fraction: u16 = format!("{fraction:0<3}").parse().ok().filter(|_| plain)?;
    Some((whole * 1000 + fraction).min(1000))
}

/// Writes entries of these `names` as pages, in as many parts as necessary, and checks the size of
/// each.
///
/// # Panics
/// When a part is longer than its limit.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check(names: &[&str]) {
    let path = RequestPath::parse(b"/a/").expect("it is one");
    let base = Some("http://tv:8080".to_owned());
    let page = Page { path, host: Some("tv:8080".to_owned()), base, takes_uploads: true };
    for kind in [Kind::Html, Kind::Json, Kind::Playlist] {
        let (mut form, _) = begin(kind, &page);
        check_parts(names, &mut *form);
    }
}

/// Like `written`, in one format.
///
/// # Panics
/// When a part is longer than its limit.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check_parts(names: &[&str], form: &mut (dyn Format + Send)) {
    use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};
    let entry = |name: &&str| Entry {
        name: (*name).to_owned(),
        kind: tactus_storage::catalogue::EntryKind::Title {
            len: Bytes(5),
            own_rate: Some(BitRate(8_800_000)),
            peak: None,
            duration: Some(Nanos(2_000_000_000)),
        },
        modified: Some(WallTime(784_111_777_000_000_000)),
        created: None,
        etag: Some("\"abc\"".to_owned()),
        file: None,
        grows: false,
        digests: None,
    };
    let mut entries = names.iter().take(PART_ENTRIES).map(entry).collect::<Vec<_>>().into_iter();
    let mut part = || {
        let (mut part, before) = (String::new(), entries.len());
        let more = write_part(&mut entries, form, &mut part);
        assert!(part.len() <= PART_BYTES + ENTRY_BYTES_MAX, "a part of {} bytes", part.len());
        assert!(!more || part.len() >= PART_BYTES && entries.len() < before, "a part is full");
        more
    };
    // A control thread writes one part without a pause.
    if part() {
        tactus_media::fuzz_targets::aside(|| while part() {});
    }
}

/// The longest entry: 64 properties of a PROPFIND with names of 8 KiB, which escaping makes six
/// times as long.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) const ENTRY_BYTES_MAX: usize = 64 * KIB as usize;

#[cfg(test)]
mod tests;
