//! Calls as they begin and end: a stack for each task, and what is summed up of it.
use super::fields::{Extra, Fields};
use super::graph::{Fault, Graph, Place};
use super::rows::{Call, CallRow, Class, IN_INTERRUPT, NONE, NO_SYSCALL};
use super::syscalls;
use super::tasks::{Frame, Marks, Task};

/// Functions that a stack may hold; the kernel's own limit is far below.
const MAX_DEPTH: usize = 1_024;

impl Graph {
    pub(super) fn begin(
        &mut self,
        place: Place,
        fields: &Fields<'_>,
        name: &[u8],
        extra: Extra<'_>,
        leaf: bool,
    ) -> Option<Fault> {
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
        let marks = Marks {
            in_interrupt: inside.in_interrupt || place.arrow,
            interrupt: place.arrow && !inside.in_interrupt,
            in_scheduler: inside.in_scheduler,
            ..Marks::default()
        };
        let mut frame = Frame::new(fields.indent, marks);
        frame.begun_ns = fields.time_ns;
        let mut syscall = in_syscall;
        if in_syscall == NO_SYSCALL && !frame.marks.in_interrupt {
            // What does the work of a call is its entry where nothing else tells of calls.
            let raw = self.report.raw_syscalls;
            let entry = || syscalls::entry(name);
            let shared = || syscalls::shared(name).filter(|_| !raw && parent.is_none());
            if let Some(call) = entry().or_else(shared) {
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
        let mut within = frame.within(syscall);
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
        let within = frame.within(syscall);
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
        let within = frame.within(syscall);
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

    pub(super) fn end(
        &mut self,
        place: Place,
        fields: &Fields<'_>,
        name: Option<&[u8]>,
        extra: Extra<'_>,
    ) -> Option<Fault> {
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
    pub(super) fn abandon(&mut self, place: Place, frame: Frame) {
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

    pub(super) fn unclosed(&mut self, frame: Frame) {
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
        let marks = Marks {
            in_interrupt: place.arrow || parent.is_some_and(|frame| frame.marks.in_interrupt),
            lossy: true,
            ..Marks::default()
        };
        let mut frame = Frame {
            children_ns,
            ..Frame::new(fields.indent, marks)
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
pub(super) fn resume(task: &mut Task, time_ns: Option<u64>) {
    let (Some(out_ns), Some(now_ns)) = (task.switched_out_ns.take(), time_ns) else {
        return;
    };
    if let Some(frame) = task.frames.last_mut() {
        if !frame.marks.in_scheduler {
            let away_ns = now_ns.saturating_sub(out_ns);
            frame.off_cpu_ns = frame.off_cpu_ns.saturating_add(away_ns);
            frame.children_ns = frame.children_ns.saturating_add(away_ns);
        }
    }
}

/// Remember the time of a call at the top, for an end that names its caller later.
fn keep_end(task: &mut Task, indent: u32, duration_ns: u64) {
    match task.ends.last_mut() {
        Some(last) if last.0 == indent => last.1 = last.1.saturating_add(duration_ns),
        _ => task.ends.push((indent, duration_ns)),
    }
}

/// A call that begins at this depth is in no function that is deeper.
fn forget_ends(task: &mut Task, indent: u32, at_top: bool) {
    if at_top {
        while task.ends.last().is_some_and(|last| last.0 > indent) {
            task.ends.pop();
        }
    }
}

/// Time of the calls inside a function that ends at this depth.
fn take_ends(task: &mut Task, indent: u32) -> u64 {
    let mut sum = 0u64;
    while let Some(last) = task.ends.last().copied().filter(|last| last.0 > indent) {
        sum = sum.saturating_add(last.1);
        task.ends.pop();
    }
    sum
}
