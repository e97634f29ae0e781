//! The CUDA driver's functions over simulated GPUs.
