//! Spans carry what a reader of logs needs, without configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::{Attempt, Failure};

use crate::common::{Work, rig, work};

type Fields = BTreeMap<String, String>;

/// Remembers the fields of every span called `job`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Fields>>>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "job" {
            let mut fields = Collected::default();
            attributes.record(&mut fields);
            self.0.lock().expect("not poisoned").push(fields.0);
        }
    }
}

#[derive(Default)]
struct Collected(Fields);

impl Visit for Collected {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.0.insert(field.name().to_string(), text.trim_matches('"').to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_carries_job_kind_attempt_worker_and_the_producers_trace() {
    let spans = Spans::default();
    let _default =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let rig = rig().await;
    let fails_once = |job: Work, attempt: Attempt| async move {
        if attempt.number() == 1 { Err(Failure::retry("once")) } else { Ok(job.number) }
    };
    let worker = rig.engine.worker().handle(fails_once).start().await.expect("it starts");
    // Another test may have come by the span first and noted that nobody listens.
    rig.engine.enqueue(work(0)).await.expect("it is accepted").outcome().await.expect("it runs");
    tracing::callsite::rebuild_interest_cache();
    spans.0.lock().expect("not poisoned").clear();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let handle = rig.engine.enqueue(work(1)).trace(trace).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    let seen = spans.0.lock().expect("not poisoned").clone();
    assert_eq!(seen.len(), 2, "one span per attempt");
    for (number, span) in seen.iter().enumerate() {
        let expected = [
            ("job", handle.id().to_string()),
            ("kind", "work".to_string()),
            ("queue", "default".to_string()),
            ("attempt", (number + 1).to_string()),
            ("worker", worker.id().to_string()),
            ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736".to_string()),
            ("traceparent", trace.to_string()),
        ];
        for (field, value) in expected {
            assert_eq!(span.get(field), Some(&value), "{field} of {span:?}");
        }
    }
}
