//! One line: which kind of record it is, and its members where we keep them.

use serde::de::{self, Deserializer, Visitor};
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt;

/// A text that is borrowed from the line unless it holds an escape.
#[derive(Debug, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// What the probe printed, as far as tables need it.
#[derive(Debug, Deserialize)]
pub struct Probe {
    #[serde(default)]
    pub op_ns: Vec<f64>,
    #[serde(default)]
    pub first_op_ns: Option<f64>,
    #[serde(default)]
    pub op_instructions: Vec<f64>,
    #[serde(default)]
    pub first_op_instructions: Option<f64>,
    pub operations: i64,
}

/// The members of runs and events; which of them must be there depends on the kind.
#[derive(Debug, Default, Deserialize)]
pub struct Line<'a> {
    pub sequence: Option<i64>,
    pub block: Option<i64>,
    #[serde(borrow)]
    pub task: Option<Text<'a>>,
    #[serde(borrow)]
    pub configuration: Option<Text<'a>>,
    pub run: Option<i64>,
    #[serde(borrow)]
    pub phase: Option<Text<'a>>,
    pub start_ns: Option<i64>,
    pub wall_ns: Option<i64>,
    pub user_ns: Option<i64>,
    pub system_ns: Option<i64>,
    pub max_rss_bytes: Option<i64>,
    pub minor_faults: Option<i64>,
    pub major_faults: Option<i64>,
    pub voluntary_switches: Option<i64>,
    pub involuntary_switches: Option<i64>,
    pub instructions: Option<i64>,
    pub cycles: Option<i64>,
    pub ima_entries: Option<i64>,
    pub exit_code: Option<i64>,
    pub signal: Option<i64>,
    pub timed_out: Option<bool>,
    pub ok: Option<bool>,
    pub probe: Option<Probe>,
    #[serde(borrow)]
    pub layer: Option<Text<'a>>,
    #[serde(borrow)]
    pub event: Option<Text<'a>>,
    #[serde(borrow)]
    pub parent: Option<Text<'a>>,
    #[serde(borrow)]
    pub labels: Option<Text<'a>>,
    pub value: Option<f64>,
    #[serde(borrow)]
    pub unit: Option<Text<'a>>,
}

impl Line<'_> {
    /// The first member that a record of this kind needs and this one lacks.
    fn missing(&self, kind: Kind) -> Option<&'static str> {
        let needed = match kind {
            Kind::Run => &[
                ("sequence", self.sequence.is_some()),
                ("block", self.block.is_some()),
                ("task", self.task.is_some()),
                ("configuration", self.configuration.is_some()),
                ("run", self.run.is_some()),
                ("phase", self.phase.is_some()),
            ][..],
            Kind::Event => &[
                ("sequence", self.sequence.is_some()),
                ("layer", self.layer.is_some()),
                ("event", self.event.is_some()),
                ("value", self.value.is_some()),
            ],
            Kind::Other => &[],
        };
        let missing = needed.iter().find(|(_, present)| !present);
        missing.map(|(name, _)| *name)
    }
}

#[derive(Deserialize)]
struct OnlyKind<'a> {
    #[serde(borrow)]
    kind: Text<'a>,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Run,
    Event,
    Other,
}

const RUN: &[u8] = b"{\"kind\":\"run\",";
const EVENT: &[u8] = b"{\"kind\":\"event\",";
const PHASES: [&str; 3] = ["first", "warmup", "measured"];

/// Read one line, without its end; the error says what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<(Kind, Line<'_>), String> {
    let (kind, line) = match launched(bytes) {
        Some(line) => (Kind::Run, line),
        None => match kind_of(bytes)? {
            Kind::Other => return Ok((Kind::Other, Line::default())),
            kind => (kind, parse(bytes)?),
        },
    };
    if let Some(member) = line.missing(kind) {
        return Err(format!("lacks the member `{member}`"));
    }
    match &line.phase {
        Some(phase) if !PHASES.contains(&&*phase.0) => {
            Err(format!("`{}` is not a phase of a run", phase.0))
        }
        _ => Ok((kind, line)),
    }
}

