//! What a line of function_graph text consists of.

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
    /// A function that was called, of the function tracer, and its caller where it is printed.
    Called(&'a [u8], &'a [u8]),
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
