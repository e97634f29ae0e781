//! A CUDA driver library by path, for a driver in software.

use anyhow::Context;
use std::sync::OnceLock;

/// Names a library to take for the CUDA driver. Not for everyday, so no option.
const VARIABLE: &str = "MILLPOND_CUDA_LIBRARY";

static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();

/// Opens the library that the environment names, if it does, for as long as the process lives.
///
/// To be called before any CUDA call: whoever asks the loader for `libcuda.so` afterwards gets this
/// library, which bears that name inside.
pub(super) fn open() -> anyhow::Result<()> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    if LIBRARY.get().is_none() {
        // SAFETY: loading runs the library's initialisers: whoever set the variable says that they
        // may run. No symbol of it is used through this handle.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.with_context(|| format!("{VARIABLE} cannot be opened"))?;
        // Were two threads to get here, the second handle would be closed: the first keeps it open.
        let _ = LIBRARY.set(library);
    }
    Ok(())
}
