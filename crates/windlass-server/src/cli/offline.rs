//! What the commands can be asked for that look into a store on disk, and change it, while nobody
//! has it open.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueEnum, value_parser};
use windlass::core::filter::Filter;
use windlass::store::{Address, ObjectFilter};
use windlass::{JobId, Name, ObjectAddress, ObjectStatus, StateName};

use crate::cli::Format;

/// How jobs and objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people
    Table,
    /// One JSON object with all of them
    Json,
    /// One JSON object per line and job, or object
    Jsonl,
}

/// Which jobs are meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct Which {
    /// In this state; several mean any of them
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state())]
    state: Vec<StateName>,

    /// Of this kind; several mean any of them
    #[arg(long, value_name = "KIND", value_parser = name)]
    kind: Vec<Name>,

    /// In this queue; several mean any of them
    #[arg(long, value_name = "QUEUE", value_parser = name)]
    queue: Vec<Name>,

    /// With this tag; several mean all of them
    #[arg(long, value_name = "TAG", value_parser = name)]
    tag: Vec<Name>,

    /// That follow from this job
    #[arg(long, value_name = "ID")]
    parent: Option<JobId>,
}

impl Which {
    /// The filter, for jobs in these states if none were named.
    pub(crate) fn filter(&self, states: &[StateName]) -> Filter {
        let named = if self.state.is_empty() { states.to_vec() } else { self.state.clone() };
        Filter {
            states: named,
            kinds: self.kind.clone(),
            queues: self.queue.clone(),
            tags: self.tag.clone(),
            parent: self.parent,
            ..Filter::default()
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    windlass list ./jobs --state dead\n  \
    windlass list ./jobs --kind mail.send_receipt --limit 10 -o json\n  \
    windlass list ./jobs --tag customer-7 -o jsonl | jq .error")]
pub(crate) struct ListOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) which: Which,

    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) limit: u64,

    /// The first accepted first
    #[arg(long)]
    pub(crate) oldest_first: bool,

    /// Go on after the last page: what that one said
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: ListFormat,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    windlass show ./jobs 0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10")]
pub(crate) struct ShowOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    /// The job
    pub(crate) id: JobId,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    windlass objects ./jobs --kind debounce --name webhooks\n  \
    windlass objects ./jobs --status failed -o jsonl | jq .reason")]
pub(crate) struct ObjectsOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    /// Of this primitive, such as `continuous`, `debounce` or `task`
    #[arg(long, value_name = "KIND", value_parser = name)]
    kind: Option<Name>,

    /// Of the definition with this name
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<Name>,

    /// With this status
    #[arg(long, value_name = "STATUS", value_parser = status())]
    status: Option<ObjectStatus>,

    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub(crate) limit: u64,

    /// Go on after the last page: what that one said
    #[arg(long, value_name = "KIND/NAME/KEY", value_parser = address)]
    pub(crate) after: Option<ObjectAddress>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: ListFormat,
}

impl ObjectsOptions {
    pub(crate) fn filter(&self) -> ObjectFilter {
        ObjectFilter { kind: self.kind.clone(), name: self.name.clone(), status: self.status }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass object ./jobs debounce/webhooks/acme -o json")]
pub(crate) struct ObjectOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    /// The object, as `windlass objects` lists it
    #[arg(value_name = "KIND/NAME/KEY", value_parser = address)]
    pub(crate) address: ObjectAddress,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    windlass export ./jobs > jobs.jsonl\n  \
    windlass export ./jobs --state dead --queue mail | jq -r .id")]
pub(crate) struct ExportOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) which: Which,
}

/// What `retry` and `cancel` share.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "state", "kind", "queue", "tag"]))]
pub(crate) struct ChangeOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    /// The jobs
    #[arg(value_name = "ID", conflicts_with_all = ["state", "kind", "queue", "tag"])]
    pub(crate) ids: Vec<JobId>,

    #[command(flatten)]
    pub(crate) which: Which,

    /// Do not ask before all jobs that match are changed
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass doctor ./jobs -o json | jq .ok\n\n\
    It exits with 0 if all is well, 1 if something is wrong, 3 if there is no store, and 4 if a \
    process has it open.")]
pub(crate) struct DoctorOptions {
    /// The directory of the store
    #[arg(value_parser = store_path)]
    pub(crate) path: PathBuf,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass backup ./jobs /mnt/backup/jobs-monday\n\n\
    To restore it, stop whoever uses the store, move its directory aside and the copy to its \
    place.\nJobs that had started when the copy was made run again when it is opened.")]
pub(crate) struct BackupOptions {
    /// The directory of the store; a process may have it open
    #[arg(value_parser = store_path)]
    pub(crate) from: PathBuf,

    /// Where the copy goes: a directory that is not there yet
    #[arg(value_parser = store_path)]
    pub(crate) to: PathBuf,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

fn store_path(text: &str) -> Result<PathBuf, String> {
    match text.parse() {
        Ok(Address::Directory(path)) => Ok(path),
        Ok(Address::Memory) => {
            Err("what is in memory is gone with its process; name a directory".to_string())
        }
        Ok(Address::Postgres(_)) => {
            Err("this looks into the files of a store; a database has none".to_string())
        }
        Ok(Address::Http(_)) => {
            Err("this looks into the files of a store; a server shows none".to_string())
        }
        Err(error) => Err(windlass::Error::to_string(&error)),
    }
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|error| error.to_string())
}

fn state() -> impl TypedValueParser<Value = StateName> {
    PossibleValuesParser::new(StateName::ALL.map(StateName::as_str)).try_map(|text| {
        let mut all = StateName::ALL.into_iter();
        all.find(|state| state.as_str() == text).ok_or("no such state")
    })
}

fn status() -> impl TypedValueParser<Value = ObjectStatus> {
    let all = [ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed];
    PossibleValuesParser::new(all.map(ObjectStatus::as_str)).try_map(move |text| {
        all.into_iter().find(|status| status.as_str() == text).ok_or("no such status")
    })
}

/// Only the key may hold a slash.
fn address(text: &str) -> Result<ObjectAddress, String> {
    let mut parts = text.splitn(3, '/');
    let (Some(kind), Some(definition), Some(key)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err("an object is named by kind/name/key, such as debounce/webhooks/acme".into());
    };
    ObjectAddress::new(name(kind)?, name(definition)?, key).map_err(|error| error.to_string())
}
