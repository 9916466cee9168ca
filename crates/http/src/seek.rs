//! Parts of a title by time: `?start=75.5&end=90`, and the times of a title as JSON.
//!
//! Promise: a part begins at an access point at or before its start, with the tables that a decoder
//! needs in front. It ends before the first access point at or after its end. Its length is
//! announced.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use tactus_core::path::RequestPath;
use tactus_core::ts::{AccessKind, Index, Program};
use tactus_core::units::MediaTime;
use tactus_storage::catalogue::{IndexState, OpenFault, OpenTitle, PathObject};

use super::answer::{if_down, not_served};
use super::request::{Method, Request};
use super::response::Response;
use super::{Store, query};

/// The path of the times of titles.
const TITLES: &str = "api/v1/titles";

/// A span of a player's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    start: MediaTime,
    end: Option<MediaTime>,
}

/// The part of a title for a span.
pub(super) struct Part {
    /// The tables before the part.
    pub(super) before: Vec<u8>,
    pub(super) bytes: Range<u64>,
    /// When its first video frame is shown, in seconds.
    pub(super) start: String,
}

/// Why a span is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum SpanFault {
    #[error(
        "`{0}` is invalid: write seconds as `{0}=75.5`, or hours, minutes and seconds \
         as `{0}=0:01:15.5`"
    )]
    Malformed(&'static str),
    #[error("`{0}` occurs twice in the query")]
    Twice(&'static str),
    #[error("`end` must be after `start`")]
    Backwards,
}

/// The span in a query; none if the query has none.
pub(super) fn span(text: Option<&str>) -> Result<Option<Span>, SpanFault> {
    let one = |key: &'static str| {
        let mut values = query::values(text, key);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(SpanFault::Twice(key)),
            (Some(value), None) => {
                let time = value.as_deref().and_then(time).ok_or(SpanFault::Malformed(key))?;
                Ok(Some(time))
            }
        }
    };
    match (one("start")?, one("end")?) {
        (None, None) => Ok(None),
        (start, end) => {
            let start = start.unwrap_or(MediaTime(0));
            match end.is_some_and(|end| end <= start) {
                true => Err(SpanFault::Backwards),
                false => Ok(Some(Span { start, end })),
            }
        }
    }
}

/// Seconds, or `hours:minutes:seconds`, with up to nine digits of a fraction (RFC 2326, 3.6).
/// Rounds down.
fn time(text: &str) -> Option<MediaTime> {
    let digits = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<u64> = whole.split(':').map(digits).collect::<Option<_>>()?;
    let seconds = match parts[..] {
        [seconds] => seconds,
        [hours, minutes, seconds] if minutes < 60 && seconds < 60 => {
            hours.checked_mul(3600)? + minutes * 60 + seconds
        }
        _ => return None,
    };
    if fraction.len() > 9 {
        return None;
    }
    let ticks = digits(fraction)? * TICKS / 10u64.pow(fraction.len() as u32);
    seconds.checked_mul(TICKS)?.checked_add(ticks).map(MediaTime)
}

/// Ticks of media time in a second.
const TICKS: u64 = 27_000_000;

/// The part of `title` for `span`.
pub(super) async fn part(
    store: &Store,
    title: &OpenTitle,
    path: &RequestPath,
    span: Span,
) -> Result<Part, Response> {
    let index = known(store, title, path).await?;
    cut(&index, span).ok_or_else(|| {
        let text = format!(
            "`start` is beyond the end of the title, which lasts {} s",
            seconds(index.duration())
        );
        Response::text(416, text)
    })
}

/// The index, or the answer for a client that needs it.
async fn known(
    store: &Store,
    title: &OpenTitle,
    path: &RequestPath,
) -> Result<Arc<Index>, Response> {
    match store.catalogue.index(title, path).await {
        Ok(IndexState::Ready(index)) => Ok(index),
        Ok(IndexState::Never(fault)) => {
            let text = format!("the times of this title are not known: {fault}");
            Err(Response::text(422, text))
        }
        Ok(IndexState::Pending) => {
            let text = "this title is being indexed; try again shortly";
            Err(Response::text(503, text).with("Retry-After", AGAIN))
        }
        Err(fault) => Err(not_served(fault)),
    }
}

/// Seconds after which a client may retry while an index is being made.
const AGAIN: &str = "5";

fn cut(index: &Index, span: Span) -> Option<Part> {
    let first = index.entry_at(span.start).filter(|_| span.start < index.duration())?;
    let from = index.start_of(first);
    let to = span.end.and_then(|end| index.entry_after(end));
    let to = to.map_or(index.len(), |access| index.start_of(access));
    (from < to).then(|| Part {
        before: index.tables_before(first),
        bytes: from..to,
        start: seconds(index.played(first)),
    })
}

