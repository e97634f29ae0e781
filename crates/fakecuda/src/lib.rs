//! The CUDA driver's functions over simulated GPUs, so that programs on
//! [cudarc](https://docs.rs/cudarc) run, and are checked, where there is no GPU.
//!
//! The crate is two things. As a shared library, `libfakecuda.so`, it exports the driver's functions
//! under the SONAME `libcuda.so`: once it is loaded, whoever asks for that name gets it. As a Rust
//! library it holds the machine behind them: [`start`] puts a fresh [`Sim`](millpond_simgpu::Sim) in
//! place, loads the shared library, and makes its functions call back here. All state is thus in the
//! test's own process and in ordinary Rust, and no Rust type crosses the library's border.
//!
//! ```no_run
//! use millpond_simgpu::Sim;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fake = fakecuda::start(Sim::builder().devices(2).contents(true).oracle(true))?;
//! // ... a program on cudarc ...
//! assert_eq!(fake.violations(), Vec::<String>::new());
//! assert_eq!(fake.sim().hazard_count(), 0);
//! # Ok(()) }
//! ```
//!
//! Loaded without the Rust library (`LD_PRELOAD`, or opened by its path) the shared library works by
//! itself and is configured by the environment; the README says how, and lists what is covered.
//!
//! It never comes between a program and a real driver: [`load`] refuses where there is one, and the
//! file is never called `libcuda.so`.
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]

mod capture;
mod clock;
mod context;
mod copy;
mod device;
mod entry;
mod environment;
mod error;
mod event;
mod fake;
mod fault;
mod graph;
mod handles;
mod host_function;
mod host_memory;
mod kernel;
mod load;
mod machine;
mod memory;
mod module;
mod op;
mod peer;
mod pointer;
mod pool;
mod stream;
mod table;
mod thread;
mod virtual_memory;

pub use fake::{Config, Fake, StartError, UnknownFunction, start};
pub use load::{LoadError, load};
pub use table::{covered, refused};
