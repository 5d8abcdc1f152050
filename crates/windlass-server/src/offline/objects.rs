//! `windlass objects` and `windlass object`: durable objects, in brief and whole.

use serde::Serialize;
use windlass::core::limits;
use windlass::{JobId, ObjectAddress, ObjectView};

use crate::cli::{Format, ListFormat, ObjectOptions, ObjectsOptions};
use crate::offline::list::cut;
use crate::offline::look::Look;
use crate::offline::show::{readable, section};
use crate::output::{self, Failure, NOT_FOUND, grouped, text_table};
use windlass_server::view::{Content, content, text};

/// Lists objects, by their addresses.
pub(crate) fn list(options: &ObjectsOptions) -> anyhow::Result<()> {
    let mut look = Look::open(&options.path)?;
    let filter = options.filter();
    let limit = usize::try_from(options.limit)?;
    let mut objects = Vec::new();
    let mut next = options.after.clone();
    loop {
        let page = (limit - objects.len()).min(limits::PAGE_JOBS);
        let page = look.objects(&filter, next.as_ref(), page)?;
        objects.extend(page.objects);
        next = page.next;
        if next.is_none() || objects.len() == limit {
            break;
        }
    }
    match options.output {
        ListFormat::Table => table(&objects)?,
        ListFormat::Json => output::json(&ListedObjects::new(&objects, next.as_ref()))?,
        ListFormat::Jsonl => {
            objects.iter().try_for_each(|each| output::json(&ObjectBrief::of(each)))?
        }
    }
    if let Some(next) = next.filter(|_| options.output != ListFormat::Json) {
        output::remark(&format!("There may be more: go on with --after {next}"));
    }
    Ok(())
}

/// Shows an object.
pub(crate) fn show(options: &ObjectOptions) -> anyhow::Result<()> {
    let mut look = Look::open(&options.path)?;
    let address = &options.address;
    let Some(object) = look.object(address)? else {
        let path = options.path.display();
        let text = format!(
            "there is no object {address} in {path}: it never was, or it was purged; \
             `windlass objects {path}` shows which are there"
        );
        return Err(Failure::because(NOT_FOUND, text));
    };
    match options.output {
        Format::Table => output::line(&told(&object)),
        Format::Json => output::json(&ObjectDetail::of(&object)),
    }
}

/// A page as one JSON object.
#[derive(Serialize)]
struct ListedObjects<'a> {
    objects: Vec<ObjectBrief<'a>>,
    /// What `--after` takes to go on; `null` at the end.
    next: Option<String>,
}

impl<'a> ListedObjects<'a> {
    fn new(objects: &'a [ObjectView], next: Option<&ObjectAddress>) -> Self {
        let next = next.map(ToString::to_string);
        Self { objects: objects.iter().map(ObjectBrief::of).collect(), next }
    }
}

/// What a list tells of an object.
#[derive(Serialize)]
struct ObjectBrief<'a> {
    /// `kind/name/key`.
    address: String,
    kind: &'a str,
    name: &'a str,
    key: &'a str,
    status: &'static str,
    reason: Option<&'a str>,
    version: u64,
    /// Jobs bound to it have at least this number.
    incarnation: u64,
    runs: u64,
    failures: u64,
    recoveries: u32,
    created_at: String,
    updated_at: String,
    /// Since when a job of it ran when the store was last open.
    executing_since: Option<String>,
    alarm_at: Option<String>,
    open_jobs: u64,
}

impl<'a> ObjectBrief<'a> {
    fn of(object: &'a ObjectView) -> Self {
        let (address, meta) = (&object.record.address, &object.record.meta);
        Self {
            address: address.to_string(),
            kind: address.kind().as_str(),
            name: address.name().as_str(),
            key: address.key(),
            status: meta.status.as_str(),
            reason: meta.reason.as_ref().map(|reason| reason.as_str()),
            version: meta.version,
            incarnation: meta.incarnation,
            runs: meta.runs,
            failures: meta.failures,
            recoveries: meta.recoveries,
            created_at: meta.created_at.to_string(),
            updated_at: meta.updated_at.to_string(),
            executing_since: text(object.executing_since),
            alarm_at: text(object.alarm_at),
            open_jobs: object.open_jobs,
        }
    }
}

