//! Who may outlive whom, and that the last one gives everything back.

use crate::machine::{Block, D0, D1, MIB, Machine, Need, Rig};
use millpond::Buffer;

const SIZES: [u64; 4] = [300, 50_000, 1_000_000, 5 * MIB];

fn held<M: Machine>(rig: &Rig<M>, pool: &millpond::Pool) -> Vec<Block> {
    let mut held = Vec::new();
    for device in [D0, D1] {
        let stream = pool.stream(device).unwrap();
        for bytes in SIZES.into_iter().chain(SIZES) {
            held.push(rig.get(&stream, bytes));
            rig.touch(&stream, bytes);
        }
    }
    held
}

/// Buffers are good after their stream and their pool are gone; the last gives the memory back.
pub fn buffers_outlive_stream_and_pool<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.pool();
    let mut held = held(&rig, &pool);
    drop(pool);
    while let Some(block) = held.pop() {
        assert!(rig.machine.leaks().is_some());
        assert_eq!(block.buffer.device(), if held.len() < 8 { D0 } else { D1 });
        drop(block);
    }
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}

/// The same where the drops happen on a thread that allocated, and after the pool's own thread.
pub fn buffers_outlive_the_pool_on_their_thread<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.pool();
    std::thread::scope(|scope| {
        let (to, from) = std::sync::mpsc::channel::<()>();
        let rig = &rig;
        let theirs = pool.clone();
        let thread = scope.spawn(move || {
            let held = held(rig, &theirs);
            drop(theirs);
            from.recv().unwrap();
            drop(held);
        });
        while pool.stats().hits.heap == 0 {
            std::thread::yield_now();
        }
        drop(pool);
        to.send(()).unwrap();
        thread.join().unwrap();
    });
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}

/// The last drop happens on a thread that never used the pool.
pub fn dropped_by_a_stranger<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for after in [false, true] {
        let rig = Rig::new(&make, 2, 64 * MIB);
        let pool = rig.pool();
        let held = held(&rig, &pool);
        if after {
            drop(pool);
            std::thread::spawn(move || drop(held)).join().unwrap();
        } else {
            std::thread::spawn(move || drop(held)).join().unwrap();
            drop(pool);
        }
        rig.assert_quiet();
        rig.assert_nothing_leaked();
    }
}

/// Many threads drop what is left of a pool, at once and while it closes.
pub fn dropped_by_many_at_once<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for _ in 0..10 {
        let rig = Rig::new(&make, 2, 64 * MIB);
        let pool = rig.pool();
        let mut parts: Vec<Vec<Block>> = (0..4).map(|_| Vec::new()).collect();
        for (place, block) in held(&rig, &pool).into_iter().enumerate() {
            parts[place % 4].push(block);
        }
        std::thread::scope(|scope| {
            for part in parts {
                scope.spawn(move || drop(part));
            }
            drop(pool);
        });
        rig.assert_quiet();
        rig.assert_nothing_leaked();
    }
}

/// A thread is gone; what it had in its cache serves others, and goes back.
pub fn threads_leave_nothing_behind<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let mut first = 0;
    for round in 0..60 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held: Vec<Block> =
                    (0..50).map(|i| rig.get(&stream, 1 + i % 5 * 9970)).collect();
                held.into_iter().for_each(|block| rig.free(&stream, block));
            });
        });
        let now = pool.stats().bookkeeping_bytes;
        if round == 9 {
            first = now;
        }
        // A thread's storage may end after it was joined: now and then one more cache is leased.
        assert!(round < 10 || now <= 2 * first, "round {round}: {first} to {now} bytes");
    }
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    drop(stream);
    rig.done(pool);
}

/// Addresses in place of buffers, freed by any thread.
pub fn addresses_in_place_of_buffers<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for bytes in SIZES {
        let address = rig.get(&stream, bytes).buffer.into_address();
        let raw = pool.allocate(bytes, &stream).unwrap();
        assert_ne!(address, raw);
        assert_eq!(pool.stats().devices[0].live_bytes, 2 * bytes);
        pool.free(address).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| pool.free(raw).unwrap());
        });
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
    }
    // Such a block keeps the memory beyond the pool, and there is nobody to free it: freed before.
    let kept = stream.alloc::<u64>(1000).unwrap().into_address();
    let clone = pool.clone();
    drop(pool);
    clone.free(kept).unwrap();
    drop(stream);
    rig.done(clone);
}

/// The same memory as elements of other types.
pub fn casts_keep_the_memory<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for len in [3usize, 300, 300_000] {
        let words = stream.alloc::<u64>(len).unwrap();
        let address = words.address();
        let bytes: Buffer<u8> = words.cast().unwrap();
        assert_eq!(
            (bytes.len(), bytes.bytes(), bytes.address()),
            (len * 8, len as u64 * 8, address)
        );
        let triples: Buffer<[u8; 3]> = bytes.cast().unwrap();
        assert_eq!(triples.len(), len * 8 / 3);
        let refused = triples.cast::<[u8; 7]>().unwrap_err();
        let refused = refused.cast::<()>().unwrap_err();
        assert_eq!((refused.address(), refused.bytes()), (address, len as u64 * 8));
        assert!(!refused.is_empty());
        assert_eq!(pool.stats().devices[0].live_bytes, len as u64 * 8);
        drop(refused);
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
        assert_eq!(stream.alloc::<u64>(len).unwrap().address(), address);
    }
    drop(stream);
    rig.done(pool);
}

/// Clones are one pool, which ends with the last clone or stream.
pub fn clones_are_one_pool<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let clone = pool.clone();
    let stream = pool.stream(D1).unwrap();
    assert_eq!((clone.device_count(), clone.driver().name()), (2, rig.raw().name()));
    drop(pool);
    let address = clone.allocate(3 * MIB, &stream).unwrap();
    drop(clone);
    let block = rig.get(&stream, 3 * MIB);
    assert_ne!(block.address(), address);
    rig.free(&stream, block);
    assert!(rig.machine.leaks().is_some());
    // Nobody can free the raw block now but its memory is in order: a second pool is not affected.
    let second = rig.pool();
    assert!(second.free(address).is_err());
    let other = second.stream(D1).unwrap();
    rig.touch(&other, 3 * MIB);
    drop((stream, other, second));
    rig.assert_quiet();
    assert!(rig.machine.leaks().is_some(), "a block that is still held went back");
}

/// Two pools over one driver know nothing of each other.
pub fn two_pools_over_one_driver<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 128 * MIB);
    rig.needs(Need::OnDemand);
    let (one, two) = (rig.pool(), rig.pool());
    let (s, t) = (one.stream(D0).unwrap(), two.stream(D0).unwrap());
    let mut ledger = crate::support::Ledger::default();
    let mut held = Vec::new();
    for round in 0..40 {
        for (pool, stream) in [(&one, &s), (&two, &t)] {
            let block = rig.get(stream, 1 + round * 40_009);
            ledger.enter(block.address(), block.buffer.granted_bytes());
            held.push((stream, block));
            pool.check_invariants_at(millpond::Level::Full);
        }
        if round % 2 == 0 {
            let (stream, block) = held.swap_remove(held.len() / 2);
            ledger.leave(block.address());
            rig.free(stream, block);
        }
    }
    held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
    rig.touch(&t, MIB);
    drop((s, t, one));
    rig.done(two);
}
