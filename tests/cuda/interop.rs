//! The pool's memory in the hands of cudarc's users.

use crate::{D0, MIB, Rig, scheduled, start, total_calls};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaFunction, CudaSlice, DevicePtr, DeviceSlice, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use millpond::driver::cuda::cudarc;
use millpond::interop::Slice;
use millpond::{Buffer, Error};
use std::sync::Arc;

const LEN: usize = 10_000;

fn ones() -> Vec<f32> {
    vec![1.0; LEN]
}

/// `out[i] = a[i] + b[i]`: one of those that the software driver knows by name.
fn add(rig: &Rig) -> CudaFunction {
    let module = rig.context.load_module(Ptx::from_src("any")).unwrap();
    module.load_function("add_f32").unwrap()
}

#[test]
fn buffers_are_kernel_arguments() {
    let rig = Rig::new(start());
    let add = add(&rig);
    let mut a: Buffer<f32> = rig.stream.alloc(LEN).unwrap();
    rig.cuda.memcpy_htod(&ones(), &mut a.on_mut(&rig.cuda)).unwrap();
    let mut sum: Buffer<f32> = rig.stream.alloc(LEN).unwrap();
    let mut launch = rig.cuda.launch_builder(&add);
    launch.arg(&mut sum).arg(&a).arg(&a).arg(&LEN);
    // SAFETY: the kernel reads and writes LEN floats of each.
    unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }.unwrap();
    assert_eq!(rig.cuda.clone_dtoh(&sum.on(&rig.cuda)).unwrap(), vec![2.0; LEN]);
    drop((a, sum, add));
    rig.done();
}

/// Copies, fills and views take buffers and slices like any other device memory.
#[test]
fn copies_and_fills() {
    let rig = Rig::new(start());
    let stream = &rig.cuda;
    let mut buffer: Buffer<f32> = rig.stream.alloc(LEN).unwrap();
    stream.memset_zeros(&mut buffer.on_mut(stream)).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer.on(stream)).unwrap(), vec![0.0; LEN]);
    let mut slice: Slice<f32> = rig.stream.alloc_slice_zeroed(LEN).unwrap();
    assert_eq!((slice.len(), slice.buffer().len(), buffer.on(stream).len()), (LEN, LEN, LEN));
    assert_eq!(DeviceSlice::<f32>::stream(&buffer.on(stream)), stream);
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), vec![0.0; LEN]);
    stream.memcpy_htod(&ones(), &mut slice).unwrap();
    stream.memcpy_dtod(&slice, &mut buffer.on_mut(stream)).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer.on(stream)).unwrap(), ones());
    // A part of a slice, as cudarc's views are.
    stream.memset_zeros(&mut slice.as_view_mut().slice_mut(..LEN / 2)).unwrap();
    let part = stream.clone_dtoh(&slice.slice(LEN / 2 - 1..LEN / 2 + 1)).unwrap();
    assert_eq!(part, [0.0, 1.0]);
    assert!(format!("{slice:?}").contains("Slice"));
    drop((buffer, slice));
    rig.done();
}

#[test]
fn slices_are_kernel_arguments() {
    let rig = Rig::new(start());
    let add = add(&rig);
    let mut total: Slice<f32> = rig.stream.alloc_slice_zeroed(LEN).unwrap();
    for _ in 0..5 {
        let mut term: Slice<f32> = rig.stream.alloc_slice(LEN).unwrap();
        rig.cuda.memcpy_htod(&ones(), &mut term).unwrap();
        let mut sum: Slice<f32> = rig.stream.alloc_slice(LEN).unwrap();
        let mut launch = rig.cuda.launch_builder(&add);
        launch.arg(&mut sum).arg(&total).arg(&term).arg(&LEN);
        // SAFETY: as above.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }.unwrap();
        total = sum;
    }
    assert_eq!(rig.cuda.clone_dtoh(&total).unwrap(), vec![5.0; LEN]);
    drop((total, add));
    rig.done();
}

