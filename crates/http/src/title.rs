//! The answer for one title: preconditions, ranges, rate, and their fields. It sends nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tactus_control::broker::{Device, Overlap};
use tactus_core::path::RequestPath;
use tactus_core::range::{self, RequestedRange};
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::Pace;
use tactus_media::MediaFacts;
use tactus_media::playlist::is_playlist;
use tactus_storage::catalogue::{Exactness, OpenTitle};

use super::answer::{Answer, ContentEnd, Delivery, Parts, not_served};
use super::conditional::{self, Validators, Verdict};
use super::counters::Abuse;
use super::multipart::{Multipart, content_range};
use super::rate::{self, RateRequest, SegmentRate, TitleRate};
use super::request::{Method, Request};
use super::response::Response;
use super::schedule::{Renewal, RenewalReason, follow_content};
use super::settings::StoredPages;
use super::{Site, Store, cmcd, seek};

/// The answer to a GET or HEAD of `title`.
pub(super) async fn answer(
    site: &Site,
    store: &Store,
    request: &Request,
    path: &RequestPath,
    query: Option<&str>,
    title: Arc<OpenTitle>,
) -> Answer {
    let now = SystemTime::now();
    let modified = last_modified(&title, now);
    let validators = Validators { etag: &title.etag, modified };
    let described = |response: Response| {
        response.with("ETag", &title.etag).with("Last-Modified", httpdate::fmt_http_date(modified))
    };
    match conditional::verdict(&request.fields, validators) {
        Verdict::Send => {}
        Verdict::NotModified => return Answer::Short(described(Response::empty(304))),
        Verdict::Failed => {
            return Answer::Short(Response::text(412, "the title is not the requested version"));
        }
    }
    let requested = match rate::requested(query, &request.fields) {
        Ok(requested) => requested,
        Err(fault) => return Answer::Short(Response::text(400, fault.to_string())),
    };
    let part = match seek::span(query) {
        Ok(None) => None,
        Ok(Some(span)) => match seek::part(store, &title, path, span).await {
            Ok(part) => Some(part),
            Err(refused) => return Answer::Short(refused),
        },
        Err(fault) => return Answer::Short(Response::text(400, fault.to_string())),
    };
    let asked = match request.method {
        // A part by time is content of its own, without ranges.
        _ if part.is_some() => RequestedRange::Whole,
        // RFC 9110 section 14.2: a range applies to GET only.
        Method::Get if conditional::range_counts(&request.fields, validators, now) => {
            let field = request.fields.one("range");
            let max = site.limits.ranges_max;
            match field {
                None => RequestedRange::Whole,
                // A part of bytes that have not come yet does not exist. A request for all bytes
                // gets them as they come.
                Some(field) if title.following.is_some() && title.len == Bytes(0) => {
                    match range::asked(field, 1, max) {
                        RequestedRange::Unsatisfiable => RequestedRange::Unsatisfiable,
                        RequestedRange::Whole | RequestedRange::Parts(_) => RequestedRange::Whole,
                    }
                }
                Some(field) => range::asked(field, title.len.0, max),
            }
        }
        _ => RequestedRange::Whole,
    };
    if asked == RequestedRange::Unsatisfiable {
        site.counters.count(Abuse::BadRange);
        let text = "the range is outside the title, or the request has too many ranges";
        let whole = format!("bytes */{}", title.len.0);
        return Answer::Short(Response::text(416, text).with("Content-Range", whole));
    }
    let media = match requested {
        RateRequest::Title => match store.catalogue.media(&title, path).await {
            Ok(media) => media,
            Err(fault) => return Answer::Short(not_served(fault)),
        },
        RateRequest::Exact(_) | RateRequest::Max | RateRequest::Player(_) => None,
    };
    // The range has an end when Chromium fills a gap of its cache.
    let plays_range = match &asked {
        RequestedRange::Parts(parts) => {
            Some(parts.len() == 1 && parts.iter().all(|part| part.end - part.start >= PLAYED_MIN))
        }
        RequestedRange::Whole | RequestedRange::Unsatisfiable => None,
    };
    let segment = match (&requested, &part) {
        (RateRequest::Title, None) if title.following.is_none() => {
            segment(store, &title, path, media.as_ref(), &asked).await
        }
        _ => None,
    };
    let own = media.map(|media| TitleRate::of(&media, &asked));
    let pace = match rate::pace(requested, own, &store.rates) {
        Ok(pace) => pace,
        Err(fault) => return Answer::Short(Response::text(400, fault.to_string())),
    };
    let share = match requested {
        _ if segment.is_some() => store.rates.title.client_share,
        _ if pace == Pace::BestEffort => store.broker.best_effort_share(),
        RateRequest::Exact(_) | RateRequest::Max => store.rates.asked.client_share,
        RateRequest::Player(_) => store.rates.cmcd.client_share,
        RateRequest::Title => store.rates.title.client_share,
    };
    let is_part = part.is_some();
    let ranges = if is_part { "none" } else { "bytes" };
    let (head, parts, tail, follows) = match (part, &title.following) {
        (Some(part), _) => {
            let len = part.before.len() as u64 + part.bytes.end - part.bytes.start;
            let head = Response::announcing(200, title.media_type, len);
            let head = head.with("Tactus-Start", part.start);
            (head, vec![(part.before, part.bytes)], Vec::new(), None)
        }
        (None, Some(following)) => grown(asked, &title, following.declared),
        (None, None) => {
            let (head, parts, tail) = content(asked, &title);
            (head, parts, tail, None)
        }
    };
    let head_len = media.map_or(Bytes(0), |media| media.head);
    let is_behind_head = matches!(&parts[..], [(_, part)] if part.start > head_len.0);
    let is_seek = is_part || (plays_range == Some(true) && is_behind_head);
    let may_be_slowed = requested == RateRequest::Title && segment.is_none();
    let (paces, renewal) = match (segment, media, &parts[..]) {
        (Some(segment), ..) => (segment.paces(&store.rates), None),
        (None, Some(media), [(_, part)]) => {
            let plays = is_part || plays_range != Some(false);
            let at_once = match is_seek {
                true => store.rates.of_seek(),
                false => store.rates.of_whole_buffer(),
            };
            let at_once = at_once.filter(|_| plays).and_then(|limits| {
                let pace = rate::pace(requested, own, &limits).ok()?;
                Some((pace, limits))
            });
            let paces = at_once.into_iter().chain([(pace, store.rates.clone())]).collect();
            let followed =
                follow_content(&store.catalogue, &title, path, &media, part.clone(), paces).await;
            let (mut planned, exactness) = followed;
            // From its beginning a title of a constant rate needs no more than its start burst.
            planned.retain(|pace| is_seek || pace.plan.is_some() || !pace.takes_spare);
            let reason = match exactness {
                Exactness::Estimate => RenewalReason::Index,
                _ => RenewalReason::Room,
            };
            let limits = store.rates.clone();
            let renewal = Renewal { path: path.clone(), media, pace, limits, reason };
            (planned, Some(renewal))
        }
        _ => (vec![pace.into()], None),
    };
    // A look needs no room: it is a short answer if there is none.
    let is_look = plays_range == Some(false) && parts.len() == 1;
    let needs_no_room = is_look && requested == RateRequest::Title && pace != Pace::BestEffort;
    let short = needs_no_room.then(|| Pace::BestEffort.into());
    let paces: Vec<_> = paces.into_iter().chain(short).collect();
    // Uploaded content must not run in the origin of this server's own pages.
    let head =
        match (store.uploads.is_some() && is_active(title.media_type), site.limits.stored_pages) {
            (true, StoredPages::Sandbox) => head.with("Content-Security-Policy", "sandbox"),
            // Without `allow-same-origin`, scripts run in an opaque origin.
            (true, StoredPages::Scripts) => head.with("Content-Security-Policy", SCRIPTS),
            (true, StoredPages::Trusted) | (false, _) => head,
        };
    let head = described(head).with("Accept-Ranges", ranges);
    // An empty title has no content, and neither has an answer to HEAD.
    match request.method == Method::Get && !(parts.is_empty() && follows.is_none()) {
        true => {
            let is_playlist = is_playlist(path.name());
            let device = device(request, query);
            let overlap = match plays_range {
                // Players seek by times, or by ranges.
                _ if is_part => Overlap::Likely,
                Some(true) => Overlap::Likely,
                Some(false) => Overlap::Never,
                None => Overlap::Unlikely,
            };
            let delivery = Delivery {
                head,
                title,
                paces,
                is_playlist,
                share,
                device,
                overlap,
                is_seek,
                may_be_slowed,
                is_piece: is_look || segment.is_some(),
                parts,
                tail,
                renewal,
                follows,
            };
            Answer::Delivery(Box::new(delivery))
        }
        false => Answer::Short(head.with("Tactus-Rate", rate::in_words(&paces[0]))),
    }
}

