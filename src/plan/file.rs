//! Plans in files: JSON, with a version.
//!
//! A file is read whole only up to a bound, and nothing in it is believed: every rule that a plan keeps
//! is checked, that blocks alive together share no byte among them.

use super::pack::{self, Item};
use super::planner::{DevicePlan, Plan, Planned, counts};
use crate::driver::DeviceId;
use crate::size::QUANTUM;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// Bytes that a file may have: some half a million requests.
const MOST: u64 = 64 << 20;

/// Why there is no plan to be had from a file, or none to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The file cannot be read or written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// It is larger than any plan.
    #[error("{}: more than {most} bytes: no plan is as large", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that it may have.
        most: u64,
    },
    /// It is no plan.
    #[error("{}: no plan: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the reader says, with line and column.
        cause: serde_json::Error,
    },
    /// It was written by another version.
    #[error("{}: a plan of version {found}; this program reads version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that it is of.
        found: u32,
    },
    /// It breaks a rule of plans.
    #[error("{}: {device}: {broken}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The device whose plan it is.
        device: DeviceId,
        /// What is wrong.
        broken: String,
    },
}

/// What every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    devices: Vec<DeviceFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    device: u16,
    bytes: u64,
    slots: u32,
    requests: Vec<Planned>,
}

impl Plan {
    /// Writes the plan to a file.
    ///
    /// # Errors
    /// [`PlanFileError::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlanFileError> {
        let path = path.as_ref();
        let io = |cause| PlanFileError::Io { path: path.to_owned(), cause };
        let devices = self.devices().iter().map(|plan| DeviceFile {
            device: plan.device.0,
            bytes: plan.bytes,
            slots: plan.slots,
            requests: plan.requests.clone(),
        });
        let file = File { version: VERSION, devices: devices.collect() };
        let text = serde_json::to_vec(&file).map_err(|cause| io(cause.into()))?;
        std::fs::write(path, text).map_err(io)
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// A file that cannot be read, is too large, or is no plan that keeps a plan's rules.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanFileError> {
        let path = path.as_ref();
        let io = |cause| PlanFileError::Io { path: path.to_owned(), cause };
        let malformed = |cause| PlanFileError::Malformed { path: path.to_owned(), cause };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        // Looked at while it is read: a file may have no length, or grow.
        file.take(MOST + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > MOST {
            return Err(PlanFileError::TooLarge { path: path.to_owned(), most: MOST });
        }
        let Versioned { version } = serde_json::from_slice(&text).map_err(malformed)?;
        if version != VERSION {
            return Err(PlanFileError::Version { path: path.to_owned(), found: version });
        }
        let file: File = serde_json::from_slice(&text).map_err(malformed)?;
        let mut devices: Vec<DevicePlan> = Vec::with_capacity(file.devices.len());
        for found in file.devices {
            let device = DeviceId(found.device);
            let invalid = |broken| PlanFileError::Invalid { path: path.to_owned(), device, broken };
            if devices.iter().any(|plan| plan.device == device) {
                return Err(invalid("two plans of one device".to_owned()));
            }
            devices.push(found.check().map_err(invalid)?);
        }
        Ok(devices.into_iter().collect())
    }
}

impl DeviceFile {
    /// The plan, if it keeps the rules.
    fn check(self) -> Result<DevicePlan, String> {
        let Self { device, bytes, slots, requests } = self;
        if requests.is_empty() {
            return Err("no requests".to_owned());
        }
        // What is alive in one slot lies apart: slots need be no more than all requests of a step, but
        // small ones are not in the plan, and they count.
        if slots as usize > MOST as usize {
            return Err(format!("{slots} slots: no step has as many requests"));
        }
        if !bytes.is_multiple_of(QUANTUM) || bytes > crate::size::REQUEST_MAX {
            return Err(format!("a range of {bytes} bytes"));
        }
        let mut places = HashSet::new();
        for request in &requests {
            let Planned { stream, position, bytes: own, offset, first, last } = *request;
            let place = format!("request {position} of stream {stream}");
            if !places.insert((stream, position)) {
                return Err(format!("{place} is there twice"));
            }
            if !counts(own) || crate::size::granted(own) != own {
                return Err(format!("{place}: no planned block has {own} bytes"));
            }
            if !offset.is_multiple_of(QUANTUM) {
                return Err(format!("{place}: it lies at {offset}, no multiple of {QUANTUM}"));
            }
            if offset.checked_add(own).is_none_or(|end| end > bytes) {
                return Err(format!("{place}: {own} bytes at {offset} leave the range of {bytes}"));
            }
            if first >= slots || last >= slots {
                return Err(format!("{place}: slots {first} to {last} of {slots}"));
            }
        }
        check_apart(&requests, slots)?;
        let items =
            requests.iter().map(|&Planned { bytes, first, last, .. }| Item { bytes, first, last });
        let items: Vec<Item> = items.collect();
        let peak_bytes = pack::peak(&items, slots);
        Ok(DevicePlan { device: DeviceId(device), bytes, peak_bytes, slots, requests })
    }
}

