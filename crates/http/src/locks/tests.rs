//! Locks against each other, against changes, and against a search of a list of all locks.

use proptest::prelude::*;

use super::*;

const LIMITS: LockLimits =
    LockLimits { locks_max: 8, per_principal_max: 6, timeout_max: Duration::from_secs(3600) };

fn request(path: &str, scope: Scope, depth: Depth, who: &str) -> LockRequest {
    let (path, principal) = (path.to_owned(), Principal::new(who));
    LockRequest { path, is_directory: false, scope, depth, principal, owner: None, timeout: None }
}

fn try_lock(locks: &Locks, request: LockRequest) -> Result<String, LockError> {
    locks.try_lock(&Arc::new(request), Instant::now()).map(|lock| lock.token.to_string())
}

fn forbids(locks: &Locks, change: Change, tokens: &[&String], who: &str) -> Option<String> {
    let tokens: Vec<String> = tokens.iter().map(|token| (*token).clone()).collect();
    locks.forbids(&[change], &tokens, &Principal::new(who))
}

#[test]
fn w05_a_lock_forbids_changes_without_its_token_and_of_other_principals() {
    use Depth::{Infinity, Zero};
    use Scope::Exclusive;
    let locks = Locks::new(LIMITS);
    let token = try_lock(&locks, request("a/b", Exclusive, Infinity, "x")).unwrap();
    for path in ["a/b", "a/b/c", "a/b/c/d"] {
        assert_eq!(forbids(&locks, Change::of(path), &[], "x"), Some("a/b".into()), "{path}");
        assert_eq!(forbids(&locks, Change::of(path), &[&token], "x"), None, "{path}");
        let other = forbids(&locks, Change::of(path), &[&token], "y");
        assert_eq!(other, Some("a/b".into()), "{path}");
    }
    for path in ["a", "a/bc", "a/c", "", "b", "a/b.c"] {
        assert_eq!(forbids(&locks, Change::of(path), &[], "x"), None, "{path}");
    }
    // A change that would remove the lock needs its token.
    for path in ["", "a", "a/b"] {
        let change = Change::vanishing(path);
        assert_eq!(forbids(&locks, change.clone(), &[], "x"), Some("a/b".into()), "{path}");
        assert_eq!(forbids(&locks, change, &[&token], "x"), None, "{path}");
    }
    // With depth 0, the lock of a directory covers its names, not their objects.
    let names = try_lock(&locks, request("d", Exclusive, Zero, "x")).unwrap();
    assert_eq!(forbids(&locks, Change::appearing("d/new"), &[], "x"), Some("d".into()));
    assert_eq!(forbids(&locks, Change::appearing("d/new"), &[&names], "x"), None);
    assert_eq!(forbids(&locks, Change::of("d/old"), &[], "x"), None);
    assert_eq!(forbids(&locks, Change::appearing("d/in/new"), &[], "x"), None);
}

#[test]
fn w05_locks_contradict_each_other_or_are_shared() {
    use Depth::{Infinity, Zero};
    use Scope::{Exclusive, Shared};
    let of = |first: (&str, Scope, Depth), second: (&str, Scope, Depth)| {
        let locks = Locks::new(LIMITS);
        try_lock(&locks, request(first.0, first.1, first.2, "x")).unwrap();
        try_lock(&locks, request(second.0, second.1, second.2, "y")).is_ok()
    };
    assert!(!of(("a", Exclusive, Zero), ("a", Exclusive, Zero)));
    assert!(!of(("a", Exclusive, Zero), ("a", Shared, Zero)));
    assert!(!of(("a", Shared, Zero), ("a", Exclusive, Zero)));
    assert!(of(("a", Shared, Zero), ("a", Shared, Zero)));
    assert!(!of(("a", Exclusive, Infinity), ("a/b/c", Exclusive, Zero)));
    assert!(of(("a", Exclusive, Zero), ("a/b", Exclusive, Zero)));
    assert!(!of(("a/b/c", Exclusive, Zero), ("a", Exclusive, Infinity)));
    assert!(of(("a/b/c", Exclusive, Zero), ("a", Exclusive, Zero)));
    assert!(!of(("a/b", Exclusive, Zero), ("", Exclusive, Infinity)));
    assert!(of(("a/b", Shared, Zero), ("", Shared, Infinity)));
    assert!(of(("ab", Exclusive, Infinity), ("a", Exclusive, Infinity)));
    assert!(of(("a.b", Exclusive, Infinity), ("a", Exclusive, Infinity)));
    // The token of one of several shared locks suffices.
    let locks = Locks::new(LIMITS);
    let one = try_lock(&locks, request("a", Shared, Zero, "x")).unwrap();
    let two = try_lock(&locks, request("a", Shared, Zero, "y")).unwrap();
    assert_eq!(forbids(&locks, Change::of("a"), &[&one], "x"), None);
    assert_eq!(forbids(&locks, Change::of("a"), &[&two], "y"), None);
    assert_eq!(forbids(&locks, Change::of("a"), &[&two], "x"), Some("a".into()));
}

