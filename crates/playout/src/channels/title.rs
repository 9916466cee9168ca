//! Checks whether a channel can send a title, as far as that is known before it is sent.
//!
//! Promise: nothing is reserved and nothing is sent.

use std::sync::Arc;

use tactus_core::path::RequestPath;
use tactus_core::ts::{Index, IndexFault};
use tactus_core::units::BitRate;
use tactus_notation::Auto;
use tactus_storage::catalogue::{IndexState, OpenTitle, PathObject};

use super::{Shared, content};
use crate::channel::Channel;

/// Why a channel cannot send a title.
#[derive(Debug)]
pub(super) enum TitleError {
    /// It does not exist, or has an unsupported format.
    Title(String),
    /// It does not fit the channel: its rate exceeds the rate that the channel is stuffed to, or
    /// its sound has another format.
    Unfit(String),
}

/// Parses a title's path, written as in URLs.
pub(super) fn path_of(title: &str) -> Result<RequestPath, String> {
    RequestPath::parse(title.as_bytes())
        .map_err(|_| format!("{title:?} is not a path; write it as in a URL"))
}

/// The title under `path`.
pub(super) async fn find(shared: &Shared, path: &RequestPath) -> Result<Arc<OpenTitle>, String> {
    match shared.catalogue.find(path).await {
        Ok(PathObject::Title(title)) if title.following.is_some() => {
            Err("the title is still being uploaded; it can be sent once it is stored".into())
        }
        Ok(PathObject::Title(title)) => Ok(title),
        Ok(PathObject::Directory(_)) => Err("this path is a directory; write the path of a \
            title"
            .into()),
        Err(fault) => Err(fault.to_string()),
    }
}

/// The title's index, or the reason why it has none.
pub(super) async fn index(
    shared: &Shared,
    title: &OpenTitle,
    path: &RequestPath,
) -> Result<Result<Arc<Index>, IndexFault>, String> {
    match shared.catalogue.index(title, path).await {
        Ok(IndexState::Ready(index)) => Ok(Ok(index)),
        Ok(IndexState::Never(fault)) => Ok(Err(fault)),
        // The wait was bounded; a longer wait would delay other titles.
        Ok(IndexState::Pending) => Err(COMING.into()),
        Err(fault) => Err(fault.to_string()),
    }
}

const COMING: &str = "the title is still being indexed";

/// The rate of a title without an index.
pub(super) async fn rate(
    shared: &Shared,
    channel: &Channel,
    title: &OpenTitle,
    path: &RequestPath,
) -> Result<BitRate, String> {
    if let Auto::Set(rate) = channel.rate {
        return Ok(rate);
    }
    let facts = shared.catalogue.media(title, path).await;
    match facts.map_err(|fault| fault.to_string())? {
        Some(facts) => Ok(facts.rate),
        None => {
            Err("the title has no PCR, so its rate is unknown; set `rate` for the channel".into())
        }
    }
}

/// Checks that null packets can fill a title whose fastest second is `fastest` up to `stuff`.
pub(super) fn check_stuffing(stuff: BitRate, fastest: BitRate) -> Result<(), String> {
    if stuff >= fastest {
        return Ok(());
    }
    Err(format!(
        "its fastest second has {fastest}, more than `stuff` = {stuff}; set `stuff` to a higher \
         rate"
    ))
}

/// Checks that `channel` can send the title under `title`. A title without an index yet passes.
///
/// # Errors
/// The reason why not.
pub(super) async fn check(
    shared: &Shared,
    channel: &Channel,
    title: &str,
) -> Result<(), TitleError> {
    let path = path_of(title).map_err(TitleError::Title)?;
    let found = find(shared, &path).await.map_err(TitleError::Title)?;
    let content = content::find(channel, &found).await;
    if channel.sound.is_some() {
        return content.map(drop).map_err(TitleError::Unfit);
    }
    content.map_err(TitleError::Title)?;
    let index = match index(shared, &found, &path).await {
        Ok(index) => index,
        Err(coming) if coming == COMING => return Ok(()),
        Err(why) => return Err(TitleError::Title(why)),
    };
    match (channel.stuff, index) {
        (Some(stuff), Ok(index)) => {
            let fastest = index.rates().map_or(BitRate(0), |rates| rates.max);
            check_stuffing(stuff, fastest).map_err(TitleError::Unfit)
        }
        (Some(_), Err(fault)) => Err(TitleError::Unfit(unknown_positions(&fault.to_string()))),
        (None, Ok(_)) => Ok(()),
        (None, Err(_)) => {
            rate(shared, channel, &found, &path).await.map(drop).map_err(TitleError::Title)
        }
    }
}

/// The message for a title without an index that should be stuffed.
pub(super) fn unknown_positions(why: &str) -> String {
    format!("the positions of null packets are unknown: {why}")
}
