//! Which elements may be read from memory that nobody has written.

/// Every pattern of bits is a value of the type.
///
/// The pool's memory holds what its last user left, and cudarc copies it to the host as elements without a
/// look: safe code may do so for these types alone.
///
/// ```
/// # use millpond::{Buffer, driver::cuda::cudarc::driver::CudaStream};
/// # use std::sync::Arc;
/// fn numbers(buffer: &Buffer<u8>, stream: &Arc<CudaStream>) -> Vec<u8> {
///     stream.clone_dtoh(&buffer.on(stream)).unwrap()
/// }
/// ```
///
/// A `bool` with the value 7 is none:
///
/// ```compile_fail,E0277
/// # use millpond::{Buffer, driver::cuda::cudarc::driver::CudaStream};
/// # use std::sync::Arc;
/// fn truths(buffer: &Buffer<bool>, stream: &Arc<CudaStream>) -> Vec<bool> {
///     stream.clone_dtoh(&buffer.on(stream)).unwrap()
/// }
/// ```
///
/// Of these, [`Stream::alloc_slice_zeroed`](crate::Stream::alloc_slice_zeroed) makes slices, as does cudarc
/// itself. The types of the crate `half` are among them with the feature `half`.
///
/// # Safety
/// Every pattern of bits is a value of the type.
pub unsafe trait AnyBits: Copy + 'static {}

macro_rules! any_bits {
    ($($type:ty)*) => {
        $(
            // SAFETY: a number without invalid patterns.
            unsafe impl AnyBits for $type {}
        )*
    };
}

any_bits!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);
#[cfg(feature = "half")]
any_bits!(half::f16 half::bf16);

// SAFETY: elements side by side, with nothing between them.
unsafe impl<T: AnyBits, const N: usize> AnyBits for [T; N] {}
