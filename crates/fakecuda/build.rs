//! Gives the shared library the name by which programs ask for the driver.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    // Programs that only ask whether there is a driver close it again, with the machine in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
