//! Stream capture: work is written down instead of done.
//!
//! A stream is captured from [`begin`] to [`end`], or from where it waits for an event of a capture. A
//! call that is not possible meanwhile is refused and *invalidates* the capture, whose streams then
//! refuse all until it is ended, which fails too.
//!
//! Calls are *potentially unsafe* where they may synchronise behind the program's back: plain and
//! pinned allocation, freeing, mapping, queries and host waits. Whether they are allowed depends on the
//! capture's mode and on the calling thread's:
//!
//! | thread's mode | forbidden while there is |
//! |---|---|
//! | global | a capture of this thread's that is not relaxed, or any thread's that is global |
//! | thread-local | a capture of this thread's that is not relaxed |
//! | relaxed | nothing |

use std::collections::{BTreeMap, BTreeSet};

use cudarc::driver::sys::{CUgraph, CUgraphNode, CUresult, CUstream_st};

use crate::error::{Answer, INVALID_VALUE};
use crate::graph::{Graph, GraphNode, Node};
use crate::machine::Machine;
use crate::op::Op;
use crate::pointer::Ptr;
use crate::stream::Role;
use crate::thread;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// A capture that has begun.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream that it began on.
    origin: usize,
    mode: u32,
    thread: u64,
    /// The graph that it will be.
    graph: usize,
    nodes: Vec<Node>,
    /// The streams that take part, with the nodes that what they are given next comes after.
    streams: BTreeMap<usize, Vec<usize>>,
    invalid: bool,
    /// What a question for the dependencies was answered with.
    told: Vec<usize>,
}

/// A point in a capture: what an event recorded in it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    capture: u64,
    after: Vec<usize>,
}

/// Makes captures fail at their ends, and their streams before.
pub(crate) fn invalidate(machine: &mut Machine, captures: &[u64]) {
    for capture in captures {
        if let Some(capture) = machine.captures.get_mut(capture) {
            capture.invalid = true;
        }
    }
}

/// The capture of a stream, unless it was invalidated.
fn of(machine: &Machine, stream: usize) -> Answer<Option<u64>> {
    let Some(capture) = machine.stream_state(stream)?.capture else {
        return Ok(None);
    };
    match machine.captures.get(&capture) {
        Some(state) if state.invalid => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        Some(_) => Ok(Some(capture)),
        None => Ok(None),
    }
}

/// Where a stream stands in its capture, if it is captured.
pub(crate) fn position(machine: &mut Machine, stream: usize) -> Answer<Option<Captured>> {
    let Some(capture) = of(machine, stream)? else {
        return Ok(None);
    };
    let state = machine.captures.get(&capture);
    let after = state.and_then(|state| state.streams.get(&stream)).cloned().unwrap_or_default();
    Ok(Some(Captured { capture, after }))
}

/// Writes work down, if its stream is captured; says whether it is.
pub(crate) fn append(machine: &mut Machine, stream: usize, op: &Op) -> Answer<bool> {
    let Some(Captured { capture, after }) = position(machine, stream)? else {
        return Ok(false);
    };
    let context = machine.stream_state(stream)?.context;
    let handle = machine.graph_nodes.insert(GraphNode { node_type: op.node_type() });
    if let Some(state) = machine.captures.get_mut(&capture) {
        state.nodes.push(Node { op: op.clone(), after, context, handle });
        state.streams.insert(stream, vec![state.nodes.len() - 1]);
    }
    Ok(true)
}

