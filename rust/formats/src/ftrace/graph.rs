//! function_graph text, piece by piece: stacks by task, and what their functions took.
use std::collections::BTreeMap;

use super::fields::{Body, Fields, Line};
use super::line::parse;
use super::rows::{Tables, NONE};
use super::tasks::{Frame, Tasks};

/// The longest line that is read.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Lines that are shown of those that could not be read.
const MAX_SHOWN: usize = 1_000;
/// Bytes that are shown of each.
const SHOWN_BYTES: usize = 200;

/// What to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Single calls to keep; the rest are only summed up.
    pub calls: usize,
    /// Whether to sum up by path.
    pub paths: bool,
}

/// Why a line was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no line of a function graph.
    Unknown,
    /// It is longer than `MAX_LINE_BYTES`.
    TooLong,
    /// Its function lies deeper than `MAX_DEPTH`.
    TooDeep,
    /// An end whose beginning is not in the trace, and that names no function.
    NamelessEnd,
}

impl Fault {
    /// In words.
    pub fn reason(self) -> &'static str {
        match self {
            Fault::Unknown => "not a line of a function graph",
            Fault::TooLong => "longer than 64 KiB",
            Fault::TooDeep => "a stack deeper than 1,024 functions",
            Fault::NamelessEnd => "the end of a function whose beginning is not in the trace",
        }
    }
}

/// What could not be used, and what the kernel says it could not keep.
#[derive(Debug, Default)]
pub struct Losses {
    /// Lines by fault, with the first lines of each: number and beginning.
    pub faults: Vec<(Fault, u64)>,
    /// Line number, fault, beginning of the text.
    pub shown: Vec<(u64, Fault, Vec<u8>)>,
    /// Events and gaps by CPU, that the ring buffer could not keep.
    pub lost: BTreeMap<u32, (u64, u64)>,
    /// Events that a header says were overwritten.
    pub overwritten: u64,
    /// Functions that the return stack had no room for.
    pub overruns: u64,
    /// Functions whose end is not in the trace.
    pub unclosed: u64,
    /// Calls that took less than what they called: something between was lost.
    pub negative: u64,
    /// Calls that a table had no room for.
    pub no_room: u64,
    /// Ends of probed functions whose beginning is not in the trace.
    pub lone_returns: u64,
    /// Events that trace-cmd could not parse.
    pub unparsed: u64,
}

/// Everything found.
#[derive(Debug, Default)]
pub struct Report {
    /// Sums and calls.
    pub tables: Tables,
    /// Losses.
    pub losses: Losses,
    /// Lines seen.
    pub lines: u64,
    /// Bytes seen.
    pub bytes: u64,
    /// Lines with a function or an end.
    pub functions: u64,
    /// Leaves and beginnings.
    pub begun: u64,
    /// Events among them, by name.
    pub events: BTreeMap<Vec<u8>, u64>,
    /// First and last time.
    pub times: Option<(u64, u64)>,
    /// Whether `raw_syscalls` events tell of system calls.
    pub raw_syscalls: bool,
    /// Lines of a trace of events.
    pub event_lines: u64,
    /// Whether times are ticks of an unknown clock, not nanoseconds.
    pub ticks: bool,
    /// Calls of the function tracer, which has no durations.
    pub called: u64,
    /// Lines that name their task.
    pub with_task: u64,
    /// Lines that name their CPU.
    pub with_cpu: u64,
    /// Calls by the numbers of the names of function and caller, where the trace tells.
    pub callers: BTreeMap<(u32, u32), u64>,
    /// Calls whose single row was not kept.
    pub calls_left_out: u64,
}

/// Reads a function graph.
#[derive(Debug, Default)]
pub struct Graph {
    pub(super) options: Options,
    pub(super) tasks: Tasks,
    pub(super) report: Report,
    skipping: bool,
}

/// What a line says of where it happened.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub task: usize,
    pub number: u32,
    pub arrow: bool,
}

impl Graph {
    /// Begin.
    pub fn new(options: Options) -> Self {
        Graph {
            options,
            ..Graph::default()
        }
    }

    /// Take whole lines of a piece; `last` says that no other follows. How many bytes were taken.
    pub fn process(&mut self, piece: &[u8], last: bool) -> usize {
        let mut start = 0;
        while let Some(rest) = piece.get(start..).filter(|rest| !rest.is_empty()) {
            let end = memchr::memchr(b'\n', rest);
            let length = match end {
                Some(length) => length,
                None if last || rest.len() > MAX_LINE_BYTES => rest.len(),
                None => break,
            };
            let whole = end.is_some() || last;
            self.bounded(rest.get(..length).unwrap_or(&[]), whole);
            start += length + usize::from(end.is_some());
        }
        self.report.bytes += start as u64;
        start
    }

    /// Take a line, or a part of one that is too long.
    fn bounded(&mut self, line: &[u8], whole: bool) {
        let skipped = std::mem::replace(&mut self.skipping, !whole);
        if skipped {
            return; // its first part was counted
        }
        self.report.lines += 1;
        if line.len() > MAX_LINE_BYTES {
            self.fault(Fault::TooLong, line);
        } else {
            self.line(line);
        }
    }

