//! Files with secrets: tokens and passwords.
//!
//! Promise: a secret is read only from a file that belongs to this user or root and that no other
//! user can access, as ssh requires of a private key. The error names the problem and the command
//! that corrects it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Upper bound of a secret file, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// Mode bits that give access to the group or others.
const SHARED: u32 = 0o077;

/// systemd grants access to a service's credentials (`LoadCredential=`) by an access control list,
/// which shows as this mode bit.
const GROUP_READ: u32 = 0o040;

/// Reads the secret in `file`: one word of `chars_min` to `chars_max` visible characters. `what`
/// names it in errors.
///
/// # Errors
/// When the file cannot be read, others can access it, or it holds no such word.
pub fn read(file: &Path, what: &str, chars_min: usize, chars_max: usize) -> Result<Vec<u8>> {
    let shown = file.display();
    let unread = || format!("cannot read the {what} in {shown}");
    let mut open = File::open(file).with_context(unread)?;
    // The open file is checked, because its name may refer to another file by now.
    let about = open.metadata().with_context(unread)?;
    if about.is_dir() {
        bail!("cannot read the {what} in {shown}: it is a directory");
    }
    if about.is_file() {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        let is_credential = credentials.is_some_and(|directory| file.starts_with(directory));
        check(file, &about, if is_credential { SHARED & !GROUP_READ } else { SHARED })?;
    }
    let mut text = Vec::new();
    open.by_ref().take(BYTES_MAX).read_to_end(&mut text).with_context(unread)?;
    let secret = text.trim_ascii();
    let fits = (chars_min..=chars_max).contains(&secret.len());
    ensure!(
        fits && secret.iter().all(u8::is_ascii_graphic),
        "{shown} holds no {what}: write one of {chars_min} or more visible characters without \
         spaces"
    );
    Ok(secret.to_vec())
}

/// Checks that the file belongs to this user or root, and has none of the mode bits `shared`.
fn check(file: &Path, about: &std::fs::Metadata, shared: u32) -> Result<()> {
    let shown = file.display();
    let own = rustix::process::geteuid().as_raw();
    let owner = about.uid();
    ensure!(
        owner == own || owner == 0,
        "{shown} belongs to user {owner}, who can read and change it; run `chown {own} {shown}`"
    );
    let mode = about.mode() & 0o7777;
    ensure!(
        mode & shared == 0,
        "{shown} has mode {mode:04o}, which gives other users access; run `chmod 600 {shown}`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "correct-horse-battery";

    fn file(dir: &Path, text: &str, mode: u32) -> std::path::PathBuf {
        let file = dir.join("secret");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn s08_a_secret_that_others_can_read_or_write_is_refused_with_its_mode_and_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        let of = |mode| read(&file(dir.path(), SECRET, mode), "token", 16, 1024);
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(of(mode).unwrap(), SECRET.as_bytes(), "{mode:o}");
        }
        for mode in [0o666, 0o644, 0o640, 0o604, 0o620, 0o602, 0o660, 0o601, 0o610] {
            let error = of(mode).unwrap_err().to_string();
            let shown = dir.path().join("secret");
            assert!(error.contains(&format!("has mode {mode:04o}")), "{error}");
            assert!(error.contains(&format!("`chmod 600 {}`", shown.display())), "{error}");
        }
        // A link leads to the same file.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(file(dir.path(), SECRET, 0o644), &link).unwrap();
        assert!(read(&link, "token", 16, 1024).is_err());
    }

    #[test]
    fn s08_a_secret_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path(), SECRET, 0o600);
        if std::os::unix::fs::chown(&file, Some(65_534), None).is_err() {
            // Without the right to change owners, root's files serve as another user's.
            assert!(!rustix::process::geteuid().is_root());
            return;
        }
        let error = read(&file, "token", 16, 1024).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534") && error.contains("`chown 0 "), "{error}");
    }

    #[test]
    fn s08_a_credential_of_systemd_may_show_its_access_list_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let allowed = |mode| {
            let file = file(dir.path(), SECRET, mode);
            check(&file, &file.metadata().unwrap(), SHARED & !GROUP_READ).is_ok()
        };
        assert!(allowed(0o440) && allowed(0o400));
        for mode in [0o460, 0o444, 0o441, 0o666] {
            assert!(!allowed(mode), "{mode:o}");
        }
    }

    #[test]
    fn what_holds_no_secret_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "short", "two words are no token", "größe-ist-kein-problem"] {
            let error = read(&file(dir.path(), text, 0o600), "token", 16, 1024).unwrap_err();
            assert!(error.to_string().contains("holds no token"), "{error}");
        }
        assert!(read(dir.path(), "token", 16, 1024).unwrap_err().to_string().contains("directory"));
    }
}
