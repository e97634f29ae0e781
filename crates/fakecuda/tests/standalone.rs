//! The shared library by itself, configured by the environment, in a process of its own; and that it
//! stays away from a real driver.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The shared library, where cargo puts it for this test.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libfakecuda.so")
}

/// Runs one of the ignored tests below in a process of its own.
fn child(name: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env_remove("LD_LIBRARY_PATH").envs(variables.iter().copied());
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_environment_configures_it() {
    let library = library();
    let library = library.to_str().unwrap();
    let settings = [("FAKECUDA_DEVICES", "3"), ("FAKECUDA_CAPACITY", "1G"), ("FAKECUDA_SEED", "1")];
    for loaded in ["THE_LIBRARY", "LD_PRELOAD"] {
        let mut variables = settings.to_vec();
        variables.push((loaded, library));
        let said = stderr(&child("a_program", &variables));
        assert!(said.contains("fakecuda: 1 hazards, 0 faults, 1 violations"), "{said}");
        assert!(said.contains("hazard: unordered touches"), "{said}");
        assert!(said.contains("violation: event"), "{said}");
        assert!(said.contains("ended with 2 streams"), "{said}");
    }
    let mut variables = settings.to_vec();
    variables.extend([("THE_LIBRARY", library), ("FAKECUDA_ORACLE", "0")]);
    let said = stderr(&child("a_program", &variables));
    assert!(said.contains("fakecuda: 0 hazards, 0 faults, 1 violations"), "{said}");
}

#[test]
fn it_says_nothing_where_nothing_was_found() {
    let library = library();
    let mut variables = vec![("THE_LIBRARY", library.to_str().unwrap())];
    assert!(!stderr(&child("a_good_program", &variables)).contains("fakecuda: "));
    variables.push(("FAKECUDA_REPORT", "1"));
    let said = stderr(&child("a_good_program", &variables));
    assert!(said.contains("fakecuda: 0 hazards, 0 faults, 0 violations"), "{said}");
}

#[test]
fn what_it_does_not_understand_is_said() {
    let library = library();
    let variables = [
        ("THE_LIBRARY", library.to_str().unwrap()),
        ("FAKECUDA_LAG", "soon"),
        ("FAKECUDA_GRANULARITY", "3"),
    ];
    let said = stderr(&child("a_good_program", &variables));
    assert!(said.contains("FAKECUDA_LAG=soon is not a number"), "{said}");
    assert!(said.contains("granularity 3"), "{said}");
}

/// Opens what the parent names, as a program that is told of it would.
fn open() {
    if let Some(path) = std::env::var_os("THE_LIBRARY") {
        // SAFETY: the library has no initialisers; it is not unloaded when this is dropped.
        drop(unsafe { libloading::Library::new(path) }.unwrap());
    }
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn a_program() {
    open();
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.total_mem().unwrap(), 1 << 30);
    let (a, b) = (stream(1), stream(1));
    let block = alloc(64);
    let ok = Code::CUDA_SUCCESS;
    assert_eq!((fill(block, 1, 64, a), fill(block, 2, 64, b)), (ok, ok));
    let event = plain_event();
    let other = alloc(64);
    let late = (0..200).filter(|_| {
        assert_eq!((fill(other, 2, 64, b), record(event, b)), (ok, ok));
        query(event) == Code::CUDA_ERROR_NOT_READY
    });
    assert!(late.count() > 0, "a seed makes work late");
    assert_eq!(destroy_event(event), ok);
    assert_eq!(query(event), Code::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn a_good_program() {
    open();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let slice = stream.clone_htod(&[1u32, 2, 3]).unwrap();
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1, 2, 3]);
}

/// A library that looks like a driver's, made with the C compiler that Rust links with.
fn other_driver(folder: &Path, name: &str) -> PathBuf {
    let (source, library) = (folder.join("other.c"), folder.join("other.so"));
    std::fs::write(&source, "int cuInit(unsigned flags) { return 0; }\n").unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg(format!("-Wl,-soname,{name}"))
        .status()
        .unwrap();
    assert!(made.success());
    library
}

#[test]
fn it_stays_away_from_a_real_driver() {
    for name in ["libcuda.so", "libcuda.so.1"] {
        let folder = std::env::temp_dir().join(format!("fakecuda-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let other = other_driver(&folder, name);
        let variables = [("THE_DRIVER", other.to_str().unwrap()), ("THE_NAME", name)];
        stderr(&child("beside_a_driver", &variables));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn beside_a_driver() {
    let (path, name) =
        (std::env::var_os("THE_DRIVER").unwrap(), std::env::var("THE_NAME").unwrap());
    // SAFETY: the library has no initialisers.
    let driver = unsafe { libloading::Library::new(path) }.unwrap();
    let refused = fakecuda::LoadError::RealDriver { name };
    assert_eq!(fakecuda::load(), Err(refused.clone()));
    assert_eq!(start(Config::default()).unwrap_err(), fakecuda::StartError::Load(refused));
    drop(driver);
}

#[test]
fn a_library_that_is_not_there_or_none() {
    for (path, words) in [("/no/such/library.so", "was not found"), (file!(), "invalid ELF header")]
    {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let variables = [("FAKECUDA_LIBRARY", root.to_str().unwrap()), ("THE_WORDS", words)];
        stderr(&child("without_the_library", &variables));
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn without_the_library() {
    let words = std::env::var("THE_WORDS").unwrap();
    let error = fakecuda::load().unwrap_err().to_string();
    assert!(error.contains(&words), "{error}");
}
