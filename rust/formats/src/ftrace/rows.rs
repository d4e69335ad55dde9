//! What is kept of a trace: sums by function, by path and by system call, and single calls.
use std::collections::HashMap;

use super::histogram::Histogram;
use super::index::{Index, Names};

/// No system call is known.
pub const NO_SYSCALL: i32 = -1;
/// Inside a hardware interrupt: of no system call.
pub const IN_INTERRUPT: i32 = -2;
/// System calls that are known by name: this number less the number of the name.
pub const NAMED_SYSCALL: i32 = -16;
/// No parent, CPU, name or text.
pub const NONE: u32 = u32::MAX;
/// Rows of each table; what comes after is counted together as `OTHER`.
pub const MAX_ROWS: usize = 1 << 18;
/// Task of the rows that no room was left for.
pub const OTHER: &[u8] = b"(other tasks)";

/// Kinds of function that are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Any.
    #[default]
    Plain,
    /// Serves a hardware interrupt.
    Interrupt,
    /// Gives the CPU to another task.
    Scheduler,
}

impl Class {
    /// The class of a function by its name.
    pub fn of(name: &[u8]) -> Class {
        const INTERRUPTS: [&[u8]; 14] = [
            b"irq_enter_rcu",
            b"irq_exit_rcu",
            b"irq_enter",
            b"irq_exit",
            b"do_IRQ",
            b"common_interrupt",
            b"__common_interrupt",
            b"gic_handle_irq",
            b"el1_interrupt",
            b"el0_interrupt",
            b"handle_domain_irq",
            b"generic_handle_domain_irq",
            b"generic_handle_arch_irq",
            b"exc_nmi",
        ];
        const SCHEDULER: [&[u8]; 8] = [
            b"schedule",
            b"__schedule",
            b"preempt_schedule",
            b"preempt_schedule_common",
            b"preempt_schedule_notrace",
            b"preempt_schedule_irq",
            b"schedule_preempt_disabled",
            b"schedule_idle",
        ];
        let x86 = name.starts_with(b"__sysvec_")
            || name.starts_with(b"sysvec_")
            || (name.starts_with(b"smp_") && name.ends_with(b"_interrupt"));
        if x86 || INTERRUPTS.contains(&name) {
            Class::Interrupt
        } else if SCHEDULER.contains(&name) {
            Class::Scheduler
        } else {
            Class::Plain
        }
    }
}

/// One call that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Printed duration; None where the trace has none.
    pub duration_ns: Option<u64>,
    /// Of it, in functions that it called.
    pub children_ns: u64,
    /// Of it, in hardware interrupts.
    pub interrupt_ns: u64,
    /// Of it, while other tasks had the CPU.
    pub off_cpu_ns: u64,
    /// Whether another task had the CPU meanwhile, however long.
    pub switched: bool,
    /// Whether events were lost while it was open.
    pub lossy: bool,
}

impl Call {
    /// Time in the function's own code.
    pub fn self_ns(&self) -> u64 {
        self.duration_ns
            .unwrap_or(0)
            .saturating_sub(self.children_ns)
    }

    /// Duration without interrupts and other tasks.
    pub fn net_ns(&self) -> Option<u64> {
        let disturbed = self.interrupt_ns.saturating_add(self.off_cpu_ns);
        Some(self.duration_ns?.saturating_sub(disturbed))
    }
}

