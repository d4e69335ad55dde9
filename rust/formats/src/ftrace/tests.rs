//! Small traces with known trees.
#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;

fn read(text: &str) -> Report {
    let mut graph = Graph::new(Options {
        calls: 1_000,
        paths: true,
    });
    assert_eq!(graph.process(text.as_bytes(), true), text.len());
    graph.finish()
}

fn sums<'a>(report: &'a Report, name: &str) -> &'a Sums {
    let names = &report.tables.names;
    let mut found = report
        .tables
        .rows
        .iter()
        .filter(|row| names.get(row.name) == name.as_bytes() && row.sums.calls > 0);
    let row = found.next().unwrap_or_else(|| panic!("no row of {name}"));
    assert!(found.next().is_none(), "several rows of {name}");
    &row.sums
}

#[test]
fn self_time_is_what_children_leave() {
    let report = read(concat!(
        " 0)               |  a() {\n",
        " 0)   1.000 us    |    b();\n",
        " 0)               |    b() {\n",
        " 0)   0.500 us    |      c();\n",
        " 0)   2.000 us    |    }\n",
        " 0) + 10.000 us   |  }\n",
    ));
    let a = sums(&report, "a");
    assert_eq!((a.calls, a.total_ns, a.self_ns), (1, 10_000, 7_000));
    let b = sums(&report, "b");
    assert_eq!(
        (b.calls, b.total_ns, b.self_ns, b.min_ns, b.max_ns),
        (2, 3_000, 2_500, 1_000, 2_000)
    );
    assert_eq!(report.tables.paths.len(), 3);
    let depths: Vec<u32> = report.tables.calls.iter().map(|call| call.depth).collect();
    assert_eq!(depths, [0, 1, 1, 2]);
    assert_eq!(report.losses.unclosed, 0);
}

#[test]
fn a_task_keeps_its_stack_while_another_runs() {
    let report = read(concat!(
        " 0)               |  schedule() {\n",
        " ------------------------------------------\n",
        " 0)    cat-2      =>    dog-3     \n",
        " ------------------------------------------\n",
        "\n",
        " 0)   3.000 us    |  f();\n",
        " ------------------------------------------\n",
        " 0)    dog-3      =>    cat-2     \n",
        " ------------------------------------------\n",
        "\n",
        " 0) + 50.000 us   |  }\n",
    ));
    assert_eq!(sums(&report, "schedule").total_ns, 50_000);
    assert_eq!(sums(&report, "schedule").self_ns, 50_000);
    let tasks: Vec<_> = report
        .tables
        .contexts
        .iter()
        .map(|c| report.tables.names.get(c.task))
        .collect();
    assert_eq!(tasks, [b"cat-2", b"dog-3"]);
    assert_eq!(report.losses.unclosed, 0);
}

#[test]
fn interrupts_and_other_tasks_are_not_a_functions_own() {
    let report = read(concat!(
        " 0)               |  security_inode_permission() {\n",
        " 0)   ==========> |\n",
        " 0)               |    gic_handle_irq() {\n",
        " 0)   1.000 us    |      g();\n",
        " 0)   4.000 us    |    }\n",
        " 0)   <========== |\n",
        " 0)   0.500 us    |    h();\n",
        " 0) + 10.000 us   |  }\n",
        " 0)               |  w() {\n",
        " 0)   7.000 us    |    schedule();\n",
        " 0)   9.000 us    |  }\n",
    ));
    let hook = sums(&report, "security_inode_permission");
    assert_eq!(
        (hook.interrupt_ns, hook.self_ns, hook.min_ns, hook.disturbed),
        (4_000, 5_500, 6_000, 1)
    );
    let waits = sums(&report, "w");
    assert_eq!((waits.off_cpu_ns, waits.min_ns), (7_000, 2_000));
    assert_eq!(sums(&report, "gic_handle_irq").interrupt_ns, 0);
    let inside = report
        .tables
        .rows
        .iter()
        .find(|row| report.tables.names.get(row.name) == b"g")
        .unwrap();
    assert_eq!(
        report
            .tables
            .contexts
            .get(inside.context as usize)
            .unwrap()
            .syscall,
        IN_INTERRUPT
    );
}

