//! Memory pools: allocation in stream order.

mod common;

use common::*;
use std::ptr::null_mut;
use sys::CUmemPool_attribute as Attribute;

const OK: Code = Code::CUDA_SUCCESS;

fn default_pool(device: i32) -> sys::CUmemoryPool {
    // SAFETY: a pointer to a local.
    unsafe { result::device::get_default_mem_pool(device) }.unwrap()
}

fn get(pool: sys::CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = 0u64;
    // SAFETY: these attributes are of 64 bits.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()) }.unwrap();
    value
}

fn set(pool: sys::CUmemoryPool, attribute: Attribute, mut value: u64) -> Code {
    // SAFETY: these attributes are of 64 bits.
    code(unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut value).cast()) })
}

/// Reserved now and at most, used now and at most.
fn figures(pool: sys::CUmemoryPool) -> [u64; 4] {
    [
        get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
        get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH),
    ]
}

fn used_on_device(fake: &Fake) -> u64 {
    let (free, total) = fake.sim().memory_info(0).unwrap();
    total - free
}

const MIB: u64 = 1 << 20;

#[test]
fn a_pool_gives_back_at_a_wait_what_is_above_its_threshold() {
    let (fake, context) = two_devices();
    let (a, pool) = (stream(1), default_pool(0));
    assert_eq!(figures(pool), [0; 4]);
    let block = alloc_async(3 << 20, a);
    let other = alloc_async(1, a);
    assert_eq!(figures(pool), [4 * MIB, 4 * MIB, 3 * MIB + 512, 3 * MIB + 512]);
    assert_eq!(used_on_device(&fake), 4 * MIB);
    assert_eq!((free_async(block, a), free_async(other, a)), (OK, OK));
    assert_eq!(figures(pool), [4 * MIB, 4 * MIB, 0, 3 * MIB + 512], "kept until a wait");
    assert_eq!(used_on_device(&fake), 4 * MIB);
    assert_eq!(synchronize(a), OK);
    assert_eq!(figures(pool), [0, 4 * MIB, 0, 3 * MIB + 512]);
    assert_eq!(used_on_device(&fake), 0);
    assert!(set(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 5) != OK, "only reset");
    assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0), OK);
    assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0), OK);
    assert_eq!(figures(pool), [0; 4]);

    assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 6 * MIB), OK);
    let block = alloc_async(8 << 20, a);
    assert_eq!(free_async(block, a), OK);
    context.synchronize().unwrap();
    assert_eq!((figures(pool)[0], used_on_device(&fake)), (6 * MIB, 6 * MIB));
    // SAFETY: handles are followed by nobody.
    unsafe { result::mem_pool::trim_to(pool, 3 << 20) }.unwrap();
    assert_eq!((figures(pool)[0], used_on_device(&fake)), (3 * MIB, 3 * MIB));
    // SAFETY: handles are followed by nobody.
    unsafe { result::mem_pool::trim_to(pool, 0) }.unwrap();
    assert_eq!((figures(pool)[0], used_on_device(&fake)), (0, 0));
    clean(&fake);
}

#[test]
fn what_a_pool_keeps_goes_where_it_is_needed() {
    let machine = Sim::builder().capacity(8 * MIB).oracle(true);
    let (fake, _context) = common::machine(machine);
    let (a, pool) = (stream(1), default_pool(0));
    assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX), OK);
    let block = alloc_async(8 << 20, a);
    assert_eq!((free_async(block, a), synchronize(a)), (OK, OK));
    assert_eq!(figures(pool)[0], 8 * MIB);
    let block = alloc_async(5 << 20, a);
    assert_eq!((figures(pool)[0], used_on_device(&fake)), (8 * MIB, 8 * MIB));
    let plain = alloc(2 << 20);
    assert_eq!(figures(pool)[0], 6 * MIB, "given back under pressure");
    let mut none = 0;
    // SAFETY: a pointer to a local.
    let answer = unsafe { sys::cuMemAllocAsync(&mut none, 2 << 20, a) };
    assert_eq!(answer, Code::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(figures(pool)[2], 5 * MIB, "as before");
    assert_eq!((free_async(block, a), free(plain)), (OK, OK));
    clean(&fake);
}

