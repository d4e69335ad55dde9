//! Tasks with their stacks, and which of them each CPU runs.
use std::collections::HashMap;

use super::columns::pid;
use super::rows::{IN_INTERRUPT, NONE, NO_SYSCALL};

/// CPUs that a kernel can have; larger numbers are no CPU.
pub const MAX_CPUS: u32 = 8_192;
/// Tasks kept at once; idle ones make room.
const MAX_TASKS: usize = 1 << 16;

/// A function that has begun and not ended.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Row of the function; NONE where there was no room.
    pub row: u32,
    /// Number of its name.
    pub name: u32,
    /// Its path; NONE where paths are not kept.
    pub path: u32,
    /// Its single call; NONE where it is not kept.
    pub call: u32,
    /// Blanks before its name.
    pub indent: u32,
    /// When it began, where the trace tells.
    pub begun_ns: Option<u64>,
    /// Time of functions called so far, of interrupts and without the CPU.
    pub children_ns: u64,
    /// Of it in interrupts.
    pub interrupt_ns: u64,
    /// Of it without the CPU.
    pub off_cpu_ns: u64,
    /// What it is and what happened in it.
    pub marks: Marks,
}

impl Frame {
    /// A function at that depth, of which nothing is counted yet.
    pub fn new(indent: u32, marks: Marks) -> Self {
        Frame {
            row: NONE,
            name: NONE,
            path: NONE,
            call: NONE,
            indent,
            begun_ns: None,
            children_ns: 0,
            interrupt_ns: 0,
            off_cpu_ns: 0,
            marks,
        }
    }

    /// The system call that it is counted under.
    pub fn within(&self, syscall: i32) -> i32 {
        if self.marks.in_interrupt {
            IN_INTERRUPT
        } else {
            syscall
        }
    }
}

/// What a frame is and what happened in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// It serves an interrupt, or is called by what does.
    pub in_interrupt: bool,
    /// It is the outermost of these.
    pub interrupt: bool,
    /// It gives the CPU away, or is called by what does.
    pub in_scheduler: bool,
    /// It is the outermost of these.
    pub scheduler: bool,
    /// Another task ran meanwhile, or an interrupt was served for a time that is not known.
    pub switched: bool,
    /// Events were lost meanwhile.
    pub lossy: bool,
    /// It is the entry of a system call, which it names.
    pub syscall: bool,
}

/// A task.
#[derive(Debug)]
pub struct Task {
    /// Number of its name; NONE while it is not known.
    pub name: u32,
    /// Functions that have begun, outermost first.
    pub frames: Vec<Frame>,
    /// System call it is in.
    pub syscall: i32,
    /// When that was entered.
    pub syscall_time_ns: Option<u64>,
    /// When it last gave its CPU away.
    pub switched_out_ns: Option<u64>,
    /// Time of calls by blanks, below ends whose beginning was not seen: blanks grow.
    pub ends: Vec<(u32, u64)>,
}

impl Default for Task {
    fn default() -> Self {
        Task {
            name: NONE,
            frames: Vec::new(),
            syscall: NO_SYSCALL,
            syscall_time_ns: None,
            switched_out_ns: None,
            ends: Vec::new(),
        }
    }
}

impl Task {
    /// It stops to run; what it has open does not run either.
    pub fn give_cpu_away(&mut self, time_ns: Option<u64>) {
        self.switched_out_ns = time_ns;
        self.mark_switched();
    }

    /// Say of all that it has open that something else ran.
    pub fn mark_switched(&mut self) {
        for frame in &mut self.frames {
            frame.marks.switched = true;
        }
    }
}

/// Interrupts that events told of, from the first that began while none was served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// How many are being served, one inside another.
    pub depth: u32,
    /// When the first began.
    pub since_ns: Option<u64>,
    /// Functions that the task had open then.
    pub open: usize,
    /// Time of interrupts that the innermost of them had then.
    pub before_ns: u64,
}

/// A CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Its number; NONE where the trace has none.
    pub number: u32,
    /// Where its task is.
    pub task: usize,
    /// The text that named it.
    pub text: Vec<u8>,
    /// Whether an arrow told that an interrupt is being served.
    pub in_interrupt: bool,
    /// Interrupts that events say are being served.
    pub served: Option<Served>,
    /// Time of the last line.
    pub time_ns: Option<u64>,
    /// Task's name, system call and the number of the context they make.
    pub context: Option<(u32, i32, u32)>,
}

