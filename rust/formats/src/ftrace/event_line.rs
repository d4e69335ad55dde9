//! One line of a trace of events, as `trace`, `trace_pipe` and `trace-cmd report` print it:
//! `comm-pid (tgid) [cpu] flags time: event: fields`.
use super::columns::{duration, number, pid, seconds, tell_interrupt, with_body};
use super::fields::{Body, Fields};

/// Take a line of events apart.
pub fn parse(line: &[u8]) -> Option<Fields<'_>> {
    let (task, cpu, rest) = task_and_cpu(line)?;
    let rest = rest.trim_ascii_start();
    let (stamp, rest) = rest.split_at_checked(memchr::memmem::find(rest, b": ")?)?;
    let rest = rest.get(2..)?;
    let (flags, stamp) = match memchr::memrchr(b' ', stamp) {
        Some(at) => (stamp.get(..at)?.trim_ascii(), stamp.get(at + 1..)?),
        None => (&[][..], stamp),
    };
    let (time_ns, ticks) = time(stamp)?;
    let fields = Fields {
        time_ns: Some(time_ns),
        ticks,
        event_line: true,
        cpu: Some(cpu),
        task: Some(task),
        in_interrupt: (flags.len() >= 3).then(|| tell_interrupt(flags)),
        duration_ns: None,
        indent: 0,
        body: text(rest.trim_ascii()),
    };
    let graph = rest
        .strip_prefix(b"funcgraph_entry:")
        .or_else(|| rest.strip_prefix(b"funcgraph_exit:"));
    let Some(graph) = graph else {
        return Some(fields);
    };
    let (duration_ns, body) = duration(graph)?;
    with_body(
        Fields {
            duration_ns,
            ..fields
        },
        body,
    )
}

/// `comm-pid (tgid) [003] `, and what follows. A comm may hold blanks and brackets.
fn task_and_cpu(line: &[u8]) -> Option<(&[u8], u32, &[u8])> {
    for open in memchr::memmem::find_iter(line, b" [") {
        let task = line.get(..open)?.trim_ascii();
        let task = match memchr::memrchr(b'(', task) {
            Some(at) if task.ends_with(b")") => task.get(..at)?.trim_ascii(),
            _ => task,
        };
        let Some((cpu, rest)) = number(line.get(open + 2..)?) else {
            continue;
        };
        if let (Some(rest), Some(_)) = (rest.strip_prefix(b"]"), pid(task)) {
            return Some((task, u32::try_from(cpu).ok()?, rest));
        }
    }
    None
}

/// `6550.018805` in nanoseconds, or `148396147364` in ticks.
fn time(stamp: &[u8]) -> Option<(u64, bool)> {
    if let Some((time_ns, [])) = seconds(stamp) {
        return Some((time_ns, false));
    }
    match number(stamp)? {
        (ticks, []) => Some((ticks, true)),
        _ => None,
    }
}

/// An event `name: fields`, or a function of the function tracer: `f`, `f <-caller`, and of
/// trace-cmd `function: f <-- caller`.
fn text(rest: &[u8]) -> Body<'_> {
    let call = rest
        .strip_prefix(b"function:")
        .map(|call| call.trim_ascii_start());
    let call = call.unwrap_or(rest);
    let end = memchr::memmem::find(call, b" <-").unwrap_or(call.len());
    let (name, caller) = call.split_at_checked(end).unwrap_or((call, &[]));
    let name = name.trim_ascii();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    if !name.is_empty() && name.iter().all(plain) {
        let caller = caller.trim_ascii_start().strip_prefix(b"<-").unwrap_or(&[]);
        let caller = caller.strip_prefix(b"-").unwrap_or(caller).trim_ascii();
        Body::Called(name, caller)
    } else {
        Body::Event(rest)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::fields::Extra;
    use super::*;

    fn fields(line: &str) -> Fields<'_> {
        parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn lines_of_trace_cmd() {
        let entry =
            fields("  <idle>-0     [003]  6550.018805: funcgraph_entry:   + 12.345 us  |  f();");
        assert_eq!((entry.cpu, entry.task), (Some(3), Some(&b"<idle>-0"[..])));
        assert_eq!(
            (entry.time_ns, entry.duration_ns),
            (Some(6_550_018_805_000), Some(12_345))
        );
        let exit = fields("  a [1] b-7 [000] d..1  6550.100000: funcgraph_exit:  1.5 us |  }");
        assert_eq!(exit.task, Some(&b"a [1] b-7"[..]));
        assert_eq!(exit.body, Body::Exit(None, Extra::default()));
    }

    #[test]
    fn lines_of_every_clock() {
        let event = fields("  init-1  (   1) [001] d.h1.    52.533828: sys_exit: NR 1 = 2");
        assert_eq!((event.time_ns, event.ticks), (Some(52_533_828_000), false));
        assert_eq!(
            (event.task, event.in_interrupt),
            (Some(&b"init-1"[..]), Some(true))
        );
        assert_eq!(event.body, Body::Event(b"sys_exit: NR 1 = 2"));
        let tsc = fields("  <idle>-0 [000] ..... 148396147364: sys_exit: NR 1 = 2");
        assert_eq!((tsc.time_ns, tsc.ticks), (Some(148_396_147_364), true));
        let bare = fields("  init-1       [001]     52.757911: sched_wakeup: comm=a");
        assert_eq!((bare.in_interrupt, bare.cpu), (None, Some(1)));
        assert!(parse(b"  init-1       [001]     52.7: x: y").is_none());
    }

    #[test]
    fn functions_of_the_function_tracer() {
        for (line, caller) in [
            (
                "  init-1 [001] .....    78.528960: security_file_free",
                &b""[..],
            ),
            (
                "  init-1 [001] .....    78.528960: security_file_free <-__fput",
                b"__fput",
            ),
            (
                "  init-1 [001]    78.528960: function:             security_file_free <-- __fput",
                b"__fput",
            ),
        ] {
            assert_eq!(
                fields(line).body,
                Body::Called(b"security_file_free", caller),
                "{line}"
            );
        }
        let stack = fields("  init-1 [001] .....    78.862024: <stack trace>");
        assert_eq!(stack.body, Body::Event(b"<stack trace>"));
    }
}
