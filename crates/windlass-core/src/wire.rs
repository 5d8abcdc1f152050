//! How values travel between programs, where that is not simply what they are made of.
//!
//! Most types derive their form, under the feature `wire`. Here are those that check what they are
//! made of, so that nothing can be received that could not be made; and opaque bytes, which travel
//! as they are.
//!
//! The forms are for a format that describes itself, so that a field which only one of two programs
//! knows does no harm: a reader passes over what it does not know, and what is missing is the
//! default where a field has one. A field is added with a default, and neither removed nor given
//! another meaning.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::audit::Actor;
use crate::job::RequestId;
use crate::name::Name;
use crate::object::Address;
use crate::outcome::ErrorText;

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(CheckedName)
    }
}

struct CheckedName;

impl Visitor<'_> for CheckedName {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
        Name::new(text).map_err(E::custom)
    }
}

impl Serialize for ErrorText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer).map(ErrorText::new)
    }
}

/// The parts of an [`Address`].
#[derive(Serialize, Deserialize)]
struct AddressParts<'a> {
    kind: Name,
    name: Name,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, name) = (self.kind().clone(), self.name().clone());
        AddressParts { kind, name, key: Cow::Borrowed(self.key()) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let AddressParts { kind, name, key } = AddressParts::deserialize(deserializer)?;
        Address::new(kind, name, &key).map_err(Error::custom)
    }
}

/// The parts of an [`Actor`].
#[derive(Serialize, Deserialize)]
struct ActorParts<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    place: Option<Cow<'a, str>>,
}

impl Serialize for Actor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = self.place().map(Cow::Borrowed);
        ActorParts { name: Cow::Borrowed(self.name()), place }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Actor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ActorParts { name, place } = ActorParts::deserialize(deserializer)?;
        let actor = Actor::new(&name).map_err(Error::custom)?;
        place.map_or(Ok(actor.clone()), |place| actor.from(&place)).map_err(Error::custom)
    }
}

/// Sixteen bytes, the most significant first.
impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Uuid::from_u128(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Uuid::deserialize(deserializer).map(|id| RequestId(id.as_u128()))
    }
}

/// Reads opaque bytes.
struct OpaqueBytes;

impl Visitor<'_> for OpaqueBytes {
    type Value = Arc<[u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Arc<[u8]>, E> {
        Ok(bytes.into())
    }

    fn visit_byte_buf<E: Error>(self, bytes: alloc::vec::Vec<u8>) -> Result<Arc<[u8]>, E> {
        Ok(bytes.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Arc<[u8]>, E> {
        Ok(text.as_bytes().into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Arc<[u8]>, E> {
        Ok(text.into_bytes().into())
    }
}

/// Payloads, outputs and states, for `#[serde(with = …)]`.
pub(crate) mod bytes {
    use super::{Arc, Deserializer, OpaqueBytes, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Arc<[u8]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[u8]>, D::Error> {
        deserializer.deserialize_bytes(OpaqueBytes)
    }
}

/// The same, if there are any.
pub(crate) mod maybe_bytes {
    use serde::{Deserialize, Serialize};

    use super::{Arc, Deserializer, Serializer};

    #[derive(Serialize)]
    struct Borrowed<'a>(#[serde(with = "super::bytes")] &'a Arc<[u8]>);

    #[derive(Deserialize)]
    struct Owned(#[serde(with = "super::bytes")] Arc<[u8]>);

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Option<Arc<[u8]>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(Borrowed).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<[u8]>>, D::Error> {
        Ok(Option::<Owned>::deserialize(deserializer)?.map(|Owned(bytes)| bytes))
    }
}
