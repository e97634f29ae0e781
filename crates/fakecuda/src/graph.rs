//! Graphs, as captures make them, and their launches.
//!
//! An executable graph has *lanes*: simulated streams of its own. A node goes on the lane of a node
//! that it comes after, if no other has, else on a new one. A launch orders the lanes by events just as
//! the graph says and no more, so that the race oracle sees two branches that touch the same bytes.
//! At the end of a launch the lanes wait for each other: launches of one executable graph come one after
//! the other.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUgraph_st, CUgraphExec, CUgraphExec_st, CUgraphNode, CUgraphNode_st, CUstream_st,
};

use crate::capture;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::op::Op;
use crate::pointer::Ptr;

const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;

/// A piece of work in a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub op: Op,
    /// The nodes it comes after; earlier ones.
    pub after: Vec<usize>,
    pub context: usize,
    pub handle: usize,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("after", &self.after).finish_non_exhaustive()
    }
}

/// What is known of a node by its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphNode {
    pub node_type: u32,
}

/// A graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: Arc<Vec<Node>>,
}

impl Graph {
    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        Self { nodes: Arc::new(nodes) }
    }
}

/// A graph that can be launched. It does not need the one it was made of.
#[derive(Debug)]
pub(crate) struct Exec {
    nodes: Arc<Vec<Node>>,
    flags: u64,
    lanes: Vec<millpond_simgpu::Stream>,
    /// By lane.
    devices: Vec<u16>,
    /// By node.
    lane: Vec<usize>,
}

impl Machine {
    fn graph(&mut self, graph: Ptr<CUgraph_st>) -> Answer<usize> {
        let handle = graph.value();
        if self.graphs.get(handle).is_some() {
            return Ok(handle);
        }
        self.no_handle("graph", handle, self.graphs.fate(handle));
        Err(INVALID_VALUE)
    }

    fn exec(&mut self, exec: Ptr<CUgraphExec_st>) -> Answer<usize> {
        let handle = exec.value();
        if self.execs.get(handle).is_some() {
            return Ok(handle);
        }
        self.no_handle("executable graph", handle, self.execs.fate(handle));
        Err(INVALID_VALUE)
    }

    /// How many simulated streams of a device are lanes.
    pub(crate) fn lanes(&self, device: u16) -> usize {
        let devices = self.execs.iter().flat_map(|(_, exec)| &exec.devices);
        devices.filter(|of| **of == device).count()
    }
}

/// Deals nodes to lanes: the lane of each, and the context of each lane.
fn deal(nodes: &[Node]) -> (Vec<usize>, Vec<usize>) {
    let (mut lane, mut last, mut contexts) = (Vec::new(), Vec::<usize>::new(), Vec::new());
    for (at, node) in nodes.iter().enumerate() {
        let next = |before: &usize| -> Option<usize> {
            let on: usize = *lane.get(*before)?;
            (last[on] == *before && contexts[on] == node.context).then_some(on)
        };
        let on = node.after.iter().find_map(next).unwrap_or_else(|| {
            contexts.push(node.context);
            last.push(at);
            contexts.len() - 1
        });
        last[on] = at;
        lane.push(on);
    }
    (lane, contexts)
}

