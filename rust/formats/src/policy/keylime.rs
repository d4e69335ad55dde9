//! keylime runtime policies: the digests go straight into the table, the rest is handed on.
use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::checksums::unhex;
use super::error::PolicyError;
use super::table::{algorithm_of_size, DigestTableBuilder, MAX_DIGEST_BYTES};

/// Names of the member that maps paths to digests, in runtime policies and older allowlists.
const DIGEST_MEMBERS: [&str; 2] = ["digests", "hashes"];

/// Read a policy: digests into the builder, all other members returned as they are.
///
/// # Errors
/// When it is no JSON object, or a digest is not hexadecimal.
pub fn read_keylime(
    from: impl Read,
    builder: &mut DigestTableBuilder,
) -> Result<(Map<String, Value>, u64), PolicyError> {
    let mut reader = serde_json::Deserializer::from_reader(from);
    let mut digests = 0u64;
    let seed = PolicySeed {
        builder,
        digests: &mut digests,
    };
    let read = seed
        .deserialize(&mut reader)
        .and_then(|members| reader.end().map(|()| members));
    match read {
        Ok(members) => Ok((members, digests)),
        Err(error) => Err(PolicyError {
            reason: error.to_string(),
            line: u64::try_from(error.line()).ok().filter(|line| *line > 0),
            offset: None,
            field: "policy",
        }),
    }
}

struct PolicySeed<'a> {
    builder: &'a mut DigestTableBuilder,
    digests: &'a mut u64,
}

impl<'de> DeserializeSeed<'de> for PolicySeed<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PolicySeed<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut rest = Map::new();
        let mut seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if DIGEST_MEMBERS.contains(&name.as_str()) {
                if seen {
                    return Err(A::Error::custom("the digests appear twice"));
                }
                seen = true;
                map.next_value_seed(DigestsSeed {
                    builder: self.builder,
                    digests: self.digests,
                })?;
                continue;
            }
            if rest.contains_key(&name) {
                return Err(A::Error::custom(format!("{name} appears twice")));
            }
            let value = map.next_value()?;
            rest.insert(name, value);
        }
        Ok(rest)
    }
}

struct DigestsSeed<'a> {
    builder: &'a mut DigestTableBuilder,
    digests: &'a mut u64,
}

impl<'de> DeserializeSeed<'de> for DigestsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for DigestsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of paths, each with a list of digests")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(path) = map.next_key::<String>()? {
            map.next_value_seed(ListSeed {
                path: &path,
                builder: self.builder,
                digests: self.digests,
            })?;
        }
        Ok(())
    }
}

struct ListSeed<'a> {
    path: &'a str,
    builder: &'a mut DigestTableBuilder,
    digests: &'a mut u64,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of hexadecimal digests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(digits) = list.next_element::<String>()? {
            let mut buffer = [0u8; MAX_DIGEST_BYTES];
            let digest = unhex(digits.as_bytes(), &mut buffer);
            let named = digest.and_then(|digest| Some((digest, algorithm_of_size(digest.len())?)));
            let Some((digest, algorithm)) = named else {
                let reason = format!("{digits:?} of {:?} is not a hexadecimal digest", self.path);
                return Err(A::Error::custom(reason));
            };
            self.builder
                .push(self.path.as_bytes(), algorithm, digest)
                .map_err(A::Error::custom)?;
            *self.digests = self.digests.saturating_add(1);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::table::Verdict;
    use super::*;

    #[test]
    fn digests_go_into_the_table_and_the_rest_is_returned() {
        let sha1 = "ab".repeat(20);
        let text = format!(
            r#"{{"release": 0, "digests": {{"/bin/a": ["{sha1}", "{}"], "/b": []}},
                "excludes": ["/tmp/.*"]}}"#,
            "cd".repeat(32)
        );
        let mut builder = DigestTableBuilder::default();
        let (rest, count) = read_keylime(text.as_bytes(), &mut builder).unwrap();
        assert_eq!((rest.len(), count), (2, 2));
        let table = builder.finish();
        let verdict = table.lookup(b"/bin/a", "sha256", &[0xcd; 32]);
        assert_eq!(verdict, Verdict::Allowed);
    }

    #[test]
    fn faults_are_named_with_their_line() {
        for (text, reason) in [
            ("[]", "JSON object"),
            (
                "{\n\"digests\": {\"/a\": [\"xy\"]}}",
                "not a hexadecimal digest",
            ),
            (
                "{\"digests\": {\"/a\": \"xy\"}}",
                "list of hexadecimal digests",
            ),
            ("{\"digests\": {}, \"digests\": {}}", "twice"),
            ("{\"meta\": 1, \"meta\": 2}", "twice"),
            ("{} x", "trailing"),
            ("{", "EOF"),
        ] {
            let error = read_keylime(text.as_bytes(), &mut DigestTableBuilder::default());
            let error = error.unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {}", error.reason);
            assert!(error.line.is_some());
        }
    }
}
