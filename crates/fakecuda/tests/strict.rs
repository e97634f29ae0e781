//! What a program may not do, with the code that it is answered. Most of it a real driver punishes
//! with worse, or does not even notice.

mod common;

use common::*;
use std::ptr::null_mut;

const OK: Code = Code::CUDA_SUCCESS;
const INVALID_VALUE: Code = Code::CUDA_ERROR_INVALID_VALUE;
const INVALID_HANDLE: Code = Code::CUDA_ERROR_INVALID_HANDLE;
const INVALID_CONTEXT: Code = Code::CUDA_ERROR_INVALID_CONTEXT;
const INVALID_DEVICE: Code = Code::CUDA_ERROR_INVALID_DEVICE;
const NOT_SUPPORTED: Code = Code::CUDA_ERROR_NOT_SUPPORTED;
const DESTROYED: Code = Code::CUDA_ERROR_CONTEXT_IS_DESTROYED;

/// What an unsafe call answers.
macro_rules! answer {
    ($call:expr) => {
        // SAFETY: pointers to locals; handles and addresses are followed by nobody.
        unsafe { $call }
    };
}

#[test]
fn initialisation_comes_first() {
    let _fake = start(Config::default()).unwrap();
    let mut count = 0;
    assert_eq!(answer!(sys::cuDeviceGetCount(&mut count)), Code::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(answer!(sys::cuInit(1)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuDeviceGetCount(&mut count)), Code::CUDA_ERROR_NOT_INITIALIZED);
    let mut version = 0;
    assert_eq!(answer!(sys::cuDriverGetVersion(&mut version)), OK);
    assert_eq!(version, 12_080);
    assert_eq!(answer!(sys::cuInit(0)), OK);
    assert_eq!(answer!(sys::cuDeviceGetCount(&mut count)), OK);
    assert_eq!(count, 1);
    assert_eq!(answer!(sys::cuDeviceGetCount(null_mut())), INVALID_VALUE);
    let mut device = 0;
    for ordinal in [-1, 1, i32::MAX] {
        assert_eq!(answer!(sys::cuDeviceGet(&mut device, ordinal)), INVALID_DEVICE);
    }
}

#[test]
fn errors_have_names_also_without_a_machine() {
    let error = cudarc::driver::DriverError(Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    let fake = start(Config::default()).unwrap();
    fake.shutdown();
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
    drop(fake);
    assert_eq!(error.error_string().unwrap(), c"capturing stream has unjoined work");
    assert!(format!("{error:?}").contains("unjoined"));
}

#[test]
fn a_current_context_is_needed() {
    let (fake, context) = two_devices();
    let (stream, event, block) = (stream(1), plain_event(), alloc(64));
    let mut out = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Handles are only numbers here; the closure must be able to take them along.
            let mut new_stream = null_mut();
            let mut new_event = null_mut();
            let (stream, event) = fixture();
            let answers = [
                record(event, stream),
                query(event),
                wait(stream, event),
                answer!(sys::cuEventSynchronize(event)),
                destroy_event(event),
                answer!(sys::cuEventCreate(&mut new_event, 0)),
                answer!(sys::cuStreamCreate(&mut new_stream, 0)),
                query_stream(stream),
                synchronize(stream),
                destroy_stream(stream),
                synchronize(null_mut()),
                answer!(sys::cuCtxSynchronize()),
                try_alloc(64).unwrap_err(),
                free(block),
                fill(block, 0, 64, stream),
                answer!(sys::cuMemGetInfo_v2(&mut 0, &mut 0)),
                answer!(sys::cuMemAllocAsync(&mut out, 64, stream)),
                free_async(block, stream),
                begin(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL),
            ];
            assert_eq!(answers, [INVALID_CONTEXT; 19]);
            // Virtual memory needs none.
            let address = reserve(UNIT);
            assert_eq!(unreserve(address, UNIT), OK);
        });
        /// Values that look like handles of the first stream and event; nothing follows them.
        fn fixture() -> (CUstream, CUevent) {
            (0x1000 as CUstream, 0x2000 as CUevent)
        }
    });
    assert_eq!(fake.violations(), Vec::<String>::new(), "the context is asked for first");
    assert_eq!((destroy_event(event), destroy_stream(stream), free(block)), (OK, OK, OK));
    drop(context);
}

