//! Any bytes, cut anywhere: the reader of function graphs does not panic, the pieces' sizes do not
//! matter, and every call that begins ends, stays open or is counted as lost.
#![no_main]
use excise_formats::ftrace::{Graph, Options, Report, Sums};
use libfuzzer_sys::fuzz_target;

fn read(text: &[u8], piece_bytes: usize, options: Options) -> Report {
    let mut graph = Graph::new(options);
    if piece_bytes == 0 {
        assert_eq!(graph.process(text, true), text.len());
        return graph.finish();
    }
    let mut kept: Vec<u8> = Vec::new();
    for piece in text.chunks(piece_bytes) {
        kept.extend_from_slice(piece);
        let done = graph.process(&kept, false);
        kept.drain(..done);
    }
    assert_eq!(graph.process(&kept, true), kept.len());
    graph.finish()
}

fn sums<'a>(all: impl Iterator<Item = &'a Sums>) -> (u64, u64, u64, u64) {
    all.fold((0, 0, 0, 0), |sum, each| {
        assert!(each.timed <= each.calls);
        assert!(each.self_ns <= each.total_ns);
        (
            sum.0 + each.calls,
            sum.1 + each.timed,
            sum.2.saturating_add(each.total_ns),
            sum.3.saturating_add(each.self_ns),
        )
    })
}

fuzz_target!(|data: &[u8]| {
    let [piece, text @ ..] = data else {
        return;
    };
    let options = Options {
        calls: 100,
        paths: true,
    };
    let whole = read(text, 0, options);
    assert_eq!(whole.bytes, text.len() as u64);
    let rows = sums(whole.tables.rows.iter().map(|row| &row.sums));
    let counted: u64 = whole
        .tables
        .rows
        .iter()
        .flat_map(|row| row.histogram.buckets())
        .map(|(_, count)| count)
        .sum();
    assert_eq!(counted, rows.1);
    assert!(whole.tables.calls.len() <= 100);

    let pieces = read(text, usize::from(*piece) + 1, options);
    assert_eq!((pieces.lines, pieces.bytes), (whole.lines, whole.bytes));
    assert_eq!(pieces.losses.faults, whole.losses.faults);
    assert_eq!(
        sums(pieces.tables.rows.iter().map(|row| &row.sums)),
        rows
    );
    assert_eq!(
        sums(pieces.tables.paths.iter().map(|path| &path.sums)),
        sums(whole.tables.paths.iter().map(|path| &path.sums))
    );

    let plain = read(text, 0, Options::default());
    assert_eq!(sums(plain.tables.rows.iter().map(|row| &row.sums)), rows);
});