/// Sums over calls.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Calls that ended.
    pub calls: u64,
    /// Of them, those with a duration.
    pub timed: u64,
    /// Printed durations.
    pub total_ns: u64,
    /// Less those of called functions.
    pub self_ns: u64,
    /// Time of hardware interrupts inside.
    pub interrupt_ns: u64,
    /// Time of other tasks inside.
    pub off_cpu_ns: u64,
    /// Calls with an interrupt or another task inside.
    pub disturbed: u64,
    /// Calls whose self time may hold functions that were lost.
    pub lossy: u64,
    /// Smallest net duration; `u64::MAX` without one.
    pub min_ns: u64,
    /// Largest net duration.
    pub max_ns: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            calls: 0,
            timed: 0,
            total_ns: 0,
            self_ns: 0,
            interrupt_ns: 0,
            off_cpu_ns: 0,
            disturbed: 0,
            lossy: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Sums {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        let Some(net_ns) = call.net_ns() else {
            return;
        };
        self.timed += 1;
        let duration_ns = call.duration_ns.unwrap_or(0);
        self.total_ns = self.total_ns.saturating_add(duration_ns);
        self.self_ns = self.self_ns.saturating_add(call.self_ns());
        self.interrupt_ns = self.interrupt_ns.saturating_add(call.interrupt_ns);
        self.off_cpu_ns = self.off_cpu_ns.saturating_add(call.off_cpu_ns);
        let disturbed = call.switched || call.interrupt_ns > 0 || call.off_cpu_ns > 0;
        self.disturbed += u64::from(disturbed);
        self.lossy += u64::from(call.lossy);
        self.min_ns = self.min_ns.min(net_ns);
        self.max_ns = self.max_ns.max(net_ns);
    }
}

/// Calls of a function by one task on one CPU in one system call.
#[derive(Debug, Default)]
pub struct Row {
    /// Number of the context.
    pub context: u32,
    /// Number of the function's name.
    pub name: u32,
    /// Kind of function.
    pub class: Class,
    /// Calls seen from beginning to end.
    pub sums: Sums,
    /// Their net durations.
    pub histogram: Histogram,
    /// Calls of which only the end was seen.
    pub ends: Sums,
}

/// Task, CPU and system call.
#[derive(Clone, Debug)]
pub struct Context {
    /// Number of the task's name; NONE while it is not known.
    pub task: u32,
    /// CPU; NONE where the trace does not tell.
    pub cpu: u32,
    /// System call.
    pub syscall: i32,
    /// How often it was entered.
    pub entered: u64,
    /// How often it was left, with both times known.
    pub timed: u64,
    /// Time between.
    pub total_ns: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// A function called along one path.
#[derive(Debug, Default)]
pub struct Path {
    /// Row of the caller; NONE for a function that no traced one called.
    pub parent: u32,
    /// Number of the function's name.
    pub name: u32,
    /// System call.
    pub syscall: i32,
    /// Calls.
    pub sums: Sums,
}

/// One call, for traces small enough to keep them.
#[derive(Clone, Debug)]
pub struct CallRow {
    /// Row of the caller; NONE at the top.
    pub parent: u32,
    /// Callers that were seen.
    pub depth: u32,
    /// Number of the function's name.
    pub name: u32,
    /// Number of the context.
    pub context: u32,
    /// Line that it began in, or ended in where only the end was seen.
    pub line: u64,
    /// Time of that line.
    pub time_ns: Option<u64>,
    /// What is known of it.
    pub call: Call,
    /// 0 whole, 1 only its beginning was seen, 2 only its end.
    pub seen: u8,
    /// Number of the text of arguments and comment; NONE without.
    pub extra: u32,
}

/// All tables.
#[derive(Debug, Default)]
pub struct Tables {
    /// Names of functions, tasks and events.
    pub names: Names,
    /// Sums by function.
    pub rows: Vec<Row>,
    /// Sums by path.
    pub paths: Vec<Path>,
    /// Contexts.
    pub contexts: Vec<Context>,
    /// Single calls.
    pub calls: Vec<CallRow>,
    row_index: Index,
    path_index: Index,
    context_index: HashMap<(u32, u32, i32), u32>,
}

impl Tables {
    /// The context of a task, a CPU and a system call.
    pub fn context(&mut self, task: u32, cpu: u32, syscall: i32) -> u32 {
        let full = self.contexts.len() >= MAX_ROWS;
        if let Some(found) = self.context_index.get(&(task, cpu, syscall)) {
            return *found;
        }
        let (task, cpu) = if full {
            (self.names.add(OTHER), NONE)
        } else {
            (task, cpu)
        };
        let next = u32::try_from(self.contexts.len()).unwrap_or(NONE);
        let found = *self
            .context_index
            .entry((task, cpu, syscall))
            .or_insert(next);
        if found == next {
            self.contexts.push(Context {
                task,
                cpu,
                syscall,
                entered: 0,
                timed: 0,
                total_ns: 0,
                min_ns: u64::MAX,
                max_ns: 0,
            });
        }
        found
    }

