//! Random small programs, judged by the oracle and by a checker as simple as can be.
//!
//! The checker keeps every operation as a vertex of a graph, with one edge for each rule, and the
//! whole list of touches of every byte. Two touches are ordered if a search finds a path. It shares
//! no code with the oracle: no clocks, no intervals, nothing forgotten.
//!
//! Both must name the same operations and, at each, the same kinds of hazard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use super::*;

const STREAMS: usize = 5;
const BYTES: usize = 16;
/// Overlapping, nested and apart.
const RANGES: [(usize, usize); 4] = [(0, 6), (4, 12), (5, 6), (12, 16)];
const ALIASES: [u64; 2] = [0x1000, 0x9000];

#[derive(Clone, Debug)]
struct Use {
    range: usize,
    alias: usize,
    write: bool,
    label: Option<u64>,
}

/// An operation; events are named by how many records back they are.
#[derive(Clone, Debug)]
enum Op {
    Work(usize, Vec<Use>),
    Record(usize),
    Wait(usize, usize),
    Observe(usize),
    Rendezvous(Vec<usize>),
    /// Destroys the stream and creates another in its place.
    Renew(usize),
    Retire(usize, usize, Retire),
    Create(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let label = prop_oneof![2 => Just(None), 2 => Just(Some(1)), 1 => Just(Some(2))];
    let usage = (0..RANGES.len(), 0..ALIASES.len(), any::<bool>(), label)
        .prop_map(|(range, alias, write, label)| Use { range, alias, write, label });
    let stream = || 0..STREAMS;
    let what = prop_oneof![
        3 => Just(Retire::Unmap),
        1 => Just(Retire::Free),
        1 => Just(Retire::Release),
    ];
    prop_oneof![
        10 => (stream(), prop::collection::vec(usage, 1..3)).prop_map(|(s, u)| Op::Work(s, u)),
        5 => stream().prop_map(Op::Record),
        6 => (stream(), 0..4_usize).prop_map(|(s, e)| Op::Wait(s, e)),
        3 => (0..4_usize).prop_map(Op::Observe),
        2 => prop::collection::vec(stream(), 1..4).prop_map(Op::Rendezvous),
        1 => stream().prop_map(Op::Renew),
        2 => (0..RANGES.len(), 0..ALIASES.len(), what).prop_map(|(r, a, w)| Op::Retire(r, a, w)),
        1 => (0..RANGES.len()).prop_map(Op::Create),
    ]
}

/// One operation, or a record and a wait for it at once: such pairs make the longer chains, which
/// operations drawn one by one almost never do.
fn any_step() -> impl Strategy<Value = Vec<Op>> {
    let pair = (0..STREAMS, 0..STREAMS).prop_map(|(a, b)| vec![Op::Record(a), Op::Wait(b, 0)]);
    prop_oneof![
        3 => any_op().prop_map(|op| vec![op]),
        1 => pair,
    ]
}

/// A program. Many use few of the streams, so that chains become likely.
fn any_program() -> impl Strategy<Value = Vec<Op>> {
    let steps = prop::collection::vec(any_step(), 1..=26);
    (2..=STREAMS, steps).prop_map(|(streams, steps)| {
        let mut ops = steps.concat();
        for op in &mut ops {
            match op {
                Op::Work(s, _) | Op::Record(s) | Op::Wait(s, _) | Op::Renew(s) => *s %= streams,
                Op::Rendezvous(participants) => {
                    for s in participants {
                        *s %= streams;
                    }
                }
                Op::Observe(_) | Op::Retire(..) | Op::Create(_) => {}
            }
        }
        ops
    })
}

/// The hazards of a program: which operation, which kind.
type Verdict = BTreeSet<(usize, HazardKind)>;

/// Calls that a mutant of the oracle would ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ignore {
    Nothing,
    Waits,
    Observations,
    Rendezvous,
    Labels,
    Aliases,
}

