//! What a pool says about itself is true.

use crate::machine::{D0, D1, MIB, Machine, Need, Rig};
use crate::support::Rng;

/// Live bytes are those asked for and held, reserved ones a whole number of pages that cover them.
pub fn live_and_reserved_are_true<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.pool();
    let streams = [D0, D1].map(|device| pool.stream(device).unwrap());
    let (mut rng, mut held, mut live, mut peak) = (Rng::new(3), [vec![], vec![]], [0, 0], [0, 0]);
    for round in 0..300 {
        let device = rng.index(2);
        if rng.below(5) < 3 || held[device].is_empty() {
            let bytes = rng.size(2 * MIB);
            let Ok(block) = rig.try_get(&streams[device], bytes) else { continue };
            live[device] += bytes;
            held[device].push(block);
        } else {
            let place = rng.index(held[device].len());
            let block = held[device].swap_remove(place);
            live[device] -= block.buffer.bytes();
            rig.free(&streams[device], block);
        }
        if round % 60 == 59 {
            rig.machine.pass_time();
            pool.trim(D0, live[0]).unwrap();
        }
        let stats = pool.stats();
        for (place, of) in stats.devices.iter().enumerate() {
            assert_eq!(usize::from(of.device.0), place);
            assert_eq!((of.live_bytes, of.limit_bytes), (live[place], 64 * MIB));
            assert!(of.reserved_bytes >= of.live_bytes && of.reserved_bytes % rig.page == 0);
            assert!(of.peak_reserved_bytes >= peak[place].max(of.reserved_bytes));
            peak[place] = of.peak_reserved_bytes;
        }
    }
    assert_eq!(pool.stats().poisoned_streams, 0);
    drop((streams, held));
    rig.done(pool);
}

/// The peak is that of the pages really taken, and stays after they have gone.
pub fn the_peak_stays<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::Open);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let page = rig.page.max(MIB);
    rig.touch(&stream, 3 * page);
    rig.touch(&stream, 7 * page);
    let peak = pool.stats().devices[0].peak_reserved_bytes;
    assert_eq!(peak, pool.stats().devices[0].reserved_bytes);
    assert_eq!(peak, 7 * page, "seven pages were needed");
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    let stats = &pool.stats().devices[0];
    assert_eq!((stats.reserved_bytes, stats.peak_reserved_bytes), (0, peak));
    assert_eq!(rig.driver.calls("create_page"), rig.driver.calls("release_page"));
    drop(stream);
    rig.done(pool);
}

/// Every allocation is counted once, in the layer that served it.
pub fn hits_add_up<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::Caches);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut allocations = 0;
    let sum = || {
        let hits = pool.stats().hits;
        hits.thread + hits.stream + hits.shard + hits.heap
    };
    for round in 0..50 {
        for bytes in [800, 80_000, 3 * MIB] {
            let block = rig.get(&s, bytes);
            if round % 5 == 0 {
                block.buffer.record_use(&t).unwrap();
            }
            rig.free(&s, block);
            rig.touch(&t, bytes);
            allocations += 2;
        }
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..100).for_each(|i| _ = rig.touch(&s, 500 + i * 10)));
        }
    });
    assert_eq!(sum(), allocations + 300);
    assert!(pool.stats().hits.thread > 100, "{:?}", pool.stats().hits);
    drop((s, t));
    rig.done(pool);
}
