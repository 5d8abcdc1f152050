//! What named values promise, and that what the engine keeps for itself stays out of lists.

use windlass_core::limits;
use windlass_core::object::{Address, Turn};
use windlass_core::refusal::Refusal;
use windlass_core::reserved;

use super::{Bench, Case, name, named_cases, refused};
use crate::store::{ObjectFilter, StoreExt, ValueChange};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_value_is_set_read_changed_and_removed_by_its_version,
        of_two_changes_of_a_value_for_one_version_one_is_lost,
        values_are_listed_by_name_by_prefix_and_by_pages,
        a_value_beyond_its_bound_is_refused,
        what_the_engine_keeps_for_itself_is_listed_only_by_its_kind,
    ]
}

async fn set(bench: &Bench, name: &str, text: &str, version: u64) -> ValueChange {
    bench.store.set_value(name, text.as_bytes(), version, None).await.expect("it is answered")
}

async fn text(bench: &Bench, name: &str) -> Option<(String, u64)> {
    let value = bench.store.value(name).await.expect("it is answered")?;
    assert_eq!(value.name, name);
    Some((String::from_utf8_lossy(&value.bytes).into_owned(), value.version))
}

async fn a_value_is_set_read_changed_and_removed_by_its_version(bench: Bench) {
    assert_eq!(text(&bench, "tokens/anna").await, None);
    assert_eq!(set(&bench, "tokens/anna", "one", 0).await, ValueChange::Made { version: 1 });
    assert_eq!(text(&bench, "tokens/anna").await, Some(("one".to_string(), 1)));
    assert_eq!(set(&bench, "tokens/anna", "two", 1).await, ValueChange::Made { version: 2 });
    assert_eq!(set(&bench, "tokens/anna", "late", 1).await, ValueChange::Lost { version: 2 });
    assert_eq!(set(&bench, "tokens/anna", "new", 0).await, ValueChange::Lost { version: 2 });
    assert_eq!(text(&bench, "tokens/anna").await, Some(("two".to_string(), 2)));
    let remove = async |version| {
        bench.store.remove_value("tokens/anna", version, None).await.expect("it is answered")
    };
    assert_eq!(remove(1).await, ValueChange::Lost { version: 2 });
    assert_eq!(remove(0).await, ValueChange::Lost { version: 2 });
    assert_eq!(remove(2).await, ValueChange::Made { version: 0 });
    assert_eq!(text(&bench, "tokens/anna").await, None);
    assert_eq!(remove(2).await, ValueChange::Lost { version: 0 });
    assert_eq!(remove(0).await, ValueChange::Made { version: 0 });
    assert_eq!(set(&bench, "tokens/anna", "anew", 0).await, ValueChange::Made { version: 1 });
}

async fn of_two_changes_of_a_value_for_one_version_one_is_lost(bench: Bench) {
    for version in 0..5 {
        let (one, other) =
            tokio::join!(set(&bench, "key", "one", version), set(&bench, "key", "two", version));
        let next = version + 1;
        let (made, lost) =
            (ValueChange::Made { version: next }, ValueChange::Lost { version: next });
        assert!((one, other) == (made, lost) || (one, other) == (lost, made), "{one:?} {other:?}");
        let kept = if one == made { "one" } else { "two" };
        assert_eq!(text(&bench, "key").await, Some((kept.to_string(), next)));
    }
}

async fn values_are_listed_by_name_by_prefix_and_by_pages(bench: Bench) {
    for name in ["b", "a/2", "a/", "a", "a0", "a/1"] {
        set(&bench, name, "x", 0).await;
    }
    let page = async |prefix: &str, after: Option<&str>, limit: usize| {
        let page = bench.store.values(prefix, after, limit).await.expect("it is answered");
        let names = page.values.into_iter().map(|value| value.name);
        (names.collect::<Vec<_>>().join(" "), page.next)
    };
    assert_eq!(page("", None, 10).await, ("a a/ a/1 a/2 a0 b".to_string(), None));
    assert_eq!(page("a/", None, 10).await, ("a/ a/1 a/2".to_string(), None));
    assert_eq!(page("c", None, 10).await, (String::new(), None));
    for (prefix, expected) in
        [("", "a a/ a/1 a/2 a0 b"), ("a/", "a/ a/1 a/2"), ("a", "a a/ a/1 a/2 a0")]
    {
        for limit in [1, 2] {
            let (mut names, mut after) = (Vec::new(), None);
            loop {
                let (some, next) = page(prefix, after.as_deref(), limit).await;
                names.extend(Some(some).filter(|some| !some.is_empty()));
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(names.join(" "), expected, "by {limit}");
        }
    }
}

async fn a_value_beyond_its_bound_is_refused(bench: Bench) {
    let set =
        async |name: &str, bytes: usize| bench.store.set_value(name, vec![7; bytes], 0, None).await;
    let refusal = refused(set("large", limits::VALUE_BYTES + 1).await);
    assert!(matches!(refusal, Refusal::OutOfBounds { .. }), "{refusal}");
    assert_eq!(text(&bench, "large").await, None);
    set("large", limits::VALUE_BYTES).await.expect("so many are allowed");
    set("empty", 0).await.expect("none are a value too");
    assert_eq!(text(&bench, "empty").await, Some((String::new(), 1)));
    for bad in ["", "a\nb", &"x".repeat(limits::KEY_BYTES + 1)] {
        assert!(matches!(refused(set(bad, 1).await), Refusal::OutOfBounds { .. }), "{bad:?}");
    }
}

async fn what_the_engine_keeps_for_itself_is_listed_only_by_its_kind(bench: Bench) {
    for kind in ["a", "windlass", "windlass-2", "x"] {
        let address = Address::new(name(kind), name("things"), "key").expect("an address");
        bench.store.turn(Turn::new(address, 0)).await.expect("the turn is made");
    }
    set(&bench, "one", "x", 0).await;
    set(&bench, "two", "x", 0).await;
    let all = |kind: Option<&str>| {
        let filter = ObjectFilter { kind: kind.map(name), ..ObjectFilter::default() };
        let store = bench.store.clone();
        async move {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = store.list_objects(&filter, after.as_ref(), 1).await.expect("answered");
                seen.extend(page.objects.into_iter().map(|view| view.record.address));
                after = page.next;
                if after.is_none() {
                    return seen;
                }
            }
        }
    };
    let kinds = all(None).await.into_iter().map(|address| address.kind().to_string());
    assert_eq!(kinds.collect::<Vec<_>>(), ["a", "windlass", "windlass-2", "x"]);
    let values = all(Some(reserved::VALUE)).await.into_iter();
    let values = values.map(|address| address.key().to_string());
    assert_eq!(values.collect::<Vec<_>>(), ["one", "two"]);
}
