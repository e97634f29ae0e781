//! What is written reads back, and nothing that can be read makes a reader panic.

use millpond_trace::{
    Encoding, Header, MAX_DEVICE, MAX_SIZE, Op, Phase, RawReader, Reader, Summary, Trace, Writer,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Valid operations with ids that are distinct but neither dense nor ascending.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let seed = (any::<u8>(), any::<u64>(), any::<u32>(), 0..=MAX_DEVICE);
    vec(seed, 1..200).prop_map(|seeds| {
        let mut live: Vec<(u64, u32)> = Vec::new();
        let mut ops = Vec::new();
        for (turn, (kind, number, stream, device)) in seeds.into_iter().enumerate() {
            let pick = (number % live.len().max(1) as u64) as usize;
            let first = ops.is_empty();
            ops.push(match kind % 8 {
                1 | 2 if !live.is_empty() => {
                    let (id, stream) = live.swap_remove(pick);
                    Op::Free { id, stream }
                }
                3 if !live.is_empty() => {
                    let id = live[pick].0;
                    Op::Use { id, stream }
                }
                4 => Op::Wait { device, waiter: stream, signaller: stream ^ 1 },
                5 => {
                    Op::WaitAcross { device, waiter: stream, other: device ^ 1, signaller: stream }
                }
                6 if !first => Op::Step(number),
                7 if !first => {
                    let names = ["forward", "backward", "optimizer", "préchauffe", "x=1#"];
                    let name = names[(number % 5) as usize];
                    Op::Phase(Phase::new(name).expect("a valid name"))
                }
                _ => {
                    // An odd factor permutes the integers.
                    let id = (turn as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    live.push((id, stream));
                    Op::Alloc { id, device, stream, bytes: 1 + number % (MAX_SIZE >> 8) }
                }
            });
        }
        ops
    })
}

fn header() -> impl Strategy<Value = Header> {
    vec(("[a-z#._-]{1,9}", "[ -~äß]{0,20}"), 0..6).prop_map(|entries| {
        let mut header = Header::new();
        for (key, value) in &entries {
            assert!(header.push(key, value), "{key:?}={value:?}");
        }
        header
    })
}

fn encoding() -> impl Strategy<Value = Encoding> {
    prop_oneof![Just(Encoding::Plain), (-5..=9).prop_map(|level| Encoding::Zstd { level })]
}

fn write(ops: &[Op], encoding: Encoding, header: &Header) -> Vec<u8> {
    let mut writer = Writer::new("memory", Vec::new(), encoding, header).expect("a vector");
    for op in ops {
        writer.write(op).expect("a valid operation");
    }
    writer.finish().expect("a vector")
}

/// Reads in every way there is. Returns whether the trace was valid.
fn read_all(bytes: &[u8]) -> bool {
    if let Ok(reader) = RawReader::new("raw", bytes) {
        reader.for_each(drop);
    }
    match Trace::read("trace", bytes) {
        Ok(_) => true,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
            false
        }
    }
}

/// The figures of a trace, counted the slow way.
fn check_summary(summary: &Summary, ops: &[Op]) {
    for device in &summary.devices {
        let (mut live, mut peak) = (0u64, 0);
        let mut sizes = std::collections::HashMap::new();
        for op in ops {
            match *op {
                Op::Alloc { id, device: on, bytes, .. } if on == device.ordinal => {
                    sizes.insert(id, bytes);
                    live += bytes;
                }
                Op::Free { id, .. } => live -= sizes.remove(&id).unwrap_or(0),
                _ => {}
            }
            peak = peak.max(live);
        }
        assert_eq!(device.peak_live_bytes, peak);
        assert_eq!(device.end_live_bytes, live);
        assert!(device.streams.is_sorted_by(|a, b| a < b));
    }
    let marks = summary.counts.steps + summary.counts.phases;
    assert_eq!(summary.counts.ops() + marks, ops.len() as u64);
    assert!(summary.peak_live_bytes <= summary.sum_of_device_peaks());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn round_trip(ops in ops(), header in header(), encoding in encoding()) {
        let bytes = write(&ops, encoding, &header);

        let mut reader = Reader::new("memory", bytes.as_slice()).expect("readable");
        let read: Vec<Op> = reader
            .by_ref()
            .map(|record| record.expect("valid").op)
            .collect();
        prop_assert_eq!(&read, &ops);
        prop_assert_eq!(reader.header(), &header);
        prop_assert_eq!(reader.line(), (header.len() + ops.len()) as u64);

        let trace = Trace::read("memory", bytes.as_slice()).expect("valid");
        check_summary(trace.summary(), &ops);
        prop_assert_eq!(&reader.into_summary(), trace.summary());
        let made = Trace::from_ops("memory", header.clone(), ops.clone()).expect("valid");
        prop_assert_eq!(made.ops(), trace.ops());
        for (index, (dense, op)) in trace.ops().iter().zip(&ops).enumerate() {
            prop_assert_eq!(trace.line(index), Some((header.len() + index + 1) as u64));
            let mut back = dense.clone();
            if let Op::Alloc { id, .. } | Op::Free { id, .. } | Op::Use { id, .. } = &mut back {
                prop_assert!(*id < trace.blocks() as u64);
                *id = trace.id(*id as usize).expect("a block");
            }
            prop_assert_eq!(&back, op);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000)) {
        read_all(&bytes);
    }

    #[test]
    fn nearly_a_trace_never_panics(text in "([afuwxm#]( (step|phase|-?[0-9]{1,21}|[a-z=]{1,5})){0,5}[\r\n ]?\n?){0,40}") {
        read_all(text.as_bytes());
    }

    #[test]
    fn damage_never_panics(
        ops in ops(),
        encoding in encoding(),
        hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = write(&ops, encoding, &Header::new());
        prop_assert!(read_all(&bytes));
        for (at, byte) in hits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes);
    }
}
