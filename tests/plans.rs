//! Plans of recorded programs: how much larger than the least, and whether blocks that are alive
//! together are kept apart.

use millpond::DeviceId;
use millpond::plan::{DevicePlan, Event, Profile, Recommendation, Recording};
use millpond_trace::{Op, Trace};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// What each of a trace's devices was asked for.
fn recordings(trace: &Trace) -> BTreeMap<u16, Recording> {
    let mut events: BTreeMap<u16, Vec<Event>> = BTreeMap::new();
    let mut ranks = HashMap::new();
    for device in &trace.summary().devices {
        events.insert(device.ordinal, Vec::new());
        for (rank, &stream) in (0..).zip(&device.streams) {
            ranks.insert((device.ordinal, stream), rank);
        }
    }
    let mut homes = vec![0; trace.blocks()];
    for op in trace.ops() {
        match *op {
            Op::Alloc { id, device, stream, bytes } => {
                homes[id as usize] = device;
                let stream = ranks[&(device, stream)];
                let event = Event::Alloc { block: id, stream, bytes };
                events.get_mut(&device).unwrap().push(event);
            }
            Op::Free { id, .. } => {
                events.get_mut(&homes[id as usize]).unwrap().push(Event::Free { block: id });
            }
            Op::Step(_) => events.values_mut().for_each(|events| events.push(Event::Step)),
            _ => {}
        }
    }
    events.into_iter().map(|(device, events)| (device, events.into_iter().collect())).collect()
}

/// Traces of which every step after the first asks for the same.
const RECURRING: [&str; 8] = [
    "resnet50_b32",
    "resnet50_b256_amp_nhwc",
    "gpt2_124m_amp",
    "gpt2_1p3b_bf16",
    "pp1f1b_4x8",
    "fsdp1_llama3b",
    "fsdp2_llama3b",
    "tiny_pipeline",
];

/// The traces that come with the sources, and those in the folder that the environment names.
fn traces() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/traces")];
    folders.extend(std::env::var_os("MILLPOND_TRACES").map(PathBuf::from));
    let mut traces = BTreeMap::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.ends_with(".trace") || name.ends_with(".trace.zst") {
                traces.entry(name).or_insert(path);
            }
        }
    }
    traces.into_values().collect()
}

/// Plays a plan to the steps of its recording from `from` on: whenever a request of the plan comes, its
/// bytes must be nobody else's. Returns how many were served, and how many had to be refused since
/// somebody held their bytes.
fn play(plan: &DevicePlan, recording: &Recording, from: usize) -> (usize, usize) {
    let places: HashMap<(u32, u32), (u64, u64)> = plan
        .requests()
        .iter()
        .map(|request| ((request.stream, request.position), (request.offset, request.bytes)))
        .collect();
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let mut at: HashMap<u64, u64> = HashMap::new();
    let mut next: HashMap<u32, u32> = HashMap::new();
    let (mut served, mut refused) = (0, 0);
    let starts = recording.events().iter().enumerate();
    let mut starts = starts.filter(|(_, event)| matches!(event, Event::Step));
    let (start, _) = starts.nth(from - 1).unwrap();
    for &event in &recording.events()[start..] {
        match event {
            Event::Step => next.clear(),
            Event::Alloc { block, stream, bytes } => {
                if bytes <= DevicePlan::ABOVE {
                    continue;
                }
                let position = next.entry(stream).or_default();
                let place = places.get(&(stream, *position)).copied();
                *position += 1;
                let Some((offset, planned)) = place else { continue };
                if planned != millpond::size::granted(bytes) {
                    continue;
                }
                let below = held.range(..offset + planned).next_back();
                if below.is_some_and(|(&from, &own)| from + own > offset) {
                    refused += 1;
                    continue;
                }
                held.insert(offset, planned);
                at.insert(block, offset);
                served += 1;
            }
            Event::Free { block } => {
                if let Some(offset) = at.remove(&block) {
                    held.remove(&offset);
                }
            }
        }
    }
    (served, refused)
}

#[test]
fn plans_of_recorded_programs_are_tight() {
    let mut seen = 0;
    for path in traces() {
        let trace = Trace::load(&path).unwrap();
        let name = trace.name();
        let recurring = RECURRING.contains(&name);
        for (&device, recording) in &recordings(&trace) {
            let Some(plan) = DevicePlan::of(DeviceId(device), recording) else {
                assert!(!recurring, "{name}: device {device} has no plan");
                continue;
            };
            let steps = trace.summary().counts.steps as usize;
            // Also in the first of them what wraps around has not come from before.
            let (served, refused) = play(&plan, recording, steps - 1);
            println!(
                "{name} device {device}: {} of {} requests in {} bytes, {:.4} of the least; of the \
                 last two steps {served} served, {refused} refused",
                plan.requests().len(),
                plan.slots(),
                plan.bytes(),
                plan.ratio(),
            );
            if recurring {
                seen += 1;
                assert!(plan.ratio() <= 1.01, "{name} device {device}: {}", plan.ratio());
                assert_eq!((served, refused), (2 * plan.requests().len(), 0), "{name}");
            }
        }
    }
    assert!(seen >= 3 + 4 + 4, "{seen} plans of recurring programs");
}

#[test]
fn programs_that_recur_are_told_to_plan() {
    for path in traces() {
        let trace = Trace::load(&path).unwrap();
        for (device, recording) in &recordings(&trace) {
            let profile = Profile::of(recording);
            let advice = &profile.advice;
            let (name, way) = (trace.name(), advice.recommendation);
            println!("{name} device {device}: {}: {}", way.name(), advice.reason);
            if RECURRING.contains(&name) {
                assert_eq!(way, Recommendation::Plan, "{name}: {}", advice.reason);
            }
            let summary = trace.summary().devices.iter().find(|found| found.ordinal == *device);
            assert_eq!(profile.peak_live_bytes, summary.unwrap().peak_live_bytes, "{name}");
        }
    }
}