#[test]
fn w05_locks_are_bounded_in_number_and_time() {
    let locks = Locks::new(LIMITS);
    let of =
        |path: &str, who: &str| try_lock(&locks, request(path, Scope::Exclusive, Depth::Zero, who));
    let held: Vec<_> = (0..6).map(|n| of(&n.to_string(), "x").unwrap()).collect();
    assert_eq!(of("6", "x"), Err(LockError::TooManyOfOne(6)));
    assert!(of("6", "y").is_ok() && of("7", "y").is_ok());
    assert_eq!(of("8", "y"), Err(LockError::TooMany(8)));
    let (x, y) = (Principal::new("x"), Principal::new("y"));
    assert_eq!(locks.unlock("0", &held[0], &y, false), Err(UnlockError::NotYours));
    assert_eq!(locks.unlock("1", &held[0], &x, false), Err(UnlockError::Unknown));
    assert_eq!(locks.unlock("0", &held[0], &x, false), Ok(()));
    assert_eq!(locks.unlock("1", &held[1], &y, true), Ok(()));
    assert!(of("8", "y").is_ok());
    // The requested time is limited.
    for (asked, granted) in [(None, 3600), (Some(0), 1), (Some(60), 60), (Some(1 << 40), 3600)] {
        assert_eq!(locks.granted(asked.map(Duration::from_secs)).as_secs(), granted);
    }
    let now = Instant::now();
    let expires = now + Duration::from_secs(3600);
    assert!(locks.covering("2")[0].expires <= expires);
    let mut table = locks.table();
    table.expire(now + Duration::from_secs(3599));
    assert_eq!(table.len(), 7);
    table.expire(now + Duration::from_secs(3700));
    assert_eq!(table.len(), 0);
}

#[test]
fn w05_a_lock_is_granted_when_no_change_of_its_path_is_under_way() {
    use Depth::{Infinity, Zero};
    let locks = Locks::new(LIMITS);
    let x = Principal::new("x");
    let under_way = locks.begin(&[Change::vanishing("a/b")], &[], &x).unwrap();
    let of = |path: &str, depth| try_lock(&locks, request(path, Scope::Shared, depth, "y"));
    for (path, depth) in [("a/b", Zero), ("a", Zero), ("", Infinity), ("a/b/c", Zero)] {
        assert_eq!(of(path, depth), Err(LockError::Busy), "{path}");
    }
    assert!(of("", Zero).is_ok() && of("a/c", Infinity).is_ok());
    // The end of a change wakes the waiting request.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let waiting = locks.lock(request("a/b", Scope::Exclusive, Zero, "y"));
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_pending(waiting.as_mut()).await);
        drop(under_way);
        assert!(waiting.await.is_ok());
    });
    assert!(locks.begin(&[Change::of("a/b")], &[], &x).is_err());
}