/// Whether blocks that are alive together share no byte: by going through the slots, with what is alive
/// by offset.
fn check_apart(requests: &[Planned], slots: u32) -> Result<(), String> {
    // Twice round: what wraps is alive when the second round begins.
    let mut changes: Vec<(u64, bool, usize)> = Vec::with_capacity(4 * requests.len());
    for (index, request) in requests.iter().enumerate() {
        let (first, last) = (u64::from(request.first), u64::from(request.last));
        let round = u64::from(slots);
        for turn in [0, round] {
            let end = if last < first { last + round } else { last };
            changes.push((turn + end + 1, false, index));
            changes.push((turn + first, true, index));
        }
    }
    // Ends before births: a slot's last bytes are free in the next.
    changes.sort_unstable();
    let mut alive: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, born, index) in changes {
        let request = &requests[index];
        if !born {
            alive.remove(&request.offset);
            continue;
        }
        let end = request.offset + request.bytes;
        if let Some((_, &other)) = alive.range(..end).next_back()
            && requests[other].offset + requests[other].bytes > request.offset
        {
            let place = |of: &Planned| format!("request {} of stream {}", of.position, of.stream);
            let (one, two) = (place(&requests[other]), place(request));
            return Err(format!("{one} and {two} share bytes while both are alive"));
        }
        alive.insert(request.offset, index);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const MIB: u64 = 1 << 20;

    fn path(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("millpond-plan-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    fn request(position: u32, offset: u64, bytes: u64, first: u32, last: u32) -> Value {
        json!({
            "stream": 0, "position": position, "bytes": bytes, "offset": offset, "first": first,
            "last": last,
        })
    }

    fn file(bytes: u64, requests: &[Value]) -> Value {
        let device = json!({ "device": 0, "bytes": bytes, "slots": 8, "requests": requests });
        json!({ "version": 1, "devices": [device] })
    }

    fn load(name: &str, text: impl AsRef<[u8]>) -> Result<Plan, PlanFileError> {
        let path = path(name);
        std::fs::write(&path, text).unwrap();
        Plan::load(path)
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let good = [request(0, 0, 2 * MIB, 0, 3), request(1, 0, 2 * MIB, 4, 7)];
        let plan = load("good.json", file(2 * MIB, &good).to_string()).unwrap();
        assert_eq!(plan.devices()[0].peak_bytes(), 2 * MIB);
        let again = path("again.json");
        plan.save(&again).unwrap();
        assert_eq!(Plan::load(&again).unwrap(), plan);
        assert!(matches!(Plan::load(path("none.json")), Err(PlanFileError::Io { .. })));
    }

    #[test]
    fn wrong_files_are_told() {
        let a = || request(0, 0, 2 * MIB, 0, 3);
        let cases: [(&str, Value, &str); 12] = [
            ("apart", file(4 * MIB, &[a(), request(1, MIB, 2 * MIB, 3, 5)]), "share bytes"),
            ("round", file(4 * MIB, &[a(), request(1, MIB, 2 * MIB, 6, 1)]), "share bytes"),
            ("itself", file(4 * MIB, &[request(1, 0, 2 * MIB, 6, 1), a()]), "share bytes"),
            ("twice", file(4 * MIB, &[a(), a()]), "is there twice"),
            ("leaves", file(MIB, &[a()]), "leave the range"),
            ("overflows", file(MIB, &[request(0, u64::MAX - 511, MIB, 0, 0)]), "leave the range"),
            ("small", file(MIB, &[request(0, 0, 512, 0, 0)]), "512 bytes"),
            ("crooked", file(4 * MIB, &[request(0, 7, MIB, 0, 0)]), "at 7"),
            ("slots", file(4 * MIB, &[request(0, 0, MIB, 0, 8)]), "slots 0 to 8 of 8"),
            ("range", file(u64::MAX, &[a()]), "a range of"),
            ("empty", file(MIB, &[]), "no requests"),
            ("version", json!({ "version": 2, "devices": {} }), "version 2"),
        ];
        for (name, value, words) in cases {
            let error = load(name, value.to_string()).expect_err(name).to_string();
            assert!(error.contains(words) && error.contains(name), "{name}: {error}");
        }
        let mut twice = file(4 * MIB, &[a()]);
        let device = twice["devices"][0].clone();
        twice["devices"].as_array_mut().unwrap().push(device);
        let error = load("devices", twice.to_string()).unwrap_err().to_string();
        assert!(error.contains("two plans of one device"), "{error}");
        let mut many = file(4 * MIB, &[a()]);
        many["devices"][0]["slots"] = json!(u32::MAX);
        assert!(load("many", many.to_string()).unwrap_err().to_string().contains("slots"));
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let text = file(2 * MIB, &[request(0, 0, 2 * MIB, 0, 3)]).to_string();
        for end in 0..text.len() {
            assert!(load("cut.json", &text.as_bytes()[..end]).is_err(), "{end} bytes are a plan");
        }
        let deep = "[".repeat(1 << 20);
        for (name, text) in [("deep", deep.as_bytes()), ("bytes", b"\xff\0\x01"), ("null", b"null")]
        {
            let error = load(name, text).unwrap_err();
            assert!(matches!(error, PlanFileError::Malformed { .. }), "{error}");
        }
        let sparse = path("sparse");
        let file = std::fs::File::create(&sparse).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(matches!(Plan::load(sparse), Err(PlanFileError::TooLarge { .. })));
    }
}
