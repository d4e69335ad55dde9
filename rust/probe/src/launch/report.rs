//! The launcher's answers: members appended to a head by hand, so that a line costs no tree.

use super::measure::{Measured, Outcome};
use crate::error::describe;
use crate::sys::process::Ending;
use std::io::Write;

/// Bytes of standard error that a failed run's line keeps.
pub const STDERR_BYTES: usize = 2_000;
/// Bytes of standard output that the answer to an `exec` keeps.
pub const EXEC_STDOUT_BYTES: usize = 4_000;

/// A line under construction.
#[derive(Default)]
pub struct LineBuilder {
    bytes: Vec<u8>,
}

impl LineBuilder {
    /// Begin with a JSON object that lacks its closing brace.
    pub fn begin(&mut self, head: &str) {
        self.bytes.clear();
        self.bytes.extend_from_slice(head.trim_end().as_bytes());
    }

    /// Close the object and the line; the answer is the whole of it.
    pub fn end(&mut self) -> &[u8] {
        self.bytes.extend_from_slice(b"}\n");
        &self.bytes
    }

    fn name(&mut self, name: &str) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    /// A number.
    pub fn number(&mut self, name: &str, value: impl Into<i128>) {
        self.name(name);
        // Writing to a vector cannot fail.
        let _ = write!(self.bytes, "{}", value.into());
    }

    /// A number, or null.
    pub fn optional(&mut self, name: &str, value: Option<impl Into<i128>>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.raw(name, b"null"),
        }
    }

    /// True or false.
    pub fn boolean(&mut self, name: &str, value: bool) {
        self.raw(name, if value { b"true" } else { b"false" });
    }

    /// A text, escaped.
    pub fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        // A string always has a JSON form and a vector takes every write.
        let _ = serde_json::to_writer(&mut self.bytes, value);
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.bytes.extend_from_slice(json);
    }

    /// All that was measured of one run.
    pub fn measured(&mut self, run: &Measured) {
        let usage = &run.usage;
        self.number("start_ns", run.start_ns);
        self.number("wall_ns", run.wall_ns);
        self.number("user_ns", usage.user_ns);
        self.number("system_ns", usage.system_ns);
        self.number("max_rss_bytes", usage.max_rss_bytes);
        self.number("minor_faults", usage.minor_faults);
        self.number("major_faults", usage.major_faults);
        self.number("voluntary_switches", usage.voluntary_switches);
        self.number("involuntary_switches", usage.involuntary_switches);
        self.ending(run.ending);
        self.boolean("timed_out", run.timed_out);
    }

    /// How the child ended: a code or a signal, the other being null.
    pub fn ending(&mut self, ending: Ending) {
        let (code, signal) = match ending {
            Ending::Exited(code) => (Some(code), None),
            Ending::Signalled(signal) => (None, Some(signal)),
        };
        self.optional("exit_code", code);
        self.optional("signal", signal);
    }

    /// Stand-ins for all of the above where no program could be executed.
    pub fn nothing_measured(&mut self) {
        for name in [
            "start_ns",
            "wall_ns",
            "user_ns",
            "system_ns",
            "max_rss_bytes",
            "minor_faults",
            "major_faults",
            "voluntary_switches",
            "involuntary_switches",
            "exit_code",
            "signal",
        ] {
            self.raw(name, b"null");
        }
        self.boolean("timed_out", false);
    }

    /// The reason why no program could be executed, or why its output is unusable.
    pub fn error(&mut self, reason: &str) {
        self.text("error", reason);
    }
}

/// Text of an outcome that is no run: the step, errno's name, and what it means.
pub fn failure(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Ran(_) => None,
        Outcome::NotExecuted { step, error } => Some(format!("{step}: {}", describe(error))),
    }
}

/// One JSON object on one line, or why the bytes are not that.
pub fn one_object(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    let text = text.trim();
    if text.is_empty() {
        return Err("empty".to_owned());
    }
    if text.contains('\n') || text.contains('\r') {
        return Err("more than one line".to_owned());
    }
    if !text.starts_with('{') {
        return Err("not a JSON object".to_owned());
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| format!("not JSON: {error}"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_follow_the_head_and_text_is_escaped() {
        let mut line = LineBuilder::default();
        line.begin("{\"kind\":\"run\"");
        line.number("start_ns", 5_u64);
        line.optional("signal", None::<i32>);
        line.boolean("ok", false);
        line.text("stderr", "a\"b\n\u{1}");
        line.raw("probe", b"{\"x\":1}");
        let expected = "{\"kind\":\"run\",\"start_ns\":5,\"signal\":null,\"ok\":false,\
                        \"stderr\":\"a\\\"b\\n\\u0001\",\"probe\":{\"x\":1}}\n";
        assert_eq!(std::str::from_utf8(line.end()).unwrap(), expected);
    }

    #[test]
    fn an_empty_head_needs_no_comma() {
        let mut line = LineBuilder::default();
        line.begin("{ ");
        line.boolean("ok", true);
        assert_eq!(line.end(), b"{\"ok\":true}\n");
    }

    #[test]
    fn only_one_object_on_one_line_is_embedded() {
        assert_eq!(one_object(b"{\"a\":[1]}\n"), Ok("{\"a\":[1]}"));
        for (bytes, reason) in [
            (&b""[..], "empty"),
            (b"{}\n{}", "more than one line"),
            (b"[1]", "not a JSON object"),
            (b"{\"a\":", "not JSON"),
            (b"\xff", "not UTF-8"),
        ] {
            let answer = one_object(bytes).unwrap_err();
            assert!(answer.starts_with(reason), "{answer}");
        }
    }
}