/// The requested part of a title as a segment of HLS or DASH, if it is one.
async fn segment(
    store: &Store,
    title: &OpenTitle,
    path: &RequestPath,
    media: Option<&MediaFacts>,
    asked: &RequestedRange,
) -> Option<SegmentRate> {
    let len = match asked {
        RequestedRange::Whole => title.len,
        RequestedRange::Parts(parts) => match &parts[..] {
            [part] => Bytes(part.end - part.start),
            _ => return None,
        },
        RequestedRange::Unsatisfiable => return None,
    };
    if is_playlist(path.name()) {
        return None;
    }
    let listed = store.catalogue.segment(path).await;
    SegmentRate::of(media, listed, [len, title.len], &store.rates)
}

/// A shorter range is a look at the title, not the position of a player. libavformat looks for the
/// last time stamp of a transport stream in its last 1, 3, 7, 15, 31 and 63 KiB.
const PLAYED_MIN: u64 = 64 * KIB;

/// What tells the client from others at the same address: its program, and the id of its session
/// from CMCD or from Apple's players.
fn device(request: &Request, query: Option<&str>) -> Device {
    let fields = &request.fields;
    let agent = fields.one("user-agent").unwrap_or_default();
    let session = cmcd::session(fields, query);
    let session = session.as_deref().or_else(|| fields.one("x-playback-session-id"));
    Device::of(agent, session)
}

