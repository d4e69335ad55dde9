//! Columns of a line: time, CPU, task, flags and duration, each of which may be switched off.
use super::body;
use super::fields::{Body, Fields};

pub(super) fn blanks(text: &[u8]) -> usize {
    const EIGHT: [u8; 8] = [b' '; 8];
    let mut at = 0;
    while text.get(at..at + 8).is_some_and(|next| next == EIGHT) {
        at += 8;
    }
    let rest = text.get(at..).unwrap_or(&[]);
    at + rest.iter().take_while(|byte| **byte == b' ').count()
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

/// Process identity at the end of `comm-pid`.
pub(super) fn pid(task: &[u8]) -> Option<u32> {
    let dash = memchr::memrchr(b'-', task)?;
    match number(task.get(dash + 1..)?)? {
        (value, []) => u32::try_from(value).ok(),
        _ => None,
    }
}

/// `  0) `: the CPU and what follows the bracket.
pub(super) fn cpu_column(text: &[u8]) -> Option<(u32, &[u8])> {
    let (cpu, rest) = number(text.get(blanks(text)..)?)?;
    let rest = rest.strip_prefix(b")")?;
    Some((u32::try_from(cpu).ok()?, rest))
}

/// `   82.083963 |  `: nanoseconds and what follows the bar.
fn absolute(text: &[u8]) -> Option<(u64, &[u8])> {
    let (time_ns, rest) = seconds(text.get(blanks(text)..)?)?;
    Some((time_ns, rest.strip_prefix(b" |")?))
}

/// `82.083963` in nanoseconds, and what follows it.
pub(super) fn seconds(text: &[u8]) -> Option<(u64, &[u8])> {
    let (whole, rest) = number(text)?;
    let decimals = rest.strip_prefix(b".")?;
    let (fraction, rest) = number(decimals)?;
    let scale = match decimals.len() - rest.len() {
        6 => 1_000,
        9 => 1,
        _ => return None,
    };
    let time_ns = whole
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * scale)?;
    Some((time_ns, rest))
}

/// `      123 us |  `: a time since the line before, which is not used.
fn relative(text: &[u8]) -> Option<&[u8]> {
    let (_, rest) = number(text.get(blanks(text)..)?)?;
    let rest = rest.strip_prefix(b" us |")?;
    // A duration of eight digits looks the same but is the last column.
    memchr::memchr(b'|', rest).map(|_| rest)
}

/// Take a line's columns and what stands behind them; None if they are none.
pub(super) fn columns(line: &[u8]) -> Option<Fields<'_>> {
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
    Some((tell_interrupt(flags), text.get(bar + 1..)?))
}

/// Whether flags such as `d.h1.` say that a hardware interrupt is being served.
pub(super) fn tell_interrupt(flags: &[u8]) -> bool {
    matches!(flags.get(2), Some(b'h' | b'H' | b'z' | b'Z'))
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
    fields.body = body::parse(text.get(indent..)?)?;
    Some(fields)
}
