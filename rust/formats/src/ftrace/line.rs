//! One line of function_graph text, whatever columns and kernel generation it is of.
//!
//! A line is `[ABS |] [REL |] [CPU)] [TASK |] [FLAGS |] [DURATION |] BODY`; every column can be
//! switched off. Nothing is taken from the header: pasted listings and `trace_pipe` have none.

use super::columns::{blanks, columns, cpu_column, number, pid};
use super::fields::Line;

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
fn after_columns(line: &[u8]) -> Line<'_> {
    if let Some(switch) = switch(line) {
        return switch;
    }
    if line.starts_with(b" => ") || is_header(line) {
        return Line::Nothing;
    }
    super::event_line::parse(line).map_or(Line::Unknown, Line::Body)
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

fn after<'a>(text: &'a [u8], what: &[u8]) -> Option<&'a [u8]> {
    text.get(memchr::memmem::find(text, what)? + what.len()..)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::fields::{Body, Extra, Fields};
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