#[test]
fn destroyed_handles_are_of_no_use() {
    let (fake, _context) = two_devices();
    let (stream, event) = (stream(1), plain_event());
    assert_eq!(destroy_event(event), OK);
    one_violation_each(
        &fake,
        "was destroyed",
        &[
            &|| record(event, stream),
            &|| query(event),
            &|| wait(stream, event),
            &|| answer!(sys::cuEventSynchronize(event)),
            &|| destroy_event(event),
        ],
    );
    let event = plain_event();
    assert_eq!(destroy_stream(stream), OK);
    one_violation_each(
        &fake,
        "was destroyed",
        &[
            &|| record(event, stream),
            &|| wait(stream, event),
            &|| query_stream(stream),
            &|| synchronize(stream),
            &|| destroy_stream(stream),
        ],
    );
    one_violation_each(
        &fake,
        "was never given out",
        &[&|| query_stream(0x1234_5670 as CUstream), &|| query(stream.cast())],
    );
    // Null is no handle, and harmless.
    let before = fake.violations().len();
    assert_eq!(query(null_mut()), INVALID_HANDLE);
    assert_eq!(fake.violations().len(), before);
}

#[track_caller]
fn one_violation_each(fake: &Fake, words: &str, calls: &[&dyn Fn() -> Code]) {
    for call in calls {
        let before = fake.violations().len();
        assert_eq!(call(), INVALID_HANDLE);
        one_violation(fake, before, words);
    }
}

#[test]
fn a_streams_handle_goes_to_the_next_one_and_its_number_does_not() {
    let (_fake, _context) = two_devices();
    let first = stream(1);
    let (mut before, mut after) = (0, 0);
    assert_eq!(answer!(sys::cuStreamGetId(first, &mut before)), OK);
    assert_eq!(destroy_stream(first), OK);
    let second = stream(1);
    assert_eq!(answer!(sys::cuStreamGetId(second, &mut after)), OK);
    assert_eq!(first, second);
    assert_ne!(before, after);
}

#[test]
fn events_are_recorded_in_their_context() {
    let (fake, context) = two_devices();
    let (here, event) = (stream(1), plain_event());
    let other = CudaContext::new(1).unwrap();
    let there = stream(1);
    assert_eq!(record(event, there), INVALID_HANDLE);
    one_violation(&fake, 0, "another context");
    // Whatever is current, all else works across contexts.
    assert_eq!(record(event, here), OK);
    assert_eq!(wait(there, event), OK);
    assert_eq!((query(event), query_stream(here)), (OK, OK));
    assert_eq!(fake.violations().len(), 1);
    let mut found = null_mut();
    assert_eq!(answer!(sys::cuStreamGetCtx(here, &mut found)), OK);
    assert_eq!(found, context.cu_ctx());
    assert_eq!(answer!(sys::cuStreamGetCtx(null_mut(), &mut found)), OK);
    assert_eq!(found, other.cu_ctx());
}