/// All tasks and CPUs.
#[derive(Debug, Default)]
pub struct Tasks {
    tasks: Vec<Task>,
    free: Vec<usize>,
    by_pid: HashMap<(u32, u32), usize>,
    cpus: Vec<Option<Cpu>>,
    without: Option<Cpu>,
}

impl Tasks {
    /// The CPU of that number, with an unknown task if it is new; None above the largest.
    pub fn cpu(&mut self, number: Option<u32>) -> Option<&mut Cpu> {
        let place = match number {
            None => &mut self.without,
            Some(number) if number < MAX_CPUS => {
                let at = number as usize;
                if self.cpus.len() <= at {
                    self.cpus.resize(at + 1, None);
                }
                self.cpus.get_mut(at)?
            }
            Some(_) => return None,
        };
        if place.is_none() {
            let task = self.tasks.len();
            self.tasks.push(Task::default());
            *place = Some(Cpu {
                number: number.unwrap_or(NONE),
                task,
                text: Vec::new(),
                in_interrupt: false,
                served: None,
                time_ns: None,
                context: None,
            });
        }
        place.as_mut()
    }

    /// A task by its place.
    pub fn task(&mut self, place: usize) -> Option<&mut Task> {
        self.tasks.get_mut(place)
    }

    /// The task of a process identity, if it has been seen; the idle one is each CPU's own.
    pub fn of_pid(&mut self, id: u32) -> Option<&mut Task> {
        let place = *self.by_pid.get(&(id, NONE))?;
        self.tasks.get_mut(place)
    }

    /// Let a CPU run the task of that name: whether the CPU's task was unknown until now, and the
    /// place of the task. None if the name has no process identity or the CPU is none.
    pub fn run(&mut self, number: Option<u32>, text: &[u8], name: u32) -> Option<(bool, usize)> {
        let id = pid(text)?;
        let (current, was_unknown) = {
            let cpu = self.cpu(number)?;
            (cpu.task, cpu.text.is_empty())
        };
        // Every CPU has an idle task of identity 0.
        let key = (
            id,
            if id == 0 {
                number.unwrap_or(NONE)
            } else {
                NONE
            },
        );
        let place = match self.by_pid.get(&key) {
            Some(place) => *place,
            None if was_unknown => {
                self.by_pid.insert(key, current);
                current
            }
            None => {
                let place = self.new_task();
                self.by_pid.insert(key, place);
                place
            }
        };
        if was_unknown && place != current {
            self.adopt(current, place);
        }
        if let Some(task) = self.tasks.get_mut(place) {
            task.name = name;
        }
        let cpu = self.cpu(number)?;
        cpu.task = place;
        cpu.text.clear();
        cpu.text.extend_from_slice(text);
        cpu.context = None;
        Some((was_unknown, place))
    }

    /// Give a known task what was seen of it before its name was.
    fn adopt(&mut self, unknown: usize, known: usize) {
        let Some(from) = self.tasks.get_mut(unknown).map(std::mem::take) else {
            return;
        };
        self.free.push(unknown);
        if let Some(to) = self.tasks.get_mut(known) {
            if to.frames.is_empty() {
                (to.frames, to.ends) = (from.frames, from.ends);
                (to.syscall, to.syscall_time_ns) = (from.syscall, from.syscall_time_ns);
            }
        }
    }

    fn new_task(&mut self) -> usize {
        if self.by_pid.len() >= MAX_TASKS && self.free.is_empty() {
            self.make_room();
        }
        if let Some(place) = self.free.pop() {
            if let Some(task) = self.tasks.get_mut(place) {
                *task = Task::default();
                return place;
            }
        }
        self.tasks.push(Task::default());
        self.tasks.len() - 1
    }

    /// Forget tasks that run nowhere and have no open function, or else all that run nowhere.
    fn make_room(&mut self) {
        let running: Vec<usize> = self
            .cpus
            .iter()
            .flatten()
            .chain(&self.without)
            .map(|cpu| cpu.task)
            .collect();
        for only_idle in [true, false] {
            let (tasks, free) = (&self.tasks, &mut self.free);
            self.by_pid.retain(|_, place| {
                let idle = tasks.get(*place).is_none_or(|task| task.frames.is_empty());
                let kept = running.contains(place) || (only_idle && !idle);
                if !kept {
                    free.push(*place);
                }
                kept
            });
            if !self.free.is_empty() {
                return;
            }
        }
    }

    /// Every task.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.tasks.iter_mut()
    }
}