/// What the oracle says.
fn oracle_verdict(ops: &[Op], ignore: Ignore) -> Verdict {
    let mut o = Oracle::new();
    let mut streams = [(); STREAMS].map(|()| o.stream_created());
    let mut events: Vec<Clock> = Vec::new();
    let mut verdict = Verdict::new();
    let bytes = |range: usize| RANGES[range].0 as u64..RANGES[range].1 as u64;
    let address = |range: usize, alias: usize| match ignore {
        Ignore::Aliases => ALIASES[0] + bytes(range).start,
        _ => ALIASES[alias] + bytes(range).start,
    };
    let back = |events: &[Clock], n: usize| events.iter().rev().nth(n).cloned();
    for (at, op) in ops.iter().enumerate() {
        let before = o.hazards().len();
        match op {
            Op::Work(s, uses) => {
                let touches: Vec<_> = uses
                    .iter()
                    .map(|u| PhysTouch {
                        phys: bytes(u.range),
                        address: address(u.range, u.alias),
                        access: if u.write { Access::Write } else { Access::Read },
                        label: u.label.filter(|_| ignore != Ignore::Labels),
                    })
                    .collect();
                o.submit(streams[*s], &touches);
            }
            Op::Record(s) => events.push(o.record(streams[*s])),
            Op::Wait(s, n) => {
                if let Some(clock) = back(&events, *n).filter(|_| ignore != Ignore::Waits) {
                    o.wait(streams[*s], &clock);
                }
            }
            Op::Observe(n) => {
                if let Some(clock) = back(&events, *n).filter(|_| ignore != Ignore::Observations) {
                    o.observed(&clock);
                }
            }
            Op::Rendezvous(participants) => {
                let participants: Vec<_> = participants.iter().map(|&s| streams[s]).collect();
                if ignore != Ignore::Rendezvous {
                    o.rendezvous(&participants);
                }
            }
            Op::Renew(s) => {
                o.stream_destroyed(streams[*s]);
                streams[*s] = o.stream_created();
            }
            Op::Retire(range, alias, what) => {
                o.retire(bytes(*range), *what, address(*range, *alias));
            }
            Op::Create(range) => o.memory_created(bytes(*range)),
        }
        verdict.extend(o.hazards()[before..].iter().map(|h| (at, h.kind())));
        o.history.check_invariants();
    }
    assert_eq!(o.hazard_count(), o.hazards().len() as u64);
    verdict
}

/// The happens-before graph of the operations so far: `before[v]` has an edge to `v`.
#[derive(Default)]
struct Graph {
    before: Vec<Vec<usize>>,
}

impl Graph {
    /// Whether a path leads from `a` to `b`, by breadth-first search.
    fn reaches(&self, a: usize, b: usize) -> bool {
        let mut met = vec![false; self.before.len()];
        let mut queue = std::collections::VecDeque::from([b]);
        while let Some(v) = queue.pop_front() {
            if v == a {
                return true;
            }
            for &u in &self.before[v] {
                if !std::mem::replace(&mut met[u], true) {
                    queue.push_back(u);
                }
            }
        }
        false
    }
}

/// All that ever touched a byte, and what the last write put there.
#[derive(Clone, Default)]
struct Byte {
    /// Operation, whether it writes, alias.
    touches: Vec<(usize, bool, usize)>,
    content: Option<Option<u64>>,
}

