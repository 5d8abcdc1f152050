//! Refusals between the SQL and Rust: read from what SQL tells, and the sentences it tells them in.
//!
//! SQL refuses with a JSON object for programs (`_refuse`). Its sentence for people is that of
//! [`Refusal`], so it is written here into the SQL (`_sentence`) and nowhere a second time.

use serde_json::Value;
use windlass_core::job::{JobId, StateName};
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::refusal::Refusal;

use super::wire;

/// A refusal as SQL tells it; `job` is meant where the detail names none.
pub(super) fn read(detail: &Value, job: Option<JobId>) -> Option<Refusal> {
    let id = |what: &str| detail[what].as_str().and_then(|text| text.parse::<JobId>().ok());
    let own = || id("job").or(job);
    let number = |what: &str| detail[what].as_u64();
    let text = |what: &str| detail[what].as_str().map(ToString::to_string);
    let name = |what: &str| detail[what].as_str().and_then(|name| wire::name(name).ok());
    let state = || wire::state_name(detail["state"].as_i64()?).ok();
    Some(match detail["refusal"].as_str()? {
        "queue_full" => Refusal::QueueFull {
            queue: name("queue")?,
            depth: number("depth")?,
            limit: number("limit")?,
        },
        "lane_full" => Refusal::LaneFull {
            queue: name("queue")?,
            lane: u32::try_from(number("lane")?).ok()?,
            depth: number("depth")?,
            limit: number("limit")?,
        },
        "id_reused" => Refusal::IdReused { job: own()? },
        "id_twice" => Refusal::IdTwiceInBatch { job: own()? },
        "unknown_dependency" => {
            Refusal::UnknownDependency { job: own()?, dependency: id("dependency")? }
        }
        "dependency_failed" => Refusal::DependencyFailed {
            job: own()?,
            dependency: id("dependency")?,
            state: state()?,
        },
        "dependency_cycle" => Refusal::DependencyCycle { job: own()? },
        "unknown_job" => Refusal::UnknownJob { job: own()? },
        "wrong_state" => Refusal::WrongState {
            job: own()?,
            state: state()?,
            operation: text("operation")?.into(),
        },
        "still_needed" => Refusal::StillNeeded { job: own()?, by: id("by")? },
        "key_taken" => Refusal::KeyTaken { job: own()?, holder: id("holder")? },
        "lease_lost" => Refusal::LeaseLost { job: own()? },
        "object_changed" => Refusal::ObjectChanged {
            object: wire::read_address(&detail["object"]).ok()?,
            version: number("version")?,
        },
        "unknown_object" => {
            Refusal::UnknownObject { object: wire::read_address(&detail["object"]).ok()? }
        }
        "out_of_bounds" => Refusal::OutOfBounds {
            what: text("what")?.into(),
            got: text("got")?,
            allowed: text("allowed")?,
        },
        _ => return None,
    })
}

/// What the isolation level of a caller's own transaction is called.
pub(super) const ISOLATION_WHAT: &str = "isolation level of the transaction";

/// A refusal with values that are found again in its sentence, and what stands for each in SQL.
struct Sample {
    /// What SQL calls it.
    called: &'static str,
    refusal: Refusal,
    /// A value as the sentence shows it, and where SQL has it.
    values: Vec<(&'static str, &'static str)>,
}

const JOB: &str = "00000000-0000-4000-8000-000000000001";
const OTHER: &str = "00000000-0000-4000-8000-000000000002";

