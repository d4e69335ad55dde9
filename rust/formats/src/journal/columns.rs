//! Columns under construction: values in native byte order, with what is null.

use super::line::{Line, Probe, Text};
use std::collections::HashMap;

/// A column of fixed-size values; a null holds 0 there.
#[derive(Debug, Default)]
pub struct Fixed {
    /// The values, in native byte order.
    pub values: Vec<u8>,
    /// One byte a value: 1 where there is one, 0 for null.
    pub valid: Vec<u8>,
    /// How many are null.
    pub nulls: usize,
}

impl Fixed {
    fn push<const SIZE: usize>(&mut self, bytes: Option<[u8; SIZE]>) {
        self.valid.push(u8::from(bytes.is_some()));
        self.nulls += usize::from(bytes.is_none());
        self.values
            .extend_from_slice(&bytes.unwrap_or([0_u8; SIZE]));
    }

    fn integer(&mut self, value: Option<i64>) {
        self.push(value.map(i64::to_ne_bytes));
    }

    fn float(&mut self, value: Option<f64>) {
        self.push(value.map(f64::to_ne_bytes));
    }

    fn boolean(&mut self, value: Option<bool>) {
        self.push(value.map(|value| [u8::from(value)]));
    }
}

/// A column of texts that repeat: a number for each row, and the texts numbered.
#[derive(Debug, Default)]
pub struct Names {
    /// Number of each row's text (u32).
    pub codes: Fixed,
    /// The texts, in the order they first occur.
    pub texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn push(&mut self, text: Option<&str>) {
        let code = text.map(|text| match self.numbers.get(text) {
            Some(&number) => number,
            None => self.add(text),
        });
        self.codes.push(code.map(u32::to_ne_bytes));
    }

    fn add(&mut self, text: &str) -> u32 {
        // A stretch is far shorter than 4 GB, so it cannot hold more texts than fit.
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

fn text<'a>(text: &'a Option<Text<'_>>) -> Option<&'a str> {
    text.as_ref().map(|text| &*text.0)
}

/// Names of the integer columns of runs, in the order of `Runs::integers`.
pub const RUN_INTEGERS: [&str; 19] = [
    "sequence",
    "block",
    "run",
    "start_ns",
    "wall_ns",
    "user_ns",
    "system_ns",
    "max_rss_bytes",
    "minor_faults",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
    "instructions",
    "cycles",
    "ima_entries",
    "exit_code",
    "signal",
    "operations",
    "batches",
];

/// Runs as columns.
#[derive(Debug, Default)]
pub struct Runs {
    /// The columns that `RUN_INTEGERS` names (i64).
    pub integers: [Fixed; RUN_INTEGERS.len()],
    /// `task`, `configuration` and `phase`.
    pub names: [Names; 3],
    /// `timed_out` and `ok` (u8).
    pub booleans: [Fixed; 2],
    /// `op_ns` (median over batches), `first_op_ns`, `op_instructions` (least batch, which no timer
    /// tick fell into) and `first_op_instructions` (f64).
    pub floats: [Fixed; 4],
    /// Every batch's time per operation (f64), run after run; `batches` tells how many each has.
    pub op_ns: Fixed,
}

impl Runs {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.booleans[0].valid.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, line: &Line<'_>, with_batches: bool) {
        let probe = line.probe.as_ref();
        let batches = probe.map(|probe| i64::try_from(probe.op_ns.len()).unwrap_or(i64::MAX));
        let integers = [
            line.sequence,
            line.block,
            line.run,
            line.start_ns,
            line.wall_ns,
            line.user_ns,
            line.system_ns,
            line.max_rss_bytes,
            line.minor_faults,
            line.major_faults,
            line.voluntary_switches,
            line.involuntary_switches,
            line.instructions,
            line.cycles,
            line.ima_entries,
            line.exit_code,
            line.signal,
            probe.map(|probe| probe.operations),
            batches,
        ];
        for (column, value) in self.integers.iter_mut().zip(integers) {
            column.integer(value);
        }
        let [task, configuration, phase] = &mut self.names;
        task.push(text(&line.task));
        configuration.push(text(&line.configuration));
        phase.push(text(&line.phase));
        let [timed_out, ok] = &mut self.booleans;
        timed_out.boolean(line.timed_out);
        ok.boolean(line.ok);
        let [op_ns, first_op_ns, op_instructions, first_op_instructions] = &mut self.floats;
        op_ns.float(probe.and_then(median));
        first_op_ns.float(probe.and_then(|probe| probe.first_op_ns));
        op_instructions.float(probe.and_then(least));
        first_op_instructions.float(probe.and_then(|probe| probe.first_op_instructions));
        if let (true, Some(probe)) = (with_batches, probe) {
            for value in &probe.op_ns {
                self.op_ns.float(Some(*value));
            }
        }
    }
}

fn median(probe: &Probe) -> Option<f64> {
    let mut sorted = probe.op_ns.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    Some(lower + (upper - lower) / 2.0)
}

fn least(probe: &Probe) -> Option<f64> {
    let counts = probe.op_instructions.iter().copied();
    counts.min_by(f64::total_cmp)
}

/// Child events as columns.
#[derive(Debug, Default)]
pub struct Events {
    /// `sequence` and `start_ns` (i64).
    pub integers: [Fixed; 2],
    /// `layer`, `event`, `parent`, `labels` and `unit`.
    pub names: [Names; 5],
    /// `value` (f64).
    pub value: Fixed,
}

impl Events {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.value.valid.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, line: &Line<'_>) {
        let [sequence, start_ns] = &mut self.integers;
        sequence.integer(line.sequence);
        start_ns.integer(line.start_ns);
        let [layer, event, parent, labels, unit] = &mut self.names;
        layer.push(text(&line.layer));
        event.push(text(&line.event));
        parent.push(text(&line.parent));
        labels.push(Some(text(&line.labels).unwrap_or_default()));
        unit.push(Some(text(&line.unit).unwrap_or("ns")));
        self.value.float(line.value);
    }
}