/// Everything known about an object.
#[derive(Serialize)]
struct ObjectDetail<'a> {
    #[serde(flatten)]
    brief: ObjectBrief<'a>,
    last_success_at: Option<String>,
    last_recovery_at: Option<String>,
    /// The job that is its alarm.
    alarm: Option<JobId>,
    purge_at: Option<String>,
    state: Content<'a>,
}

impl<'a> ObjectDetail<'a> {
    fn of(object: &'a ObjectView) -> Self {
        let meta = &object.record.meta;
        Self {
            brief: ObjectBrief::of(object),
            last_success_at: text(meta.last_success_at),
            last_recovery_at: text(meta.last_recovery_at),
            alarm: meta.alarm,
            purge_at: text(meta.purge_at),
            state: content(&object.record.state),
        }
    }
}

fn table(objects: &[ObjectView]) -> anyhow::Result<()> {
    if objects.is_empty() {
        return output::line("No object matches.");
    }
    let header = ["object", "status", "runs", "failures", "open jobs", "last changed", ""];
    let mut rows = text_table(&header);
    for object in objects {
        let meta = &object.record.meta;
        rows.add_row([
            object.record.address.to_string(),
            meta.status.to_string(),
            grouped(meta.runs),
            grouped(meta.failures),
            grouped(object.open_jobs),
            meta.updated_at.to_string(),
            cut(&remark(object)),
        ]);
    }
    output::line(&rows.trim_fmt())
}

/// What the status alone does not say.
fn remark(object: &ObjectView) -> String {
    let reason = object.record.meta.reason.as_ref();
    let reason = reason.and_then(|reason| reason.as_str().lines().next());
    match (reason, object.executing_since, object.alarm_at) {
        (Some(reason), _, _) => reason.to_string(),
        (None, Some(since), _) => format!("started {since}"),
        (None, None, Some(at)) => format!("alarm {at}"),
        (None, None, None) => String::new(),
    }
}

fn told(object: &ObjectView) -> String {
    let state = match object.record.state.is_empty() {
        true => "(none)".to_string(),
        false => readable(&object.record.state),
    };
    format!("{}\n\n{}", head(object), section("state", &state))
}

fn head(object: &ObjectView) -> String {
    let meta = &object.record.meta;
    let mut rows = text_table(&[]);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            rows.add_row([name.to_string(), value]);
        }
    };
    let at = |at| text(at).unwrap_or_default();
    row("status", meta.status.to_string());
    row("reason", meta.reason.as_ref().map(ToString::to_string).unwrap_or_default());
    row("version", meta.version.to_string());
    row("created", meta.created_at.to_string());
    row("last changed", meta.updated_at.to_string());
    row("runs", grouped(meta.runs));
    row("failures", grouped(meta.failures));
    row("last success", at(meta.last_success_at));
    row("recoveries", meta.recoveries.to_string());
    row("last recovery", at(meta.last_recovery_at));
    let since = object.executing_since;
    let since = since.map(|since| format!("{since}; recovered when the store is opened again"));
    row("running since", since.unwrap_or_default());
    row("alarm", alarm(object));
    row("open jobs", grouped(object.open_jobs));
    row("purged at", at(meta.purge_at));
    format!("object {}\n{}", object.record.address, rows.trim_fmt())
}

/// When its alarm goes off, and the job that is the alarm.
fn alarm(object: &ObjectView) -> String {
    match (object.record.meta.alarm, object.alarm_at) {
        (Some(job), Some(at)) => format!("{at}, job {job}"),
        (Some(job), None) => format!("it went off, job {job}"),
        (None, _) => "none".to_string(),
    }
}