/// cudarc's own tracking orders a slice's uses on several streams, and its end after them: its memory
/// serves others no earlier. The order in which streams run is drawn.
#[test]
fn slices_are_ordered_across_streams() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        let other = rig.context.new_stream().unwrap();
        let third = rig.pool.register_cuda_stream(&rig.context.new_stream().unwrap()).unwrap();
        for round in 0..10 {
            let value = round as f32;
            let mut slice: Slice<f32> = rig.stream.alloc_slice(3 * MIB as usize / 4).unwrap();
            let len = slice.len();
            rig.cuda.memcpy_htod(&vec![value; len], &mut slice).unwrap();
            let mut copy: Slice<f32> = rig.stream.alloc_slice(len).unwrap();
            other.memcpy_dtod(&slice, &mut copy).unwrap();
            drop(slice);
            // Another stream's, with the memory that was just freed.
            let next: Slice<f32> = third.alloc_slice_zeroed(len).unwrap();
            assert_eq!(rig.cuda.clone_dtoh(&copy).unwrap(), vec![value; len]);
            drop((copy, next));
        }
        drop((other, third));
        rig.done();
    }
}

/// A slice without event tracking takes no event, as its user has chosen.
#[test]
fn untracked_slices_make_no_event() {
    let rig = Rig::new(start());
    // SAFETY: the slices here are used on one stream.
    unsafe { rig.context.disable_event_tracking() };
    let warm: Slice<u8> = rig.stream.alloc_slice(5000).unwrap();
    drop(warm);
    let before = total_calls(&rig.fake);
    (0..100).for_each(|_| drop::<Slice<u8>>(rig.stream.alloc_slice(5000).unwrap()));
    assert_eq!(total_calls(&rig.fake), before);
    rig.done();
}

/// A buffer becomes a `CudaSlice` for good and a buffer again: freed once.
#[test]
fn to_a_slice_and_back() {
    let rig = Rig::new(start());
    for bytes in [5000, 3 * MIB as usize] {
        let buffer: Buffer<u8> = rig.stream.alloc(bytes).unwrap();
        let address = buffer.address();
        let slice: CudaSlice<u8> = buffer.into_cuda_slice(&rig.stream).unwrap();
        assert_eq!((slice.len(), slice.device_ptr(&rig.cuda).0), (bytes, address));
        assert!(rig.pool.stats().devices[0].live_bytes >= bytes as u64);
        let buffer = rig.pool.take_back(slice).unwrap();
        assert_eq!((buffer.address(), buffer.len()), (address, bytes));
        let slice = Slice::new(buffer, &rig.stream).unwrap();
        let buffer = slice.into_buffer();
        assert_eq!(buffer.address(), address);
        drop(buffer);
        assert_eq!(rig.pool.stats().devices[0].live_bytes, 0);
        let freed = rig.pool.free(address);
        assert!(matches!(freed, Err(Error::NotAllocated { .. })), "{freed:?}");
    }
    rig.done();
}

/// What is not the pool's to take back stays the slice's, and is freed by it.
#[test]
fn foreign_slices_are_not_taken_back() {
    let rig = Rig::new(start());
    let cudas: CudaSlice<u8> = rig.cuda.alloc_zeros(5000).unwrap();
    let (error, cudas) = rig.pool.take_back(cudas).unwrap_err();
    assert!(matches!(error, Error::UnknownAddress { .. }), "{error}");
    drop(cudas);

    // Freed behind the slice's back, and somebody else's since: there is one owner, not two.
    let buffer: Buffer<u8> = rig.stream.alloc(3 << 20).unwrap();
    let address = buffer.address();
    let slice = buffer.into_cuda_slice(&rig.stream).unwrap();
    rig.pool.free(address).unwrap();
    let next: Buffer<u8> = rig.stream.alloc(3 << 20).unwrap();
    assert_eq!(next.address(), address);
    let (error, slice) = rig.pool.take_back(slice).unwrap_err();
    assert!(matches!(error, Error::UnknownAddress { .. }), "{error}");
    assert_eq!(slice.leak(), address);
    drop(next);

    // Longer than the block.
    let buffer: Buffer<u8> = rig.stream.alloc(3 << 20).unwrap();
    let address = buffer.into_address();
    // SAFETY: of a slice that claims too much; it is never used.
    let long: CudaSlice<u8> = unsafe { rig.cuda.upgrade_device_ptr(address, 4 << 20) };
    let (error, long) = rig.pool.take_back(long).unwrap_err();
    assert!(matches!(error, Error::UnknownAddress { .. }), "{error}");
    long.leak();
    rig.pool.free(address).unwrap();
    rig.done();
}

