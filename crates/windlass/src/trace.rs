//! Trace context that travels with a job, without configuration.
//!
//! Every job carries a W3C `traceparent`. A job enqueued by a running job continues that job's
//! trace, so a whole tree of work can be found by one trace id in the logs.

use uuid::Uuid;
use windlass_core::job::JobId;

use crate::attempt::Attempt;

tokio::task_local! {
    /// The attempt that runs on this task, whose trace new jobs continue.
    pub(crate) static CURRENT: Attempt;
}

/// The trace of a new job: that of the attempt that runs here, or one of its own.
///
/// Ids of spans, and of traces that begin here, are taken from the job's id: they are as random as
/// it is, and whoever sees one in a log has found the job.
pub(crate) fn of_new_job(id: JobId) -> String {
    let continued = CURRENT.try_with(|attempt| match trace_id(attempt.trace()) {
        "" => None,
        current => Some(traceparent(Some(current), id)),
    });
    continued.ok().flatten().unwrap_or_else(|| of_its_own(id))
}

/// The trace that begins with a job.
pub(crate) fn of_its_own(id: JobId) -> String {
    traceparent(None, id)
}

fn traceparent(trace_id: Option<&str>, id: JobId) -> String {
    let mut buffer = Uuid::encode_buffer();
    let id = &*Uuid::from_bytes(id.to_bytes()).simple().encode_lower(&mut buffer);
    ["00-", trace_id.unwrap_or(id), "-", &id[16..], "-01"].concat()
}

/// The trace id within a `traceparent`.
pub(crate) fn trace_id(traceparent: &str) -> &str {
    traceparent.get(3..35).unwrap_or_default()
}

/// Whether the text is a version 00 `traceparent` with ids that are not all zero.
pub(crate) fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let not_zero = |part: &str| part.bytes().any(|b| b != b'0');
    match parts.as_slice() {
        [version, trace, span, flags] => {
            *version == "00"
                && hex(trace, 32)
                && hex(span, 16)
                && hex(flags, 2)
                && not_zero(trace)
                && not_zero(span)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_trace_is_well_formed_and_names_the_job() {
        let trace = of_new_job(crate::options::new_id());
        assert!(is_traceparent(&trace), "{trace}");
        let id: JobId = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10".parse().expect("a UUID");
        let expected = "00-0199f2a47d1c7c3e9b522f0c5f6f7a10-9b522f0c5f6f7a10-01";
        assert_eq!(of_new_job(id), expected);
    }

    #[test]
    fn malformed_traces_are_told_apart() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
