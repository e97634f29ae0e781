//! The invariants of the module, checked after every step of random programs.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const UNIT: u64 = 4096;
const SPAN: u64 = 64 * UNIT;
const CAPACITY: u64 = 24 * UNIT;

impl Memory {
    /// Panics where an invariant of the module does not hold.
    fn check_invariants(&self) {
        let mut mapped: HashMap<u64, u32> = HashMap::new();
        for (at, device) in self.devices.iter().enumerate() {
            let base = (at as u64 + 1) * self.span;
            let mut taken: Vec<(u64, u64)> = device.space.ranges().collect();
            taken.extend(device.reservations.iter().map(|(a, b)| (*a, *b)));
            taken.extend(device.plain.iter().map(|(a, p)| (*a, p.end - p.start)));
            taken.sort_unstable();
            let mut end = base;
            for (address, bytes) in taken {
                assert_eq!(address, end, "addresses are partitioned");
                assert!(bytes > 0);
                end += bytes;
            }
            assert_eq!(end, base + self.span);

            let mut end = 0;
            for (&address, mapping) in &device.mappings {
                assert!(address >= end, "mappings do not overlap");
                end = address + mapping.bytes();
                let (start, bytes) = device.reservations.range(..=address).next_back().unwrap();
                assert!(end <= start + bytes, "a mapping lies in one reservation");
                assert!(mapping.access.is_sorted());
                assert_eq!(mapping.phys, self.pages[&mapping.page].phys);
                *mapped.entry(mapping.page).or_default() += 1;
            }
            let pages = self.pages.values();
            let pages = pages.filter(|page| usize::from(page.device) == at);
            let plain = device.plain.values().cloned();
            let bytes = pages.map(|page| page.phys.clone()).chain(plain);
            let used: u64 = bytes.map(|phys| phys.end - phys.start).sum();
            assert_eq!(device.used, used);
            assert!(used <= device.capacity);
        }
        for (handle, page) in &self.pages {
            let mappings = mapped.get(handle).copied().unwrap_or(0);
            assert_eq!(page.mappings, mappings);
            assert!(page.handles > 0 || mappings > 0, "it lives");
        }
    }
}

/// One step of a random program; numbers pick among what there is, or miss on purpose.
#[derive(Clone, Debug)]
enum Step {
    Reserve(u16, u64),
    Unreserve(usize),
    Create(u16, u64),
    Release(usize),
    Map(usize, u64, usize),
    SetAccess(usize, u64, u64),
    Unmap(usize, u64, u64),
    Allocate(u16, u64),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let (device, some, few) = (0..2u16, 0..8usize, 1..5u64);
    let at = 0..8u64;
    prop_oneof![
        1 => (device.clone(), 1..12u64).prop_map(|(d, n)| Reserve(d, n * UNIT)),
        1 => some.clone().prop_map(Unreserve),
        3 => (device.clone(), few.clone()).prop_map(|(d, n)| Create(d, n * UNIT)),
        2 => some.clone().prop_map(Release),
        6 => (some.clone(), at.clone(), some.clone()).prop_map(|(r, at, p)| Map(r, at, p)),
        2 => (some.clone(), at.clone(), few.clone()).prop_map(|(r, at, n)| SetAccess(r, at, n)),
        3 => (some.clone(), at, few).prop_map(|(r, at, n)| Unmap(r, at, n)),
        2 => (device, 0..3 * UNIT).prop_map(|(d, n)| Allocate(d, n)),
        2 => some.prop_map(Free),
    ]
}

proptest! {
    #[test]
    fn invariants_hold_in_random_programs(steps in prop::collection::vec(step(), 1..120)) {
        let mut memory = Memory::new(&[CAPACITY; 2], UNIT, SPAN, false, false);
        let (mut reserved, mut pages, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            let before = format!("{memory:?}");
            let failed = match step.clone() {
                Step::Reserve(device, bytes) => memory
                    .reserve(device, bytes, 1)
                    .map(|address| reserved.push((address, bytes)))
                    .is_err(),
                Step::Unreserve(at) => {
                    let Some(&(address, bytes)) = reserved.get(at) else { continue };
                    let answer = memory.unreserve(address, bytes);
                    if answer.is_ok() {
                        reserved.remove(at);
                    }
                    answer.is_err()
                }
                Step::Create(device, bytes) => memory
                    .create_page(device, bytes)
                    .map(|(page, _)| pages.push((page, bytes)))
                    .is_err(),
                Step::Release(at) => {
                    let Some(&(page, _)) = pages.get(at) else { continue };
                    memory.release_page(page).is_err()
                }
                Step::Map(within, at, page) => {
                    let (Some((address, _)), Some((page, bytes))) =
                        (reserved.get(within), pages.get(page)) else { continue };
                    memory.map(address + at * UNIT, *bytes, *page).is_err()
                }
                Step::SetAccess(within, at, units) => {
                    let Some((address, _)) = reserved.get(within) else { continue };
                    memory.set_access(address + at * UNIT, units * UNIT, &[1, 0]).is_err()
                }
                Step::Unmap(within, at, units) => {
                    let Some((address, _)) = reserved.get(within) else { continue };
                    memory.unmap(address + at * UNIT, units * UNIT).is_err()
                }
                Step::Allocate(device, bytes) => memory
                    .allocate(device, bytes)
                    .map(|(address, _)| plain.push(address))
                    .is_err(),
                Step::Free(at) => {
                    if at >= plain.len() { continue }
                    memory.free(plain.swap_remove(at)).is_err()
                }
            };
            memory.check_invariants();
            if failed {
                // Physical addresses of a failed allocation are skipped, nothing else changes.
                prop_assert!(
                    before == format!("{memory:?}") || matches!(step, Step::Allocate(..)),
                    "{step:?} failed and had an effect"
                );
            }
        }
    }

    /// A translation gives back the range it was asked for, piece by piece.
    #[test]
    fn translations_cover_their_range(
        maps in prop::collection::vec((0..16u64, 1..4u64), 0..10),
        start in 0..20 * UNIT,
        bytes in 0..20 * UNIT,
    ) {
        let mut memory = Memory::new(&[SPAN; 2], UNIT, SPAN, false, false);
        memory.allocate(0, UNIT + 1).unwrap();
        let base = memory.reserve(0, 12 * UNIT, 1).unwrap();
        for (at, units) in maps {
            let (page, _) = memory.create_page(0, units * UNIT).unwrap();
            // Some of them overlap or leave the reservation, and are refused.
            let _ = memory.map(base + at * UNIT, units * UNIT, page);
        }
        let (start, mut at) = (SPAN + start, SPAN + start);
        for piece in memory.translate(None, start, bytes) {
            let (address, bytes) = match piece {
                Touched::Bytes { address, phys } => (address, phys.end - phys.start),
                Touched::Nothing { address, bytes, .. } => (address, bytes),
            };
            prop_assert_eq!(address, at);
            prop_assert!(bytes > 0);
            at += bytes;
        }
        prop_assert_eq!(at, start + bytes);
    }
}