/// A slice that is dropped instead of taken back: CUDA refuses to free it, says so, and the block stays
/// taken. Nothing is freed twice.
#[test]
fn a_lent_slice_that_is_dropped() {
    let rig = Rig::new(start());
    let buffer: Buffer<u8> = rig.stream.alloc(3 << 20).unwrap();
    let address = buffer.address();
    drop(buffer.into_cuda_slice(&rig.stream).unwrap());
    let said = rig.context.check_err().unwrap_err();
    assert_eq!(said.0, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(rig.fake.violations().len(), 1, "{:?}", rig.fake.violations());
    assert_eq!(rig.pool.stats().devices[0].live_bytes, 3 << 20);
    rig.pool.free(address).unwrap();
    assert_eq!(rig.pool.trim(D0, 0).unwrap(), 0);
    assert!(rig.context.check_err().is_ok());
}

/// Slices are of the streams that their memory was allocated on.
#[test]
fn slices_know_their_stream() {
    let rig = Rig::new(start());
    let other = rig.pool.register_cuda_stream(&rig.context.new_stream().unwrap()).unwrap();
    let buffer: Buffer<u8> = rig.stream.alloc(5000).unwrap();
    let (error, buffer) = Slice::new(buffer, &other).unwrap_err();
    assert!(error.to_string().contains("stream"), "{error}");
    let (error, buffer) = buffer.into_cuda_slice(&other).unwrap_err();
    assert!(error.to_string().contains("stream"), "{error}");
    drop(buffer);
    let plain = rig.pool.stream(D0).unwrap();
    let (error, buffer) = Slice::new(plain.alloc::<u8>(10).unwrap(), &plain).unwrap_err();
    assert!(error.to_string().contains("registered"), "{error}");
    drop(buffer);
    assert!(plain.cuda().is_none());
    let error = plain.alloc_slice::<u8>(10).unwrap_err();
    assert!(matches!(error, Error::Driver(_)), "{error}");
    assert!(Arc::ptr_eq(&rig.stream.cuda().unwrap(), &rig.cuda));
    drop((plain, other));
    rig.done();
}

/// Where cudarc gets no events it panics; the pool's caller gets an error, and the memory back.
#[test]
fn no_events_for_a_slice() {
    let rig = Rig::new(start());
    let no_events = || {
        rig.fake.fail("cuEventCreate", 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
    };
    no_events();
    let error = rig.stream.alloc_slice::<u8>(5000).unwrap_err();
    assert!(matches!(&error, Error::Driver(cause) if cause.call == "cuEventCreate"), "{error}");
    let buffer: Buffer<u8> = rig.stream.alloc(5000).unwrap();
    no_events();
    let (_, buffer) = buffer.into_cuda_slice(&rig.stream).unwrap_err();
    no_events();
    let (_, buffer) = Slice::new(buffer, &rig.stream).unwrap_err();
    drop(buffer);
    assert_eq!(rig.pool.stats().devices[0].live_bytes, 0);
    rig.fake.fail("cuMemsetD8Async", 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
    let error = rig.stream.alloc_slice_zeroed::<u8>(5000).unwrap_err();
    assert!(matches!(&error, Error::Driver(cause) if cause.call == "cuMemsetD8Async"), "{error}");
    rig.done();
}

/// The pool's stream may go before its slices: what they are used for meanwhile comes before the next
/// user of their memory.
#[test]
fn slices_outlive_their_stream() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        let cuda = rig.context.new_stream().unwrap();
        let ours = rig.pool.register_cuda_stream(&cuda).unwrap();
        let mut slice: Slice<u8> = ours.alloc_slice(LEN).unwrap();
        drop(ours);
        // The stream's end, as far as the pool is concerned, is over.
        cuda.synchronize().unwrap();
        drop(rig.stream.alloc::<u8>(60 << 20).unwrap());
        (0..20).for_each(|_| cuda.memset_zeros(&mut slice).unwrap());
        drop(slice);
        let next: Slice<u8> = rig.stream.alloc_slice_zeroed(LEN).unwrap();
        drop((next, cuda));
        rig.done();
    }
}

/// A stream that has the handle of one that is gone is another one.
#[test]
fn slices_do_not_take_a_handle_for_a_stream() {
    let rig = Rig::new(start());
    let [gone, next] = [0; 2].map(|_| rig.context.new_stream().unwrap());
    let ours = rig.pool.register_cuda_stream(&gone).unwrap();
    let buffer: Buffer<u8> = ours.alloc(5000).unwrap();
    let handle = gone.cu_stream();
    drop((ours, gone));
    // Its id is another's by now.
    let heir = rig.pool.register_cuda_stream(&next).unwrap();
    assert_eq!(heir.id(), buffer.stream());
    let same = rig.context.new_stream().unwrap();
    assert_eq!(same.cu_stream(), handle, "the driver gives a handle out again");
    let other = rig.pool.register_cuda_stream(&same).unwrap();
    let (_, buffer) = Slice::new(buffer, &other).unwrap_err();
    let (_, buffer) = buffer.into_cuda_slice(&other).unwrap_err();
    drop((buffer, heir, next, other, same));
    rig.done();
}

/// Taken back, a slice's memory serves others after its uses on every stream.
#[test]
fn taken_back_after_uses_on_others() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        let other = rig.context.new_stream().unwrap();
        let buffer: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
        let mut slice = buffer.into_cuda_slice(&rig.stream).unwrap();
        rig.cuda.memset_zeros(&mut slice).unwrap();
        let copies: Vec<_> = (0..20).map(|_| other.clone_dtod(&slice).unwrap()).collect();
        drop(rig.pool.take_back(slice).unwrap());
        let next: Slice<u8> = rig.stream.alloc_slice_zeroed(LEN).unwrap();
        drop((next, copies));
        // cudarc's own memory goes back.
        other.synchronize().unwrap();
        drop(other);
        rig.done();
    }
}