#[test]
fn blocks_live_between_their_points_in_stream_order() {
    for seeded in [false, true] {
        let mut machine = Sim::builder().contents(true).oracle(true);
        if seeded {
            machine = machine.completion(Completion::Scheduled).seed(5);
        }
        let (fake, _context) = common::machine(machine);
        let (a, b, event) = (stream(1), stream(1), plain_event());
        let block = alloc_async(4096, a);
        assert_eq!(fill(block, 1, 4096, a), OK);
        assert_eq!((record(event, a), wait(b, event)), (OK, OK));
        assert_eq!(fill(block, 2, 4096, b), OK);
        assert_eq!(free_async(block, b), OK, "on another stream, in order");
        assert_eq!(kinds(&fake), []);
        assert_eq!(fill(block, 3, 8, b), OK);
        assert_eq!(kinds(&fake), [HazardKind::Freed]);
        let block = alloc_async(4096, a);
        assert_eq!(fill(block, 1, 4096, a), OK);
        assert_eq!(free_async(block, b), OK);
        assert_eq!(kinds(&fake)[1..], [HazardKind::Unordered], "out of order");
        assert_eq!(free_async(block, a), Code::CUDA_ERROR_INVALID_VALUE);
        one_violation(&fake, 0, "no plain allocation");
        assert_eq!(synchronize(b), OK);
        assert_eq!(fake.sim().device_faults(), 0);
    }
}

#[test]
fn both_kinds_of_free_take_both_kinds_of_memory() {
    let (fake, _context) = two_devices();
    let (a, pool) = (stream(1), default_pool(0));
    let (plain, pooled) = (alloc(4096), alloc_async(4096, a));
    assert_eq!((free(pooled), free_async(plain, a)), (OK, OK));
    assert_eq!(figures(pool)[2], 0);
    assert_eq!((alloc_async(0, a), free_async(0, a), destroy_stream(a)), (0, OK, OK));
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    clean(&fake);
}

#[test]
fn pools_of_a_programs_own() {
    let (fake, _context) = two_devices();
    let a = stream(1);
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(0);
    properties.maxSize = 1 << 20;
    // SAFETY: pointers to locals; handles are followed by nobody.
    unsafe {
        let pool = result::mem_pool::create(&properties).unwrap();
        let out_of_memory = Code::CUDA_ERROR_OUT_OF_MEMORY;
        assert_eq!(code(result::mem_pool::alloc_async(pool, (1 << 20) + 1, a)), out_of_memory);
        let block = result::mem_pool::alloc_async(pool, 1 << 20, a).unwrap();
        assert_eq!(figures(default_pool(0)), [0; 4]);
        assert_eq!(code(result::device::set_mem_pool(1, pool)), Code::CUDA_ERROR_INVALID_VALUE);
        result::device::set_mem_pool(0, pool).unwrap();
        assert_eq!(result::device::get_mem_pool(0).unwrap(), pool);
        let more = code(result::malloc_async(a, 1));
        assert_eq!(more, out_of_memory, "the device's current pool is full");
        let mut found: sys::CUmemoryPool = null_mut();
        let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        let answer = sys::cuPointerGetAttribute((&raw mut found).cast(), attribute, block + 5);
        assert_eq!((answer, found), (OK, pool));
        result::mem_pool::destroy(pool).unwrap();
        assert_eq!(result::device::get_mem_pool(0).unwrap(), default_pool(0));
        assert_eq!(code(result::mem_pool::destroy(pool)), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(free_async(block, a), OK, "its blocks live on");
        let own = code(result::mem_pool::destroy(default_pool(0)));
        assert_eq!(own, Code::CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(synchronize(a), OK);
    assert_eq!(used_on_device(&fake), 0);
}

#[test]
fn a_machine_without_pools() {
    let config = Config { memory_pools: false, ..Config::default() };
    let (fake, context) = common::machine(config);
    assert!(!context.has_async_alloc());
    let stream = context.new_stream().unwrap();
    let slice = stream.clone_htod(&[1u8; 100]).unwrap();
    assert_eq!(fake.calls("cuMemAlloc_v2"), 1);
    // SAFETY: a pointer to a local.
    let answer = unsafe { result::malloc_async(stream.cu_stream(), 64) };
    assert_eq!(code(answer), Code::CUDA_ERROR_NOT_SUPPORTED);
    drop(slice);
    assert_eq!(fake.calls("cuMemFree_v2"), 1);
    clean(&fake);
}
