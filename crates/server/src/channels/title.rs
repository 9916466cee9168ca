//! What a channel needs of a title, as far as it can be known before the title is sent.
//!
//! Promise: nothing is reserved here, and nothing is sent.

use std::sync::Arc;

use tactus_core::path::RequestPath;
use tactus_core::ts::{Index, IndexFault};
use tactus_core::units::BitRate;

use super::{Inner, packets};
use crate::catalogue::{Found, Indexed, OpenTitle};
use crate::config::Auto;
use crate::config::channel::Channel;

/// Why a channel cannot send a title.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It is not there, or nothing that can be sent.
    Title(String),
    /// It is faster than what the channel is to be stuffed to.
    Stuff(String),
}

/// The path of a title, as it is written in URLs.
pub(super) fn path_of(title: &str) -> Result<RequestPath, String> {
    RequestPath::parse(title.as_bytes())
        .map_err(|_| format!("{title:?} is no path; write it as in a URL"))
}

/// The title under `path`.
pub(super) async fn find(house: &Inner, path: &RequestPath) -> Result<Arc<OpenTitle>, String> {
    match house.catalogue.find(path).await {
        Ok(Found::Title(title)) if title.following.is_some() => {
            Err("the title still comes in; it is sent when all of it is stored".into())
        }
        Ok(Found::Title(title)) => Ok(title),
        Ok(Found::Directory(_)) => Err("this is a directory; name one title".into()),
        Err(fault) => Err(fault.to_string()),
    }
}

/// The title's times; why it has none, where it has none.
pub(super) async fn index(
    house: &Inner,
    title: &OpenTitle,
    path: &RequestPath,
) -> Result<Result<Arc<Index>, IndexFault>, String> {
    match house.catalogue.index(title, path).await {
        Ok(Indexed::Ready(index)) => Ok(Ok(index)),
        Ok(Indexed::Never(fault)) => Ok(Err(fault)),
        // They have been waited for a little; who waits for more of them has no time for others.
        Ok(Indexed::Coming) => Err(COMING.into()),
        Err(fault) => Err(fault.to_string()),
    }
}

const COMING: &str = "the title's times are being found out";

/// The rate of a title without regard to its times.
pub(super) async fn rate(
    house: &Inner,
    channel: &Channel,
    title: &OpenTitle,
    path: &RequestPath,
) -> Result<BitRate, String> {
    if let Auto::Set(rate) = channel.rate {
        return Ok(rate);
    }
    let facts = house.catalogue.media(title, path).await;
    match facts.map_err(|fault| fault.to_string())? {
        Some(facts) => Ok(facts.rate),
        None => Err("the title has no clock to find its rate by; give the channel a `rate`".into()),
    }
}

/// Why null packets cannot make `stuff` of a title whose fastest second is `fastest`, if they cannot.
pub(super) fn stuffs(stuff: BitRate, fastest: BitRate) -> Result<(), String> {
    if stuff >= fastest {
        return Ok(());
    }
    Err(format!(
        "its fastest second has {fastest}, which null packets cannot make {stuff}; give `stuff` a rate above that"
    ))
}

/// Whether `channel` can send the title under `title`. One whose times are not known yet can.
///
/// # Errors
/// Why not.
pub(super) async fn check(house: &Inner, channel: &Channel, title: &str) -> Result<(), Unfit> {
    let path = path_of(title).map_err(Unfit::Title)?;
    let found = find(house, &path).await.map_err(Unfit::Title)?;
    packets::range(&found).await.map_err(Unfit::Title)?;
    let index = match index(house, &found, &path).await {
        Ok(index) => index,
        Err(coming) if coming == COMING => return Ok(()),
        Err(why) => return Err(Unfit::Title(why)),
    };
    match (channel.stuff, index) {
        (Some(stuff), Ok(index)) => {
            let fastest = index.rates().map_or(BitRate(0), |rates| rates.max);
            stuffs(stuff, fastest).map_err(Unfit::Stuff)
        }
        (Some(_), Err(fault)) => Err(Unfit::Stuff(no_places(&fault.to_string()))),
        (None, Ok(_)) => Ok(()),
        (None, Err(_)) => rate(house, channel, &found, &path).await.map(drop).map_err(Unfit::Title),
    }
}

/// Why a title without times cannot be stuffed.
pub(super) fn no_places(why: &str) -> String {
    format!("null packets cannot be put where they belong: {why}")
}