    /// Name a task that was not known: its contexts on that CPU, and those of its calls.
    pub fn name_task(&mut self, cpu: u32, task: u32) {
        for context in &mut self.contexts {
            if context.task == NONE && context.cpu == cpu {
                context.task = task;
            }
        }
        self.context_index
            .retain(|key, _| !(key.0 == NONE && key.1 == cpu));
    }

    /// The row of a function in a context; None where there is no room for it.
    pub fn row(&mut self, context: u32, name: &[u8]) -> Option<u32> {
        let hash = self.row_index.hash(u64::from(context), name);
        let found = self.row_index.find(hash, |number| {
            self.rows
                .get(number as usize)
                .is_some_and(|row| row.context == context && self.names.get(row.name) == name)
        });
        if found.is_some() {
            return found;
        }
        if self.rows.len() >= MAX_ROWS {
            return self.other_row(context, name);
        }
        Some(self.new_row(hash, context, name))
    }

    fn new_row(&mut self, hash: u64, context: u32, name: &[u8]) -> u32 {
        let number = u32::try_from(self.rows.len()).unwrap_or(NONE);
        self.row_index.insert(hash, number);
        self.rows.push(Row {
            context,
            name: self.names.add(name),
            class: Class::of(name),
            ..Row::default()
        });
        number
    }

    /// The row that takes what the full table has no room for: tasks and CPUs together.
    fn other_row(&mut self, context: u32, name: &[u8]) -> Option<u32> {
        let syscall = self.contexts.get(context as usize)?.syscall;
        let task = self.names.add(OTHER);
        let other = self.context(task, NONE, syscall);
        if other == context {
            return (self.rows.len() < 2 * MAX_ROWS).then(|| {
                let hash = self.row_index.hash(u64::from(context), name);
                self.new_row(hash, context, name)
            });
        }
        self.row(other, name)
    }

    /// The path of a function under its caller; NONE where there is no room for it.
    pub fn path(&mut self, parent: u32, syscall: i32, name: u32) -> u32 {
        let key = (u64::from(parent) << 32) ^ u64::from(syscall.unsigned_abs());
        let hash = self.path_index.hash(key, &name.to_le_bytes());
        let found = self.path_index.find(hash, |number| {
            self.paths.get(number as usize).is_some_and(|path| {
                path.parent == parent && path.name == name && path.syscall == syscall
            })
        });
        if let Some(number) = found {
            return number;
        }
        if self.paths.len() >= MAX_ROWS {
            return NONE;
        }
        let number = u32::try_from(self.paths.len()).unwrap_or(NONE);
        self.path_index.insert(hash, number);
        self.paths.push(Path {
            parent,
            name,
            syscall,
            sums: Sums::default(),
        });
        number
    }

    /// Count a call that was seen whole.
    pub fn add(&mut self, row: u32, path: u32, call: &Call) {
        if let Some(row) = self.rows.get_mut(row as usize) {
            row.sums.add(call);
            if let Some(net_ns) = call.net_ns() {
                row.histogram.add(net_ns);
            }
        }
        if let Some(path) = self.paths.get_mut(path as usize) {
            path.sums.add(call);
        }
    }

    /// Count a call of which only the end was seen.
    pub fn add_end(&mut self, row: u32, call: &Call) {
        if let Some(row) = self.rows.get_mut(row as usize) {
            row.ends.add(call);
        }
    }
}