#[test]
fn hooks_belong_to_the_system_call_of_their_task() {
    let report = read(concat!(
        " 0)   0.100 us    |  early();\n",
        " 0)               |  /* sys_enter: NR 257 (1, 2, 3, 4, 5, 6) */\n",
        " 0)   0.934 us    |  security_file_open();\n",
        " 0)               |  /* sys_exit: NR 257 = 3 */\n",
        " 0)               |  __x64_sys_close() {\n",
        " 0)   0.200 us    |    security_file_release();\n",
        " 0)   1.000 us    |  }\n",
        " 0)   0.100 us    |  late();\n",
    ));
    let names = &report.tables.names;
    let of = |name: &str| {
        let row = report
            .tables
            .rows
            .iter()
            .find(|row| names.get(row.name) == name.as_bytes())
            .unwrap();
        report.tables.contexts.get(row.context as usize).unwrap()
    };
    assert_eq!(of("early").syscall, NO_SYSCALL);
    assert_eq!(
        (
            of("security_file_open").syscall,
            of("security_file_open").entered
        ),
        (257, 1)
    );
    let close = of("security_file_release");
    let name = u32::try_from(NAMED_SYSCALL - close.syscall).unwrap();
    assert_eq!(names.get(name), b"close");
    assert_eq!((close.entered, close.timed, close.total_ns), (1, 1, 1_000));
    assert_eq!(of("late").syscall, NO_SYSCALL);
    assert_eq!(report.events.get(&b"sys_enter"[..]), Some(&1));
}

#[test]
fn what_is_cut_at_the_ends_is_declared() {
    let report = read(concat!(
        " 0)   1.000 us    |    x();\n",
        " 0)   5.000 us    |  } /* outer */\n",
        " 0)   2.000 us    |  }\n",
        "rubbish\n",
        "CPU:0 [LOST 12 EVENTS]\n",
        " 0)               |  open() {\n",
    ));
    let losses = &report.losses;
    assert_eq!(
        losses.faults,
        [(Fault::NamelessEnd, 1), (Fault::Unknown, 1)]
    );
    assert_eq!(losses.lost.get(&0), Some(&(12, 1)));
    assert_eq!(losses.unclosed, 1);
    let outer = report
        .tables
        .rows
        .iter()
        .find(|row| row.ends.calls > 0)
        .unwrap();
    assert_eq!(
        (outer.ends.total_ns, outer.ends.self_ns, outer.sums.calls),
        (5_000, 4_000, 0)
    );
}

#[test]
fn an_end_of_another_function_does_not_close_the_open_one() {
    let report = read(concat!(
        " 0)               |  a() {\n",
        " 0)               |    b() {\n",
        "CPU:0 [LOST 2 EVENTS]\n",
        " 0)   3.000 us    |    } /* c */\n",
        " 0)   9.000 us    |  }\n",
    ));
    let a = sums(&report, "a");
    assert_eq!((a.total_ns, a.self_ns, a.lossy), (9_000, 6_000, 1));
    assert_eq!(report.losses.unclosed, 1);
}

#[test]
fn pieces_of_any_size_give_the_same() {
    let text = " 0)               |  a() {\n 0)   1.000 us    |    b();\n 0)   3.000 us    |  }\n"
        .repeat(50);
    let whole = read(&text);
    for size in 1..40 {
        let mut graph = Graph::new(Options {
            calls: 1_000,
            paths: true,
        });
        let mut kept: Vec<u8> = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            kept.extend_from_slice(piece);
            let done = graph.process(&kept, false);
            kept.drain(..done);
        }
        graph.process(&kept, true);
        let report = graph.finish();
        assert_eq!((report.lines, report.bytes), (whole.lines, whole.bytes));
        assert_eq!(sums(&report, "a").self_ns, sums(&whole, "a").self_ns);
    }
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let mut graph = Graph::new(Options::default());
    let piece = vec![b'x'; MAX_LINE_BYTES + 1];
    for _ in 0..3 {
        assert_eq!(graph.process(&piece, false), piece.len());
    }
    assert_eq!(graph.process(b"x\n 0)   1.000 us    |  f();\n", true), 28);
    let report = graph.finish();
    assert_eq!(report.losses.faults, [(Fault::TooLong, 1)]);
    assert_eq!((report.lines, report.begun), (2, 1));
}

#[test]
fn an_interrupt_after_the_time_was_taken_is_the_callers() {
    let report = read(concat!(
        " 0)               |  a() {\n",
        " 0)               |    b() {\n",
        " 0)   1.000 us    |      c();\n",
        " 0) + 90.000 us   |      __sysvec_apic_timer_interrupt();\n",
        " 0)   2.000 us    |    }\n",
        " 0) ! 100.000 us  |  }\n",
    ));
    let b = sums(&report, "b");
    assert_eq!((b.self_ns, b.interrupt_ns, b.min_ns), (1_000, 0, 2_000));
    let a = sums(&report, "a");
    assert_eq!((a.self_ns, a.interrupt_ns), (8_000, 90_000));
    assert_eq!(report.losses.negative, 0);
}

