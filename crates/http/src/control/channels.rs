//! Channels under `/api/v1/channels`: started, changed and stopped with the right `channels`.
//!
//! Promise: values are checked by the rules of the configuration, with the same error messages. It
//! sends no datagrams itself.

use serde_json::{Map, Value};
use tactus_core::path::RequestPath;
use tactus_playout::channel::Channel;
use tactus_playout::channels::{Channels, OrderError};

use super::recordings;
use crate::incoming::Incoming;
use crate::keys;
use crate::put::BodyOutcome;
use crate::request::{Method, Request};
use crate::response::Response;
use crate::uploads::Refusal;

const CHANNELS: &str = "api/v1/channels";

/// Whether a path is one of a channel, or of all.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// Whether a path is for the receivers of a channel: its description, or its live stream.
pub(super) fn is_guide(path: &RequestPath) -> bool {
    below(path).is_some_and(|name| name.ends_with(".sdp") || name.ends_with(".ts"))
}

/// The part of `path` below the place of all channels.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(CHANNELS)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// Handles a request.
pub(super) async fn answer(
    channels: Option<&Channels>,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Some(channels) = channels else {
        return Err(Response::text(404, "nothing is sent here").into());
    };
    let below = below(path).unwrap_or_default();
    let (name, what) = below.split_once('/').unwrap_or((below, ""));
    let mut body = Vec::new();
    if matches!(request.method, Method::Put | Method::Patch | Method::Post) {
        body = match recordings::read(incoming).await? {
            Ok(body) => body,
            Err(ended) => return Ok(ended),
        };
    }
    let response = match (request.method, name, what) {
        (Method::Get | Method::Head, "", "") => Response::json(200, &channels.all()),
        (Method::Get | Method::Head, name, "") => told(channels, name, 200)?,
        (Method::Post, "", "") => {
            let channel = keys::worked_out(move || wanted(read(&body)?)).await?;
            if channels.one(&channel.name).is_some() {
                let text = "a channel of this name already exists; change it with PUT or PATCH";
                return Err(Response::text(409, text).into());
            }
            set(channels, channel).await?
        }
        (Method::Put, name, "") if !name.is_empty() => {
            let name = name.to_owned();
            let work = move || wanted(named(read(&body)?, &name)?);
            set(channels, keys::worked_out(work).await?).await?
        }
        (Method::Patch, name, "") if !name.is_empty() => {
            let known = channels.configured(name).ok_or_else(|| refused(&OrderError::Unknown))?;
            let (known, name) = (known.keys(), name.to_owned());
            let work = move || wanted(patched(known, named(read(&body)?, &name)?));
            set(channels, keys::worked_out(work).await?).await?
        }
        (Method::Delete, name, "") if !name.is_empty() => {
            channels.remove(name).await.map_err(|error| refused(&error))?;
            Response::empty(204)
        }
        (Method::Post, name, "skip") => {
            channels.skip(name).map_err(|error| refused(&error))?;
            told(channels, name, 202)?
        }
        (Method::Post, name, "reset") => {
            match channels.reset(name).await.map_err(|error| refused(&error))? {
                true => told(channels, name, 200)?,
                false => Response::empty(204),
            }
        }
        (Method::Post, name, "next") => {
            let requested = channels.request_title(name, title(&read(&body)?)?).await;
            requested.map_err(|error| refused(&error))?;
            told(channels, name, 202)?
        }
        _ => {
            let text = "use GET to read channels, PUT to set, PATCH to change and DELETE to \
                        remove one; POST to NAME/skip skips a title, to NAME/next queues one, to \
                        NAME/reset restores the configuration";
            let allow = "GET, HEAD, POST, PUT, PATCH, DELETE";
            return Err(Response::text(405, text).with("Allow", allow).into());
        }
    };
    Ok(BodyOutcome::Answer(response.with("Cache-Control", "no-store")))
}

async fn set(channels: &Channels, channel: Channel) -> Result<Response, Refusal> {
    let name = channel.name.clone();
    let is_new = channels.set(channel).await.map_err(|error| refused(&error))?;
    let response = told(channels, &name, if is_new { 201 } else { 200 })?;
    Ok(response.with("Location", format!("/{CHANNELS}/{name}")))
}

fn told(channels: &Channels, name: &str, status: u16) -> Result<Response, Refusal> {
    let one = channels.one(name).ok_or_else(|| refused(&OrderError::Unknown))?;
    Ok(Response::json(status, &one))
}

fn refused(error: &OrderError) -> Response {
    let text = error.to_string();
    match error {
        OrderError::Unknown => Response::text(404, text),
        OrderError::NotKept(_) => Response::text(500, text),
        OrderError::Class(_) => Response::text(400, text),
        OrderError::SameAddress(_) | OrderError::Silent | OrderError::Title(_) => {
            Response::text(409, text)
        }
        OrderError::TooMany => Response::text(429, text),
        OrderError::Busy | OrderError::TooManyRequests => {
            Response::text(503, text).with("Retry-After", "1")
        }
    }
}

fn read(body: &[u8]) -> Result<Map<String, Value>, Response> {
    keys::read(body, "[[channel]]")
}

fn named(keys: Map<String, Value>, name: &str) -> Result<Map<String, Value>, Response> {
    keys::named(keys, name, "channel")
}

/// The keys in `known` with `changes`; `null` removes a key (RFC 7396).
fn patched(mut known: Map<String, Value>, changes: Map<String, Value>) -> Map<String, Value> {
    let is_list = |key: &str| key == "title" || key == "playlist";
    if changes.keys().any(|key| is_list(key)) {
        known.retain(|key, _| !is_list(key));
    }
    known.extend(changes);
    known.retain(|_, value| !value.is_null());
    known
}

fn wanted(keys: Map<String, Value>) -> Result<Channel, Response> {
    keys::checked(&keys, Channel::parse)
}

fn title(keys: &Map<String, Value>) -> Result<String, Response> {
    let title = keys.get("title").and_then(Value::as_str).filter(|title| title.starts_with('/'));
    title.map(ToOwned::to_owned).ok_or_else(|| {
        Response::text(
            400,
            "the body must name a title: {\"title\": \
            \"/films/next.ts\"}",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_checked_as_the_configuration_is_and_changes_what_it_names() {
        let asked = |body: &str| read(body.as_bytes()).and_then(wanted);
        let good = r#"{"name": "a", "playlist": ["/a.ts", "/b.ts"],
            "to": "udp://239.1.1.1:5000", "fill": "/i.ts"}"#;
        let channel = asked(good).unwrap();
        for body in [
            "",
            "[]",
            "{}",
            r#"{"name": "a"}"#,
            r#"{"name": "a", "title": "x", "to": "udp://1.1.1.1:1"}"#,
        ] {
            assert!(asked(body).is_err(), "{body}");
        }
        let patch = |body: &str| wanted(patched(channel.keys(), read(body.as_bytes()).unwrap()));
        let other = patch(r#"{"title": "/c.ts", "fill": null}"#).unwrap();
        assert_eq!(
            (&other.playlist.list, &other.playlist.fill),
            (&tactus_playout::channel::List::Titles(vec!["/c.ts".into()]), &None)
        );
        assert!(other.leaves_as(&channel));
        assert!(!patch(r#"{"hops": 9}"#).unwrap().leaves_as(&channel));
        assert!(patch(r#"{"hops": 999}"#).is_err());
        assert!(named(channel.keys(), "a").is_ok() && named(channel.keys(), "b").is_err());
    }
}
