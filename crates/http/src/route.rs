//! From a request to an answer: the method, the object, or a refusal. It sends nothing.

use tactus_core::path::{RequestPath, encode_segment};
use tactus_storage::catalogue::{ListingScope, OpenFault, PathObject};

use super::Site;
use super::answer::{Answer, if_down, not_served};
use super::cors::Cors;
use super::counters::Abuse;
use super::public;
use super::request::{Method, Request};
use super::response::Response;
use super::settings::PublicUrl;
use super::target::Target;
use super::transport::Client;
use super::uploads::{Refusal, Uploads};
use super::{Store, control, listing, live, seek, title, tus, uploads};

/// The methods that are served if directories are listed; otherwise all but the last one.
const ALLOWED_TO_READ: [&str; 2] = ["GET, HEAD, OPTIONS, PROPFIND", "GET, HEAD, OPTIONS"];

/// Finds the answer to `request`.
pub(super) async fn answer(site: &Site, client: Client, request: &Request) -> Answer {
    match (request.method, &request.target) {
        (Method::Unknown, _) => {
            site.counters.count(Abuse::BadMethod);
            Answer::Short(Response::text(501, "unknown method"))
        }
        (Method::Options, _) | (_, Target::Server) => Answer::Short(options(site, request)),
        (Method::Get | Method::Head, Target::Path { path, query }) => {
            match object(site, client, request, path, query.as_deref()).await {
                Answer::Short(response) if response.status() == 404 && site.store.is_some() => {
                    Answer::Short(listing::not_found(path, &request.fields, response))
                }
                answer => answer,
            }
        }
        _ => {
            site.counters.count(Abuse::BadMethod);
            let text = format!("this method is not allowed here; allowed are: {}", allowed(site));
            Answer::Short(Response::text(405, text).with("Allow", allowed(site)))
        }
    }
}

/// The methods that this site serves.
fn allowed(site: &Site) -> &'static str {
    match takes_uploads(site) {
        true => uploads::ALLOWED,
        false if speaks_dav(site) => ALLOWED_TO_READ[0],
        false => ALLOWED_TO_READ[1],
    }
}

/// Whether the site has objects with properties.
fn speaks_dav(site: &Site) -> bool {
    takes_uploads(site) || site.store.as_ref().is_some_and(|store| store.listing)
}

fn takes_uploads(site: &Site) -> bool {
    let uploads = site.store.as_ref().and_then(|store| store.uploads.as_ref());
    uploads.is_some_and(Uploads::may_anybody)
}

/// The supported methods, independent of the path: nothing is looked up. All clients get the same
/// answer, except for file managers that must first ask their users for a password.
fn options(site: &Site, request: &Request) -> Response {
    let uploads = site.store.as_ref().and_then(|store| store.uploads.as_ref());
    if let Some(uploads) = uploads
        && let Err(refused) = uploads.check_mounts(&request.fields)
    {
        return refused.response;
    }
    let response = match (uploads, &request.target) {
        (Some(uploads), Target::Path { path, .. }) if tus::is_here(path) => tus::options(uploads),
        _ => {
            let response = Response::empty(204).with("Allow", allowed(site));
            // RFC 4918 section 10.1: class 2 has locks; a site without changes has nothing to lock.
            // Some file managers look for the other field.
            let class = if takes_uploads(site) { "1, 2" } else { "1" };
            match speaks_dav(site) {
                true => response.with("DAV", class).with("MS-Author-Via", "DAV"),
                false => response,
            }
        }
    };
    let cors = Cors::of(&site.limits.origins, Some(&request.fields));
    cors.preflight(&request.fields, response)
}

