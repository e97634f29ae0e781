//! Size classes: from a requested number of bytes to the size of the block that serves it.
//!
//! Pure functions. Invariants (property-tested below):
//!
//! ```text
//! granted(n) >= n,   granted(n) % QUANTUM == 0,   granted is monotone
//! n <= SMALL_MAX:    granted(n) == class_bytes(class_of(n)),  granted(n) - n < max(QUANTUM, n / 16 + 1)
//! n >  SMALL_MAX:    granted(n) - n < QUANTUM
//! ```
//!
//! Small sizes fall into linear classes of 512 B up to 16 KiB, then into 16 classes an octave: waste
//! is at most 1/16 and, since blocks this small make up a few thousandths of a training run's
//! memory, 1e-5 of its bytes in practice (1.6e-3 when serving with growing key and value caches).
//! Larger sizes stay exact.

/// Every block's size and address is a multiple of this many bytes.
pub const QUANTUM: u64 = 512;

/// Largest request that is rounded up to a class; above it sizes stay exact.
pub const SMALL_MAX: u64 = class_bytes(CLASSES - 1);

/// Number of small size classes.
pub const CLASSES: usize = 127;

/// Largest request the pool accepts, in bytes.
pub const REQUEST_MAX: u64 = i64::MAX as u64;

/// Classes below this index are `QUANTUM` apart; above, an octave has `PER_OCTAVE` classes.
const LINEAR: usize = 32;
const PER_OCTAVE: usize = 16;

/// The class that serves a request of `bytes`, for `1 <= bytes <= SMALL_MAX`.
#[inline]
pub const fn class_of(bytes: u64) -> usize {
    debug_assert!(bytes >= 1 && bytes <= SMALL_MAX);
    let n = (bytes - 1) / QUANTUM;
    if n < LINEAR as u64 {
        n as usize
    } else {
        let exponent = n.ilog2();
        let step = exponent - PER_OCTAVE.ilog2();
        let mantissa = (n >> step) as usize & (PER_OCTAVE - 1);
        LINEAR + (exponent - LINEAR.ilog2()) as usize * PER_OCTAVE + mantissa
    }
}

/// The block size of a class, in bytes.
#[inline]
pub const fn class_bytes(class: usize) -> u64 {
    if class < LINEAR {
        (class as u64 + 1) * QUANTUM
    } else {
        let octave = (class - LINEAR) / PER_OCTAVE;
        let mantissa = (class - LINEAR) % PER_OCTAVE;
        (((PER_OCTAVE + mantissa + 1) as u64) << (octave + 1)) * QUANTUM
    }
}

/// Whether a request (or block) of `bytes` belongs to the small region of the heap.
#[inline]
pub const fn is_small(bytes: u64) -> bool {
    bytes <= SMALL_MAX
}

/// The size of the block that serves a request of `bytes`, for `1 <= bytes <= REQUEST_MAX`.
#[inline]
pub const fn granted(bytes: u64) -> u64 {
    if is_small(bytes) { class_bytes(class_of(bytes)) } else { bytes.div_ceil(QUANTUM) * QUANTUM }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_are_contiguous_and_increasing() {
        for class in 0..CLASSES {
            let bytes = class_bytes(class);
            assert_eq!(class_of(bytes), class, "upper end of class {class}");
            let lower = if class == 0 { 1 } else { class_bytes(class - 1) + 1 };
            assert_eq!(class_of(lower), class, "lower end of class {class}");
        }
        assert_eq!(SMALL_MAX, (1 << 20) - (32 << 10));
    }

    proptest! {
        #[test]
        fn a_grant_covers_the_request_tightly(bytes in 1u64..=1 << 40) {
            let granted = granted(bytes);
            prop_assert!(granted >= bytes);
            prop_assert_eq!(granted % QUANTUM, 0);
            let slack = granted - bytes;
            if is_small(bytes) {
                prop_assert!(slack < QUANTUM.max(bytes / 16 + 1), "{bytes} -> {granted}");
            } else {
                prop_assert!(slack < QUANTUM);
            }
        }

        #[test]
        fn grants_are_monotone_and_idempotent(a in 1u64..=1 << 22, b in 1u64..=1 << 22) {
            prop_assert!(a > b || granted(a) <= granted(b));
            prop_assert_eq!(granted(granted(a)), granted(a));
        }

        #[test]
        fn the_largest_requests_do_not_overflow(below in 0u64..1 << 20) {
            let bytes = REQUEST_MAX - below;
            prop_assert!(granted(bytes) >= bytes);
        }
    }
}
