//! Any bytes, cut anywhere: the readers do not panic, and the pieces' sizes do not matter.
#![no_main]
use std::sync::Arc;

use excise_formats::ima::hash::Digests;
use excise_formats::ima::{
    row_of, Bank, ByteOrder, ChainSpec, Format, Found, Framer, Options, Replay, Report, Rule,
    Search, Step,
};
use excise_formats::policy::{DigestTableBuilder, Screen, Settled};
use libfuzzer_sys::fuzz_target;

const OTHERS: [(Bank, Rule); 4] = [
    (Bank::Sha1, Rule::Own),
    (Bank::Sha256, Rule::Own),
    (Bank::Sha384, Rule::PaddedSha1),
    (Bank::Sm3, Rule::Recorded),
];

fn options_from(choice: u8) -> Options {
    Options {
        format: [None, Some(Format::Binary), Some(Format::Ascii), None][usize::from(choice & 3)],
        order: [None, Some(ByteOrder::Little), Some(ByteOrder::Big), None]
            [usize::from((choice >> 2) & 3)],
        header_bank: [None, Some(Bank::Sha1), Some(Bank::Sha512), None]
            [usize::from((choice >> 4) & 3)],
        ..Options::default()
    }
}

/// The two banks that are extended side by side when they are alone.
const PAIR: [(Bank, Rule); 2] = [(Bank::Sha1, Rule::Own), (Bank::Sha256, Rule::Own)];

fn replay(options: Options, list: &[u8], piece_bytes: usize, banks: &[(Bank, Rule)]) -> Report {
    let mut replay = Replay::new(options, &[], banks);
    if piece_bytes == 0 {
        assert_eq!(replay.process(list, true), list.len());
    } else {
        list.chunks(piece_bytes)
            .for_each(|piece| replay.feed(piece));
    }
    replay.finish()
}

fn rows(options: Options, list: &[u8]) -> u64 {
    let (mut framer, mut pos, mut count) = (Framer::new(options), 0, 0);
    let mut digests = Digests::default();
    let mut settled = Settled::default();
    let screen = Screen {
        table: Some(Arc::new(DigestTableBuilder::default().finish())),
        prefixes: vec![b"/tmp/".to_vec()],
        digest_suffices: true,
        verifies_signatures: false,
        signature_hashes: vec![4],
    };
    let Found::Layout(layout) = framer.find_layout(list, &mut pos, true) else {
        return 0;
    };
    while let Step::Record(record) = framer.step(list, &mut pos, true) {
        let row = row_of(&record, &layout, &mut digests);
        screen.settles(&record, &row, &mut settled);
        count += 1;
    }
    count
}

fuzz_target!(|data: &[u8]| {
    let [choice, piece, list @ ..] = data else {
        return;
    };
    let options = options_from(*choice);
    let whole = replay(options, list, 0, &OTHERS);
    assert_eq!(rows(options, list), whole.findings.entries);
    let end = usize::try_from(whole.end_offset).unwrap();
    let rest = whole.trailing_bytes + whole.padding_bytes;
    assert_eq!(end as u64 + rest, list.len() as u64);

    let paired = replay(options, list, 0, &PAIR);
    for (a, b) in paired.registers.iter().zip(&whole.registers) {
        assert_eq!((a.pcr, a.entries), (b.pcr, b.entries));
        for (a, b) in a.chains.iter().zip(&b.chains) {
            assert_eq!(
                (a.bank, a.broken_at, a.state),
                (b.bank, b.broken_at, b.state)
            );
        }
    }

    // Pieces of any size give the same entries wherever the layout was told beforehand.
    if options.format.is_some() && options.order.is_some() && options.header_bank.is_some() {
        let pieces = replay(options, list, usize::from(*piece) + 1, &OTHERS);
        assert_eq!(pieces.findings.entries, whole.findings.entries);
        assert_eq!(pieces.fault, whole.fault);
        assert_eq!(pieces.end_offset, whole.end_offset);
        assert_eq!(pieces.trailing_bytes, whole.trailing_bytes);
        for (a, b) in pieces.registers.iter().zip(&whole.registers) {
            assert_eq!((a.pcr, a.entries), (b.pcr, b.entries));
            for (a, b) in a.chains.iter().zip(&b.chains) {
                assert_eq!(a.state, b.state);
            }
        }
    } else {
        replay(options, list, usize::from(*piece) + 1, &OTHERS);
    }

    if list.len() < 600 {
        let spec = ChainSpec {
            pcr: 10,
            bank: Bank::Sha1,
            rule: Rule::Own,
            start: [0; 64],
            target: Some([7; 64]),
        };
        let mut search = Search::new(options, spec, None);
        search.process(list, true);
        let _ = search.finish();
    }
});
