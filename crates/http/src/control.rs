//! The control API: recordings, channels, classes, pins, the placement of servers, and reloading
//! the configuration.
//!
//! Promise: each action needs its own right; rights of uploads do not suffice. The rights are
//! checked before any byte of a body is read.

mod recordings;

mod channels;
mod classes;
mod pins;
mod placement;
mod reload;

use tactus_control::pins::Pins;
use tactus_control::placer::Placer;
use tactus_control::rights::Right;
use tactus_core::path::RequestPath;
use tactus_playout::channels::Channels;
use tactus_playout::classes::Classes;
use tactus_playout::ingest::Recordings;
use tactus_playout::reload::Reload;

use super::incoming::Incoming;
use super::put::BodyOutcome;
use super::request::{Method, Request};
use super::response::Response;
use super::rights::Caller;
use super::uploads::Refusal;

/// The objects that the control API changes. An absent one answers 404.
#[derive(Clone, Default, Debug)]
pub struct Control {
    /// Live inputs, if they can be recorded.
    pub recordings: Option<Recordings>,
    /// Channels, which are sent as datagrams.
    pub channels: Option<Channels>,
    /// Classes of the link.
    pub classes: Option<Classes>,
    /// What is kept in memory.
    pub pins: Option<Pins>,
    /// Moves the servers of the engine.
    pub placer: Option<Placer>,
    /// Reloads the configuration, if it came from a file.
    pub reload: Option<Reload>,
}

/// The parts of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Section {
    Recordings,
    Channels,
    Classes,
    Pins,
    Placement,
    Reload,
}

fn part(path: &RequestPath) -> Option<Section> {
    match path {
        path if recordings::is_here(path) => Some(Section::Recordings),
        path if channels::is_here(path) => Some(Section::Channels),
        path if classes::is_here(path) => Some(Section::Classes),
        path if pins::is_here(path) => Some(Section::Pins),
        path if placement::is_here(path) => Some(Section::Placement),
        path if reload::is_here(path) => Some(Section::Reload),
        _ => None,
    }
}

/// Whether a path belongs to the API.
pub(super) fn is_here(path: &RequestPath) -> bool {
    part(path).is_some()
}

/// Whether reading `path` needs a token at the address of `[http]`, but none at the address of
/// `[admin]`. A channel's description is public, because its receivers need it.
pub(super) fn is_status(path: &RequestPath) -> bool {
    is_protected(path) && !channels::is_guide(path)
}

/// Whether the address of `[http]` reveals nothing about `path` without a token.
pub(super) fn is_protected(path: &RequestPath) -> bool {
    let sections = [Section::Channels, Section::Classes, Section::Pins, Section::Placement];
    part(path).is_some_and(|part| sections.contains(&part))
}

/// Whether `path` belongs to recordings: even reading them needs the right.
pub(super) fn is_recording(path: &RequestPath) -> bool {
    part(path) == Some(Section::Recordings)
}

/// The rights of which one is needed.
fn rights(part: Section, is_read: bool) -> &'static [Right] {
    match (part, is_read) {
        (Section::Recordings, _) => &[Right::Recordings],
        (Section::Channels, true) => &[Right::Channels, Right::Classes],
        (Section::Channels, false) => &[Right::Channels],
        (Section::Classes, true) => &[Right::Classes, Right::Channels],
        (Section::Classes, false) => &[Right::Classes],
        (Section::Pins, _) => &[Right::Pins],
        (Section::Placement, _) => &[Right::Placement],
        (Section::Reload, _) => &[Right::Reload],
    }
}

/// Refuses a caller without a right that the action needs.
fn check(caller: &Caller<'_>, part: Section, is_read: bool) -> Result<(), Response> {
    let rights = rights(part, is_read);
    if rights.iter().any(|right| caller.rights.has_somewhere(*right)) {
        return Ok(());
    }
    caller.check_somewhere(rights[0])
}

/// Handles a request to the API; none if the path belongs to something else.
pub(super) async fn answer(
    control: &Control,
    caller: &Caller<'_>,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<Option<BodyOutcome>, Refusal> {
    let Some(part) = part(path) else { return Ok(None) };
    check(caller, part, matches!(request.method, Method::Get | Method::Head))?;
    let taken = match part {
        Section::Recordings => {
            let recordings = control.recordings.as_ref();
            recordings::answer(recordings, caller.clone(), request, path, incoming).await?
        }
        Section::Channels => {
            channels::answer(control.channels.as_ref(), request, path, incoming).await?
        }
        Section::Classes => {
            classes::answer(control.classes.as_ref(), request, path, incoming).await?
        }
        Section::Pins => {
            BodyOutcome::Answer(pins::answer(control.pins.as_ref(), request, path).await?)
        }
        Section::Placement => {
            placement::answer(control.placer.as_ref(), request, path, incoming).await?
        }
        Section::Reload => {
            BodyOutcome::Answer(reload::answer(control.reload.as_ref(), request).await?)
        }
    };
    Ok(Some(taken))
}
