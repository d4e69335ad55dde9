//! One line of function_graph text, whatever columns and kernel generation it is of.
//!
//! A line is `[ABS |] [REL |] [CPU)] [TASK |] [FLAGS |] [DURATION |] BODY`; every column can be
//! switched off. Nothing is taken from the header: pasted listings and `trace_pipe` have none.

/// A line, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A function, its end, or an event among functions.
    Body(Fields<'a>),
    /// The task of a CPU changes.
    Switch {
        /// The CPU.
        cpu: u32,
        /// Task that ran on it, `comm-pid`.
        previous: &'a [u8],
        /// Task that runs on it now.
        next: &'a [u8],
    },
    /// Events of a CPU that the ring buffer could not keep.
    Lost {
        /// The CPU.
        cpu: u32,
        /// How many.
        count: u64,
    },
    /// Events kept and written, of the header of a latency trace.
    Entries {
        /// Events in the buffer.
        kept: u64,
        /// Events that were written to it.
        written: u64,
    },
    /// Functions that the return stack had no room for.
    Overrun(u64),
    /// Blank lines, headings and rules: nothing to read.
    Nothing,
    /// None of these.
    Unknown,
}

/// What a line says of a function or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Time of the event, in nanoseconds, or in ticks of a clock that prints whole numbers.
    pub time_ns: Option<u64>,
    /// Whether it is in ticks.
    pub ticks: bool,
    /// Whether the line is of a trace of events, not of the function_graph tracer's own.
    pub event_line: bool,
    /// CPU.
    pub cpu: Option<u32>,
    /// `comm-pid`, the comm cut to seven bytes by the kernel.
    pub task: Option<&'a [u8]>,
    /// Whether the flags of a latency trace say that a hardware interrupt is being served.
    pub in_interrupt: Option<bool>,
    /// Duration in nanoseconds; printed for leaves and ends alone.
    pub duration_ns: Option<u64>,
    /// Blanks before the name: two for each level of the stack.
    pub indent: u32,
    /// The rest.
    pub body: Body<'a>,
}

/// What stands behind the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// `name();` with what stands in brackets and in the comment behind.
    Leaf(&'a [u8], Extra<'a>),
    /// `name() {`
    Entry(&'a [u8], Extra<'a>),
    /// `}`, with the name where it is printed.
    Exit(Option<&'a [u8]>, Extra<'a>),
    /// `/* text */`, or what stands behind the time in a trace of events.
    Event(&'a [u8]),
    /// A function that was called, of the function tracer.
    Called(&'a [u8]),
    /// `==========>`: a hardware interrupt begins.
    InterruptStart,
    /// `<==========`: it ends.
    InterruptEnd,
}

/// Arguments, return value and call site, where the kernel prints them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra<'a> {
    /// What stands between the brackets of the call.
    pub arguments: &'a [u8],
    /// What stands in the comment behind it, without the function's name.
    pub comment: &'a [u8],
}

/// Take a line apart. `line` has no line feed.
pub fn parse(line: &[u8]) -> Line<'_> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let start = blanks(line);
    let Some(&first) = line.get(start) else {
        return Line::Nothing;
    };
    match first {
        b'#' => return heading(line),
        b'C' if line.get(start..start + 4) == Some(b"CPU:") => return lost(line),
        b'(' if line.get(start..start + 11) == Some(b"(Overruns: ") => return overrun(line),
        b'-' if line.get(start..).is_some_and(is_rule) => return Line::Nothing,
        _ => {}
    }
    columns(line).map_or_else(|| after_columns(line), Line::Body)
}

/// A switch of tasks, a line of `trace-cmd report`, or nothing that is known.
pub(super) fn after_columns(line: &[u8]) -> Line<'_> {
    if let Some(switch) = switch(line) {
        return switch;
    }
    if line.starts_with(b" => ") || is_header(line) {
        return Line::Nothing;
    }
    super::event_line::parse(line).map_or(Line::Unknown, Line::Body)
}

pub(super) fn blanks(text: &[u8]) -> usize {
    const EIGHT: [u8; 8] = [b' '; 8];
    let mut at = 0;
    while text.get(at..at + 8).is_some_and(|next| next == EIGHT) {
        at += 8;
    }
    let rest = text.get(at..).unwrap_or(&[]);
    at + rest.iter().take_while(|byte| **byte == b' ').count()
}

/// What `trace-cmd report` prints before the events.
fn is_header(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.starts_with(b"version = ")
        || line.starts_with(b"cpus=")
        || (line.starts_with(b"CPU ") && line.ends_with(b" is empty"))
}

