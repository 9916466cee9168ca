//! Names: what a client asks by messages, answered by the catalogue.

use std::sync::Arc;

use tactus_client::protocol::{Entry, Reply, Stat};
use tactus_core::path::RequestPath;
use tactus_storage::catalogue::{
    self, Catalogue, Detail, EntryKind, ListingScope, OpenFault, OpenTitle, PathObject, Position,
};

/// A refusal: an error number, and the reason.
pub(crate) type Refusal = (u32, String);

/// Entries of one message: even with the longest names they fit.
const ENTRIES: usize = 100;

/// The path of a client's text, which is decoded, unlike a URL.
fn path_of(text: &str) -> Result<RequestPath, Refusal> {
    RequestPath::of_name(text).map_err(|fault| (EINVAL, fault.to_string()))
}

fn refused(text: &str) -> impl Fn(OpenFault) -> Refusal {
    move |fault| {
        let errno = match fault {
            OpenFault::NotFound => ENOENT,
            OpenFault::Denied => EACCES,
            OpenFault::Busy => EMFILE,
            OpenFault::Failed(errno) => errno.unsigned_abs(),
            OpenFault::Damaged(_) => EBADMSG,
        };
        (errno, format!("{text}: {fault}"))
    }
}

/// Finds a title to open.
pub(crate) async fn open(
    catalogue: &Arc<Catalogue>,
    text: &str,
) -> Result<(Arc<OpenTitle>, Stat), Refusal> {
    let path = path_of(text)?;
    match catalogue.find(&path).await.map_err(refused(text))? {
        PathObject::Directory(_) => Err((EISDIR, format!("{text} is a directory"))),
        PathObject::Title(title) => {
            // Without a rate it can be read all the same.
            let media = catalogue.media(&title, &path).await.ok().flatten();
            let stat = Stat {
                is_directory: false,
                len: title.len.0,
                modified: nanoseconds(title.modified),
                rate: media.map(|media| media.rate.0),
            };
            Ok((title, stat))
        }
    }
}

/// Facts about a title or a directory.
pub(crate) async fn stat(catalogue: &Arc<Catalogue>, text: &str) -> Result<Reply, Refusal> {
    let found = catalogue.look(&path_of(text)?, None, Detail::Status).await;
    Ok(Reply::Stat(stat_of(&found.map_err(refused(text))?.own)))
}

/// A part of a directory.
pub(crate) async fn list(
    catalogue: &Arc<Catalogue>,
    text: &str,
    after: Option<&str>,
) -> Result<Reply, Refusal> {
    let PathObject::Directory(directory) =
        catalogue.find(&path_of(text)?).await.map_err(refused(text))?
    else {
        return Err((ENOTDIR, format!("{text} is no directory")));
    };
    let mut scroll = catalogue.scroll(directory, ListingScope::All, after.map(Position::of_link));
    let found = scroll.next(ENTRIES).await.map_err(refused(text))?;
    let entry = |entry: &catalogue::Entry| {
        let stat = stat_of(entry);
        // A directory's name ends with a slash, as in a listing's links: it can be told from a
        // title when it is the place to go on from.
        let name = if stat.is_directory { format!("{}/", entry.name) } else { entry.name.clone() };
        Entry { name, stat }
    };
    let entries = found.iter().map(entry).collect();
    Ok(Reply::List { entries, more: !scroll.is_over() })
}

fn stat_of(entry: &catalogue::Entry) -> Stat {
    let (is_directory, len, rate) = match entry.kind {
        EntryKind::Title { len, own_rate, .. } => (false, len.0, own_rate.map(|rate| rate.0)),
        EntryKind::Directory => (true, 0, None),
    };
    Stat { is_directory, len, modified: entry.modified.map_or(0, nanoseconds), rate }
}

fn nanoseconds(time: tactus_core::units::WallTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

pub(crate) const ENOENT: u32 = 2;
pub(crate) const EBADF: u32 = 9;
pub(crate) const EACCES: u32 = 13;
pub(crate) const ENOTDIR: u32 = 20;
pub(crate) const EISDIR: u32 = 21;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const EMFILE: u32 = 24;
pub(crate) const EBADMSG: u32 = 74;
