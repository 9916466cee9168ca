//! The rights of a request's sender.
//!
//! Promise: rights are checked before any change, against the path after a single decoding. A
//! refusal names the right, the path and the key. A title is stored under a precondition that the
//! rights allow, so a race between check and change grants nothing more.

use tactus_control::rights::{Right, Rights};
use tactus_storage::store::{Precondition, Principal, UploadError};

use super::response::Response;

/// The sender of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller<'a> {
    pub(super) principal: Principal,
    pub(super) rights: &'a Rights,
}

/// The condition under which a title may be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoreCondition {
    /// The requested precondition, narrowed to the rights.
    pub(super) precondition: Precondition,
    /// The missing right that has narrowed it.
    lacks: Option<Right>,
}

impl StoreCondition {
    /// The requested precondition unchanged, for requests that give no name to a title.
    pub(super) fn unrestricted(precondition: Precondition) -> Self {
        Self { precondition, lacks: None }
    }
}

impl Caller<'_> {
    /// Refuses a caller without `right` at `path`.
    pub(super) fn check(&self, right: Right, path: &str) -> Result<(), Response> {
        match self.rights.has(right, path) {
            true => Ok(()),
            false => Err(self.lacks(right, Some(path))),
        }
    }

    /// Refuses a caller that has `right` for no path at all.
    pub(super) fn check_somewhere(&self, right: Right) -> Result<(), Response> {
        match self.rights.has_somewhere(right) {
            true => Ok(()),
            false => Err(self.lacks(right, None)),
        }
    }

    /// Refuses a caller that may not store any title.
    pub(super) fn check_stores(&self) -> Result<(), Response> {
        self.check_somewhere(Right::Publish).or_else(|_| self.check_somewhere(Right::Replace))
    }

    /// The condition for storing at `path` a title that was requested under `wanted`.
    pub(super) fn condition(
        &self,
        path: &str,
        wanted: Precondition,
    ) -> Result<StoreCondition, Response> {
        let publishes = self.rights.has(Right::Publish, path);
        let replaces = self.rights.has(Right::Replace, path);
        let (precondition, lacks) = match (publishes, replaces, wanted) {
            (true, true, wanted) => (wanted, None),
            (
                true,
                false,
                Precondition::Any
                | Precondition::UnmodifiedSince(_)
                | Precondition::Unless { exists: false, .. },
            ) => (Precondition::CreateOnly, Some(Right::Replace)),
            (true, false, Precondition::CreateOnly) => (Precondition::CreateOnly, None),
            (false, true, Precondition::Any) => (Precondition::Exists, Some(Right::Publish)),
            (
                false,
                true,
                wanted @ (Precondition::Exists
                | Precondition::Match(_)
                | Precondition::Unless { exists: true, .. }),
            ) => (wanted, None),
            // Replacing needs the same condition. The failure is reported as the condition's,
            // whether the condition or the name has failed.
            (false, true, Precondition::UnmodifiedSince(second)) => {
                let (tags, exists, unmodified_since) = (Vec::new(), true, Some(second));
                (Precondition::Unless { tags, exists, unmodified_since }, None)
            }
            (false, true, Precondition::Unless { tags, unmodified_since, .. }) => {
                (Precondition::Unless { tags, exists: true, unmodified_since }, None)
            }
            (true, false, _) => return Err(self.lacks(Right::Replace, Some(path))),
            (false, _, _) => return Err(self.lacks(Right::Publish, Some(path))),
        };
        Ok(StoreCondition { precondition, lacks })
    }

    /// The refusal, if an upload failed only because `condition` are narrower than requested.
    pub(super) fn refusal_by_rights(
        &self,
        condition: &StoreCondition,
        path: &str,
        error: &UploadError,
    ) -> Option<Response> {
        let right = condition.lacks?;
        match (right, error) {
            (Right::Replace, UploadError::Exists)
            | (Right::Publish, UploadError::PreconditionFailed) => {
                Some(self.lacks(right, Some(path)))
            }
            _ => None,
        }
    }

    /// The refusal for lack of `right`.
    pub(super) fn lacks(&self, right: Right, path: Option<&str>) -> Response {
        let (name, right) = (self.principal.name(), right.name());
        let place = path.map(|path| format!(" at /{path}")).unwrap_or_default();
        let text = format!(
            "the principal {name:?} has no right {right:?}{place}; see [[upload.principal]] rights"
        );
        Response::text(403, text)
    }
}

#[cfg(test)]
mod tests {
    use tactus_control::rights::{Grant, Paths};

    use super::*;

    #[test]
    fn s14_a_title_is_stored_under_a_condition_that_the_rights_allow() {
        use Precondition::{Any, CreateOnly, Exists};
        let tag = || Precondition::Match(vec!["\"a\"".into()]);
        let of = |rights: &[Right], wanted: Precondition| {
            let rights = Rights::new(vec![Grant::new(rights, Paths::everywhere())]);
            let caller = Caller { principal: Principal::new("a"), rights: &rights };
            caller.condition("x.ts", wanted).map(|t| t.precondition).map_err(|r| r.status())
        };
        let (publish, replace) = (&[Right::Publish][..], &[Right::Replace][..]);
        for wanted in [Any, CreateOnly, Exists, tag()] {
            assert_eq!(of(&[Right::Publish, Right::Replace], wanted.clone()), Ok(wanted.clone()));
            assert_eq!(of(&[Right::Delete, Right::Manage, Right::Read], wanted), Err(403));
        }
        assert_eq!(of(publish, Any), Ok(CreateOnly));
        assert_eq!(of(publish, CreateOnly), Ok(CreateOnly));
        assert_eq!((of(publish, Exists), of(publish, tag())), (Err(403), Err(403)));
        assert_eq!(of(replace, Any), Ok(Exists));
        assert_eq!((of(replace, Exists), of(replace, tag())), (Ok(Exists), Ok(tag())));
        assert_eq!(of(replace, CreateOnly), Err(403));
        let unless = |tags: &[&str], exists, unmodified_since| {
            let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
            Precondition::Unless { tags, exists, unmodified_since }
        };
        let dated = Precondition::UnmodifiedSince(7);
        assert_eq!(of(publish, dated.clone()), Ok(CreateOnly));
        assert_eq!(of(replace, dated), Ok(unless(&[], true, Some(7))));
        for exists in [false, true] {
            let wanted = unless(&["\"a\""], exists, Some(7));
            assert_eq!(of(replace, wanted.clone()), Ok(unless(&["\"a\""], true, Some(7))));
            assert_eq!(of(publish, wanted), if exists { Err(403) } else { Ok(CreateOnly) });
        }
    }
}
