//! Blocks used on more streams than their own: every one of them is over before the memory moves.

use crate::machine::{Block, D0, D1, MIB, Machine, Need, Rig};
use millpond::{DeviceId, Error, Pool, Reuse, Stream};

fn streams<const N: usize>(pool: &Pool) -> [Stream; N] {
    [0; N].map(|_| pool.stream(D0).unwrap())
}

/// One small size, one of whole pages.
const SIZES: [u64; 3] = [3000, 200_000, 4 * MIB];

/// A recorded use counts until the free, on the user as on the stream it is from.
pub fn recorded_uses_end_with_the_free<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * MIB);
    let pool = rig.pool();
    let [home, user, next] = streams(&pool);
    for bytes in SIZES {
        for _ in 0..5 {
            let block = rig.get(&home, bytes);
            block.buffer.record_use(&user).unwrap();
            rig.use_on(&user, &home, &block);
            // Whatever orders the user so far does not cover what follows.
            next.wait(&user).unwrap();
            next.wait(&home).unwrap();
            rig.read(&user, &block);
            rig.free(&home, block);
            rig.touch(&next, bytes);
        }
    }
    drop((home, user, next));
    rig.done(pool);
}

/// A last use counts up to where it was declared, and the block's own stream until the free.
pub fn last_uses_end_where_declared<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * MIB);
    let pool = rig.builder().reuse(Reuse::SameStream).build().unwrap();
    let [home, user, next] = streams(&pool);
    let bytes = 4 * MIB;
    let block = rig.get(&home, bytes);
    let freed = block.address();
    rig.use_on(&user, &home, &block);
    block.buffer.last_use(&user).unwrap();
    next.wait(&user).unwrap();
    rig.free(&home, block);
    next.wait(&home).unwrap();
    // Later work of the user's has nothing to do with it: the orders known suffice.
    let other = rig.get(&user, MIB);
    let before = rig.driver.event_calls();
    assert_eq!(rig.touch(&next, bytes), freed);
    assert_eq!(rig.driver.event_calls(), before);
    rig.free(&user, other);
    drop((home, user, next));
    rig.done(pool);
}

/// The latest declaration of a stream holds: a use after its last use is a use until the free.
pub fn later_declarations_replace_earlier_ones<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * MIB);
    let pool = rig.pool();
    let [home, user, next] = streams(&pool);
    for bytes in SIZES {
        for _ in 0..3 {
            let block = rig.get(&home, bytes);
            rig.use_on(&user, &home, &block);
            block.buffer.last_use(&user).unwrap();
            next.wait(&user).unwrap();
            block.buffer.record_use(&user).unwrap();
            rig.read(&user, &block);
            rig.free(&home, block);
            rig.touch(&next, bytes);

            let block = rig.get(&home, bytes);
            rig.use_on(&user, &home, &block);
            block.buffer.last_use(&user).unwrap();
            next.wait(&user).unwrap();
            rig.read(&user, &block);
            block.buffer.last_use(&user).unwrap();
            rig.free(&home, block);
            rig.touch(&next, bytes);
        }
    }
    drop((home, user, next));
    rig.done(pool);
}

/// Uses on the block's own stream, declared like those of others.
pub fn uses_on_the_own_stream<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * MIB);
    let pool = rig.pool();
    let [home, next] = streams(&pool);
    for bytes in SIZES {
        for _ in 0..3 {
            let block = rig.get(&home, bytes);
            block.buffer.record_use(&home).unwrap();
            rig.free(&home, block);
            rig.touch(&next, bytes);
            let block = rig.get(&home, bytes);
            rig.read(&home, &block);
            block.buffer.last_use(&home).unwrap();
            drop(block);
            rig.touch(&next, bytes);
            // The end of use on its own stream is taken back like any other.
            let block = rig.get(&home, bytes);
            block.buffer.last_use(&home).unwrap();
            next.wait(&home).unwrap();
            block.buffer.record_use(&home).unwrap();
            rig.free(&home, block);
            rig.touch(&next, bytes);
        }
    }
    drop((home, next));
    rig.done(pool);
}

