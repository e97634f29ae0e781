//! Loading the shared library, never in front of a real driver.
//!
//! A program asks the dynamic linker for `libcuda.so` or a name like it, and gets what is loaded under
//! that SONAME already. So the library is opened by its path before anybody asks. If the linker finds
//! something else under one of those names, that is a driver, and the library stays away.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use libloading::Library;

use crate::entry::HOSTED;
use crate::table::{DIGEST, OWN, Table};

/// Names a path to the shared library.
const VARIABLE: &str = "FAKECUDA_LIBRARY";
/// The shared library's file.
const FILE: &str = "libfakecuda.so";
/// What programs look for.
const DRIVERS: [&str; 4] = ["libcuda.so", "libcuda.so.1", "libnvcuda.so", "libnvcuda.so.1"];
/// A symbol that no real driver has.
const MARK: &[u8] = b"fakecuda_install\0";

type Install = unsafe extern "C" fn(*const Table, usize, u64) -> bool;

/// Why the shared library was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// There is a driver on this machine, or in this process; the library never comes between.
    RealDriver {
        /// The name under which it was found.
        name: String,
    },
    /// The shared library is nowhere to be found.
    NoLibrary {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// The shared library could not be opened.
    Open {
        /// Its path.
        path: PathBuf,
        /// What the dynamic linker says.
        why: String,
    },
    /// The shared library is of another build.
    OtherBuild {
        /// Its path.
        path: PathBuf,
    },
    /// The shared library was loaded, and the dynamic linker finds nothing, or something else, under
    /// the driver's name.
    NotFound,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RealDriver { name } => {
                write!(f, "there is a real driver ({name}): fakecuda is not put in front of it")
            }
            Self::NoLibrary { tried } => {
                write!(f, "{FILE} was not found (build it, or name it by {VARIABLE}); tried")?;
                tried.iter().try_for_each(|path| write!(f, " {}", path.display()))
            }
            Self::Open { path, why } => write!(f, "{}: {why}", path.display()),
            Self::OtherBuild { path } => {
                write!(f, "{} is of another build of fakecuda", path.display())
            }
            Self::NotFound => {
                f.write_str("the dynamic linker does not find fakecuda as libcuda.so")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// What the dynamic linker finds under a driver's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Fake,
    Other,
}

fn look(name: &str) -> Found {
    // SAFETY: opening a library runs its initialisers. A driver's are safe to run, since any program
    // that asks for CUDA runs them; and so is closing it again.
    match unsafe { Library::new(name) } {
        Err(_) => Found::Nothing,
        Ok(library) => {
            // SAFETY: the symbol is not called, only looked for.
            match unsafe { library.get::<Install>(MARK) } {
                Ok(_) => Found::Fake,
                Err(_) => Found::Other,
            }
        }
    }
}

/// The first name under which there is a real driver.
fn real_driver(look: impl Fn(&str) -> Found) -> Option<String> {
    DRIVERS.iter().find(|name| look(name) == Found::Other).map(|name| (*name).to_string())
}

/// Where the shared library may be: beside the program, where cargo puts a dependency's, or above.
fn places(program: Option<&Path>) -> Vec<PathBuf> {
    let folder = program.and_then(Path::parent);
    let above = folder.and_then(Path::parent);
    let folders = folder.into_iter().chain(above);
    folders.flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)]).collect()
}

/// Loads the shared library and makes its functions call this crate, once for the process.
///
/// The library is looked for where `FAKECUDA_LIBRARY` says, else beside the running program and one
/// folder above. [`start`](crate::start) calls this.
///
/// # Errors
///
/// Where there is a real driver, and where the library is not there or not of this build.
pub fn load() -> Result<(), LoadError> {
    static LOADED: OnceLock<Result<(), LoadError>> = OnceLock::new();
    LOADED.get_or_init(load_once).clone()
}

fn load_once() -> Result<(), LoadError> {
    if let Some(name) = real_driver(look) {
        return Err(LoadError::RealDriver { name });
    }
    let tried = match std::env::var_os(VARIABLE) {
        Some(path) => vec![PathBuf::from(path)],
        None => places(std::env::current_exe().ok().as_deref()),
    };
    let Some(path) = tried.iter().find(|path| path.is_file()).cloned() else {
        return Err(LoadError::NoLibrary { tried });
    };
    open(&path)
}

fn open(path: &Path) -> Result<(), LoadError> {
    let failed = |error: libloading::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        let why = format!("{error}{}", cause.unwrap_or_default());
        LoadError::Open { path: path.to_path_buf(), why }
    };
    // SAFETY: our own library, which has no initialisers.
    let library = unsafe { Library::new(path) }.map_err(failed)?;
    {
        // SAFETY: what is called so in our library has this type.
        let install = unsafe { library.get::<Install>(MARK) }.map_err(failed)?;
        HOSTED.store(true, Relaxed);
        // SAFETY: the table is a static that nothing changes; a library of another build refuses it.
        if !unsafe { install(&raw const OWN, size_of::<Table>(), DIGEST) } {
            return Err(LoadError::OtherBuild { path: path.to_path_buf() });
        }
    }
    // It stays: programs keep pointers to its functions.
    std::mem::forget(library);
    match look(DRIVERS[0]) {
        Found::Fake => Ok(()),
        Found::Nothing | Found::Other => Err(LoadError::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_driver_under_any_name_is_seen() {
        assert_eq!(real_driver(|_| Found::Nothing), None);
        assert_eq!(real_driver(|_| Found::Fake), None);
        for real in DRIVERS {
            let look = |name: &str| if name == real { Found::Other } else { Found::Fake };
            assert_eq!(real_driver(look).as_deref(), Some(real));
        }
    }

    #[test]
    fn the_library_is_looked_for_beside_the_program_and_above() {
        let places = places(Some(Path::new("/t/debug/deps/program")));
        let expected = ["debug/deps", "debug/deps/deps", "debug", "debug/deps"];
        let expected = expected.map(|folder| PathBuf::from("/t").join(folder).join(FILE));
        assert_eq!(places, expected);
        assert!(super::places(None).is_empty());
    }
}