/// Whether a future is pending at its first poll.
async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[test]
fn w05_locks_go_with_what_they_lock_and_are_prolonged_below_it() {
    let locks = Locks::new(LIMITS);
    let of = |path: &str| {
        try_lock(&locks, request(path, Scope::Exclusive, Depth::Infinity, "x")).unwrap()
    };
    let (a, b, c) = (of("d/a"), of("d/a b"), of("e"));
    locks.forget("d/a");
    assert!(!locks.has("d/a", &a) && locks.has("d/a b", &b));
    locks.forget("d");
    assert!(!locks.has("d/a b", &b) && locks.has("e/in", &c));
    let x = Principal::new("x");
    let second = Some(Duration::from_secs(5));
    let tokens = ["unknown".to_owned(), c.clone()];
    let lock = locks.refresh("e/in/deep", &tokens, &x, second).unwrap();
    assert!(lock.request.path == "e" && lock.seconds_left() <= 5);
    assert!(locks.refresh("f", &tokens, &x, second).is_none());
    assert!(locks.refresh("e", &tokens, &Principal::new("y"), second).is_none());
    assert!(locks.refresh("e", &tokens[..1], &x, second).is_none());
}

#[test]
fn w05_no_token_can_be_guessed_or_comes_twice() {
    let (one, two) = (token(), token());
    assert_ne!(one, two);
    let uuid = one.strip_prefix("opaquelocktoken:").unwrap();
    let groups: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12]);
    assert_eq!((&uuid[14..15], &uuid[19..20]), ("4", "a"));
}

proptest! {
    /// Compares the table with a search of a list of all locks.
    #[test]
    fn w05_the_table_finds_what_a_search_of_all_locks_finds(
        steps in proptest::collection::vec(
            (0..40usize, any::<bool>(), any::<bool>(), 0..5u8),
            1..40,
        ),
    ) {
        let paths: Vec<String> = ["", "a", "a/b", "a/b/c", "a.b", "ab", "a/bb", "b"]
            .iter().map(|path| (*path).to_owned()).collect();
        let locks = Locks::new(LockLimits { locks_max: 100, per_principal_max: 100, ..LIMITS });
        let mut model: Vec<(String, String, Scope, Depth)> = Vec::new();
        let below = |path: &str, root: &str| match root {
            "" => !path.is_empty(),
            root => path.starts_with(&format!("{root}/")),
        };
        for (path, exclusive, deep, act) in steps {
            let path = paths[path % paths.len()].clone();
            let scope = if exclusive { Scope::Exclusive } else { Scope::Shared };
            let depth = if deep { Depth::Infinity } else { Depth::Zero };
            match act {
                0 => {
                    locks.forget(&path);
                    model.retain(|(_, root, ..)| *root != path && !below(root, &path));
                }
                1 => {
                    if let Some(at) = model.iter().position(|(_, root, ..)| *root == path) {
                        let (token, ..) = model.remove(at);
                        let x = Principal::new("x");
                        prop_assert_eq!(locks.unlock(&path, &token, &x, false), Ok(()));
                    }
                }
                _ => {
                    let free = model.iter().all(|(_, root, other, deep)| {
                        let meet = *root == path
                            || (*deep == Depth::Infinity && below(&path, root))
                            || (depth == Depth::Infinity && below(root, &path));
                        !meet || (scope, *other) == (Scope::Shared, Scope::Shared)
                    });
                    let granted = try_lock(&locks, request(&path, scope, depth, "x"));
                    prop_assert_eq!(granted.is_ok(), free);
                    if let Ok(token) = granted {
                        model.push((token, path, scope, depth));
                    }
                }
            }
            for path in &paths {
                let covered = model.iter().any(|(_, root, _, deep)| {
                    root == path || (*deep == Depth::Infinity && below(path, root))
                });
                let under = covered || model.iter().any(|(_, root, ..)| below(root, path));
                prop_assert_eq!(!locks.covering(path).is_empty(), covered);
                let removed = Change { within: vec![], ..Change::vanishing(path) };
                prop_assert_eq!(forbids(&locks, removed, &[], "x").is_some(), under);
            }
            prop_assert_eq!(locks.table().len(), model.len());
        }
    }
}