async fn object(
    site: &Site,
    client: Client,
    request: &Request,
    path: &RequestPath,
    query: Option<&str>,
) -> Answer {
    let slash = if path.is_directory() && !path.name().is_empty() { "/" } else { "" };
    let written = format!("/{}{slash}", path.name());
    // Assets come before the other paths below the same prefix.
    if site.store.as_ref().is_some_and(|store| store.listing)
        && let Some(asset) = listing::asset(&written)
    {
        return Answer::Short(asset);
    }
    if let Some(name) = seek::title_of(path)
        && let Some(refused) = refuse_reader(site, client, request, name)
    {
        return refused;
    }
    let store = site.store.as_ref().filter(|_| site.titles);
    if let Some(store) = store
        && let Some(response) = seek::told(store, request, path).await
    {
        return Answer::Short(response);
    }
    if let Some(store) = store
        && let Some(answer) = live::answer(store, request, path)
    {
        return refuse_reader(site, client, request, path.name()).unwrap_or(answer);
    }
    let accept = request.fields.one("accept").and_then(|accept| std::str::from_utf8(accept).ok());
    if let Some(response) = site.internal.answer(&written, query, accept) {
        return Answer::Short(response);
    }
    let Some(store) = store else { return Answer::Short(not_served(OpenFault::NotFound)) };
    if let Some(uploads) = &store.uploads
        && control::is_protected(path)
        && let Err(refused) = uploads.caller(&request.fields)
    {
        return refuse(site, client, refused);
    }
    if let Some(refused) = refuse_reader(site, client, request, path.name()) {
        return refused;
    }
    if let Some(volume) = store.catalogue.volume_at(path)
        && let Err(refused) = if_down(&store.watchdog, &store.catalogue, volume)
    {
        return Answer::Short(refused);
    }
    match store.catalogue.find(path).await {
        Ok(PathObject::Title(title)) => {
            title::answer(site, store, request, path, query, title).await
        }
        Ok(PathObject::Directory(directory)) if path.is_directory() => {
            let public = &site.limits.public;
            Answer::Short(list(store, public, request, path, query, directory).await)
        }
        Ok(PathObject::Directory(_)) => {
            let base = public::base(&site.limits.public, request);
            Answer::Short(redirect(&base, path, query))
        }
        Err(OpenFault::NotFound) if is_status_path(&written) => {
            let text = "metrics and status are served at the [admin] address; set `on_http = \
                true` in [admin] to serve them here too";
            Answer::Short(Response::text(404, text))
        }
        Err(fault) => Answer::Short(not_served(fault)),
    }
}

/// Whether the path is one of the server's metrics and status.
fn is_status_path(path: &str) -> bool {
    path == "/metrics" || path.starts_with("/api/v1/")
}

/// The refusal for a client that may not read `name`.
fn refuse_reader(site: &Site, client: Client, request: &Request, name: &str) -> Option<Answer> {
    let uploads = site.store.as_ref()?.uploads.as_ref()?;
    let refused = uploads.check_reader(&request.fields, name).err()?;
    Some(refuse(site, client, refused))
}

/// A refusal as an answer; a wrong token is scored.
fn refuse(site: &Site, client: Client, Refusal { response, abuse }: Refusal) -> Answer {
    if let Some(abuse) = abuse {
        site.abused(client, abuse);
    }
    Answer::Short(response)
}

async fn list(
    store: &Store,
    public: &PublicUrl,
    request: &Request,
    path: &RequestPath,
    query: Option<&str>,
    directory: tactus_storage::catalogue::Directory,
) -> Response {
    if !store.listing {
        return not_served(OpenFault::NotFound);
    }
    let host = listing::host(&request.fields).map(str::to_owned);
    let is_named = host.is_some() || public.origin.is_some();
    let base = is_named.then(|| public::base(public, request).to_string());
    let takes_uploads = store.uploads.as_ref().is_some_and(Uploads::may_anybody);
    let page = listing::Page { path: path.clone(), host, base, takes_uploads };
    let scroll = |after| store.catalogue.scroll(directory, ListingScope::Shown, after);
    listing::answer(page, query, &request.fields, scroll).await
}

/// Redirects a directory's path to one with a slash at its end, so that the relative links of its
/// listing work. `base` is this server's URL in the client's form.
pub(super) fn redirect(base: &str, path: &RequestPath, query: Option<&str>) -> Response {
    let mut location = String::new();
    for segment in path.segments() {
        location.push('/');
        encode_segment(segment, &mut location);
    }
    location.push('/');
    if let Some(query) = query {
        location.push('?');
        encode_query(query, &mut location);
    }
    let text = format!("this is a directory: {base}{location}");
    Response::text(301, text).with("Location", location)
}

/// Writes a query unchanged, except for characters that a query may not contain (RFC 3986 section
/// 3.4), which are escaped. Quotation marks are escaped too, because they could end an attribute in
/// a page.
fn encode_query(query: &str, out: &mut String) {
    for byte in query.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(byte.into()),
            _ if b"-._~!$&()*+,;=:@/?%".contains(&byte) => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s09_a_redirect_escapes_invalid_query_characters() {
        let path = RequestPath::parse(b"/a%20b").unwrap();
        let to = |query: &str| {
            let answer = redirect("http://h", &path, Some(query));
            let head = answer.head(
                crate::framing::Version::Http11,
                crate::response::Persistence::Close,
                std::time::SystemTime::UNIX_EPOCH,
            );
            let head = String::from_utf8(head).unwrap();
            let line = head.lines().find_map(|line| line.strip_prefix("Location: /a%20b/?"));
            line.unwrap().to_owned()
        };
        assert_eq!(to("x=<script>\"'"), "x=%3Cscript%3E%22%27");
        assert_eq!(to("rate=8.8M&a=%20;b=(c)*!$,:@/?"), "rate=8.8M&a=%20;b=(c)*!$,:@/?");
        assert_eq!(to("ü{}|\\^`[]#"), "%C3%BC%7B%7D%7C%5C%5E%60%5B%5D%23");
    }
}
