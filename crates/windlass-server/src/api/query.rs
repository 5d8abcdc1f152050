//! What an address says: parts of its path, and parameters such as `?state=dead&limit=100`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use windlass::Name;
use windlass::core::name::nearest;

use super::problem::{Problem, ProblemCode};

/// The parameters of one request.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Those of an address. Others than these are refused, with the nearest of them.
    pub(super) fn of(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|error| {
            let why = format!("the parameters cannot be read: {error}");
            Problem::new(ProblemCode::InvalidParameter, why)
        })?;
        let unknown = pairs.iter().find(|(name, _)| !known.contains(&name.as_str()));
        if let Some((name, _)) = unknown {
            let known: Vec<Name> = known.iter().filter_map(|known| Name::new(known).ok()).collect();
            let why = match nearest(name, known.iter()) {
                Some(nearest) => format!("there is no such parameter; did you mean `{nearest}`?"),
                None => "there is no such parameter".to_string(),
            };
            return Err(Problem::parameter(name, why));
        }
        Ok(Self(pairs.0))
    }

    /// All values of a parameter, which may stand several times or list them with commas.
    pub(super) fn all<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Vec<T>, Problem> {
        let said = self.0.iter().filter(|(said, _)| said == name);
        let values = said.flat_map(|(_, value)| value.split(','));
        values.map(|value| understood(name, value)).collect()
    }

    /// The value of a parameter that stands at most once.
    pub(super) fn one<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Problem> {
        let mut said = self.0.iter().filter(|(said, _)| said == name);
        let value = said.next().map(|(_, value)| understood(name, value)).transpose()?;
        match said.next() {
            None => Ok(value),
            Some(_) => Err(Problem::parameter(name, "it stands twice")),
        }
    }
}

fn understood<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Problem> {
    value.parse().map_err(|error: T::Err| Problem::parameter(name, error.to_string()))
}

/// The part of a path with this name. There may be others, if the router is nested below them.
pub(super) async fn in_path<S: Send + Sync>(
    name: &str,
    parts: &mut Parts,
    state: &S,
) -> Result<String, Problem> {
    let read = |error: &dyn Display| Problem::parameter(name, error.to_string());
    let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
    let Path(mut found) = path.map_err(|error| read(&error))?;
    found.remove(name).ok_or_else(|| read(&"it is missing"))
}

/// A name in an address.
pub(super) struct NameText(pub(super) Name);

impl FromStr for NameText {
    type Err = windlass::core::name::InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Name::new(text).map(Self)
    }
}
