//! The launcher's requests: one JSON object on one line, checked before anything is started.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::CString;

/// Longest line of input, in bytes.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// What the launcher is asked to do.
#[derive(Debug)]
pub enum Request {
    /// Replace the base environment.
    Environment(Environment),
    /// Run and measure a command; journal it.
    Run(Run),
    /// Run a command that is not measured.
    Exec(Exec),
}

/// `{"op":"environment", ...}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    #[serde(rename = "op")]
    _op: String,
    /// The variables that every later command gets.
    pub env: BTreeMap<String, String>,
}

/// Where a measured command's standard output goes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// To `/dev/null`.
    #[default]
    Discard,
    /// Kept in memory: one JSON object, which becomes the member `probe`.
    Probe,
    /// To a file, which is made or emptied first.
    File(String),
}

/// What is the same for measured and unmeasured commands.
#[derive(Debug)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables added to the base environment.
    pub env: BTreeMap<String, String>,
    /// Variables taken away from it (before `env` is added).
    pub unset: Vec<String>,
    /// Where it starts.
    pub cwd: Option<String>,
    /// After which its process group is killed.
    pub timeout_ns: Option<u64>,
    /// Exit codes that mean success.
    pub expect: Vec<i32>,
}

fn zero() -> Vec<i32> {
    vec![0]
}

/// `{"op":"run", ...}`
#[derive(Debug)]
pub struct Run {
    /// A JSON object without its closing brace.
    pub head: String,
    /// Where standard output goes.
    pub stdout: Output,
    /// Whether instructions and cycles are counted.
    pub counters: bool,
    /// What is run.
    pub command: Command,
}

/// `{"op":"exec", ...}`
#[derive(Debug)]
pub struct Exec {
    /// Given back in the answer.
    pub id: u64,
    /// What is run.
    pub command: Command,
}

#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow)]
    op: std::borrow::Cow<'a, str>,
}

/// Members of both requests that start a command; which of them belong to which is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    op: String,
    head: Option<String>,
    id: Option<u64>,
    stdout: Option<Output>,
    counters: Option<bool>,
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    unset: Vec<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    timeout_ns: Option<u64>,
    #[serde(default = "zero")]
    expect: Vec<i32>,
}

impl Members {
    fn into_request(self) -> Result<Request, String> {
        let command = Command {
            argv: self.argv,
            env: self.env,
            unset: self.unset,
            cwd: self.cwd,
            timeout_ns: self.timeout_ns,
            expect: self.expect,
        };
        match (
            self.op.as_str(),
            self.head,
            self.id,
            self.stdout,
            self.counters,
        ) {
            ("run", Some(head), None, stdout, counters) => Ok(Request::Run(Run {
                head,
                stdout: stdout.unwrap_or_default(),
                counters: counters.unwrap_or_default(),
                command,
            })),
            ("run", None, ..) => Err("run: head is missing".to_owned()),
            ("run", ..) => Err("run: id belongs to exec only".to_owned()),
            (_, None, Some(id), None, None) => Ok(Request::Exec(Exec { id, command })),
            (_, _, None, ..) => Err("exec: id is missing".to_owned()),
            _ => Err("exec: head, stdout and counters belong to run only".to_owned()),
        }
    }
}

impl Request {
    /// Read one line; the error says what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
        let json = |error: serde_json::Error| error.to_string();
        let operation: Operation<'_> = serde_json::from_str(text).map_err(json)?;
        let request = match operation.op.as_ref() {
            "environment" => Self::Environment(serde_json::from_str(text).map_err(json)?),
            "run" | "exec" => {
                let members: Members = serde_json::from_str(text).map_err(json)?;
                members.into_request()?
            }
            other => {
                return Err(format!(
                    "unknown op {other:?}: expected environment, run or exec"
                ))
            }
        };
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Environment(environment) => check_variables(&environment.env),
            Self::Run(run) => {
                check_head(&run.head)?;
                if let Output::File(path) = &run.stdout {
                    c_string(path, "stdout.file")?;
                }
                run.command.check()
            }
            Self::Exec(exec) => exec.command.check(),
        }
    }
}