/// Seconds with milliseconds. Rounds down.
fn seconds(time: MediaTime) -> String {
    let millis = u128::from(time.0) * 1000 / u128::from(TICKS);
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

/// The title's name in `/api/v1/titles/PATH`.
pub(super) fn title_of(path: &RequestPath) -> Option<&str> {
    path.name().strip_prefix(TITLES)?.strip_prefix('/')
}

/// The answer for `/api/v1/titles/PATH`; none for another path.
pub(super) async fn told(store: &Store, request: &Request, path: &RequestPath) -> Option<Response> {
    let name = title_of(path)?;
    if !matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    let mut raw = String::new();
    for segment in name.split('/') {
        raw.push('/');
        tactus_core::path::encode_segment(segment, &mut raw);
    }
    let Ok(path) = RequestPath::parse(raw.as_bytes()) else {
        return Some(not_served(OpenFault::NotFound));
    };
    if let Some(volume) = store.catalogue.volume_at(&path)
        && let Err(refused) = if_down(&store.watchdog, &store.catalogue, volume)
    {
        return Some(refused);
    }
    let title = match store.catalogue.find(&path).await {
        Ok(PathObject::Title(title)) => title,
        Ok(PathObject::Directory(_)) => return Some(not_served(OpenFault::NotFound)),
        Err(fault) => return Some(not_served(fault)),
    };
    Some(match known(store, &title, &path).await {
        Ok(index) => Response::json(200, &facts(&index)),
        Err(refused) => refused,
    })
}

/// The facts of an index, for programs.
pub fn facts(index: &Index) -> Value {
    let float = |time: MediaTime| (time.0 / (TICKS / 1_000_000)) as f64 / 1_000_000.0;
    let rates = index.rates();
    let flaws = index.flaws();
    let entries: Vec<_> =
        index.accesses().iter().filter(|access| access.kind == AccessKind::Entry).collect();
    let between = match (entries.first(), entries.last()) {
        (Some(first), Some(last)) if entries.len() > 1 => {
            Some(float(MediaTime((last.shown.0 - first.shown.0) / (entries.len() as u64 - 1))))
        }
        _ => None,
    };
    let programs = index.programs().iter().map(|program| {
        let streams = program.streams.iter().map(|stream| {
            json!({
                "pid": stream.pid.0,
                "stream_type": stream.kind,
                "kind": Program::kind_name(stream.kind),
            })
        });
        json!({
            "number": program.number,
            "table_pid": program.table.0,
            "clock_pid": program.clock.0,
            "streams": streams.collect::<Vec<_>>(),
        })
    });
    json!({
        "bytes": index.len(),
        "packets": index.packets(),
        "packet_bytes": index.stride(),
        "duration_seconds": float(index.duration()),
        "rate_bits_per_second": rates.map(|rates| json!({
            "min": rates.min.0,
            "mean": rates.mean.0,
            "max": rates.max.0,
        })),
        "constant": index.is_constant(),
        "clock_pid": index.clock().0,
        "points": index.points().len(),
        "tolerance_ticks": index.tolerance().0,
        "random_access": {
            "entries": entries.len(),
            "intra": index.accesses().len(),
            "mean_distance_seconds": between,
        },
        "discontinuities": index.runs().iter().skip(1).map(|run| json!({
            "byte": run.at,
            "seconds": float(run.time),
            "announced": run.announced,
        })).collect::<Vec<_>>(),
        "flaws": {
            "skipped_bytes": flaws.skipped_bytes,
            "sync_losses": flaws.sync_losses,
            "marked_packets": flaws.marked,
            "malformed_packets": flaws.malformed,
            "bad_sections": flaws.bad_sections,
            "continuity_gaps": flaws.gaps,
            "split_time_stamps": flaws.split_times,
            "scrambled_packets": flaws.scrambled,
        },
        "programs": programs.collect::<Vec<_>>(),
    })
}

/// Cuts parts of an index.
///
/// # Panics
/// When a part lies outside of the title.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check(index: &Index) {
    let last = index.duration().0;
    for start in [0, 1, last / 2, last.saturating_sub(1), last] {
        for end in [None, Some(MediaTime(start.saturating_add(TICKS)))] {
            let Some(part) = cut(index, Span { start: MediaTime(start), end }) else { continue };
            assert!(part.bytes.start < part.bytes.end && part.bytes.end <= index.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Option<(u64, Option<u64>)>, SpanFault> {
        let span = span(Some(query))?;
        Ok(span.map(|span| (span.start.0, span.end.map(|end| end.0))))
    }

    #[test]
    fn spans_are_read_exactly() {
        assert_eq!(asked("rate=1M"), Ok(None));
        assert_eq!(asked("start=75.5"), Ok(Some((TICKS * 151 / 2, None))));
        assert_eq!(asked("start=0:01:15.5"), Ok(Some((TICKS * 151 / 2, None))));
        assert_eq!(asked("end=90"), Ok(Some((0, Some(TICKS * 90)))));
        assert_eq!(asked("start=1&end=2.000000001"), Ok(Some((TICKS, Some(TICKS * 2)))));
        for bad in [
            "",
            "-1",
            "+1",
            "1e3",
            "1.",
            ".5",
            "1:2",
            "0:60:00",
            "0:00:60",
            "x",
            "1.0000000001",
            "99999999999999999999",
            "9999999999999999999",
            "%zz",
            "1:2:3:4",
            "5124095576030432:00:00",
        ] {
            assert_eq!(asked(&format!("start={bad}")), Err(SpanFault::Malformed("start")), "{bad}");
        }
        assert_eq!(asked("start=1&start=1"), Err(SpanFault::Twice("start")));
        assert_eq!(asked("start=2&end=2"), Err(SpanFault::Backwards));
        assert_eq!(asked("end=0"), Err(SpanFault::Backwards));
    }
}
