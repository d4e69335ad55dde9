//! Journal lines of a capture as columns: runs, child events, and where the other records are.
//!
//! A million runs are some 400 MB of JSON. One pass types and checks each line and keeps 200 bytes
//! of it; what is rare (sessions, losses, effects) is only located, for others to read.

mod columns;
mod line;

pub use columns::{Events, Fixed, Names, Runs, RUN_INTEGERS};

use line::Kind;

/// What one stretch of whole lines holds.
#[derive(Debug, Default)]
pub struct Tables {
    /// Runs, one row a run.
    pub runs: Runs,
    /// Child events, one row an event.
    pub events: Events,
    /// Lines that are neither, to be read elsewhere.
    pub others: Vec<Place>,
    /// Lines seen.
    pub lines: usize,
}

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number in this stretch, from 0.
    pub index: usize,
    /// Offset of its first byte.
    pub start: usize,
    /// Offset after its last byte, without the line's end.
    pub end: usize,
}

/// A line that is no record.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number in this stretch, from 0.
    pub index: usize,
    /// Why, in one clause.
    pub reason: String,
}

/// Read whole lines. `with_batches` keeps every batch of the probe's runs.
///
/// # Errors
///
/// The first line that is no JSON object, or a run or event that lacks a member or has one of
/// another type.
pub fn read(bytes: &[u8], with_batches: bool) -> Result<Tables, Fault> {
    let mut tables = Tables::default();
    let mut start = 0;
    while start < bytes.len() {
        let rest = bytes.get(start..).unwrap_or_default();
        let length = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let index = tables.lines;
        tables.lines += 1;
        match line::read(rest.get(..length).unwrap_or_default()) {
            Ok((Kind::Run, line)) => tables.runs.push(&line, with_batches),
            Ok((Kind::Event, line)) => tables.events.push(&line),
            Ok((Kind::Other, _)) => tables.others.push(Place {
                index,
                start,
                end: start + length,
            }),
            Err(reason) => return Err(Fault { index, reason }),
        }
        start += length + 1;
    }
    Ok(tables)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LAUNCHED: &str = concat!(
        r#"{"kind":"run","sequence":7,"block":2,"task":"stat","configuration":"none (A/A)","run":2,"#,
        r#""phase":"measured","start_ns":5,"wall_ns":11,"user_ns":1,"system_ns":2,"#,
        r#""max_rss_bytes":933888,"minor_faults":51,"major_faults":0,"voluntary_switches":1,"#,
        r#""involuntary_switches":0,"exit_code":0,"signal":null,"timed_out":false,"#,
        r#""max_rss_floor_bytes":389120,"instructions":null,"cycles":9,"ok":true}"#
    );

    fn integers(tables: &Tables, name: &str) -> Vec<Option<i64>> {
        let at = RUN_INTEGERS.iter().position(|each| *each == name).unwrap();
        let column = &tables.runs.integers[at];
        column
            .values
            .chunks_exact(8)
            .zip(&column.valid)
            .map(|(bytes, valid)| {
                (*valid == 1).then(|| i64::from_ne_bytes(bytes.try_into().unwrap()))
            })
            .collect()
    }

    fn floats(column: &Fixed) -> Vec<f64> {
        let values = column.values.chunks_exact(8);
        values
            .map(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn every_writer_and_every_spelling_gives_the_same_row() {
        let spaced = LAUNCHED.replace(':', " : ").replace(',', " , ");
        let reordered = format!(
            "{{\"ok\":true,{}}}",
            &LAUNCHED[1..LAUNCHED.len() - ",\"ok\":true}".len()]
        );
        let escaped = LAUNCHED.replace("stat", "st\\u0061t");
        let longer = LAUNCHED.replace("\"ok\":true}", "\"ok\":true,\"left_processes\":true}");
        for line in [LAUNCHED, &spaced, &reordered, &escaped, &longer] {
            let tables = read(line.as_bytes(), false).unwrap();
            assert_eq!(tables.runs.len(), 1, "{line}");
            for (name, value) in [
                ("sequence", Some(7)),
                ("max_rss_bytes", Some(933_888)),
                ("exit_code", Some(0)),
                ("signal", None),
                ("instructions", None),
                ("cycles", Some(9)),
                ("operations", None),
            ] {
                assert_eq!(integers(&tables, name), [value], "{name} of {line}");
            }
            let [task, configuration, phase] = &tables.runs.names;
            assert_eq!(task.texts, ["stat"]);
            assert_eq!(configuration.texts, ["none (A/A)"]);
            assert_eq!(phase.texts, ["measured"]);
            assert_eq!(tables.runs.booleans[1].values, [1]);
        }
    }

    #[test]
    fn a_probe_run_gives_the_median_and_each_batch_if_asked() {
        let probe = r#""probe":{"workload":"stat","operations":40,"op_ns":[4.0,1.0,3.0,2.0],"x":[{}]},"ok":true}"#;
        let line = LAUNCHED.replace("\"ok\":true}", probe);
        let tables = read(line.as_bytes(), true).unwrap();
        assert_eq!(floats(&tables.runs.floats[0]), [2.5]);
        assert_eq!(floats(&tables.runs.op_ns), [4.0, 1.0, 3.0, 2.0]);
        assert_eq!(integers(&tables, "operations"), [Some(40)]);
        assert_eq!(integers(&tables, "batches"), [Some(4)]);
        assert!(read(line.as_bytes(), false)
            .unwrap()
            .runs
            .op_ns
            .values
            .is_empty());
    }

    #[test]
    fn counted_batches_give_the_least_and_no_time() {
        let probe = r#""ima_entries":3,"probe":{"workload":"stat","operations":40,"op_ns":[],"op_instructions":[9.0,7.5,8.0],"first_op_instructions":12.0},"ok":true}"#;
        let line = LAUNCHED.replace("\"ok\":true}", probe);
        let tables = read(line.as_bytes(), true).unwrap();
        let [op_ns, first_op_ns, op_instructions, first_op_instructions] = &tables.runs.floats;
        assert_eq!((op_ns.nulls, first_op_ns.nulls), (1, 1));
        assert_eq!(floats(op_instructions), [7.5]);
        assert_eq!(floats(first_op_instructions), [12.0]);
        assert_eq!(integers(&tables, "ima_entries"), [Some(3)]);
        assert_eq!(integers(&tables, "batches"), [Some(0)]);
    }

    #[test]
    fn events_have_defaults_and_other_kinds_are_only_located() {
        let lines = concat!(
            r#"{"kind":"session","state":"started"}"#,
            "\n",
            r#"{"kind":"event","sequence":7,"layer":"ta","event":"sign","value":3}"#,
            "\n"
        );
        let tables = read(lines.as_bytes(), false).unwrap();
        assert_eq!(tables.lines, 2);
        assert_eq!(
            tables.others,
            [Place {
                index: 0,
                start: 0,
                end: 36
            }]
        );
        let [layer, event, parent, labels, unit] = &tables.events.names;
        assert_eq!(layer.texts, ["ta"]);
        assert_eq!(event.texts, ["sign"]);
        assert_eq!(parent.codes.nulls, 1);
        assert_eq!(labels.texts, [""]);
        assert_eq!(unit.texts, ["ns"]);
        assert_eq!(floats(&tables.events.value), [3.0]);
    }

    #[test]
    fn what_is_no_record_is_named_with_its_line() {
        let whole = format!("{LAUNCHED}\n");
        for (line, reason) in [
            ("", "EOF"),
            ("[]", "expected"),
            ("{\"a\":1}", "kind"),
            ("{\"kind\":\"run\"}", "sequence"),
            ("{\"kind\":\"event\",\"sequence\":1}", "layer"),
            (&LAUNCHED.replace(":11,", ":\"11\","), "invalid type"),
            (&LAUNCHED.replace(":11,", ":1.5,"), "invalid type"),
            (&LAUNCHED.replace(":11,", ":-,"), "invalid number"),
            (&LAUNCHED.replace("true}", "true}}"), "trailing"),
            (&LAUNCHED.replace("true}", "true"), "EOF"),
            (&LAUNCHED.replace("measured", "dreamt"), "phase"),
        ] {
            let text = format!("{whole}{line}\n{whole}");
            let fault = read(text.as_bytes(), false).unwrap_err();
            assert_eq!(fault.index, 1, "{line}");
            assert!(fault.reason.contains(reason), "{line}: {}", fault.reason);
        }
        let broken = [LAUNCHED.as_bytes(), b"\xff\n"].concat();
        assert_eq!(read(&broken, false).unwrap_err().index, 0);
        let name = [
            &LAUNCHED.as_bytes()[..40],
            b"\xff",
            &LAUNCHED.as_bytes()[41..],
        ]
        .concat();
        assert_eq!(read(&name, false).unwrap_err().index, 0);
    }
}