/// The kind; our own writers put it first, whoever else wrote the line pays for a second look.
fn kind_of(bytes: &[u8]) -> Result<Kind, String> {
    if bytes.starts_with(RUN) {
        return Ok(Kind::Run);
    }
    if bytes.starts_with(EVENT) {
        return Ok(Kind::Event);
    }
    let only: OnlyKind<'_> = parse(bytes)?;
    Ok(match &*only.kind.0 {
        "run" => Kind::Run,
        "event" => Kind::Event,
        _ => Kind::Other,
    })
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// What may follow the last number of a launched run.
#[derive(Deserialize)]
struct Tail {
    #[serde(default)]
    ima_entries: Option<i64>,
    #[serde(default)]
    probe: Option<Probe>,
    ok: bool,
}

/// Read a run exactly as the launcher writes it, twice as fast as any JSON reader could.
///
/// None for everything else, which is not to say that it is wrong.
fn launched(bytes: &[u8]) -> Option<Line<'_>> {
    let mut cursor = Cursor { rest: bytes };
    let mut line = Line::default();
    cursor.literal(RUN)?;
    cursor.integer(b"\"sequence\":", &mut line.sequence)?;
    cursor.integer(b",\"block\":", &mut line.block)?;
    cursor.text(b",\"task\":\"", &mut line.task)?;
    cursor.text(b",\"configuration\":\"", &mut line.configuration)?;
    cursor.integer(b",\"run\":", &mut line.run)?;
    cursor.text(b",\"phase\":\"", &mut line.phase)?;
    cursor.integer(b",\"start_ns\":", &mut line.start_ns)?;
    cursor.integer(b",\"wall_ns\":", &mut line.wall_ns)?;
    cursor.integer(b",\"user_ns\":", &mut line.user_ns)?;
    cursor.integer(b",\"system_ns\":", &mut line.system_ns)?;
    cursor.integer(b",\"max_rss_bytes\":", &mut line.max_rss_bytes)?;
    cursor.integer(b",\"minor_faults\":", &mut line.minor_faults)?;
    cursor.integer(b",\"major_faults\":", &mut line.major_faults)?;
    cursor.integer(b",\"voluntary_switches\":", &mut line.voluntary_switches)?;
    cursor.integer(
        b",\"involuntary_switches\":",
        &mut line.involuntary_switches,
    )?;
    cursor.integer(b",\"exit_code\":", &mut line.exit_code)?;
    cursor.integer(b",\"signal\":", &mut line.signal)?;
    cursor.boolean(b",\"timed_out\":", &mut line.timed_out)?;
    let mut floor_bytes = None;
    // Absent where nothing was started.
    let _ = cursor.integer(b",\"max_rss_floor_bytes\":", &mut floor_bytes);
    cursor.integer(b",\"instructions\":", &mut line.instructions)?;
    cursor.integer(b",\"cycles\":", &mut line.cycles)?;
    if cursor.rest == b",\"ok\":true}" {
        line.ok = Some(true);
        return Some(line);
    }
    let members = cursor.rest.strip_prefix(b",")?;
    let tail: Tail = serde_json::from_slice(&[b"{", members].concat()).ok()?;
    line.ok = Some(tail.ok);
    line.ima_entries = tail.ima_entries;
    line.probe = tail.probe;
    Some(line)
}

/// What is left of a line that is read member by member.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// A member that holds a whole number of at most 18 digits, or null.
    fn integer(&mut self, name: &[u8], value: &mut Option<i64>) -> Option<()> {
        let rest = self.rest.strip_prefix(name)?;
        if let Some(rest) = rest.strip_prefix(b"null") {
            self.rest = rest;
            return Some(());
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest.split_at_checked(digits)?;
        let leading_zero = digits > 1 && number.first() == Some(&b'0');
        if digits == 0 || digits > 18 || leading_zero || !matches!(after.first(), Some(b',' | b'}'))
        {
            return None;
        }
        let sum = number
            .iter()
            .fold(0_i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        *value = Some(sum);
        self.rest = after;
        Some(())
    }

    /// A member that holds a text without escapes; the name ends with the opening quote.
    fn text(&mut self, name: &[u8], value: &mut Option<Text<'a>>) -> Option<()> {
        let rest = self.rest.strip_prefix(name)?;
        let end = memchr::memchr2(b'"', b'\\', rest)?;
        let (text, after) = rest.split_at_checked(end)?;
        self.rest = after.strip_prefix(b"\"")?;
        if text.iter().any(u8::is_ascii_control) {
            return None;
        }
        *value = Some(Text(Cow::Borrowed(std::str::from_utf8(text).ok()?)));
        Some(())
    }

    fn boolean(&mut self, name: &[u8], value: &mut Option<bool>) -> Option<()> {
        self.literal(name)?;
        let truth = self.rest.starts_with(b"true");
        self.literal(if truth { b"true" } else { b"false" })?;
        *value = Some(truth);
        Some(())
    }
}
