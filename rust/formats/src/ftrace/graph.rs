//! function_graph text, piece by piece: stacks by task, and what their functions took.
use std::collections::BTreeMap;

use super::line::{parse, Body, Extra, Fields, Line};
use super::rows::{Call, CallRow, Class, Tables, IN_INTERRUPT, NAMED_SYSCALL, NONE, NO_SYSCALL};
use super::tasks::{Frame, Marks, Tasks};

/// The longest line that is read.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Functions that a stack may hold; the kernel's own limit is far below.
const MAX_DEPTH: usize = 1_024;
/// Lines that are shown of those that could not be read.
const MAX_SHOWN: usize = 1_000;
/// Bytes that are shown of each.
const SHOWN_BYTES: usize = 200;
/// Kinds of event that are counted apart.
const MAX_EVENTS: usize = 4_096;

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
    /// Changes of task, calls with a task of their own, with a CPU, with a duration.
    pub switches: u64,
    /// Lines that name their task.
    pub with_task: u64,
    /// Lines that name their CPU.
    pub with_cpu: u64,
    /// Calls whose single row was not kept.
    pub calls_left_out: u64,
}

/// Reads a function graph.
#[derive(Debug, Default)]
pub struct Graph {
    options: Options,
    tasks: Tasks,
    report: Report,
    skipping: bool,
}

