//! Field types that accept every JSON shape a client may reasonably send.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A JSON object; serde's derive alone would also take a list of the members' values.
#[derive(Debug, Default)]
pub(crate) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// A whole number of any size; `10.0` counts as `10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer(pub i128);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntegerVisitor;
        impl Visitor<'_> for IntegerVisitor {
            type Value = Integer;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a whole number")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Integer, E> {
                Ok(Integer(value.into()))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Integer, E> {
                Ok(Integer(value.into()))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Integer, E> {
                if value.fract() == 0.0 {
                    Ok(Integer(value as i128))
                } else {
                    Err(E::invalid_type(de::Unexpected::Float(value), &self))
                }
            }
        }
        deserializer.deserialize_any(IntegerVisitor)
    }
}

/// A list that is refused as soon as it has more than `MOST` elements, before it takes much memory.
#[derive(Clone, Debug)]
pub(crate) struct List<T, const MOST: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for List<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for ListVisitor<T, MOST> {
            type Value = List<T, MOST>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = seq.next_element()? {
                    if list.len() == MOST {
                        return Err(de::Error::custom(format_args!("more than {MOST} elements")));
                    }
                    list.push(element);
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// One string or a list of strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strings(pub Vec<String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Strings, E> {
                Ok(Strings(vec![value.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strings, A::Error> {
                let mut strings = Vec::new();
                while let Some(string) = seq.next_element()? {
                    strings.push(string);
                }
                Ok(Strings(strings))
            }
        }
        deserializer.deserialize_any(StringsVisitor)
    }
}

/// The outline of a value whose content is not used, only whether it asks for something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outline {
    Flag(bool),
    Number(f64),
    Text(String),
    /// Number of elements.
    List(usize),
    /// Number of members, and the string under `type`.
    Object {
        members: usize,
        kind: Option<String>,
    },
}

impl Outline {
    /// Whether the value asks for nothing: `false`, `""`, `[]` or `{}`.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Flag(flag) => !flag,
            Self::Number(_) => false,
            Self::Text(text) => text.is_empty(),
            Self::List(len) => *len == 0,
            Self::Object { members, .. } => *members == 0,
        }
    }
}

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutlineVisitor;
        impl<'de> Visitor<'de> for OutlineVisitor {
            type Value = Outline;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Outline, E> {
                Ok(Outline::Flag(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Outline, E> {
                Ok(Outline::Number(value as f64))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Outline, E> {
                Ok(Outline::Number(value as f64))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Outline, E> {
                Ok(Outline::Number(value))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Outline, E> {
                Ok(Outline::Text(value.to_owned()))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Outline, E> {
                Ok(Outline::Flag(false))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Outline, A::Error> {
                let mut len = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    len += 1;
                }
                Ok(Outline::List(len))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline, A::Error> {
                let (mut members, mut kind) = (0, None);
                while let Some(key) = map.next_key::<String>()? {
                    members += 1;
                    let value = map.next_value::<Outline>()?;
                    if let ("type", Outline::Text(text)) = (key.as_str(), value) {
                        kind = Some(text);
                    }
                }
                Ok(Outline::Object { members, kind })
            }
        }
        deserializer.deserialize_any(OutlineVisitor)
    }
}