/// What the rules say.
fn graph_verdict(ops: &[Op]) -> Verdict {
    let mut graph = Graph::default();
    let mut last: [Option<usize>; STREAMS] = [None; STREAMS];
    let mut records: Vec<usize> = Vec::new();
    let mut observations: Vec<usize> = Vec::new();
    let mut bytes = vec![Byte::default(); BYTES];
    let mut verdict = Verdict::new();
    for (at, op) in ops.iter().enumerate() {
        let event = |n: &usize| records.iter().rev().nth(*n).copied();
        let mut edges = Vec::new();
        match op {
            Op::Work(s, _) | Op::Record(s) => edges.extend(last[*s].replace(at)),
            Op::Wait(s, n) => {
                edges.extend(last[*s].replace(at));
                edges.extend(event(n));
            }
            Op::Rendezvous(participants) => {
                for &s in participants {
                    edges.extend(last[s].replace(at));
                }
                edges.retain(|&edge| edge != at);
            }
            Op::Renew(s) => last[*s] = None,
            Op::Observe(n) => edges.extend(event(n)),
            Op::Retire(..) | Op::Create(_) => {}
        }
        // What the host learnt comes before all it does from then on.
        edges.extend(&observations);
        graph.before.push(edges);
        match op {
            Op::Record(_) => records.push(at),
            Op::Observe(_) => observations.push(at),
            _ => {}
        }

        let span = |range: usize| RANGES[range].0..RANGES[range].1;
        match op {
            Op::Work(_, uses) => {
                for u in uses {
                    for byte in &bytes[span(u.range)] {
                        for &(other, writes, _) in &byte.touches {
                            if (u.write || writes) && !graph.reaches(other, at) {
                                verdict.insert((at, HazardKind::Unordered));
                            }
                        }
                        match byte.content {
                            _ if u.write => {}
                            None => {
                                verdict.insert((at, HazardKind::NeverWritten));
                            }
                            Some(found) if u.label.is_some() && found != u.label => {
                                verdict.insert((at, HazardKind::StaleContent));
                            }
                            Some(_) => {}
                        }
                    }
                }
                for u in uses {
                    for byte in &mut bytes[span(u.range)] {
                        byte.touches.push((at, u.write, u.alias));
                        if u.write {
                            byte.content = Some(u.label);
                        }
                    }
                }
            }
            Op::Retire(range, alias, what) => {
                for byte in &mut bytes[span(*range)] {
                    for &(other, _, through) in &byte.touches {
                        let concerned = *what != Retire::Unmap || through == *alias;
                        if concerned && !graph.reaches(other, at) {
                            verdict.insert((at, HazardKind::InFlight));
                        }
                    }
                    if *what != Retire::Unmap {
                        *byte = Byte::default();
                    }
                }
            }
            Op::Create(range) => bytes[span(*range)].fill(Byte::default()),
            _ => {}
        }
    }
    verdict
}

/// Runs `check` on random programs, the same ones each time.
fn on_programs(cases: u32, check: impl Fn(Vec<Op>) -> TestCaseResult) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(failure) = runner.run(&any_program(), check) {
        panic!("{failure}");
    }
}

#[test]
fn the_oracle_agrees_with_the_graph() {
    let met = RefCell::new(BTreeMap::<HazardKind, u32>::new());
    let silent = Cell::new(0);
    on_programs(6000, |ops| {
        let verdict = oracle_verdict(&ops, Ignore::Nothing);
        prop_assert_eq!(&verdict, &graph_verdict(&ops));
        silent.set(silent.get() + u32::from(verdict.is_empty()));
        for (_, kind) in verdict {
            *met.borrow_mut().entry(kind).or_default() += 1;
        }
        Ok(())
    });
    // The programs must be of all sorts, or the agreement means little.
    assert!(silent.get() >= 100, "{} silent programs", silent.get());
    let met = met.into_inner();
    for kind in [
        HazardKind::Unordered,
        HazardKind::NeverWritten,
        HazardKind::StaleContent,
        HazardKind::InFlight,
    ] {
        assert!(met.get(&kind).is_some_and(|&n| n >= 1000), "{met:?}");
    }
}

/// An oracle deaf to any one kind of call must be told from the graph, or the test above could not
/// have noticed the same fault inside the oracle.
#[test]
fn a_deaf_oracle_disagrees_with_the_graph() {
    for ignore in
        [Ignore::Waits, Ignore::Observations, Ignore::Rendezvous, Ignore::Labels, Ignore::Aliases]
    {
        let caught = Cell::new(0);
        on_programs(1000, |ops| {
            let differs = oracle_verdict(&ops, ignore) != graph_verdict(&ops);
            caught.set(caught.get() + u32::from(differs));
            Ok(())
        });
        assert!(caught.get() >= 10, "{ignore:?}: {} of 1000", caught.get());
    }
}