#[test]
fn flags_that_there_are_not() {
    let (_fake, _context) = two_devices();
    let (mut stream_out, mut event_out) = (null_mut(), null_mut());
    assert_eq!(answer!(sys::cuStreamCreate(&mut stream_out, 2)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuStreamCreate(null_mut(), 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuEventCreate(&mut event_out, 8)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuEventCreate(&mut event_out, 4)), INVALID_VALUE, "timed");
    assert_eq!(answer!(sys::cuEventCreate(&mut event_out, 6)), NOT_SUPPORTED);
    let (stream, event) = (stream(1), plain_event());
    assert_eq!(answer!(sys::cuStreamWaitEvent(stream, event, 2)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuStreamWaitEvent(stream, event, 1)), NOT_SUPPORTED);
    assert_eq!(answer!(sys::cuEventRecordWithFlags(event, stream, 2)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuEventRecordWithFlags(event, stream, 0)), OK);
}

#[test]
fn time_is_measured_between_timed_records() {
    let (_fake, _context) = two_devices();
    let stream = stream(1);
    let (start, end, untimed) = (event(0), event(0), plain_event());
    let mut ms = -1.0;
    let mut elapsed = |from, to| (answer!(sys::cuEventElapsedTime(&mut ms, from, to)), ms);
    assert_eq!(elapsed(start, end).0, INVALID_HANDLE, "never recorded");
    assert_eq!((record(start, stream), record(untimed, stream)), (OK, OK));
    let block = alloc(64);
    assert_eq!(record(end, stream), OK);
    assert_eq!(elapsed(start, untimed).0, INVALID_HANDLE, "no timing");
    let (answer, ms) = elapsed(start, end);
    assert_eq!(answer, OK);
    assert!(ms >= 0.06, "an allocation takes 60 µs, not {ms} ms");
    assert_eq!(elapsed(end, start), (OK, -ms));
    assert_eq!(free(block), OK);
}

#[test]
fn time_is_not_known_before_the_end() {
    let (fake, _context) = machine(Sim::builder().completion(Completion::Lag(2)));
    let (stream, start, end) = (stream(1), event(0), event(0));
    assert_eq!((record(start, stream), record(end, stream)), (OK, OK));
    let mut ms = 0.0;
    let not_ready = Code::CUDA_ERROR_NOT_READY;
    assert_eq!(answer!(sys::cuEventElapsedTime(&mut ms, start, end)), not_ready);
    fake.sim().tick();
    fake.sim().tick();
    assert_eq!(answer!(sys::cuEventElapsedTime(&mut ms, start, end)), OK);
}

#[test]
fn plain_memory_is_freed_once_and_whole() {
    let (fake, _context) = two_devices();
    assert_eq!(try_alloc(0), Err(INVALID_VALUE));
    let block = alloc(4096);
    assert_eq!(free(block + 512), INVALID_VALUE);
    one_violation(&fake, 0, "no plain allocation starts");
    assert_eq!((free(block), free(0)), (OK, OK));
    assert_eq!(free(block), INVALID_VALUE);
    one_violation(&fake, 1, "no plain allocation starts");
    assert_eq!(try_alloc(100 << 30), Err(Code::CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(fake.violations().len(), 2, "which is nobody's fault");
}

#[test]
fn touching_what_is_not_there_is_a_hazard() {
    let (fake, _context) = two_devices();
    let stream = stream(1);
    let block = alloc(512);
    assert_eq!(fill(block, 0, 512, stream), OK);
    assert_eq!(fill(block, 0, 513, stream), OK);
    assert_eq!(kinds(&fake), [HazardKind::Freed]);
    let address = reserve(UNIT);
    assert_eq!(fill(address, 0, 1, stream), OK);
    assert_eq!(kinds(&fake)[1..], [HazardKind::Unmapped]);
    let page = page(0);
    assert_eq!(map(address, page), OK);
    assert_eq!(fill(address, 0, 1, stream), OK);
    assert_eq!(kinds(&fake)[2..], [HazardKind::NoAccess]);
    assert_eq!(grant(address, UNIT, &[1]), OK);
    assert_eq!(fill(address, 0, 1, stream), OK);
    assert_eq!(kinds(&fake)[3..], [HazardKind::NoAccess], "another device's access");
}

#[test]
fn touching_what_is_not_there_is_an_error_without_the_oracle() {
    let (fake, _context) = machine(Sim::builder());
    let stream = stream(1);
    assert_eq!(fill(reserve(UNIT), 0, 1, stream), INVALID_VALUE);
    one_violation(&fake, 0, "nothing is mapped");
}

#[test]
fn memory_given_up_in_flight_is_a_hazard() {
    let (fake, _context) = two_devices();
    let stream = stream(1);
    let (address, page) = (reserve(UNIT), page(0));
    assert_eq!((map(address, page), grant(address, UNIT, &[0])), (OK, OK));
    assert_eq!(fill(address, 0, UNIT, stream), OK);
    assert_eq!(unmap(address, UNIT), OK);
    assert_eq!(kinds(&fake), [HazardKind::InFlight]);
}

#[test]
fn mappings_are_whole() {
    let (fake, _context) = two_devices();
    let address = reserve(4 * UNIT);
    let unit = UNIT as u64;
    let pages = [page(0), page(0)];
    assert_eq!((map(address, pages[0]), map(address + unit, pages[1])), (OK, OK));
    let refused: [(&dyn Fn() -> Code, &str); 12] = [
        (&|| map(address, pages[0]), "overlaps"),
        (&|| map(address + 5, pages[0]), "granularity"),
        (&|| map(address + 4 * unit, pages[0]), "reservation"),
        (&|| answer!(sys::cuMemMap(address + 2 * unit, 2 * UNIT, 0, pages[0], 0)), "whole"),
        (&|| map(address + 2 * unit, 999), "no page"),
        (&|| unmap(address, UNIT / 2), "whole mappings"),
        (&|| unmap(address + unit / 2, UNIT), "whole mappings"),
        (&|| unmap(address, 3 * UNIT), "whole mappings"),
        (&|| grant(address, 3 * UNIT, &[0]), "whole mappings"),
        (&|| grant(address, UNIT / 2, &[0]), "whole mappings"),
        (&|| unreserve(address, 4 * UNIT), "still has a mapping"),
        (&|| unreserve(address, UNIT), "whole reservation"),
    ];
    for (nth, (call, words)) in refused.into_iter().enumerate() {
        assert_eq!(call(), INVALID_VALUE, "{words}");
        one_violation(&fake, nth, words);
    }
    assert_eq!(unmap(address, 2 * UNIT), OK, "two at once");
    assert_eq!(unmap(address, UNIT), INVALID_VALUE, "nothing is left");
    assert_eq!((release(pages[0]), release(pages[1])), (OK, OK));
    assert_eq!(release(pages[0]), INVALID_VALUE);
    one_violation(&fake, 13, "released");
    assert_eq!(unreserve(address, 4 * UNIT), OK);
    assert_eq!(unreserve(address, 4 * UNIT), INVALID_VALUE);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

#[test]
fn arguments_of_virtual_memory() {
    let (_fake, _context) = two_devices();
    let (mut address, mut handle, mut size) = (0, 0, 0);
    let there = properties(0);
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let granularity = |properties: &sys::CUmemAllocationProp, size: &mut usize| {
        answer!(sys::cuMemGetAllocationGranularity(size, properties, minimum))
    };
    assert_eq!(granularity(&there, &mut size), OK);
    assert_eq!(size, UNIT);
    assert_eq!(granularity(&properties(2), &mut size), INVALID_DEVICE);
    let mut odd = there;
    odd.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
    assert_eq!(granularity(&odd, &mut size), INVALID_VALUE);
    odd = there;
    odd.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
    assert_eq!(granularity(&odd, &mut size), NOT_SUPPORTED);
    odd = there;
    odd.requestedHandleTypes.0 = 1;
    assert_eq!(answer!(sys::cuMemCreate(&mut handle, UNIT, &odd, 0)), NOT_SUPPORTED);
    assert_eq!(answer!(sys::cuMemCreate(&mut handle, UNIT, &there, 1)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemCreate(&mut handle, UNIT + 1, &there, 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemCreate(&mut handle, 0, &there, 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemAddressReserve(&mut address, UNIT, 0, 0, 1)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemAddressReserve(&mut address, UNIT, 3, 0, 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemAddressReserve(&mut address, 5, 0, 0, 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemAddressReserve(&mut address, UNIT, 1 << 30, 0, 0)), OK);
    assert!(address.is_multiple_of(1 << 30));
    let page = page(0);
    assert_eq!(answer!(sys::cuMemMap(address, UNIT, 512, page, 0)), INVALID_VALUE);
    assert_eq!(answer!(sys::cuMemMap(address, UNIT, 0, page, 1)), INVALID_VALUE);
    assert_eq!(map(address, page), OK);
    use sys::CUmemAccess_flags as Access;
    let read = Access::CU_MEM_ACCESS_FLAGS_PROT_READ;
    assert_eq!(set_access(address, UNIT, &[0], read), NOT_SUPPORTED);
    assert_eq!(grant(address, UNIT, &[2]), INVALID_DEVICE);
    assert_eq!(grant(address, UNIT, &[]), INVALID_VALUE);
    assert_eq!(grant(address, UNIT, &[0, 1]), OK);
    let access = |device| {
        let (mut flags, location) = (9, location(device));
        (answer!(sys::cuMemGetAccess(&mut flags, &location, address)), flags)
    };
    assert_eq!((access(0), access(1)), ((OK, 3), (OK, 3)));
    let none = Access::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    assert_eq!(set_access(address, UNIT, &[1], none), OK);
    assert_eq!((access(0), access(1)), ((OK, 3), (OK, 0)));
}

#[test]
fn memory_of_another_device_is_mapped_anywhere() {
    let (fake, _context) = two_devices();
    let address = reserve(UNIT);
    let page = page(1);
    assert_eq!((map(address, page), grant(address, UNIT, &[0])), (OK, OK));
    assert_eq!(fill(address, 3, UNIT, null_mut()), OK);
    assert_eq!(bytes(address, 4, null_mut()), [3; 4]);
    let mut again = 0;
    assert_eq!(answer!(sys::cuMemRetainAllocationHandle(&mut again, address as *mut _)), OK);
    assert_eq!(again, page);
    assert_eq!((unmap(address, UNIT), release(page), release(page)), (OK, OK, OK));
    clean(&fake);
}

#[test]
fn contexts_end_with_all_they_have() {
    let (fake, context) = two_devices();
    let (stream, event, block) = (stream(1), plain_event(), alloc(512));
    assert_eq!(fill(block, 0, 512, stream), OK);
    let old = context.cu_ctx();
    drop(context);
    assert_eq!(
        fake.abandoned(),
        ["the context of device 0 ended with 1 streams, 1 events and 1 allocations"]
    );
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    assert_eq!(query(event), DESTROYED, "it is still current");
    assert_eq!(answer!(sys::cuCtxSetCurrent(old)), DESTROYED);
    let _context = CudaContext::new(0).unwrap();
    assert_eq!((query(event), query_stream(stream)), (INVALID_HANDLE, INVALID_HANDLE));
    assert_eq!(answer!(sys::cuDevicePrimaryCtxRelease_v2(1)), INVALID_CONTEXT);
    assert!(fake.violations().last().is_some_and(|v| v.contains("released too often")));
    assert_eq!(answer!(sys::cuCtxDestroy_v2(_context.cu_ctx())), INVALID_CONTEXT);
    assert!(fake.violations().last().is_some_and(|v| v.contains("instead of released")));
}

#[test]
fn contexts_are_stacked() {
    let (fake, first) = two_devices();
    let (mut second, mut third, mut top, mut device) = (null_mut(), null_mut(), null_mut(), 0);
    assert_eq!(answer!(sys::cuCtxCreate_v2(&mut second, 0, 1)), OK);
    assert_eq!(answer!(sys::cuCtxGetDevice(&mut device)), OK);
    assert_eq!(Ok(device), result::device::get(1));
    assert_eq!(answer!(sys::cuCtxPopCurrent_v2(&mut top)), OK);
    assert_eq!(top, second);
    assert_eq!(answer!(sys::cuCtxGetCurrent(&mut top)), OK);
    assert_eq!(top, first.cu_ctx());
    assert_eq!(answer!(sys::cuCtxPushCurrent_v2(second)), OK);
    assert_eq!(answer!(sys::cuCtxDestroy_v2(second)), OK);
    assert_eq!(answer!(sys::cuCtxGetCurrent(&mut top)), OK);
    assert_eq!(top, first.cu_ctx());
    assert_eq!(answer!(sys::cuCtxPushCurrent_v2(second)), DESTROYED);
    assert_eq!(answer!(sys::cuCtxSetCurrent(null_mut())), OK);
    assert_eq!(answer!(sys::cuCtxPopCurrent_v2(&mut top)), INVALID_CONTEXT);
    assert_eq!(answer!(sys::cuCtxCreate_v2(&mut third, 0, 2)), INVALID_DEVICE);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn what_is_of_an_earlier_machine() {
    let (fake, context) = two_devices();
    let (stream, event, old) = (stream(1), plain_event(), context.cu_ctx());
    std::mem::forget(context);
    drop(fake);
    assert_eq!(query(event), Code::CUDA_ERROR_DEINITIALIZED);
    let (fake, _context) = two_devices();
    assert_eq!(answer!(sys::cuCtxSetCurrent(old)), INVALID_CONTEXT);
    assert_eq!((query(event), query_stream(stream)), (INVALID_HANDLE, INVALID_HANDLE));
    assert!(fake.violations()[0].contains("earlier machine"));
}

#[test]
fn a_context_that_was_destroyed_by_another() {
    let (fake, context) = two_devices();
    let (stream, event, block) = (stream(1), plain_event(), alloc(512));
    let other = CudaContext::new(1).unwrap();
    let there = plain_event();
    fake.destroy_context(0);
    // From the other device's context, which goes on.
    assert_eq!(
        (query(event), record(event, stream), wait(stream, there)),
        (DESTROYED, DESTROYED, DESTROYED)
    );
    assert_eq!(query(there), OK);
    assert_eq!(code(context.bind_to_thread()), DESTROYED);
    other.bind_to_thread().unwrap();
    assert_eq!(free(block), DESTROYED);
    assert_eq!(code(CudaContext::new(0)), DESTROYED);
    assert_eq!(fake.violations(), Vec::<String>::new());
    std::mem::forget(context);
}

#[test]
fn after_the_shutdown_all_is_refused() {
    let (fake, context) = two_devices();
    let event = plain_event();
    fake.shutdown();
    let deinitialized = Code::CUDA_ERROR_DEINITIALIZED;
    assert_eq!((query(event), code(CudaContext::new(0))), (deinitialized, deinitialized));
    assert_eq!(unmap(0, 0), deinitialized);
    drop(context);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn what_is_not_there_is_refused_and_counted() {
    let (fake, _context) = two_devices();
    let mut texture = null_mut();
    assert_eq!(answer!(sys::cuTexRefCreate(&mut texture)), NOT_SUPPORTED);
    assert_eq!(fake.calls("cuTexRefCreate"), 1);
    let mut address = 0;
    assert_eq!(answer!(sys::cuMemAllocManaged(&mut address, 64, 1)), NOT_SUPPORTED);
}