/// A stream's wait for an event, if either is captured; says whether that is all there is to do.
pub(crate) fn wait(machine: &mut Machine, stream: usize, event: usize) -> Answer<bool> {
    let mine = of(machine, stream)?;
    let Some(point) = machine.event_state(event)?.captured.clone() else {
        return match mine {
            None => Ok(false),
            Some(_) if !machine.event_state(event)?.was_recorded() => Ok(true),
            Some(capture) => {
                invalidate(machine, &[capture]);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
        };
    };
    match machine.captures.get(&point.capture) {
        // The capture is over: the event stands for nothing.
        None => {
            invalidate(machine, mine.as_slice());
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        Some(state) if state.invalid => {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Some(_) => {}
    }
    if mine.is_some_and(|mine| mine != point.capture) {
        invalidate(machine, &[mine.unwrap_or(0), point.capture]);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if machine.stream_state(stream)?.role == Role::Legacy {
        invalidate(machine, &[point.capture]);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if let Some(state) = machine.streams.get_mut(stream) {
        state.capture = Some(point.capture);
    }
    if let Some(state) = machine.captures.get_mut(&point.capture) {
        let after = state.streams.entry(stream).or_default();
        let new: Vec<usize> =
            point.after.into_iter().filter(|node| !after.contains(node)).collect();
        after.extend(new);
    }
    Ok(true)
}

/// For what cannot be done on a captured stream.
pub(crate) fn refuse_on(machine: &mut Machine, stream: usize) -> Answer {
    match of(machine, stream)? {
        None => Ok(()),
        Some(capture) => {
            invalidate(machine, &[capture]);
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// For what cannot be done with an event that was last recorded in a capture.
pub(crate) fn refuse_captured(machine: &mut Machine, event: usize) -> Answer {
    match &machine.event_state(event)?.captured {
        None => Ok(()),
        Some(point) => {
            let capture = point.capture;
            invalidate(machine, &[capture]);
            Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
        }
    }
}

/// For what waits for a whole context.
pub(crate) fn refuse_in_context(machine: &mut Machine, context: usize) -> Answer {
    let streams = machine.streams.iter().filter(|(_, stream)| stream.context == context);
    let captures: Vec<u64> = streams.filter_map(|(_, stream)| stream.capture).collect();
    refuse(machine, &captures)
}

fn refuse(machine: &mut Machine, captures: &[u64]) -> Answer {
    if captures.is_empty() {
        return Ok(());
    }
    invalidate(machine, captures);
    Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// For what is potentially unsafe; see the module.
pub(crate) fn potentially_unsafe(machine: &mut Machine) -> Answer {
    if machine.captures.is_empty() {
        return Ok(());
    }
    let (thread, mode) = (thread::id(), thread::capture_mode());
    let forbids = |capture: &Capture| {
        let own = capture.thread == thread && capture.mode != RELAXED;
        let any = capture.mode == GLOBAL && mode == GLOBAL;
        mode != RELAXED && (own || any)
    };
    let captures = machine.captures.iter().filter(|(_, capture)| forbids(capture));
    let captures: Vec<u64> = captures.map(|(number, _)| *number).collect();
    refuse(machine, &captures)
}

pub(crate) fn begin(machine: &mut Machine, stream: Ptr<CUstream_st>, mode: u32) -> Answer {
    let stream = machine.stream(stream)?;
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    let state = machine.stream_state(stream)?;
    if state.role == Role::Legacy {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if state.capture.is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let number = machine.fresh_id();
    let graph = machine.graphs.insert(Graph::default());
    if let Some(state) = machine.streams.get_mut(stream) {
        state.capture = Some(number);
    }
    let capture = Capture {
        origin: stream,
        mode,
        thread: thread::id(),
        graph,
        nodes: Vec::new(),
        streams: BTreeMap::from([(stream, Vec::new())]),
        invalid: false,
        told: Vec::new(),
    };
    machine.captures.insert(number, capture);
    Ok(())
}

pub(crate) fn end(machine: &mut Machine, stream: Ptr<CUstream_st>, out: Ptr<CUgraph>) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(std::ptr::null_mut())?;
    let number = machine.stream_state(stream)?.capture;
    let number = number.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let capture = machine.captures.get(&number).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.origin != stream {
        invalidate(machine, &[number]);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread::id() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let capture = close(machine, number).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let failure = if capture.invalid {
        Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    } else if !capture.is_joined() {
        Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    } else {
        None
    };
    if let Some(code) = failure {
        for node in &capture.nodes {
            machine.graph_nodes.remove(node.handle);
        }
        machine.graphs.remove(capture.graph);
        return Err(code);
    }
    if let Some(graph) = machine.graphs.get_mut(capture.graph) {
        *graph = Graph::new(capture.nodes);
    }
    out.set(capture.graph as CUgraph)
}

/// Takes a capture away from its streams.
fn close(machine: &mut Machine, number: u64) -> Option<Capture> {
    let capture = machine.captures.remove(&number)?;
    for stream in machine.streams.values_mut() {
        if stream.capture == Some(number) {
            stream.capture = None;
        }
    }
    Some(capture)
}

/// Ends the captures that a context's streams take part in.
pub(crate) fn end_all_of(machine: &mut Machine, context: usize) {
    let streams = machine.streams.iter().filter(|(_, stream)| stream.context == context);
    let captures: BTreeSet<u64> = streams.filter_map(|(_, stream)| stream.capture).collect();
    for capture in captures {
        if let Some(capture) = close(machine, capture) {
            machine.graphs.remove(capture.graph);
        }
    }
}

impl Capture {
    /// Whether all that was captured comes before where the first stream stands.
    fn is_joined(&self) -> bool {
        let mut joined = BTreeSet::new();
        let mut open = self.streams.get(&self.origin).cloned().unwrap_or_default();
        while let Some(node) = open.pop() {
            if joined.insert(node) {
                open.extend(&self.nodes[node].after);
            }
        }
        joined.len() == self.nodes.len()
    }
}

/// None, active, invalidated.
fn status(machine: &mut Machine, stream: usize) -> Answer<(u32, Option<u64>)> {
    let state = machine.stream_state(stream)?;
    if state.role == Role::Legacy {
        let context = state.context;
        let mut streams = machine.streams.iter();
        if streams.any(|(_, s)| s.context == context && s.is_blocking() && s.capture.is_some()) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        return Ok((0, None));
    }
    let capture = state.capture;
    Ok(match capture.and_then(|capture| machine.captures.get(&capture)) {
        None => (0, None),
        Some(state) if state.invalid => (2, capture),
        Some(_) => (1, capture),
    })
}

pub(crate) fn is_capturing(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    out: Ptr<u32>,
) -> Answer {
    let stream = machine.stream(stream)?;
    let (status, _) = status(machine, stream)?;
    out.set(status)
}

pub(crate) fn info(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    out: Ptr<u32>,
    id: Ptr<u64>,
    graph: Ptr<CUgraph>,
    after: Ptr<*const CUgraphNode>,
    count: Ptr<usize>,
) -> Answer {
    let stream = machine.stream(stream)?;
    let (status, number) = status(machine, stream)?;
    out.set(status)?;
    let Some(number) = number.filter(|_| status == 1) else {
        return Ok(());
    };
    let capture = machine.captures.get_mut(&number).ok_or(INVALID_VALUE)?;
    let nodes = capture.streams.get(&stream).cloned().unwrap_or_default();
    capture.told = nodes.into_iter().map(|node| capture.nodes[node].handle).collect();
    id.set_if_wanted(number);
    graph.set_if_wanted(capture.graph as CUgraph);
    // Handles are as wide as pointers.
    after.set_if_wanted(capture.told.as_ptr().cast());
    count.set_if_wanted(capture.told.len());
    Ok(())
}

/// The same with data of edges, of which there is none.
#[expect(clippy::too_many_arguments, reason = "as many as the driver's function has")]
pub(crate) fn info_v3<T>(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    out: Ptr<u32>,
    id: Ptr<u64>,
    graph: Ptr<CUgraph>,
    after: Ptr<*const CUgraphNode>,
    edges: Ptr<*const T>,
    count: Ptr<usize>,
) -> Answer {
    edges.set_if_wanted(std::ptr::null());
    info(machine, stream, out, id, graph, after, count)
}

pub(crate) fn exchange_mode(_machine: &mut Machine, mode: Ptr<u32>) -> Answer {
    let new = mode.get()?;
    if new > RELAXED {
        return Err(INVALID_VALUE);
    }
    mode.set(thread::capture_mode())?;
    thread::set_capture_mode(new);
    Ok(())
}