/// A block that its own stream's caches gave out again, and that is then used elsewhere: the stamp
/// of its earlier free, which has been sealed since, must not stand for its present use.
pub fn cached_blocks_used_elsewhere_are_stamped_anew<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for last in [false, true] {
        let rig = Rig::new(&make, 1, 4 * MIB);
        rig.needs(Need::Extents);
        let pool = rig.pool();
        let [home, user, next] = streams(&pool);
        for bytes in SIZES {
            for _ in 0..3 {
                let freed = rig.touch(&home, bytes);
                let again = rig.touch(&home, bytes);
                assert_eq!(freed, again);
                // The earlier stamp is covered, known to `next`, and its work is done.
                next.wait(&home).unwrap();
                rig.machine.pass_time();
                let block = rig.get(&home, bytes);
                assert_eq!(block.address(), freed);
                rig.use_on(&user, &home, &block);
                if last {
                    block.buffer.last_use(&user).unwrap();
                } else {
                    block.buffer.record_use(&user).unwrap();
                }
                // Only after the user was ordered: nothing but the home's stamp covers this read.
                rig.free(&home, block);
                next.wait(&user).unwrap();
                let all = rig.get(&next, 4 * MIB);
                rig.free(&next, all);
            }
        }
        drop((home, user, next));
        rig.done(pool);
    }
}

fn many_users<M: Machine>(make: impl Fn(u16, u64) -> M, users: usize) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 4 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [home, next] = streams(&pool);
        let users: Vec<Stream> = (0..users).map(|_| pool.stream(D0).unwrap()).collect();
        for bytes in SIZES {
            for round in 0..users.len().min(7) {
                let block = rig.get(&home, bytes);
                for (place, user) in users.iter().enumerate() {
                    rig.use_on(user, &home, &block);
                    if (place + round) % 3 == 0 {
                        block.buffer.last_use(user).unwrap();
                    } else {
                        block.buffer.record_use(user).unwrap();
                    }
                }
                for (place, user) in users.iter().enumerate() {
                    if (place + round) % 3 != 0 {
                        rig.read(user, &block);
                    }
                }
                // One of them is known to be done with it, which must not stand for all.
                next.wait(&users[round]).unwrap();
                rig.free(&home, block);
                rig.touch(&next, bytes);
                rig.touch(&users[round], bytes);
            }
        }
        drop((home, next, users));
        rig.done(pool);
    }
}

/// More streams than a block has room for inside.
pub fn five_user_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    many_users(make, 5);
}

/// More streams than a set by value holds.
pub fn twenty_user_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    many_users(make, 20);
}

/// A block that many streams used serves a smaller request and leaves a rest.
pub fn a_part_of_a_block_of_many_users<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        for known in [false, true] {
            let rig = Rig::new(&make, 1, 8 * MIB);
            let pool = rig.builder().reuse(reuse).build().unwrap();
            let [home, next] = streams(&pool);
            let users: Vec<Stream> = (0..12).map(|_| pool.stream(D0).unwrap()).collect();
            let block = rig.get(&home, 8 * MIB);
            for user in &users {
                rig.use_on(user, &home, &block);
                block.buffer.record_use(user).unwrap();
            }
            rig.free(&home, block);
            if known {
                users.iter().chain([&home]).for_each(|user| next.wait(user).unwrap());
            }
            let part = rig.get(&next, 3 * MIB);
            let rest = rig.get(&next, 4 * MIB);
            rig.free(&next, part);
            rig.free(&next, rest);
            drop((home, next, users));
            rig.done(pool);
        }
    }
}

/// Uses declared by address, and from many threads at once.
pub fn uses_by_address_and_from_many_threads<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * MIB);
    let pool = rig.pool();
    let [home, next] = streams(&pool);
    let users: Vec<Stream> = (0..12).map(|_| pool.stream(D0).unwrap()).collect();
    for bytes in SIZES {
        for _ in 0..4 {
            let block = rig.get(&home, bytes);
            rig.order(&home, &users[0]);
            std::thread::scope(|scope| {
                for (place, user) in users.iter().enumerate() {
                    let (rig, pool, block, home) = (&rig, &pool, &block, &home);
                    scope.spawn(move || {
                        rig.use_on(user, home, block);
                        if place % 2 == 0 {
                            pool.record_use(block.address(), user).unwrap();
                            rig.read(user, block);
                        } else {
                            pool.last_use(block.address(), user).unwrap();
                        }
                    });
                }
            });
            rig.free(&home, block);
            rig.touch(&next, bytes);
        }
    }
    drop((home, next, users));
    rig.done(pool);
}

/// Blocks freed by another thread than allocated them, used or not, then given to other streams.
pub fn freed_on_other_threads<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.pool();
    let [home, user, next] = streams(&pool);
    for bytes in SIZES {
        for round in 0..6 {
            let held: Vec<Block> = (0..4).map(|_| rig.get(&home, bytes)).collect();
            if round % 2 == 1 {
                for block in &held {
                    block.buffer.record_use(&user).unwrap();
                    rig.use_on(&user, &home, block);
                }
            }
            let (rig, home) = (&rig, &home);
            std::thread::scope(|scope| {
                scope.spawn(move || held.into_iter().for_each(|block| rig.free(home, block)));
            });
            let moved: Vec<Block> = (0..4).map(|_| rig.get(&next, bytes)).collect();
            let own: Vec<Block> = (0..4).map(|_| rig.get(home, bytes)).collect();
            moved.into_iter().for_each(|block| rig.free(&next, block));
            own.into_iter().for_each(|block| rig.free(home, block));
        }
    }
    drop((home, user, next));
    rig.done(pool);
}