fn is_rule(text: &[u8]) -> bool {
    text.len() > 8 && text.trim_ascii_end().iter().all(|byte| *byte == b'-')
}

fn heading(line: &[u8]) -> Line<'_> {
    // `# latency: 0 us, #25200/25200, CPU#0 | ...` and `# entries-in-buffer/entries-written: 1/2`
    let found = after(line, b"# latency: ")
        .and_then(|rest| after(rest, b" us, #"))
        .or_else(|| after(line, b"entries-in-buffer/entries-written: "));
    let Some((kept, rest)) = found.and_then(number) else {
        return Line::Nothing;
    };
    match rest.strip_prefix(b"/").and_then(number) {
        Some((written, _)) => Line::Entries { kept, written },
        None => Line::Nothing,
    }
}

/// `CPU:1 [LOST 82921 EVENTS]`, or of trace-cmd `CPU:0 [123 EVENTS DROPPED]`.
fn lost(line: &[u8]) -> Line<'_> {
    let read = || {
        let (cpu, rest) = number(after(line, b"CPU:")?)?;
        let rest = rest.strip_prefix(b" [")?;
        let (count, rest) = number(rest.strip_prefix(b"LOST ").unwrap_or(rest))?;
        rest.strip_prefix(b" EVENTS")?;
        Some((u32::try_from(cpu).ok()?, count))
    };
    read().map_or(Line::Unknown, |(cpu, count)| Line::Lost { cpu, count })
}

fn overrun(line: &[u8]) -> Line<'_> {
    match after(line, b"(Overruns: ").and_then(number) {
        Some((count, rest)) if rest.first() == Some(&b')') => Line::Overrun(count),
        _ => Line::Unknown,
    }
}

/// ` 0)   rcu_pre-15   =>    cat-214    `
fn switch(line: &[u8]) -> Option<Line<'_>> {
    let (cpu, rest) = cpu_column(line)?;
    let at = memchr::memmem::find(rest, b" => ")?;
    let previous = rest.get(..at)?.trim_ascii();
    let next = rest.get(at + 4..)?.trim_ascii();
    pid(previous)?;
    pid(next)?;
    Some(Line::Switch {
        cpu,
        previous,
        next,
    })
}

/// Process identity at the end of `comm-pid`.
pub fn pid(task: &[u8]) -> Option<u32> {
    let dash = memchr::memrchr(b'-', task)?;
    match number(task.get(dash + 1..)?)? {
        (value, []) => u32::try_from(value).ok(),
        _ => None,
    }
}

fn after<'a>(text: &'a [u8], what: &[u8]) -> Option<&'a [u8]> {
    text.get(memchr::memmem::find(text, what)? + what.len()..)
}

/// A number and what follows it; None without a digit or above 64 bits.
pub(super) fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut digits = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = if digits < 18 {
            value * 10 + u64::from(digit)
        } else {
            value.checked_mul(10)?.checked_add(u64::from(digit))?
        };
        digits += 1;
    }
    (digits > 0).then_some((value, text.get(digits..)?))
}

/// `  0) `: the CPU and what follows the bracket.
fn cpu_column(text: &[u8]) -> Option<(u32, &[u8])> {
    let (cpu, rest) = number(text.get(blanks(text)..)?)?;
    let rest = rest.strip_prefix(b")")?;
    Some((u32::try_from(cpu).ok()?, rest))
}

/// `   82.083963 |  `: nanoseconds and what follows the bar.
fn absolute(text: &[u8]) -> Option<(u64, &[u8])> {
    let (seconds, rest) = number(text.get(blanks(text)..)?)?;
    let rest = rest.strip_prefix(b".")?;
    let (fraction, after) = number(rest)?;
    let digits = rest.len() - after.len();
    let scale = match digits {
        6 => 1_000,
        9 => 1,
        _ => return None,
    };
    let time_ns = seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * scale)?;
    Some((time_ns, after.strip_prefix(b" |")?))
}

/// `      123 us |  `: a time since the line before, which is not used.
fn relative(text: &[u8]) -> Option<&[u8]> {
    let (_, rest) = number(text.get(blanks(text)..)?)?;
    let rest = rest.strip_prefix(b" us |")?;
    // A duration of eight digits looks the same but is the last column.
    memchr::memchr(b'|', rest).map(|_| rest)
}