impl Command {
    fn check(&self) -> Result<(), String> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err("argv: expected a program's name first".to_owned());
        }
        for argument in &self.argv {
            c_string(argument, "argv")?;
        }
        if let Some(directory) = &self.cwd {
            c_string(directory, "cwd")?;
        }
        if self.timeout_ns == Some(0) {
            return Err("timeout_ns: expected more than 0, or null for none".to_owned());
        }
        check_variables(&self.env)
    }
}

fn check_variables(variables: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in variables {
        if name.is_empty() || name.contains('=') {
            return Err(format!("env: {name:?} is no name of a variable"));
        }
        c_string(name, "env")?;
        c_string(value, "env")?;
    }
    Ok(())
}

/// The head must become an object by a closing brace alone, on one line.
fn check_head(head: &str) -> Result<(), String> {
    if head.contains('\n') {
        return Err("head: must not hold a line break".to_owned());
    }
    let closed = format!("{head}}}");
    serde_json::from_str::<BTreeMap<String, serde::de::IgnoredAny>>(&closed)
        .map(|_| ())
        .map_err(|error| format!("head: no JSON object once closed: {error}"))
}

/// A string for the kernel; the error names the member that held a NUL.
pub fn c_string(text: &str, member: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{member}: must not hold a NUL character"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(line: &str) -> String {
        Request::parse(line.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_run_has_defaults_for_all_but_its_head_and_command() {
        let line = br#"{"op":"run","head":"{\"sequence\":5","argv":["true"]}"#;
        let Request::Run(run) = Request::parse(line).unwrap() else {
            panic!("not a run");
        };
        assert_eq!(run.head, "{\"sequence\":5");
        assert_eq!(run.stdout, Output::Discard);
        assert_eq!(run.command.expect, [0]);
        assert!(!run.counters);
        assert_eq!(run.command.timeout_ns, None);
    }

    #[test]
    fn standard_output_may_be_discarded_probed_or_filed() {
        for (text, output) in [
            (r#""discard""#, Output::Discard),
            (r#""probe""#, Output::Probe),
            (r#"{"file":"/tmp/x"}"#, Output::File("/tmp/x".into())),
        ] {
            let line = format!(r#"{{"op":"run","head":"{{","argv":["a"],"stdout":{text}}}"#);
            let Request::Run(run) = Request::parse(line.as_bytes()).unwrap() else {
                panic!("not a run");
            };
            assert_eq!(run.stdout, output);
        }
    }

    #[test]
    fn what_is_wrong_with_a_request_is_named() {
        assert!(reason("{\"op\":\"run\"").contains("EOF"));
        assert!(reason(r#"{"op":"dance"}"#).contains("dance"));
        assert!(reason(r#"{"op":"run","head":"{"}"#).contains("argv"));
        assert!(reason(r#"{"op":"run","head":"{","argv":[]}"#).contains("argv"));
        assert!(reason(r#"{"op":"run","head":"{","argv":["a"],"colour":1}"#).contains("colour"));
        assert!(reason(r#"{"op":"run","head":"{\"a\":","argv":["a"]}"#).contains("head"));
        assert!(reason(r#"{"op":"run","head":"[1","argv":["a"]}"#).contains("head"));
        assert!(reason(r#"{"op":"run","head":"{\n","argv":["a"]}"#).contains("line break"));
        assert!(reason(r#"{"op":"run","head":"{","argv":["a\u0000"]}"#).contains("NUL"));
        assert!(
            reason(r#"{"op":"run","head":"{","argv":["a"],"timeout_ns":0}"#).contains("timeout")
        );
        assert!(reason(r#"{"op":"environment","env":{"A=B":"1"}}"#).contains("A=B"));
        assert!(reason(r#"{"op":"exec","argv":["a"]}"#).contains("id"));
        assert!(reason(r#"{"op":"exec","id":1,"head":"{","argv":["a"]}"#).contains("run only"));
        assert!(reason(r#"{"op":"run","id":1,"head":"{","argv":["a"]}"#).contains("exec only"));
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        assert!(Request::parse(b"\xff\xfe{}").unwrap_err().contains("UTF-8"));
    }
}