fn merged<M: Machine>(make: impl Fn(u16, u64) -> M, count: usize) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        for step in [1, 5] {
            let rig = Rig::new(&make, 1, count as u64 * 2 * MIB);
            let pool = rig.builder().reuse(reuse).build().unwrap();
            let last = pool.stream(D0).unwrap();
            let freed: Vec<Stream> = (0..count).map(|_| pool.stream(D0).unwrap()).collect();
            for _ in 0..3 {
                let mut held: Vec<_> =
                    freed.iter().map(|stream| Some(rig.get(stream, 2 * MIB))).collect();
                // In the order of the addresses, or jumping about.
                for place in (0..count).map(|i| i * step % count) {
                    if let Some(block) = held[place].take() {
                        rig.free(&freed[place], block);
                    }
                }
                for (stream, block) in freed.iter().zip(held) {
                    block.into_iter().for_each(|block| rig.free(stream, block));
                }
                // One of the streams is known to be over; the others count all the same.
                last.wait(&freed[0]).unwrap();
                let all = rig.get(&last, count as u64 * 2 * MIB);
                rig.free(&last, all);
            }
            drop((last, freed));
            rig.done(pool);
        }
    }
}

/// Neighbours freed on four streams become one extent, which a fifth stream gets.
pub fn merged_from_four_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    merged(make, 4);
}

/// More streams than one extent's fences hold.
pub fn merged_from_twelve_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    merged(make, 12);
}

/// Devices of one pool use each other's memory.
pub fn used_on_another_device<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 2, 8 * MIB);
        let pool = rig.builder().reuse(reuse).peer_access(true).build().unwrap();
        let (home, next) = (pool.stream(D0).unwrap(), pool.stream(D0).unwrap());
        let user = pool.stream(D1).unwrap();
        for bytes in SIZES {
            for round in 0..4 {
                let block = rig.get(&home, bytes);
                rig.use_on(&user, &home, &block);
                if round % 2 == 0 {
                    block.buffer.record_use(&user).unwrap();
                    next.wait(&user).unwrap();
                    rig.read(&user, &block);
                } else {
                    block.buffer.last_use(&user).unwrap();
                }
                rig.free(&home, block);
                rig.touch(&next, bytes);
                rig.touch(&user, bytes);
            }
        }
        drop((home, next, user));
        rig.done(pool);
    }
}

/// Who may touch a device's memory: those named for it, or else all where access is for all.
pub fn only_peers_touch_memory<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let ids = [0, 1, 2].map(DeviceId);
    let nobody = Error::NoSuchDevice { device: DeviceId(3), count: 3 };
    for (of, peers) in [(3, 0), (0, 3)] {
        let rig = Rig::new(&make, 3, 64 * MIB);
        rig.needs(Need::Faults);
        let builder = rig.builder().device_peers(DeviceId(of), &[DeviceId(peers)]);
        assert_eq!(builder.build().unwrap_err(), nobody);
        rig.assert_nothing_leaked();
    }
    // Device 0 named nobody first; of device 1 only the peers of the whole pool are known.
    for (all, may) in [(false, [&[0, 2][..], &[1], &[2]]), (true, [&[0, 2], &[0, 1, 2], &[2]])] {
        for (home, user) in ids.iter().flat_map(|&home| ids.map(|user| (home, user))) {
            let rig = Rig::new(&make, 3, 64 * MIB);
            let builder = rig.builder().peer_access(all).device_peers(ids[0], &[]);
            let builder = builder.device_peers(ids[0], &[ids[2], ids[0]]).device_peers(ids[2], &[]);
            let pool = builder.build().unwrap();
            let [s, t] = [home, user].map(|device| pool.stream(device).unwrap());
            let blocks = [700, 3 * MIB].map(|bytes| rig.get(&s, bytes));
            rig.assert_quiet();
            blocks.iter().for_each(|block| rig.use_on(&t, &s, block));
            assert!(rig.gets_done(&t));
            let allowed = may[usize::from(home.0)].contains(&user.0);
            assert_eq!(rig.machine.hazards().is_empty(), allowed, "{user} touches {home}: {all}");
            for block in blocks {
                block.buffer.record_use(&t).unwrap();
                drop(block);
            }
            drop((s, t));
            pool.check_invariants_at(millpond::Level::Full);
            drop(pool);
            rig.assert_nothing_leaked();
        }
    }
}
