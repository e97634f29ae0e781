//! Where virtual memory does not work, memory is taken in plain allocations.

use crate::{D0, MIB, quiet, scheduled, sim, start};
use cudarc::driver::sys::CUresult;
use fakecuda::Config;
use millpond::driver::Driver;
use millpond::driver::cuda::{CudaDriver, cudarc};
use millpond::{Level, Pool};

/// Uses a pool, which must take plain allocations.
fn works_with_plain_allocations(fake: &fakecuda::Fake, driver: CudaDriver) {
    let pages = fake.calls("cuMemCreate");
    let pool = Pool::new(driver).unwrap();
    let stream = pool.stream(D0).unwrap();
    let blocks = [900, 70_000, 3 << 20].map(|bytes| stream.alloc::<u8>(bytes).unwrap());
    assert!(blocks.iter().all(|block| fake.sim().device_of(block.address()) == Some(0)));
    drop(blocks);
    pool.check_invariants_at(Level::Full);
    assert!(pool.stats().devices[0].reserved_bytes >= 3 * MIB);
    assert!(fake.calls("cuMemAlloc_v2") > 0);
    assert_eq!(fake.calls("cuMemCreate"), pages);
    drop((stream, pool));
}

#[test]
fn without_virtual_memory() {
    let fake = fakecuda::start(Config { virtual_memory: false, ..Config::from(sim()) }).unwrap();
    let driver = CudaDriver::all().unwrap();
    assert!(!driver.device(D0).unwrap().virtual_memory);
    let why = driver.fallback(D0).unwrap();
    assert_eq!((why.call, why.code), ("cuMemCreate", 801));
    works_with_plain_allocations(&fake, driver);
    quiet(&fake);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

/// A device whose pages keep nothing, as some virtual machines have them.
#[test]
fn where_pages_keep_no_bytes() {
    let fake = fakecuda::start(sim().contents(false)).unwrap();
    let driver = CudaDriver::all().unwrap();
    let why = driver.fallback(D0).unwrap();
    assert_eq!(why.call, "cuMemcpyDtoH");
    assert!(why.message.contains("does not keep bytes"), "{why}");
    works_with_plain_allocations(&fake, driver);
}

#[test]
fn by_choice() {
    let fake = start();
    let driver = CudaDriver::all().unwrap().without_virtual_memory();
    assert!(driver.fallback(D0).is_none());
    works_with_plain_allocations(&fake, driver);
    quiet(&fake);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

/// Whichever call of the probe fails on a device, that device does without, and says why; the other
/// does not. What could be given back is.
#[test]
fn where_the_probe_fails() {
    let calls = [
        ("cuMemGetAllocationGranularity", true),
        ("cuMemAddressReserve", true),
        ("cuMemCreate", true),
        ("cuMemMap", true),
        ("cuMemSetAccess", true),
        ("cuMemsetD8_v2", true),
        ("cuMemcpyDtoH_v2", true),
        ("cuMemUnmap", false),
        ("cuMemRelease", false),
        ("cuMemAddressFree", false),
    ];
    // With a seed the page is still being filled when the call after it fails.
    let ways = [None, Some(1), Some(2)];
    for ((call, clean), seed) in calls.into_iter().flat_map(|call| ways.map(|seed| (call, seed))) {
        let fake = seed.map_or_else(start, scheduled);
        fake.fail(call, 1, CUresult::CUDA_ERROR_NOT_SUPPORTED).unwrap();
        let driver = CudaDriver::all().unwrap();
        let info = driver.device(D0).unwrap();
        assert!(!info.virtual_memory, "{call}");
        assert_eq!(driver.fallback(D0).map(|why| (why.call, why.code)), Some((call, 801)));
        assert!(driver.device(crate::D1).unwrap().virtual_memory, "{call}");
        works_with_plain_allocations(&fake, driver);
        assert_eq!(fake.leaks().is_empty(), clean, "{call}: {}", fake.leaks());
        assert_eq!(fake.sim().hazards(), [], "{call}");
    }
}

/// Nobody knows when a page is filled whose reading failed, if waiting for it fails too: it stays.
#[test]
fn a_page_that_may_be_in_use_stays() {
    for seed in 0..4 {
        let fake = scheduled(seed);
        for call in ["cuMemcpyDtoH_v2", "cuStreamSynchronize"] {
            fake.fail(call, 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
        }
        let driver = CudaDriver::all().unwrap();
        assert_eq!(driver.fallback(D0).map(|why| why.call), Some("cuMemcpyDtoH_v2"));
        assert_eq!((fake.leaks().mappings, fake.leaks().pages), (1, 1));
        works_with_plain_allocations(&fake, driver);
        quiet(&fake);
    }
}