/// A task of a trace of events in whole ticks.
fn line(task: &str, flags: &str, time: u64, event: &str) -> String {
    format!(" {task} [000] {flags} {time}: {event}\n")
}

#[test]
fn probes_nest_and_interrupts_and_other_tasks_are_told_apart_by_events() {
    let open = "out: (do_open+0x1/0x2 <- security_file_open) ret=0x0";
    let text = [
        line("cat-7", "...1.", 100, "in: (security_file_open+0x0/0x40)"),
        line("cat-7", "...1.", 110, "in: (hook_file_open+0x0/0x40)"),
        line("cat-7", "d.h1.", 120, "local_timer_entry: vector=236"),
        line("cat-7", "d.h1.", 125, "irq_handler_entry: irq=1 name=x"),
        line("cat-7", "d.h1.", 130, "irq_handler_exit: irq=1 ret=handled"),
        line("cat-7", "d.h1.", 150, "local_timer_exit: vector=236"),
        line("cat-7", "..s1.", 155, "softirq_entry: vec=1 [action=TIMER]"),
        line("cat-7", "..s1.", 156, "in: (security_sock_rcv_skb+0x0/0x9)"),
        line(
            "cat-7",
            "..s1.",
            158,
            "out: (f+0x1/0x2 <- security_sock_rcv_skb)",
        ),
        line("cat-7", "..s1.", 165, "softirq_exit: vec=1 [action=TIMER]"),
        line(
            "cat-7",
            "d..2.",
            170,
            "sched_switch: prev_comm=cat prev_pid=7 prev_prio=120 prev_state=R+ ==> \
             next_comm=a b next_pid=9 next_prio=120",
        ),
        line(
            "a b-9",
            "d..2.",
            270,
            "sched_switch: prev_comm=a b prev_pid=9 prev_prio=120 prev_state=S ==> \
             next_comm=cat next_pid=7 next_prio=120",
        ),
        line("cat-7", "...1.", 280, "out: (g+0x1/0x2 <- hook_file_open)"),
        line("cat-7", "...1.", 300, open),
        line("cat-7", "...1.", 310, open),
    ]
    .concat();
    let report = read(&text);
    let inner = sums(&report, "hook_file_open");
    assert_eq!(
        (inner.total_ns, inner.interrupt_ns, inner.off_cpu_ns),
        (170, 40, 100)
    );
    assert_eq!((inner.self_ns, inner.min_ns, inner.disturbed), (30, 30, 1));
    let outer = sums(&report, "security_file_open");
    assert_eq!((outer.total_ns, outer.self_ns, outer.min_ns), (200, 30, 60));
    let serving = sums(&report, "security_sock_rcv_skb");
    assert_eq!((serving.total_ns, serving.disturbed), (2, 0));
    assert_eq!(report.losses.lone_returns, 1);
    let names = &report.tables.names;
    let callers: Vec<_> = report
        .callers
        .iter()
        .map(|((function, caller), count)| (names.get(*function), names.get(*caller), *count))
        .collect();
    assert!(callers.contains(&(b"security_file_open", b"do_open", 2)));
}

#[test]
fn an_interrupt_whose_end_is_lost_is_no_part_of_anything() {
    let text = [
        line("cat-7", "...1.", 100, "in: (f+0x0/0x40)"),
        line("cat-7", "d.h1.", 110, "softirq_exit: vec=1"),
        line("cat-7", "d.h1.", 120, "local_timer_entry: vector=236"),
        "CPU:0 [LOST 9 EVENTS]\n".to_owned(),
        line("cat-7", "...1.", 200, "out: (g+0x1/0x2 <- f)"),
    ]
    .concat();
    let report = read(&text);
    let f = sums(&report, "f");
    assert_eq!(
        (f.total_ns, f.self_ns, f.interrupt_ns, f.lossy),
        (100, 100, 0, 1)
    );
}

#[test]
fn probes_whose_ends_never_come_do_not_grow_the_stack_forever() {
    let mut text: String = (0..2_000)
        .map(|time| line("cat-7", "...1.", time, "in: (f+0x0/0x40)"))
        .collect();
    text += &line("cat-7", "...1.", 3_000, "out: (g+0x1/0x2 <- f)");
    let report = read(&text);
    assert_eq!(sums(&report, "f").calls, 1);
    assert_eq!(report.losses.unclosed, 1_999);
    assert_eq!(report.losses.faults, []);
}