/// One of each that SQL can tell.
fn samples() -> Vec<Sample> {
    let id = |text: &str| text.parse::<JobId>().unwrap_or(JobId::from_bytes([0; 16]));
    let (job, other, state) = (id(JOB), id(OTHER), StateName::Dead);
    let (own, found) = ((JOB, "_detail->>'job'"), ("dead", STATE));
    let (queue, object) = (sample_name(), sample_address());
    let (in_queue, of_object) = (("NAME", "_detail->>'queue'"), ("NAME/NAME/KEY", OBJECT));
    let (depth, limit) = (1_000_001, 1_000_002);
    let depths = [("1000001", "_detail->>'depth'"), ("1000002", "_detail->>'limit'")];
    let sample =
        |called, refusal, values: &[_]| Sample { called, refusal, values: values.to_vec() };
    let out_of_bounds = Refusal::OutOfBounds {
        what: "WHAT".into(),
        got: "GOT".to_string(),
        allowed: "ALLOWED".to_string(),
    };
    vec![
        sample(
            "queue_full",
            Refusal::QueueFull { queue: queue.clone(), depth, limit },
            &[in_queue, depths[0], depths[1]],
        ),
        sample(
            "lane_full",
            Refusal::LaneFull { queue, lane: 1_000_003, depth, limit },
            &[in_queue, depths[0], depths[1], ("1000003", "_detail->>'lane'")],
        ),
        sample("id_reused", Refusal::IdReused { job }, &[own]),
        sample("id_twice", Refusal::IdTwiceInBatch { job }, &[own]),
        sample(
            "unknown_dependency",
            Refusal::UnknownDependency { job, dependency: other },
            &[own, (OTHER, "_detail->>'dependency'")],
        ),
        sample(
            "dependency_failed",
            Refusal::DependencyFailed { job, dependency: other, state },
            &[own, (OTHER, "_detail->>'dependency'"), found],
        ),
        sample("dependency_cycle", Refusal::DependencyCycle { job }, &[own]),
        sample("unknown_job", Refusal::UnknownJob { job }, &[own]),
        sample(
            "wrong_state",
            Refusal::WrongState { job, state, operation: "edit and replay".into() },
            &[own, found, ("edit and replay", "_detail->>'operation'")],
        ),
        sample(
            "still_needed",
            Refusal::StillNeeded { job, by: other },
            &[own, (OTHER, "_detail->>'by'")],
        ),
        sample(
            "key_taken",
            Refusal::KeyTaken { job, holder: other },
            &[own, (OTHER, "_detail->>'holder'")],
        ),
        sample("lease_lost", Refusal::LeaseLost { job }, &[own]),
        sample(
            "object_changed",
            Refusal::ObjectChanged { object: object.clone(), version: 1_000_001 },
            &[of_object, ("1000001", "_detail->>'version'")],
        ),
        sample("unknown_object", Refusal::UnknownObject { object }, &[of_object]),
        sample(
            "out_of_bounds",
            out_of_bounds,
            &[
                ("WHAT", "_detail->>'what'"),
                ("GOT", "_detail->>'got'"),
                ("ALLOWED", "_detail->>'allowed'"),
            ],
        ),
    ]
}

const STATE: &str = "windlass._state_name((_detail->>'state')::int)";
const OBJECT: &str = "windlass._address(_detail->'object')";

fn sample_name() -> Name {
    Name::new("NAME").unwrap_or_else(|_| unreachable!("it is a name"))
}

fn sample_address() -> Address {
    let address = Address::new(sample_name(), sample_name(), "KEY");
    address.unwrap_or_else(|_| unreachable!("it is an address"))
}

/// The branches of `_sentence`, one for each refusal.
pub(super) fn sentences() -> String {
    let branch = |sample: Sample| {
        let (shown, arguments): (Vec<_>, Vec<_>) = sample.values.into_iter().unzip();
        let text = template(&sample.refusal.to_string(), &shown);
        let arguments = arguments.join(", ");
        format!("    when '{}' then format('{text}', {arguments})\n", sample.called)
    };
    samples().into_iter().map(branch).collect::<String>().trim_end().to_string()
}

/// A text for `format` in SQL, with the place of each of these values in it.
pub(super) fn template(text: &str, shown: &[&str]) -> String {
    let text = text.replace('%', "%%").replace('\'', "''");
    let values = shown.iter().enumerate();
    values.fold(text, |text, (n, shown)| text.replace(shown, &format!("%{}$s", n + 1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_value_of_a_refusal_has_a_place_in_its_sentence() {
        for sample in samples() {
            let shown: Vec<&str> = sample.values.iter().map(|(shown, _)| *shown).collect();
            let text = template(&sample.refusal.to_string(), &shown);
            for (n, shown) in shown.iter().enumerate() {
                let place = format!("%{}$s", n + 1);
                assert!(text.contains(&place), "{shown} is not in: {}", sample.refusal);
                assert!(!text.contains(shown), "{shown} is left in: {text}");
            }
        }
    }

    #[test]
    fn what_sql_tells_is_read_as_the_refusal_whose_sentence_it_has() {
        let object = json!(["NAME", "NAME", "KEY"]);
        let detail = json!({
            "job": JOB, "dependency": OTHER, "by": OTHER, "holder": OTHER, "queue": "NAME",
            "depth": 1_000_001, "limit": 1_000_002, "lane": 1_000_003, "version": 1_000_001,
            "state": 5, "operation": "edit and replay", "object": object, "what": "WHAT",
            "got": "GOT", "allowed": "ALLOWED",
        });
        for sample in samples() {
            let mut detail = detail.clone();
            detail["refusal"] = sample.called.into();
            let read = read(&detail, None).expect("it is known");
            assert_eq!(read, sample.refusal, "{}", sample.called);
        }
    }
}