fn columns(line: &[u8]) -> Option<Fields<'_>> {
    let mut fields = Fields {
        time_ns: None,
        ticks: false,
        event_line: false,
        cpu: None,
        task: None,
        in_interrupt: None,
        duration_ns: None,
        indent: 0,
        body: Body::InterruptEnd,
    };
    let mut rest = line;
    if let Some((cpu, after)) = cpu_column(rest) {
        (fields.cpu, rest) = (Some(cpu), after);
    } else {
        if let Some((time_ns, after)) = absolute(rest) {
            (fields.time_ns, rest) = (Some(time_ns), after);
        }
        if let Some(after) = relative(rest) {
            rest = after;
        }
        if let Some((cpu, after)) = cpu_column(rest) {
            (fields.cpu, rest) = (Some(cpu), after);
        }
    }
    if let Some((duration, after)) = duration(rest) {
        fields.duration_ns = duration;
        return with_body(fields, after);
    }
    without_duration(fields, rest)
}

/// The columns that stand between the CPU and the duration, and lines that have no duration.
fn without_duration<'a>(mut fields: Fields<'a>, rest: &'a [u8]) -> Option<Fields<'a>> {
    let mut rest = rest;
    if let Some((task, after)) = task_column(rest) {
        (fields.task, rest) = (Some(task), after);
    }
    if let Some((in_interrupt, after)) = flags(rest) {
        (fields.in_interrupt, rest) = (Some(in_interrupt), after);
    }
    if let Some((duration, after)) = duration(rest) {
        fields.duration_ns = duration;
        return with_body(fields, after);
    }
    if let Some(arrow) = arrow(rest) {
        fields.body = arrow;
        return Some(fields);
    }
    // One blank parts the bracket of the CPU and the bar of the task from the body, two the time.
    let gap: &[u8] = match (fields.cpu, fields.task, fields.time_ns) {
        (None, None, None) => b"",
        (None, None, Some(_)) => b"  ",
        _ => b" ",
    };
    body_at(fields, rest.strip_prefix(gap).unwrap_or(rest))
}

/// Task, centred in fourteen columns: `    init-1     | `.
fn task_column(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    // A comm may hold a bar; it is cut to seven bytes.
    for _ in 0..8 {
        let bar = from + memchr::memchr(b'|', text.get(from..)?.get(..40.min(text.len() - from))?)?;
        let task = text.get(..bar)?.trim_ascii();
        if pid(task).is_some() && text.get(bar.checked_sub(1)?) == Some(&b' ') {
            return Some((task, text.get(bar + 1..)?));
        }
        from = bar + 1;
    }
    None
}

/// `  ...1. | `: four to seven flags; the third tells of interrupts.
fn flags(text: &[u8]) -> Option<(bool, &[u8])> {
    let bar = memchr::memchr(b'|', text.get(..16.min(text.len()))?)?;
    let flags = text.get(..bar)?.trim_ascii();
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'#');
    if !(4..=8).contains(&flags.len()) || !flags.iter().all(known) {
        return None;
    }
    Some((
        matches!(flags.get(2), Some(b'h' | b'H' | b'z' | b'Z')),
        text.get(bar + 1..)?,
    ))
}

fn arrow(text: &[u8]) -> Option<Body<'static>> {
    let inner = text.trim_ascii();
    let inner = inner.strip_suffix(b"|").unwrap_or(inner).trim_ascii_end();
    match inner {
        b"==========>" => Some(Body::InterruptStart),
        b"<==========" => Some(Body::InterruptEnd),
        _ => None,
    }
}

/// The duration column, blank or ` + 15.643 us   |`: nanoseconds, and what follows the bar.
pub(super) fn duration(text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let start = blanks(text);
    let mut rest = text.get(start..)?;
    match rest.first()? {
        b'|' => {
            let after = rest.get(1..)?;
            return (start >= 4).then_some((None, after));
        }
        b'$' | b'@' | b'*' | b'#' | b'!' | b'+' => {
            rest = rest.get(1..)?;
            rest = rest.get(blanks(rest)..)?;
        }
        _ => {}
    }
    let (whole, rest) = number(rest)?;
    let mut ns = whole.checked_mul(1_000)?;
    let rest = match rest.strip_prefix(b".") {
        Some(decimals) => {
            let (fraction, after) = number(decimals)?;
            let scale = match decimals.len() - after.len() {
                1 => 100,
                2 => 10,
                3 => 1,
                _ => return None,
            };
            ns = ns.checked_add(fraction * scale)?;
            after
        }
        None => rest,
    };
    let rest = rest.strip_prefix(b" us")?;
    let rest = rest.get(blanks(rest)..)?;
    Some((Some(ns), rest.strip_prefix(b"|")?))
}

/// Two blanks part the last bar from the body.
pub(super) fn with_body<'a>(fields: Fields<'a>, text: &'a [u8]) -> Option<Fields<'a>> {
    body_at(fields, text.strip_prefix(b"  ").unwrap_or(text))
}

