//! Trace context that travels with a job, without configuration.
//!
//! Every job carries a W3C `traceparent`. A job enqueued by a running job continues that job's
//! trace, so a whole tree of work can be found by one trace id in the logs.

use uuid::Uuid;

tokio::task_local! {
    /// The trace of the attempt that runs on this task.
    pub(crate) static CURRENT: String;
}

/// The trace of the attempt that runs here, with a new span, or a new trace.
pub(crate) fn current_or_new() -> String {
    let trace_id = CURRENT.try_with(|trace| trace.get(3..35).map(str::to_string)).ok().flatten();
    let trace_id = trace_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    let span_id = Uuid::new_v4().simple().to_string();
    format!("00-{trace_id}-{}-01", &span_id[..16])
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
    fn a_new_trace_is_well_formed() {
        assert!(is_traceparent(&current_or_new()));
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