/// A slice that was given away may outlive the pool's stream: taken back, its uses are over.
#[test]
fn taken_back_after_the_stream() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        let cuda = rig.context.new_stream().unwrap();
        let ours = rig.pool.register_cuda_stream(&cuda).unwrap();
        let buffer: Buffer<u8> = ours.alloc(LEN).unwrap();
        let mut slice = buffer.into_cuda_slice(&ours).unwrap();
        drop(ours);
        cuda.synchronize().unwrap();
        drop(rig.stream.alloc::<u8>(60 << 20).unwrap());
        (0..20).for_each(|_| cuda.memset_zeros(&mut slice).unwrap());
        drop(rig.pool.take_back(slice).unwrap());
        let next: Slice<u8> = rig.stream.alloc_slice_zeroed(LEN).unwrap();
        drop((next, cuda));
        rig.done();
    }
}

/// A slice of a graph's memory, which is used outside of the graph and outlives it.
#[test]
fn slices_of_graphs() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        // SAFETY: the slice here is used on one stream.
        unsafe { rig.context.disable_event_tracking() };
        let memory = rig.pool.graph_memory().unwrap();
        let capture = memory.capture(&rig.stream).unwrap();
        rig.cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let mut output: Slice<u8> = rig.stream.alloc_slice(LEN).unwrap();
        rig.cuda.memset_zeros(&mut output).unwrap();
        let scratch: Slice<u8> = rig.stream.alloc_slice(LEN).unwrap();
        let address = scratch.buffer().address();
        drop(scratch);
        // Within the capture the memory serves again.
        assert_eq!(rig.stream.alloc_slice::<u8>(LEN).unwrap().buffer().address(), address);
        let graph = rig.cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        drop(capture);
        graph.launch().unwrap();
        drop((graph, memory));
        // The graph's last launch is over, and known to be.
        rig.cuda.synchronize().unwrap();
        let other = rig.pool.stream(D0).unwrap();
        drop(other.alloc::<u8>(60 << 20).unwrap());
        (0..20).for_each(|_| rig.cuda.memset_zeros(&mut output).unwrap());
        drop(output);
        let next: Buffer<u8> = other.alloc(LEN).unwrap();
        let stream = rig.fake.stream(other.handle().0 as _).unwrap();
        let touch = millpond_simgpu::Touch::write(next.address(), LEN as u64);
        rig.fake.sim().launch(stream, &[touch]).unwrap();
        drop((next, other));
        rig.done();
    }
}