fn body_at<'a>(mut fields: Fields<'a>, text: &'a [u8]) -> Option<Fields<'a>> {
    let indent = blanks(text);
    fields.indent = u32::try_from(indent).ok()?;
    fields.body = body(text.get(indent..)?)?;
    Some(fields)
}

fn body(text: &[u8]) -> Option<Body<'_>> {
    match text.first()? {
        b'}' => exit(text.get(1..)?),
        b'/' => event(text),
        _ => call(text),
    }
}

fn exit(rest: &[u8]) -> Option<Body<'_>> {
    let rest = rest.trim_ascii_end();
    if rest.is_empty() {
        return Some(Body::Exit(None, Extra::default()));
    }
    let comment = comment(rest.trim_ascii_start())?;
    // `name`, `name [mod]`, `name = 0x0`, `name ret=0x0`, `name V=0x0`, `<-caller ret=0x0`
    let name_end = [&b" = "[..], b" ret=", b" V=", b" A=", b" <-"]
        .iter()
        .filter_map(|mark| memchr::memmem::find(comment, mark))
        .min()
        .unwrap_or(comment.len());
    let nameless = [&b"= "[..], b"ret=", b"V=", b"A=", b"<-"]
        .iter()
        .any(|mark| comment.starts_with(mark));
    let (name, values) = if nameless {
        (&[][..], comment)
    } else {
        comment.split_at_checked(name_end)?
    };
    let name = name.trim_ascii();
    let extra = Extra {
        arguments: &[],
        comment: values.trim_ascii(),
    };
    Some(Body::Exit((!name.is_empty()).then_some(name), extra))
}

/// The inside of `/* ... */`.
fn comment(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"/*")?;
    Some(inner.strip_suffix(b"*/").unwrap_or(inner).trim_ascii())
}

fn event(text: &[u8]) -> Option<Body<'_>> {
    let text = text.trim_ascii_end();
    let inner = comment(text)?;
    Some(Body::Event(inner))
}

fn call(text: &[u8]) -> Option<Body<'_>> {
    // A name may hold a blank and square brackets (`f [module]`), never a round one.
    let open = text.iter().position(|byte| !IN_NAME[usize::from(*byte)])?;
    let name = text.get(..open)?;
    let name = name.strip_suffix(b" ").unwrap_or(name);
    if matches!(name.first()?, b'0'..=b'9' | b'[' | b' ' | b'-') {
        return None;
    }
    let rest = text.get(open..)?;
    match rest {
        [] => return None,
        [other, ..] if *other != b'(' => return None,
        b"();" => return Some(Body::Leaf(name, Extra::default())),
        b"() {" => return Some(Body::Entry(name, Extra::default())),
        _ => {}
    }
    let mut rest = rest.trim_ascii_end();
    let mut extra = Extra::default();
    if rest.ends_with(b"*/") {
        let at = memchr::memmem::rfind(rest, b"/*")?;
        extra.comment = comment(rest.get(at..)?)?;
        rest = rest.get(..at)?.trim_ascii_end();
    }
    let (leaf, call) = match (rest.strip_suffix(b";"), rest.strip_suffix(b"{")) {
        (Some(call), _) => (true, call),
        (None, Some(call)) => (false, call.trim_ascii_end()),
        (None, None) => return None,
    };
    // `f(a=1)`, and of a module `f() [mod]`
    let close = memchr::memrchr(b')', call)?;
    extra.arguments = call.get(1..close)?;
    Some(if leaf {
        Body::Leaf(name, extra)
    } else {
        Body::Entry(name, extra)
    })
}