    /// End: what is still open stays without an end.
    pub fn finish(mut self) -> Report {
        let mut open: Vec<Frame> = Vec::new();
        for task in self.tasks.iter_mut() {
            open.append(&mut task.frames);
        }
        for frame in open {
            self.unclosed(frame);
        }
        self.report
    }

    fn fault(&mut self, fault: Fault, line: &[u8]) {
        let losses = &mut self.report.losses;
        match losses.faults.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, count)) => *count += 1,
            None => losses.faults.push((fault, 1)),
        }
        if losses.shown.len() < MAX_SHOWN {
            let text = line.get(..SHOWN_BYTES).unwrap_or(line).to_vec();
            losses.shown.push((self.report.lines, fault, text));
        }
    }

    fn line(&mut self, line: &[u8]) {
        let fault = match parse(line) {
            Line::Body(fields) => self.body(&fields),
            Line::Switch {
                cpu,
                previous,
                next,
            } => self.switch(cpu, previous, next),
            Line::Lost { cpu, count } => {
                self.lost(cpu, count);
                None
            }
            Line::Entries { kept, written } => {
                let lost = written.saturating_sub(kept);
                let before = &mut self.report.losses.overwritten;
                *before = before.saturating_add(lost);
                None
            }
            Line::Overrun(count) => {
                let before = &mut self.report.losses.overruns;
                *before = count.max(*before);
                None
            }
            Line::Nothing => None,
            Line::Unknown => Some(Fault::Unknown),
        };
        if let Some(fault) = fault {
            self.fault(fault, line);
        }
    }

    fn lost(&mut self, cpu: u32, count: u64) {
        let lost = self.report.losses.lost.entry(cpu).or_default();
        *lost = (lost.0.saturating_add(count), lost.1 + 1);
        let task = self.tasks.cpu(Some(cpu)).map(|cpu| cpu.task);
        if let Some(task) = task.and_then(|task| self.tasks.task(task)) {
            for frame in &mut task.frames {
                frame.marks.lossy = true;
            }
        }
        if let Some(cpu) = self.tasks.cpu(Some(cpu)) {
            cpu.served = None;
        }
    }

    fn switch(&mut self, cpu: u32, previous: &[u8], next: &[u8]) -> Option<Fault> {
        let known = self.run(Some(cpu), previous);
        let last = self.tasks.cpu(Some(cpu)).and_then(|cpu| cpu.time_ns);
        if let Some(task) = known.and_then(|task| self.tasks.task(task)) {
            task.give_cpu_away(last);
        }
        match self.run(Some(cpu), next) {
            Some(_) => None,
            None => Some(Fault::Unknown),
        }
    }

    /// Let a CPU run a task, and name what was seen of it before.
    fn run(&mut self, cpu: Option<u32>, text: &[u8]) -> Option<usize> {
        let name = self.report.tables.names.add(text);
        let (was_unknown, place) = self.tasks.run(cpu, text, name)?;
        if was_unknown {
            self.report.tables.name_task(cpu.unwrap_or(NONE), name);
        }
        Some(place)
    }

    fn body(&mut self, fields: &Fields<'_>) -> Option<Fault> {
        if let Some(time_ns) = fields.time_ns {
            let times = self.report.times.get_or_insert((time_ns, time_ns));
            times.1 = time_ns;
        }
        self.report.event_lines += u64::from(fields.event_line);
        self.report.ticks |= fields.ticks;
        self.report.with_cpu += u64::from(fields.cpu.is_some());
        let Some(mut cpu) = self.tasks.cpu(fields.cpu) else {
            return Some(Fault::Unknown);
        };
        if let Some(text) = fields.task {
            self.report.with_task += 1;
            if cpu.text != text {
                self.run(fields.cpu, text);
                cpu = self.tasks.cpu(fields.cpu)?;
            }
        }
        if fields.time_ns.is_some() {
            cpu.time_ns = fields.time_ns;
        }
        let place = Place {
            task: cpu.task,
            number: cpu.number,
            arrow: fields.in_interrupt.unwrap_or(cpu.in_interrupt) || cpu.served.is_some(),
        };
        match fields.body {
            Body::InterruptStart => cpu.in_interrupt = true,
            Body::InterruptEnd => cpu.in_interrupt = false,
            Body::Event(text) => self.event(place, fields, text),
            Body::Called(name, caller) => self.called(place, name, caller),
            Body::Leaf(name, extra) | Body::Entry(name, extra) => {
                self.report.functions += 1;
                self.report.begun += 1;
                let leaf = matches!(fields.body, Body::Leaf(..));
                return self.begin(place, fields, name, extra, leaf);
            }
            Body::Exit(name, extra) => {
                self.report.functions += 1;
                return self.end(place, fields, name, extra);
            }
        }
        None
    }

    /// The context of a task in a system call on a CPU, remembered for the next line.
    pub(super) fn context_of(&mut self, place: Place, syscall: i32) -> u32 {
        let name = self.tasks.task(place.task).map_or(NONE, |task| task.name);
        let number = (place.number != NONE).then_some(place.number);
        let Some(cpu) = self.tasks.cpu(number) else {
            return NONE;
        };
        if let Some((task, call, context)) = cpu.context {
            if task == name && call == syscall {
                return context;
            }
        }
        let context = self.report.tables.context(name, place.number, syscall);
        cpu.context = Some((name, syscall, context));
        context
    }
}