pub(crate) fn instantiate(
    machine: &mut Machine,
    out: Ptr<CUgraphExec>,
    graph: Ptr<CUgraph_st>,
    flags: u64,
) -> Answer {
    let graph = machine.graph(graph)?;
    let known = AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
    let both = AUTO_FREE | DEVICE_LAUNCH;
    if flags & !known != 0 || flags & both == both || out.is_null() {
        return Err(INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(NOT_SUPPORTED);
    }
    let nodes = machine.graphs.get(graph).map(|graph| Arc::clone(&graph.nodes));
    let nodes = nodes.ok_or(INVALID_VALUE)?;
    let (lane, contexts) = deal(&nodes);
    let (mut lanes, mut devices) = (Vec::new(), Vec::new());
    for context in contexts {
        let device = machine.context(context)?.device;
        let stream = machine.sim.stream_create(device);
        lanes.push(machine.judge(stream)?);
        devices.push(device);
    }
    let exec = machine.execs.insert(Exec { nodes, flags, lanes, devices, lane });
    out.set(exec as CUgraphExec)
}

pub(crate) fn launch(
    machine: &mut Machine,
    exec: Ptr<CUgraphExec_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let exec = machine.exec(exec)?;
    let stream = machine.stream(stream)?;
    capture::refuse_on(machine, stream)?;
    machine.order(stream)?;
    let on = machine.stream_state(stream)?.sim;
    let exec = machine.execs.get(exec).ok_or(INVALID_VALUE)?;
    let (nodes, lanes, lane) = (Arc::clone(&exec.nodes), exec.lanes.clone(), exec.lane.clone());
    let mut events = Vec::new();
    let launched = replay(machine, on, &nodes, &lanes, &lane, &mut events);
    // Waits keep what they wait for.
    for event in events {
        let _ = machine.sim.event_destroy(event);
    }
    launched
}

fn replay(
    machine: &mut Machine,
    on: millpond_simgpu::Stream,
    nodes: &[Node],
    lanes: &[millpond_simgpu::Stream],
    lane: &[usize],
    events: &mut Vec<millpond_simgpu::Event>,
) -> Answer {
    let start = mark(machine, on, events)?;
    for to in lanes {
        let waited = machine.sim.stream_wait(*to, start);
        machine.judge(waited)?;
    }
    // The nodes that another lane waits for.
    let mut awaited = vec![false; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        for before in node.after.iter().filter(|before| lane[**before] != lane[at]) {
            awaited[*before] = true;
        }
    }
    let mut done = vec![None; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        for before in node.after.iter().filter(|before| lane[**before] != lane[at]) {
            if let Some(event) = done[*before] {
                let waited = machine.sim.stream_wait(lanes[lane[at]], event);
                machine.judge(waited)?;
            }
        }
        machine.run(lanes[lane[at]], &node.op)?;
        if awaited[at] {
            done[at] = Some(mark(machine, lanes[lane[at]], events)?);
        }
    }
    for from in lanes {
        let end = mark(machine, *from, events)?;
        // The launch's stream waits for all, and so does the next launch, on whatever stream.
        for to in lanes.iter().filter(|to| *to != from).chain([&on]) {
            let waited = machine.sim.stream_wait(*to, end);
            machine.judge(waited)?;
        }
    }
    Ok(())
}

/// An event that stands for all that a simulated stream has been given.
fn mark(
    machine: &mut Machine,
    on: millpond_simgpu::Stream,
    events: &mut Vec<millpond_simgpu::Event>,
) -> Answer<millpond_simgpu::Event> {
    let device = machine.sim.stream_device(on);
    let device = machine.judge(device)?;
    let event = machine.sim.event_create(device);
    let event = machine.judge(event)?;
    events.push(event);
    let recorded = machine.sim.event_record(event, on);
    machine.judge(recorded)?;
    Ok(event)
}

/// There is nothing to upload.
pub(crate) fn upload(
    machine: &mut Machine,
    exec: Ptr<CUgraphExec_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    machine.exec(exec)?;
    let stream = machine.stream(stream)?;
    capture::refuse_on(machine, stream)
}

pub(crate) fn destroy(machine: &mut Machine, graph: Ptr<CUgraph_st>) -> Answer {
    let graph = machine.graph(graph)?;
    if let Some(graph) = machine.graphs.remove(graph) {
        for node in graph.nodes.iter() {
            machine.graph_nodes.remove(node.handle);
        }
    }
    Ok(())
}

/// Launches in flight still run.
pub(crate) fn exec_destroy(machine: &mut Machine, exec: Ptr<CUgraphExec_st>) -> Answer {
    let exec = machine.exec(exec)?;
    if let Some(exec) = machine.execs.remove(exec) {
        for lane in exec.lanes {
            let destroyed = machine.sim.stream_destroy(lane);
            machine.judge(destroyed)?;
        }
    }
    Ok(())
}

pub(crate) fn exec_flags(
    machine: &mut Machine,
    exec: Ptr<CUgraphExec_st>,
    out: Ptr<u64>,
) -> Answer {
    let exec = machine.exec(exec)?;
    out.set(machine.execs.get(exec).ok_or(INVALID_VALUE)?.flags)
}

/// The nodes of a graph: how many, or as many as there is room for.
pub(crate) fn nodes(
    machine: &mut Machine,
    graph: Ptr<CUgraph_st>,
    out: Ptr<CUgraphNode>,
    count: Ptr<usize>,
) -> Answer {
    let graph = machine.graph(graph)?;
    let nodes = machine.graphs.get(graph).map(|graph| Arc::clone(&graph.nodes));
    let nodes = nodes.ok_or(INVALID_VALUE)?;
    if out.is_null() {
        return count.set(nodes.len());
    }
    let room = count.get()?;
    for nth in 0..room {
        let node = nodes.get(nth).map_or(0, |node| node.handle);
        out.at(nth).set(node as CUgraphNode)?;
    }
    count.set(room.min(nodes.len()))
}

/// The edges of a graph, likewise.
pub(crate) fn edges(
    machine: &mut Machine,
    graph: Ptr<CUgraph_st>,
    from: Ptr<CUgraphNode>,
    to: Ptr<CUgraphNode>,
    count: Ptr<usize>,
) -> Answer {
    let graph = machine.graph(graph)?;
    let nodes = machine.graphs.get(graph).map(|graph| Arc::clone(&graph.nodes));
    let nodes = nodes.ok_or(INVALID_VALUE)?;
    let edges: Vec<(usize, usize)> = nodes
        .iter()
        .flat_map(|node| node.after.iter().map(|before| (nodes[*before].handle, node.handle)))
        .collect();
    if from.is_null() && to.is_null() {
        return count.set(edges.len());
    }
    let room = count.get()?;
    for nth in 0..room {
        let (before, after) = edges.get(nth).copied().unwrap_or((0, 0));
        from.at(nth).set(before as CUgraphNode)?;
        to.at(nth).set(after as CUgraphNode)?;
    }
    count.set(room.min(edges.len()))
}

pub(crate) fn node_type(machine: &mut Machine, node: Ptr<CUgraphNode_st>, out: Ptr<u32>) -> Answer {
    out.set(machine.graph_nodes.get(node.value()).ok_or(INVALID_VALUE)?.node_type)
}