/// Bytes that a name may hold.
static IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let sign = byte as u8;
        table[byte] = sign.is_ascii_alphanumeric()
            || matches!(
                sign,
                b'_' | b'.' | b' ' | b'[' | b']' | b'-' | b'$' | b':' | b'@'
            );
        byte += 1;
    }
    table
};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Fields<'_> {
        match parse(line.as_bytes()) {
            Line::Body(fields) => fields,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_column_is_read() {
        let all = fields("  175.360805 |   0)     init-1     |  d.h1. | + 16.585 us   |    f();");
        assert_eq!(all.time_ns, Some(175_360_805_000));
        assert_eq!((all.cpu, all.task), (Some(0), Some(&b"init-1"[..])));
        assert_eq!(
            (all.in_interrupt, all.duration_ns),
            (Some(true), Some(16_585))
        );
        assert_eq!(
            (all.indent, all.body),
            (2, Body::Leaf(b"f", Extra::default()))
        );
    }

    #[test]
    fn durations_of_every_mark_and_width() {
        for (text, ns) in [
            (" 0)   1.484 us    |  f();", 1_484),
            (" 0) + 15.643 us   |  f();", 15_643),
            (" 0) ! 109.126 us  |  f();", 109_126),
            (" 0) # 1523.110 us |  f();", 1_523_110),
            (" 0) * 24404.59 us |  f();", 24_404_590),
            (" 0) @ 182650.3 us |  f();", 182_650_300),
            (" 0) $ 8517648 us  |  f();", 8_517_648_000),
            (" 0) $ 85176481 us |  f();", 85_176_481_000),
        ] {
            assert_eq!(fields(text).duration_ns, Some(ns), "{text}");
        }
    }

    #[test]
    fn lines_without_columns() {
        assert_eq!(fields("mutex_unlock();").indent, 0);
        let inner = fields("    kmem_cache_alloc() {");
        assert_eq!(
            inner.body,
            Body::Entry(b"kmem_cache_alloc", Extra::default())
        );
        assert_eq!(fields(" 0)   getname() {").cpu, Some(0));
        assert_eq!(fields("+ 12.5 us |  }").duration_ns, Some(12_500));
    }

    #[test]
    fn newer_kernels() {
        let exit = fields(" 5)   0.845 us    |      } /* _raw_spin_lock_irqsave ret=0x292 */");
        let extra = |comment| Extra {
            arguments: b"",
            comment,
        };
        assert_eq!(
            exit.body,
            Body::Exit(Some(b"_raw_spin_lock_irqsave"), extra(b"ret=0x292"))
        );
        let leaf = fields(" 5)   0.188 us    |    f(); /* <-g+0x2ad/0x440 ret=0x3 */");
        assert_eq!(
            leaf.body,
            Body::Leaf(b"f", extra(b"<-g+0x2ad/0x440 ret=0x3"))
        );
        let entry = fields(" 5)               |  f() { /* <-rb_simple_write+0xda/0x150 */");
        assert_eq!(
            entry.body,
            Body::Entry(b"f", extra(b"<-rb_simple_write+0xda/0x150"))
        );
        let first = fields(" 0)   1.0 us |  } /* vfs_open = 0x0 */");
        assert_eq!(first.body, Body::Exit(Some(b"vfs_open"), extra(b"= 0x0")));
        let call = fields(" 0)               |  vfs_read(file=0xff, buf=0x7f, count=4096) {");
        let arguments = Extra {
            arguments: b"file=0xff, buf=0x7f, count=4096",
            comment: b"",
        };
        assert_eq!(call.body, Body::Entry(b"vfs_read", arguments));
        let module = fields(" 0)               |  test_proc_show [proc]() {");
        assert_eq!(
            module.body,
            Body::Entry(b"test_proc_show [proc]", Extra::default())
        );
    }

    #[test]
    fn switches_losses_and_rules() {
        assert_eq!(
            parse(b" 0)   rcu_pre-15   =>    cat-214    "),
            Line::Switch {
                cpu: 0,
                previous: b"rcu_pre-15",
                next: b"cat-214"
            }
        );
        assert_eq!(
            parse(b"CPU:1 [LOST 82921 EVENTS]"),
            Line::Lost {
                cpu: 1,
                count: 82_921
            }
        );
        assert_eq!(
            parse(b"CPU:0 [123 EVENTS DROPPED]"),
            Line::Lost { cpu: 0, count: 123 }
        );
        assert_eq!(
            parse(b" ------------------------------------------"),
            Line::Nothing
        );
        assert_eq!(parse(b"##### CPU 2 buffer started ####"), Line::Nothing);
        assert_eq!(parse(b" (Overruns: 7)"), Line::Overrun(7));
        assert_eq!(
            parse(b"# latency: 0 us, #25200/25300, CPU#0 | (M:desktop)"),
            Line::Entries {
                kept: 25_200,
                written: 25_300
            }
        );
        assert_eq!(parse(b"rubbish"), Line::Unknown);
    }

    #[test]
    fn interrupts_and_events() {
        assert_eq!(fields(" 1)   ==========> |").body, Body::InterruptStart);
        assert_eq!(fields(" 0)   <========== |").body, Body::InterruptEnd);
        let event = fields(" 0)               |  /* sys_enter: NR 110 (0, 0, 4, 0, 0, 0) */");
        assert_eq!(
            event.body,
            Body::Event(b"sys_enter: NR 110 (0, 0, 4, 0, 0, 0)")
        );
    }
}