/// The rights of scripts in a stored page: playing, full screen and opening other pages.
const SCRIPTS: &str = "sandbox allow-scripts allow-forms allow-popups allow-presentation";

/// Whether a browser runs scripts in content of this type.
fn is_active(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    // Browsers show every XML type as a document, and XML may contain XHTML scripts: also a DASH
    // manifest, subtitles, or a playlist (the MIME Sniffing standard, section 4.6: XML MIME types).
    matches!(essence, "text/html" | "text/xml" | "application/xml") || essence.ends_with("+xml")
}

/// As [`content`] for a growing title: a range of durable bytes, or all bytes as they come. An
/// answer with several ranges needs the title's length. While it is unknown, the field is ignored,
/// as RFC 9110 section 14.2 allows.
fn grown(
    asked: RequestedRange,
    title: &OpenTitle,
    declared: Option<Bytes>,
) -> (Response, Parts, Vec<u8>, Option<ContentEnd>) {
    match asked {
        RequestedRange::Parts(mut parts) if parts.len() == 1 => {
            let part = parts.pop().expect("there is one");
            let all = declared.map_or("*".to_owned(), |len| len.0.to_string());
            let head = Response::announcing(206, title.media_type, part.end - part.start)
                .with("Content-Range", format!("bytes {}-{}/{all}", part.start, part.end - 1))
                .with("Cache-Control", UNFINISHED);
            (head, vec![(Vec::new(), part)], Vec::new(), None)
        }
        _ => {
            let (head, follows) = match declared {
                Some(len) => {
                    let head = Response::announcing(200, title.media_type, len.0);
                    (head, ContentEnd::Until(len.0))
                }
                None => (Response::unbounded(200, title.media_type), ContentEnd::UntilClosed),
            };
            (head.with("Cache-Control", UNFINISHED), Vec::new(), Vec::new(), Some(follows))
        }
    }
}

/// A cache must not store an unfinished title, because its name will have other content.
const UNFINISHED: &str = "no-store";

/// The head of the answer, and the parts with the text around them.
fn content(asked: RequestedRange, title: &OpenTitle) -> (Response, Parts, Vec<u8>) {
    let (len, media_type) = (title.len.0, title.media_type);
    match asked {
        RequestedRange::Parts(parts) if parts.len() > 1 => {
            let words = Multipart::new(&parts, len, media_type);
            let content: u64 = parts.iter().map(|part| part.end - part.start).sum();
            let all = words.words_len() + content;
            let head = Response::announcing(206, &words.media_type(), all);
            let (heads, tail) = words.into_words();
            (head, heads.into_iter().zip(parts).collect(), tail)
        }
        RequestedRange::Parts(mut parts) => {
            let part = parts.pop().expect("a satisfiable field has a part");
            let head = Response::announcing(206, media_type, part.end - part.start)
                .with("Content-Range", content_range(&part, len));
            (head, vec![(Vec::new(), part)], Vec::new())
        }
        RequestedRange::Whole | RequestedRange::Unsatisfiable => {
            let part = (len > 0).then(|| (Vec::new(), 0..len));
            (Response::announcing(200, media_type, len), part.into_iter().collect(), Vec::new())
        }
    }
}

/// The modification time in whole seconds, never in the future (RFC 9110 section 8.8.2.1).
fn last_modified(title: &OpenTitle, now: SystemTime) -> SystemTime {
    let seconds = |time: Duration| UNIX_EPOCH + Duration::from_secs(time.as_secs());
    let modified = seconds(Duration::from_nanos(title.modified.0));
    let now = now.duration_since(UNIX_EPOCH).map_or(UNIX_EPOCH, seconds);
    modified.min(now)
}
