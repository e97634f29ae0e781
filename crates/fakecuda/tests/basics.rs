//! Contexts, slices, streams and events, as programs on cudarc use them.

use cudarc::driver::{CudaContext, sys};
use fakecuda::{Config, start};
use millpond_simgpu::{Completion, Sim};

#[test]
fn slices_go_there_and_back() {
    let fake = start(Config::default()).unwrap();
    let context = CudaContext::new(0).unwrap();
    assert_eq!(CudaContext::device_count().unwrap(), 1);
    assert_eq!(context.name().unwrap(), "fakecuda");
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let source = a.clone_htod(&[7u32; 1000]).unwrap();
    let mut copy = b.alloc_zeros::<u32>(1000).unwrap();
    b.join(&a).unwrap();
    b.memcpy_dtod(&source, &mut copy).unwrap();
    assert_eq!(b.clone_dtoh(&copy).unwrap(), vec![7; 1000]);
    drop((source, copy));
    drop((a, b));
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(fake.sim().hazards(), []);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    assert_eq!(fake.calls("cuStreamCreate"), 2);
    assert_eq!(fake.calls("cuNoSuchFunction"), 0);
}

#[test]
fn an_event_is_done_when_the_clock_says_so() {
    let machine = Sim::builder().completion(Completion::Lag(3));
    let fake = start(machine).unwrap();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let event = context.new_event(None).unwrap();
    assert_eq!(event.try_is_complete(), Ok(true), "never recorded");
    event.record(&stream).unwrap();
    assert_eq!(event.try_is_complete(), Ok(false));
    for _ in 0..3 {
        fake.sim().tick();
    }
    assert_eq!(event.try_is_complete(), Ok(true));
    event.record(&stream).unwrap();
    event.synchronize().unwrap();
    assert_eq!(event.try_is_complete(), Ok(true));
}

#[test]
fn virtual_memory_is_mapped_and_touched() {
    let fake = start(Config::default()).unwrap();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let location =
        sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location;
    let access = sys::CUmemAccessDesc {
        location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: pointers to locals.
    unsafe {
        let (mut unit, mut address, mut handle) = (0, 0, 0);
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        sys::cuMemGetAllocationGranularity(&mut unit, &properties, minimum).result().unwrap();
        assert_eq!(unit, 2 << 20);
        sys::cuMemAddressReserve(&mut address, unit, 0, 0, 0).result().unwrap();
        sys::cuMemCreate(&mut handle, unit, &properties, 0).result().unwrap();
        sys::cuMemMap(address, unit, 0, handle, 0).result().unwrap();
        sys::cuMemSetAccess(address, unit, &access, 1).result().unwrap();
        sys::cuMemsetD8Async(address, 0xab, unit, stream.cu_stream()).result().unwrap();
        let mut bytes = [0u8; 16];
        sys::cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast(),
            address + unit as u64 - 16,
            16,
            stream.cu_stream(),
        )
        .result()
        .unwrap();
        assert_eq!(bytes, [0xab; 16]);
        sys::cuMemUnmap(address, unit).result().unwrap();
        sys::cuMemRelease(handle).result().unwrap();
        sys::cuMemAddressFree(address, unit).result().unwrap();
    }
    drop(stream);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(fake.sim().hazards(), []);
}
