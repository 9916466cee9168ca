//! Names: what a client asks by messages, answered by the catalogue.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tactus_client::protocol::{Entry, MESSAGE_MAX, Reply, Stat};
use tactus_control::broker::Broker;
use tactus_core::path::{NAME_BYTES_MAX, RequestPath};
use tactus_storage::catalogue::{
    self, Catalogue, Detail, EntryKind, ListingScope, OpenFault, OpenTitle, PathObject, Position,
    Scroll, VolumeSpace,
};

use crate::errno::{EACCES, EBADMSG, EINVAL, EISDIR, EMFILE, ENOENT, ENOTDIR, EOPNOTSUPP, Refusal};

/// Entries that are looked at together.
const ENTRIES: usize = 20;
/// A message gets further entries until it has so many bytes: even with another [`ENTRIES`] of the
/// longest names it then fits.
const LIST_BYTES: usize = 24 << 10;
/// Bytes of an entry without its name, at most.
const ENTRY_BYTES: usize = 240;
/// Bytes of a character of a name in JSON, at most: names have no control characters, so that only
/// a quotation mark and a backslash take two.
const NAME_FACTOR: usize = 2;

const _: () = assert!(
    LIST_BYTES + ENTRIES * (ENTRY_BYTES + NAME_FACTOR * (NAME_BYTES_MAX + 1)) < MESSAGE_MAX
);

/// The path of a client's text, which is decoded, unlike a URL.
pub(crate) fn path_of(text: &str) -> Result<RequestPath, Refusal> {
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
            let stat = stat_of_title(&title, media.map(|media| media.rate.0));
            Ok((title, stat))
        }
    }
}

/// Finds a title whose file is to be handed out. Its rate is not determined for that.
pub(crate) async fn file(
    catalogue: &Arc<Catalogue>,
    broker: &Broker,
    text: &str,
) -> Result<(Reply, OwnedFd), Refusal> {
    let path = path_of(text)?;
    match catalogue.find(&path).await.map_err(refused(text))? {
        PathObject::Directory(_) => Err((EISDIR, format!("{text} is a directory"))),
        PathObject::Title(title) => {
            let file = broker.plain_file(&title);
            let file = file.map_err(|error| (EMFILE, format!("{text}: {error}")))?;
            let refusal = || (EOPNOTSUPP, format!("{text} is read by the server only"));
            let rate = title.own_rate().map(|rate| rate.0);
            Ok((Reply::File(stat_of_title(&title, rate)), file.ok_or_else(refusal)?))
        }
    }
}

/// The space of a volume. May block.
pub(crate) fn space(catalogue: &Catalogue, text: &str) -> Result<Reply, Refusal> {
    let VolumeSpace { total, free, available } =
        catalogue.space(&path_of(text)?).map_err(refused(text))?;
    Ok(Reply::Space { total, free, available })
}

fn stat_of_title(title: &OpenTitle, rate: Option<u64>) -> Stat {
    Stat {
        is_directory: false,
        len: title.len.0,
        modified: nanoseconds(title.modified),
        rate,
        file: title.file_number().unwrap_or(0),
        version: version_of(&title.etag),
        grows: title.following.is_some(),
    }
}

/// The number of a version: FNV-1a with 64 bits (RFC 9923) of its entity tag.
fn version_of(etag: &str) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    etag.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Facts about a title or a directory.
pub(crate) async fn stat(catalogue: &Arc<Catalogue>, text: &str) -> Result<Reply, Refusal> {
    let found = catalogue.look(&path_of(text)?, None, Detail::Status).await;
    Ok(Reply::Stat(stat_of(&found.map_err(refused(text))?.own)))
}

/// A directory that a client reads in parts: the next part need not begin from its first name.
pub(crate) struct Listing {
    directory: String,
    scroll: Scroll,
    /// The last name of the last part, as the client has it.
    last: String,
}

/// A part of a directory. `listing` is left where the next part begins.
pub(crate) async fn list(
    catalogue: &Arc<Catalogue>,
    listing: &mut Option<Listing>,
    text: &str,
    after: Option<&str>,
) -> Result<Reply, Refusal> {
    let follows = |known: &Listing| known.directory == text && Some(known.last.as_str()) == after;
    let mut scroll = match listing.take().filter(follows) {
        Some(known) => known.scroll,
        None => {
            let PathObject::Directory(directory) =
                catalogue.find(&path_of(text)?).await.map_err(refused(text))?
            else {
                return Err((ENOTDIR, format!("{text} is no directory")));
            };
            catalogue.scroll(directory, ListingScope::All, after.map(Position::of_link))
        }
    };
    let mut entries: Vec<Entry> = vec![];
    let mut bytes = 0;
    while bytes < LIST_BYTES {
        let found = scroll.next(ENTRIES).await.map_err(refused(text))?;
        for entry in &found {
            let stat = stat_of(entry);
            // A directory's name ends with a slash, as in a listing's links: it can be told from
            // a title when it is the place to go on from.
            let slash = if stat.is_directory { "/" } else { "" };
            let entry = Entry { name: format!("{}{slash}", entry.name), stat };
            bytes += ENTRY_BYTES + NAME_FACTOR * entry.name.len();
            entries.push(entry);
        }
        if found.is_empty() || scroll.is_over() {
            break;
        }
    }
    let more = !scroll.is_over();
    if let Some(last) = entries.last().filter(|_| more) {
        let (directory, last) = (text.to_owned(), last.name.clone());
        *listing = Some(Listing { directory, scroll, last });
    }
    Ok(Reply::List { entries, more })
}

fn stat_of(entry: &catalogue::Entry) -> Stat {
    let (is_directory, len, rate) = match entry.kind {
        EntryKind::Title { len, own_rate, .. } => (false, len.0, own_rate.map(|rate| rate.0)),
        EntryKind::Directory => (true, 0, None),
    };
    let modified = entry.modified.map_or(0, nanoseconds);
    let file = entry.file.unwrap_or(0);
    let version = entry.etag.as_deref().map_or(0, version_of);
    Stat { is_directory, len, modified, rate, file, version, grows: entry.grows }
}

fn nanoseconds(time: tactus_core::units::WallTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}
