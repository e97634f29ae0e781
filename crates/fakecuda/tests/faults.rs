//! Failures on request, and counts.

mod common;

use common::*;

const OK: Code = Code::CUDA_SUCCESS;
const OUT_OF_MEMORY: Code = Code::CUDA_ERROR_OUT_OF_MEMORY;
const UNKNOWN: Code = Code::CUDA_ERROR_UNKNOWN;

#[test]
fn the_nth_call_of_a_function_fails_and_does_nothing() {
    let (fake, _context) = two_devices();
    fake.fail("cuMemAlloc_v2", 2, OUT_OF_MEMORY).unwrap();
    let before = fake.calls("cuMemAlloc_v2");
    let answers: Vec<_> = (0..3).map(|_| try_alloc(64).err()).collect();
    assert_eq!(answers, [None, Some(OUT_OF_MEMORY), None]);
    assert_eq!(fake.calls("cuMemAlloc_v2"), before + 3, "failures count");
    assert_eq!(fake.leaks().allocations, 2);
    assert!(!fake.clear_faults(), "it is over");
    clean(&fake);
}

#[test]
fn every_call_fails_from_the_nth_on() {
    let (fake, _context) = two_devices();
    fake.fail_from("cuMemAlloc_v2", 2, OUT_OF_MEMORY).unwrap();
    let answers: Vec<_> = (0..3).map(|_| try_alloc(64).err()).collect();
    assert_eq!(answers, [None, Some(OUT_OF_MEMORY), Some(OUT_OF_MEMORY)]);
    let event = plain_event();
    assert!(fake.clear_faults());
    assert!(try_alloc(64).is_ok());
    fake.fail_all(2, UNKNOWN);
    assert_eq!((query(event), query(event), free(0)), (OK, UNKNOWN, UNKNOWN));
    assert!(fake.clear_faults());
    fake.fail_any(2, UNKNOWN);
    assert_eq!((query(event), free(0), query(event)), (OK, UNKNOWN, OK));
}

#[test]
fn a_function_that_there_is_not() {
    let (fake, _context) = two_devices();
    let error = fake.fail("cuMemAlloc", 1, UNKNOWN).unwrap_err();
    assert_eq!(error.to_string(), "fakecuda has no function cuMemAlloc");
    assert!(!fake.clear_faults());
}

#[test]
fn a_panic_behind_a_function_is_an_error() {
    let (fake, _context) = two_devices();
    let (a, block) = (stream(1), alloc(64));
    let sim = fake.stream(a).unwrap();
    let panics = std::sync::Arc::new(|_: &mut millpond_simgpu::DeviceBytes<'_>| {
        panic!("on purpose: a driver's function must not let this through");
    });
    fake.sim().stream_synchronize(sim).unwrap();
    // Work of the test's own that panics when the next driver call comes to it.
    drop(fake);
    let (fake, _context) = machine(Sim::builder().contents(true).completion(Completion::Scheduled));
    let a = stream(1);
    let sim = fake.stream(a).unwrap();
    fake.sim().hang(sim).unwrap();
    fake.sim().compute(sim, &[], panics).unwrap();
    fake.sim().unhang(sim).unwrap();
    assert_eq!(synchronize(a), UNKNOWN);
    one_violation(&fake, 0, "cuStreamSynchronize panicked");
    assert_eq!(synchronize(a), OK, "and the machine goes on");
    let _ = block;
}