/// What a line says of where it happened.
#[derive(Clone, Copy)]
struct Place {
    task: usize,
    number: u32,
    arrow: bool,
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
        let open: Vec<Frame> = self
            .tasks
            .iter_mut()
            .flat_map(|task| std::mem::take(&mut task.frames))
            .collect();
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
    }

    fn switch(&mut self, cpu: u32, previous: &[u8], next: &[u8]) -> Option<Fault> {
        self.report.switches += 1;
        let known = self.run(Some(cpu), previous);
        let last = self.tasks.cpu(Some(cpu)).and_then(|cpu| cpu.time_ns);
        if let Some(task) = known.and_then(|task| self.tasks.task(task)) {
            task.switched_out_ns = last;
            for frame in &mut task.frames {
                frame.marks.switched = true;
            }
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
        self.report.with_cpu += u64::from(fields.cpu.is_some());
        let Some(cpu) = self.tasks.cpu(fields.cpu) else {
            return Some(Fault::Unknown);
        };
        if let Some(text) = fields.task {
            self.report.with_task += 1;
            if cpu.text != text {
                self.run(fields.cpu, text);
            }
        }
        let cpu = self.tasks.cpu(fields.cpu)?;
        if fields.time_ns.is_some() {
            cpu.time_ns = fields.time_ns;
        }
        let place = Place {
            task: cpu.task,
            number: cpu.number,
            arrow: fields.in_interrupt.unwrap_or(cpu.in_interrupt),
        };
        match fields.body {
            Body::InterruptStart => cpu.in_interrupt = true,
            Body::InterruptEnd => cpu.in_interrupt = false,
            Body::Event(text) => self.event(place, fields, text),
            Body::Leaf(name, extra) => return self.begin(place, fields, name, extra, true),
            Body::Entry(name, extra) => return self.begin(place, fields, name, extra, false),
            Body::Exit(name, extra) => return self.end(place, fields, name, extra),
        }
        None
    }

    // --- events -----------------------------------------------------------------------------

    fn event(&mut self, place: Place, fields: &Fields<'_>, text: &[u8]) {
        let end = memchr::memchr2(b':', b'(', text).unwrap_or(text.len());
        let name = text.get(..end).unwrap_or(text);
        self.count_event(name);
        let rest = text.get(end + 1..).unwrap_or(&[]).trim_ascii_start();
        match name {
            b"sys_enter" => {
                if let Some(number) = syscall_number(rest) {
                    self.report.raw_syscalls = true;
                    self.enter_syscall(place, number, fields.time_ns);
                }
            }
            b"sys_exit" => {
                if let Some(number) = syscall_number(rest) {
                    self.exit_syscall(place, number, fields.time_ns);
                }
            }
            _ => self.named_syscall_event(place, fields, name, text),
        }
    }

    fn count_event(&mut self, name: &[u8]) {
        let events = &mut self.report.events;
        if let Some(count) = events.get_mut(name) {
            *count += 1;
        } else if events.len() < MAX_EVENTS {
            events.insert(name.to_vec(), 1);
        } else {
            self.report.losses.no_room += 1;
        }
    }

    /// `sys_openat(dfd: ...)` and `sys_openat -> 0x3`, where no `raw_syscalls` event tells more.
    fn named_syscall_event(&mut self, place: Place, fields: &Fields<'_>, name: &[u8], text: &[u8]) {
        let Some(call) = name
            .strip_prefix(b"sys_")
            .filter(|_| !self.report.raw_syscalls)
        else {
            return;
        };
        if text.get(name.len()) == Some(&b'(') {
            let number = self.named(call);
            self.enter_syscall(place, number, fields.time_ns);
        } else if let Some(at) = memchr::memmem::find(call, b" -> ") {
            let number = self.named(call.get(..at).unwrap_or(call));
            self.exit_syscall(place, number, fields.time_ns);
        }
    }

    fn named(&mut self, name: &[u8]) -> i32 {
        let number = self.report.tables.names.add(name);
        i32::try_from(number).map_or(NO_SYSCALL, |number| NAMED_SYSCALL - number)
    }

    fn enter_syscall(&mut self, place: Place, number: i32, time_ns: Option<u64>) {
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        // The event of one system call comes before that of all: the same call is not counted twice.
        let before = task.syscall;
        (task.syscall, task.syscall_time_ns) = (number, time_ns);
        if before <= NAMED_SYSCALL && number >= 0 {
            let context = self.context_of(place, before);
            if let Some(context) = self.report.tables.contexts.get_mut(context as usize) {
                context.entered = context.entered.saturating_sub(1);
            }
        }
        let context = self.context_of(place, number);
        if let Some(context) = self.report.tables.contexts.get_mut(context as usize) {
            context.entered += 1;
        }
    }

    fn exit_syscall(&mut self, place: Place, number: i32, time_ns: Option<u64>) {
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        let entered = (task.syscall == number)
            .then_some(task.syscall_time_ns)
            .flatten();
        (task.syscall, task.syscall_time_ns) = (NO_SYSCALL, None);
        if let (Some(from), Some(to)) = (entered, time_ns) {
            self.time_syscall(place, number, to.saturating_sub(from));
        }
    }

    fn time_syscall(&mut self, place: Place, number: i32, took_ns: u64) {
        let context = self.context_of(place, number);
        if let Some(context) = self.report.tables.contexts.get_mut(context as usize) {
            context.timed += 1;
            context.total_ns = context.total_ns.saturating_add(took_ns);
            context.min_ns = context.min_ns.min(took_ns);
            context.max_ns = context.max_ns.max(took_ns);
        }
    }

    /// The context of a task in a system call on a CPU, remembered for the next line.
    fn context_of(&mut self, place: Place, syscall: i32) -> u32 {
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

    // --- functions --------------------------------------------------------------------------

    fn begin(
        &mut self,
        place: Place,
        fields: &Fields<'_>,
        name: &[u8],
        extra: Extra<'_>,
        leaf: bool,
    ) -> Option<Fault> {
        self.report.functions += 1;
        self.report.begun += 1;
        self.unwind(place, fields.indent, false);
        let task = self.tasks.task(place.task)?;
        if task.frames.len() >= MAX_DEPTH {
            return Some(Fault::TooDeep);
        }
        forget_ends(task, fields.indent, task.frames.is_empty());
        resume(task, fields.time_ns);
        let parent = task.frames.last().copied();
        let depth = task.frames.len();
        let inside = parent.map_or(Marks::default(), |frame| frame.marks);
        let in_syscall = task.syscall;
        let mut frame = Frame {
            row: NONE,
            name: NONE,
            path: NONE,
            call: NONE,
            indent: fields.indent,
            children_ns: 0,
            interrupt_ns: 0,
            off_cpu_ns: 0,
            marks: Marks {
                in_interrupt: inside.in_interrupt || place.arrow,
                interrupt: place.arrow && !inside.in_interrupt,
                in_scheduler: inside.in_scheduler,
                ..Marks::default()
            },
        };
        let mut syscall = in_syscall;
        if in_syscall == NO_SYSCALL && !frame.marks.in_interrupt {
            if let Some(call) = syscall_entry(name) {
                syscall = self.named(call);
                frame.marks.syscall = true;
                self.enter_syscall(place, syscall, None);
            }
        }
        self.find_row(place, &mut frame, name, syscall);
        if self.options.paths {
            self.find_path(&mut frame, parent, syscall);
        }
        let above = parent.map_or(NONE, |parent| parent.call);
        frame.call = self.keep_call(place, fields, &frame, (above, depth, syscall), extra);
        if leaf {
            self.close(place, frame, fields.duration_ns);
        } else if let Some(task) = self.tasks.task(place.task) {
            task.frames.push(frame);
        }
        None
    }

    /// Find the function's row, in interrupts that of no system call, and mark what it is.
    fn find_row(&mut self, place: Place, frame: &mut Frame, name: &[u8], syscall: i32) {
        let mut within = if frame.marks.in_interrupt {
            IN_INTERRUPT
        } else {
            syscall
        };
        for _ in 0..2 {
            let context = self.context_of(place, within);
            let Some(row) = self.report.tables.row(context, name) else {
                self.report.losses.no_room += 1;
                frame.name = self.report.tables.names.add(name);
                return;
            };
            frame.row = row;
            let Some(found) = self.report.tables.rows.get(row as usize) else {
                return;
            };
            frame.name = found.name;
            match found.class {
                Class::Interrupt if !frame.marks.in_interrupt => {
                    frame.marks.in_interrupt = true;
                    frame.marks.interrupt = true;
                    within = IN_INTERRUPT;
                    continue;
                }
                Class::Scheduler if !frame.marks.in_scheduler && !frame.marks.in_interrupt => {
                    frame.marks.in_scheduler = true;
                    frame.marks.scheduler = true;
                }
                _ => {}
            }
            return;
        }
    }

    fn find_path(&mut self, frame: &mut Frame, parent: Option<Frame>, syscall: i32) {
        let within = if frame.marks.in_interrupt {
            IN_INTERRUPT
        } else {
            syscall
        };
        let above = parent.map_or(NONE, |parent| parent.path);
        // Under a parent that there was no room for, there is none for its children either.
        if parent.is_none() || above != NONE {
            frame.path = self.report.tables.path(above, within, frame.name);
        }
        self.report.losses.no_room += u64::from(frame.path == NONE);
    }

    fn keep_call(
        &mut self,
        place: Place,
        fields: &Fields<'_>,
        frame: &Frame,
        (parent, depth, syscall): (u32, usize, i32),
        extra: Extra<'_>,
    ) -> u32 {
        if self.report.tables.calls.len() >= self.options.calls {
            self.report.calls_left_out += 1;
            return NONE;
        }
        let within = if frame.marks.in_interrupt {
            IN_INTERRUPT
        } else {
            syscall
        };
        let context = self.context_of(place, within);
        let text = self.extra(extra, NONE);
        let calls = &mut self.report.tables.calls;
        calls.push(CallRow {
            parent,
            depth: u32::try_from(depth).unwrap_or(NONE),
            name: frame.name,
            context,
            line: self.report.lines,
            time_ns: fields.time_ns,
            call: Call::default(),
            seen: 1,
            extra: text,
        });
        u32::try_from(calls.len() - 1).unwrap_or(NONE)
    }

    /// The number of the text of arguments and comment, after a text that is there already.
    fn extra(&mut self, extra: Extra<'_>, before: u32) -> u32 {
        if extra.arguments.is_empty() && extra.comment.is_empty() {
            return before;
        }
        let names = &mut self.report.tables.names;
        let mut text = if before == NONE {
            Vec::new()
        } else {
            names.get(before).to_vec()
        };
        for part in [extra.arguments, extra.comment] {
            if !part.is_empty() {
                if !text.is_empty() {
                    text.extend_from_slice(b"; ");
                }
                text.extend_from_slice(part);
            }
        }
        names.add(&text)
    }

    fn end(
        &mut self,
        place: Place,
        fields: &Fields<'_>,
        name: Option<&[u8]>,
        extra: Extra<'_>,
    ) -> Option<Fault> {
        self.report.functions += 1;
        self.unwind(place, fields.indent, true);
        let task = self.tasks.task(place.task)?;
        resume(task, fields.time_ns);
        if let Some(frame) = task.frames.last().copied() {
            if frame.indent == fields.indent {
                task.frames.pop();
                let same = name.is_none_or(|name| self.report.tables.names.get(frame.name) == name);
                if same {
                    self.end_call(&frame, extra);
                    self.close(place, frame, fields.duration_ns);
                    return None;
                }
                self.abandon(place, frame);
            }
        }
        let Some(name) = name else {
            return Some(Fault::NamelessEnd);
        };
        self.lone_end(place, fields, name, extra);
        None
    }

    fn end_call(&mut self, frame: &Frame, extra: Extra<'_>) {
        if extra == Extra::default() {
            return;
        }
        let before = self
            .report
            .tables
            .calls
            .get(frame.call as usize)
            .map(|call| call.extra);
        let Some(before) = before else {
            return;
        };
        let text = self.extra(extra, before);
        if let Some(call) = self.report.tables.calls.get_mut(frame.call as usize) {
            call.extra = text;
        }
    }

    /// Close the functions that must have ended: those as deep as one that begins now, or deeper
    /// than one that ends now.
    fn unwind(&mut self, place: Place, indent: u32, ends: bool) {
        while let Some(task) = self.tasks.task(place.task) {
            match task.frames.last().copied() {
                Some(frame) if frame.indent > indent || (!ends && frame.indent == indent) => {
                    task.frames.pop();
                    self.abandon(place, frame);
                }
                _ => return,
            }
        }
    }

    /// Give what is known of a function without an end to its caller.
    fn abandon(&mut self, place: Place, frame: Frame) {
        self.unclosed(frame);
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        if frame.marks.syscall {
            (task.syscall, task.syscall_time_ns) = (NO_SYSCALL, None);
        }
        if let Some(parent) = task.frames.last_mut() {
            parent.children_ns = parent.children_ns.saturating_add(frame.children_ns);
            parent.interrupt_ns = parent.interrupt_ns.saturating_add(frame.interrupt_ns);
            parent.off_cpu_ns = parent.off_cpu_ns.saturating_add(frame.off_cpu_ns);
            parent.marks.lossy = true;
        }
    }

    fn unclosed(&mut self, frame: Frame) {
        self.report.losses.unclosed += 1;
        if let Some(row) = self.report.tables.calls.get_mut(frame.call as usize) {
            row.call = call_of(&frame, None);
        }
    }

    /// Count a function that has ended, and give its time to its caller.
    fn close(&mut self, place: Place, mut frame: Frame, duration_ns: Option<u64>) {
        // An interrupt in the tracer's own return path is printed inside of a function whose time
        // was taken already: it belongs to the caller.
        let late_ns = match duration_ns {
            Some(duration_ns) if frame.children_ns > duration_ns => frame.interrupt_ns,
            _ => 0,
        };
        frame.children_ns = frame.children_ns.saturating_sub(late_ns);
        frame.interrupt_ns = frame.interrupt_ns.saturating_sub(late_ns);
        let call = call_of(&frame, duration_ns);
        self.report.losses.negative +=
            u64::from(duration_ns.is_some_and(|duration_ns| frame.children_ns > duration_ns));
        self.report.tables.add(frame.row, frame.path, &call);
        if let Some(row) = self.report.tables.calls.get_mut(frame.call as usize) {
            row.call = call;
            row.seen = 0;
        }
        if frame.marks.syscall {
            if let Some(task) = self.tasks.task(place.task) {
                let number = task.syscall;
                (task.syscall, task.syscall_time_ns) = (NO_SYSCALL, None);
                if let Some(duration_ns) = duration_ns {
                    self.time_syscall(place, number, duration_ns);
                }
            }
        }
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        let duration_ns = duration_ns.unwrap_or(frame.children_ns);
        let Some(parent) = task.frames.last_mut() else {
            keep_end(task, frame.indent, duration_ns);
            return;
        };
        parent.children_ns = parent
            .children_ns
            .saturating_add(duration_ns)
            .saturating_add(late_ns);
        parent.interrupt_ns = parent.interrupt_ns.saturating_add(late_ns);
        let (interrupt_ns, off_cpu_ns) = if frame.marks.interrupt {
            (duration_ns, 0)
        } else if frame.marks.scheduler {
            (0, duration_ns)
        } else {
            (frame.interrupt_ns, frame.off_cpu_ns)
        };
        parent.interrupt_ns = parent.interrupt_ns.saturating_add(interrupt_ns);
        parent.off_cpu_ns = parent.off_cpu_ns.saturating_add(off_cpu_ns);
    }

    /// Count an end whose beginning is not in the trace, apart from whole calls.
    fn lone_end(&mut self, place: Place, fields: &Fields<'_>, name: &[u8], extra: Extra<'_>) {
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        let (syscall, depth) = (task.syscall, task.frames.len());
        let parent = task.frames.last().copied();
        let children_ns = take_ends(task, fields.indent);
        let duration_ns = fields.duration_ns;
        if let Some(parent) = task.frames.last_mut() {
            parent.children_ns = parent.children_ns.saturating_add(duration_ns.unwrap_or(0));
            parent.marks.lossy = true;
        } else {
            keep_end(task, fields.indent, duration_ns.unwrap_or(children_ns));
        }
        let mut frame = Frame {
            row: NONE,
            name: NONE,
            path: NONE,
            call: NONE,
            indent: fields.indent,
            children_ns,
            interrupt_ns: 0,
            off_cpu_ns: 0,
            marks: Marks {
                in_interrupt: place.arrow || parent.is_some_and(|frame| frame.marks.in_interrupt),
                lossy: true,
                ..Marks::default()
            },
        };
        self.find_row(place, &mut frame, name, syscall);
        let call = call_of(&frame, duration_ns);
        self.report.tables.add_end(frame.row, &call);
        let above = parent.map_or(NONE, |parent| parent.call);
        let kept = self.keep_call(place, fields, &frame, (above, depth, syscall), extra);
        if let Some(row) = self.report.tables.calls.get_mut(kept as usize) {
            row.call = call;
            row.seen = 2;
        }
    }
}

fn call_of(frame: &Frame, duration_ns: Option<u64>) -> Call {
    // What an interrupt or the scheduler takes is its own doing, not a disturbance of it.
    let own = frame.marks.interrupt || frame.marks.scheduler;
    Call {
        duration_ns,
        children_ns: frame.children_ns,
        interrupt_ns: if own { 0 } else { frame.interrupt_ns },
        off_cpu_ns: if own { 0 } else { frame.off_cpu_ns },
        switched: frame.marks.switched && !own,
        lossy: frame.marks.lossy,
    }
}

/// A task runs again: time since it gave its CPU away was not its innermost function's own, unless
/// a function of the scheduler tells that time itself.
fn resume(task: &mut super::tasks::Task, time_ns: Option<u64>) {
    let (Some(out_ns), Some(now_ns)) = (task.switched_out_ns.take(), time_ns) else {
        return;
    };
    if let Some(frame) = task.frames.last_mut() {
        if !frame.marks.in_scheduler {
            let away_ns = now_ns.saturating_sub(out_ns);
            frame.off_cpu_ns = frame.off_cpu_ns.saturating_add(away_ns);
        }
    }
}

/// Remember the time of a call at the top, for an end that names its caller later.
fn keep_end(task: &mut super::tasks::Task, indent: u32, duration_ns: u64) {
    match task.ends.last_mut() {
        Some(last) if last.0 == indent => last.1 = last.1.saturating_add(duration_ns),
        _ => task.ends.push((indent, duration_ns)),
    }
}

/// A call that begins at this depth is in no function that is deeper.
fn forget_ends(task: &mut super::tasks::Task, indent: u32, at_top: bool) {
    if at_top {
        while task.ends.last().is_some_and(|last| last.0 > indent) {
            task.ends.pop();
        }
    }
}

/// Time of the calls inside a function that ends at this depth.
fn take_ends(task: &mut super::tasks::Task, indent: u32) -> u64 {
    let mut sum = 0u64;
    while let Some(last) = task.ends.last().copied().filter(|last| last.0 > indent) {
        sum = sum.saturating_add(last.1);
        task.ends.pop();
    }
    sum
}

/// `NR 257 (...)` or `NR 257 = 3`
fn syscall_number(text: &[u8]) -> Option<i32> {
    let digits = text.strip_prefix(b"NR ")?;
    let end = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}

/// The system call that a function such as `__x64_sys_openat` is the entry of.
fn syscall_entry(name: &[u8]) -> Option<&[u8]> {
    const PREFIXES: [&[u8]; 10] = [
        b"__x64_sys_",
        b"__ia32_sys_",
        b"__ia32_compat_sys_",
        b"__x32_compat_sys_",
        b"__arm64_sys_",
        b"__arm64_compat_sys_",
        b"__riscv_sys_",
        b"__s390x_sys_",
        b"__se_sys_",
        b"__do_sys_",
    ];
    if !name.starts_with(b"__") {
        return None;
    }
    PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix))
}
