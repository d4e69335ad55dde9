//! Events among functions, or alone: system calls, probes, and calls of the function tracer.
use super::calls::resume;
use super::fields::{Extra, Fields};
use super::graph::{Graph, Place};
use super::rows::{Call, IN_INTERRUPT, MAX_ROWS, NAMED_SYSCALL, NONE, NO_SYSCALL};
use super::syscalls;
use super::tasks::Served;

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
            _ if self.interrupt(place, fields, name) => {}
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
            b"sched_switch" => self.gave_cpu_away(place, rest, fields.time_ns),
            _ if rest.starts_with(b"(") => self.probe(place, fields, rest),
            _ => self.named_syscall_event(place, fields, name, text),
        }
        if rest.starts_with(b"[FAILED TO PARSE]") {
            self.report.losses.unparsed += 1;
        }
    }

    /// The task of a CPU is about to change; what it has open does not run meanwhile, and what the
    /// next one has open runs again.
    fn gave_cpu_away(&mut self, place: Place, text: &[u8], time_ns: Option<u64>) {
        if let Some(task) = self.tasks.task(place.task) {
            task.give_cpu_away(time_ns);
        }
        if let Some(next) = next_pid(text).and_then(|id| self.tasks.of_pid(id)) {
            resume(next, time_ns);
        }
        if let Some(cpu) = self.cpu_of(place) {
            cpu.served = None; // no interrupt gives the CPU away
        }
    }

    fn cpu_of(&mut self, place: Place) -> Option<&mut super::tasks::Cpu> {
        self.tasks
            .cpu((place.number != NONE).then_some(place.number))
    }

    /// Take an event of an interrupt; whether it is one.
    fn interrupt(&mut self, place: Place, fields: &Fields<'_>, name: &[u8]) -> bool {
        match begins_interrupt(name) {
            Some(true) => self.interrupt_begins(place, fields.time_ns),
            Some(false) => self.interrupt_ends(place, fields.time_ns),
            None => return false,
        }
        true
    }

    /// An interrupt begins, of hardware or a soft one. Where functions of it are open already, they
    /// tell its time themselves.
    fn interrupt_begins(&mut self, place: Place, time_ns: Option<u64>) {
        let (mut open, mut before_ns, mut told) = (0, 0, false);
        if let Some(task) = self.tasks.task(place.task) {
            open = task.frames.len();
            if let Some(frame) = task.frames.last() {
                before_ns = frame.interrupt_ns;
                told = frame.marks.in_interrupt;
            }
            if time_ns.is_none() && !told {
                task.mark_switched();
            }
        }
        let Some(cpu) = self.cpu_of(place) else {
            return;
        };
        match &mut cpu.served {
            Some(served) => served.depth = served.depth.saturating_add(1),
            None if told => {}
            None => {
                cpu.served = Some(Served {
                    depth: 1,
                    since_ns: time_ns,
                    open,
                    before_ns,
                });
            }
        }
    }

    /// An interrupt ends. The time since the outermost began is no function's own, less what
    /// functions that were called meanwhile have told.
    fn interrupt_ends(&mut self, place: Place, time_ns: Option<u64>) {
        let Some(cpu) = self.cpu_of(place) else {
            return;
        };
        let Some(served) = &mut cpu.served else {
            return;
        };
        served.depth -= 1;
        if served.depth > 0 {
            return;
        }
        let served = *served;
        cpu.served = None;
        let (Some(since_ns), Some(now_ns)) = (served.since_ns, time_ns) else {
            return;
        };
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        if task.frames.len() != served.open {
            return;
        }
        if let Some(frame) = task.frames.last_mut() {
            let told_ns = frame.interrupt_ns.saturating_sub(served.before_ns);
            let served_ns = now_ns.saturating_sub(since_ns).saturating_sub(told_ns);
            frame.interrupt_ns = frame.interrupt_ns.saturating_add(served_ns);
            frame.children_ns = frame.children_ns.saturating_add(served_ns);
        }
    }

    /// A function that the function tracer tells of: counted, without a duration.
    pub(super) fn called(&mut self, place: Place, name: &[u8], caller: &[u8]) {
        self.report.called += 1;
        self.count_call(place, name);
        self.count_caller(name, caller);
    }

    fn count_caller(&mut self, name: &[u8], caller: &[u8]) {
        if caller.is_empty() {
            return;
        }
        let names = &mut self.report.tables.names;
        let key = (names.add(name), names.add(caller));
        let callers = &mut self.report.callers;
        if callers.len() < MAX_ROWS || callers.contains_key(&key) {
            *callers.entry(key).or_default() += 1;
        } else {
            self.report.losses.no_room += 1;
        }
    }

    fn count_call(&mut self, place: Place, name: &[u8]) {
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
        self.report.tables.add(row, NONE, &Call::default());
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
        if self.report.functions > 0 {
            // Among functions of a graph, which have a stack of their own.
            if returned.is_some() {
                self.count_call(place, name);
            }
            return;
        }
        if returned.is_none() {
            self.probe_begins(place, fields, name);
            return;
        }
        let to = memchr::memmem::find(inner, b" <- ").unwrap_or(0);
        self.count_caller(name, without_offset(inner.get(..to).unwrap_or(&[])));
        self.probe_ends(place, fields, name);
    }

    fn probe_begins(&mut self, place: Place, fields: &Fields<'_>, name: &[u8]) {
        let Some(task) = self.tasks.task(place.task) else {
            return;
        };
        if task.frames.len() >= MAX_PROBES {
            let oldest = task.frames.remove(0); // its end is lost
            self.unclosed(oldest);
        }
        let indent = match self
            .tasks
            .task(place.task)
            .and_then(|task| task.frames.last())
        {
            Some(frame) => frame.indent.saturating_add(1),
            None => 0,
        };
        let fields = Fields { indent, ..*fields };
        self.begin(place, &fields, name, Extra::default(), false);
    }

    fn probe_ends(&mut self, place: Place, fields: &Fields<'_>, name: &[u8]) {
        let number = self.report.tables.names.add(name);
        let open = self.tasks.task(place.task).and_then(|task| {
            let mut frames = task.frames.iter().rev();
            frames.find(|frame| frame.name == number).copied()
        });
        let Some(frame) = open else {
            self.report.losses.lone_returns += 1;
            return;
        };
        let took = frame.begun_ns.zip(fields.time_ns);
        let fields = Fields {
            indent: frame.indent,
            duration_ns: took.map(|(from, to)| to.saturating_sub(from)),
            ..*fields
        };
        self.end(place, &fields, Some(name), Extra::default());
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
            let number = self.named(syscalls::plain(call));
            self.enter_syscall(place, number, fields.time_ns);
        } else if let Some(at) = memchr::memmem::find(call, b" -> ") {
            let number = self.named(syscalls::plain(call.get(..at).unwrap_or(call)));
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

/// Whether an event tells that an interrupt begins, or that one ends; None for other events.
fn begins_interrupt(name: &[u8]) -> Option<bool> {
    const KINDS: [&[u8]; 14] = [
        b"irq_handler",
        b"softirq",
        b"local_timer",
        b"reschedule",
        b"call_function",
        b"call_function_single",
        b"irq_work",
        b"x86_platform_ipi",
        b"spurious_apic",
        b"error_apic",
        b"thermal_apic",
        b"threshold_apic",
        b"deferred_error_apic",
        b"ipi",
    ];
    let (kind, begins) = match name.strip_suffix(b"_entry") {
        Some(kind) => (kind, true),
        None => (name.strip_suffix(b"_exit")?, false),
    };
    KINDS.contains(&kind).then_some(begins)
}

/// The task that runs next, of `prev_comm=... ==> next_comm=... next_pid=7 next_prio=120` and
/// of trace-cmd's `a:1 [120] R ==> b:7 [120]`.
fn next_pid(text: &[u8]) -> Option<u32> {
    let next = text.get(memchr::memmem::find(text, b" ==> ")?.checked_add(5)?..)?;
    let digits = match memchr::memmem::rfind(next, b" next_pid=") {
        Some(at) => next.get(at.checked_add(10)?..)?,
        None => {
            let end = memchr::memmem::rfind(next, b" [").unwrap_or(next.len());
            let named = next.get(..end)?;
            named.get(memchr::memrchr(b':', named)?.checked_add(1)?..)?
        }
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(digits.get(..count)?).ok()?.parse().ok()
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
