//! Where virtual memory does not work, memory is taken in plain allocations.

use crate::{D0, MIB, quiet, sim, start};
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
    for (call, clean) in calls {
        let fake = start();
        fake.fail(call, 1, CUresult::CUDA_ERROR_NOT_SUPPORTED).unwrap();
        let driver = CudaDriver::all().unwrap();
        let info = driver.device(D0).unwrap();
        assert!(!info.virtual_memory, "{call}");
        assert_eq!(driver.fallback(D0).map(|why| (why.call, why.code)), Some((call, 801)));
        assert!(driver.device(crate::D1).unwrap().virtual_memory, "{call}");
        works_with_plain_allocations(&fake, driver);
        assert_eq!(fake.leaks().is_empty(), clean, "{call}: {}", fake.leaks());
        assert_eq!(fake.sim().hazard_count(), 0, "{call}: {:?}", fake.sim().hazards());
    }
}
