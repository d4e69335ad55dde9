//! Events among functions, or alone: system calls, probes, and calls of the function tracer.
use super::graph::{Graph, Place};
use super::line::Fields;
use super::rows::{Call, IN_INTERRUPT, NAMED_SYSCALL, NONE, NO_SYSCALL};

/// Kinds of event that are counted apart.
const MAX_EVENTS: usize = 4_096;
/// Probed functions that a task may have open.
const MAX_PROBES: usize = 256;

impl Graph {
    pub(super) fn event(&mut self, place: Place, fields: &Fields<'_>, text: &[u8]) {
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
            b"sched_switch" => self.gave_cpu_away(place, fields.time_ns),
            _ if rest.starts_with(b"(") => self.probe(place, fields, rest),
            _ => self.named_syscall_event(place, fields, name, text),
        }
        if rest.starts_with(b"[FAILED TO PARSE]") {
            self.report.losses.unparsed += 1;
        }
    }

    /// The task of a CPU is about to change; what it has open does not run meanwhile.
    fn gave_cpu_away(&mut self, place: Place, time_ns: Option<u64>) {
        if let Some(task) = self.tasks.task(place.task) {
            task.switched_out_ns = time_ns;
            for frame in &mut task.frames {
                frame.marks.switched = true;
            }
        }
    }

    /// A function that the function tracer tells of: counted, without a duration.
    pub(super) fn called(&mut self, place: Place, name: &[u8]) {
        self.report.called += 1;
        self.count_call(place, name, None);
    }

    fn count_call(&mut self, place: Place, name: &[u8], duration_ns: Option<u64>) {
        let syscall = match self.tasks.task(place.task) {
            _ if place.arrow => IN_INTERRUPT,
            Some(task) => task.syscall,
            None => NO_SYSCALL,
        };
        let context = self.context_of(place, syscall);
        let Some(row) = self.report.tables.row(context, name) else {
            self.report.losses.no_room += 1;
            return;
        };
        let call = Call {
            duration_ns,
            ..Call::default()
        };
        self.report.tables.add(row, NONE, &call);
    }

    /// `(security_file_open+0x0/0x50)` where a probed function begins, and
    /// `(do_dentry_open+0xf8/0x410 <- security_file_open) ret=0` where it ends.
    fn probe(&mut self, place: Place, fields: &Fields<'_>, rest: &[u8]) {
        let inner = rest.get(1..).unwrap_or(&[]);
        let end = memchr::memchr(b')', inner).unwrap_or(inner.len());
        let inner = inner.get(..end).unwrap_or(inner);
        let returned = memchr::memmem::find(inner, b" <- ").and_then(|at| inner.get(at + 4..));
        let begun = || inner.get(..memchr::memchr(b'+', inner)?);
        let Some(name) = returned.or_else(begun).map(without_offset) else {
            return;
        };
        let number = self.report.tables.names.add(name);
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        if returned.is_none() {
            if task.probes.len() == MAX_PROBES {
                task.probes.remove(0); // its end is lost
                self.report.losses.unclosed += 1;
            }
            task.probes.push((number, fields.time_ns));
            return;
        }
        let open = task.probes.iter().rposition(|probe| probe.0 == number);
        let Some(at) = open else {
            self.report.losses.lone_returns += 1;
            return;
        };
        let from = task.probes.get(at).and_then(|probe| probe.1);
        let inside = task.probes.len() - at - 1;
        task.probes.truncate(at);
        self.report.losses.unclosed += inside as u64;
        let took = from
            .zip(fields.time_ns)
            .map(|(from, to)| to.saturating_sub(from));
        self.count_call(place, name, took);
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

    pub(super) fn named(&mut self, name: &[u8]) -> i32 {
        let number = self.report.tables.names.add(name);
        i32::try_from(number).map_or(NO_SYSCALL, |number| NAMED_SYSCALL - number)
    }

    pub(super) fn enter_syscall(&mut self, place: Place, number: i32, time_ns: Option<u64>) {
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

    pub(super) fn time_syscall(&mut self, place: Place, number: i32, took_ns: u64) {
        let context = self.context_of(place, number);
        if let Some(context) = self.report.tables.contexts.get_mut(context as usize) {
            context.timed += 1;
            context.total_ns = context.total_ns.saturating_add(took_ns);
            context.min_ns = context.min_ns.min(took_ns);
            context.max_ns = context.max_ns.max(took_ns);
        }
    }
}

/// `f` of `f+0x0/0x50`.
fn without_offset(symbol: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'+', symbol).unwrap_or(symbol.len());
    symbol.get(..end).unwrap_or(symbol)
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
