//! Modules and their functions. An image is not looked at: every module has the kernels that there
//! are, by their names.

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUmod_st, CUmodule, CUresult};

use crate::capture;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::kernel::{self, Kernel};
use crate::machine::Machine;
use crate::pointer::Ptr;

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    pub context: usize,
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct NamedFunction {
    module: usize,
    pub context: usize,
    pub kernel: &'static Kernel,
}

impl Machine {
    fn module(&mut self, module: Ptr<CUmod_st>) -> Answer<usize> {
        self.current()?;
        let handle = module.value();
        match self.modules.get(handle) {
            Some(_) => Ok(handle),
            None => Err(self.no_handle("module", handle, self.modules.fate(handle))),
        }
    }

    pub(crate) fn function(&mut self, function: Ptr<CUfunc_st>) -> Answer<&NamedFunction> {
        let handle = function.value();
        if self.functions.get(handle).is_none() {
            return Err(self.no_handle("function", handle, self.functions.fate(handle)));
        }
        self.functions.get(handle).ok_or(crate::error::INVALID_HANDLE)
    }

    /// Takes a module away, with its functions.
    pub(crate) fn drop_module(&mut self, module: usize) {
        self.modules.remove(module);
        let functions = self.functions.iter().filter(|(_, function)| function.module == module);
        let functions: Vec<usize> = functions.map(|(handle, _)| handle).collect();
        for function in functions {
            self.functions.remove(function);
        }
    }
}

fn load_any(machine: &mut Machine, out: Ptr<CUmodule>) -> Answer {
    let context = machine.current()?;
    capture::potentially_unsafe(machine)?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let module = machine.modules.insert(Module { context });
    out.set(module as CUmodule)
}

pub(crate) fn load(machine: &mut Machine, out: Ptr<CUmodule>, path: Ptr<c_char>) -> Answer {
    match std::path::Path::new(&path.text()?).exists() {
        true => load_any(machine, out),
        false => Err(CUresult::CUDA_ERROR_FILE_NOT_FOUND),
    }
}

pub(crate) fn load_data(machine: &mut Machine, out: Ptr<CUmodule>, image: Ptr<c_void>) -> Answer {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    load_any(machine, out)
}

pub(crate) fn load_data_ex(
    machine: &mut Machine,
    out: Ptr<CUmodule>,
    image: Ptr<c_void>,
    _count: u32,
    _options: Ptr<u32>,
    _values: Ptr<*mut c_void>,
) -> Answer {
    load_data(machine, out, image)
}

pub(crate) fn unload(machine: &mut Machine, module: Ptr<CUmod_st>) -> Answer {
    let module = machine.module(module)?;
    capture::potentially_unsafe(machine)?;
    machine.drop_module(module);
    Ok(())
}

pub(crate) fn get_function(
    machine: &mut Machine,
    out: Ptr<CUfunction>,
    module: Ptr<CUmod_st>,
    name: Ptr<c_char>,
) -> Answer {
    let module = machine.module(module)?;
    let kernel = kernel::named(&name.text()?).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    let context = machine.modules.get(module).ok_or(INVALID_VALUE)?.context;
    let function = machine.functions.insert(NamedFunction { module, context, kernel });
    out.set(function as CUfunction)
}

/// No module has globals.
pub(crate) fn get_global(
    machine: &mut Machine,
    _out: Ptr<u64>,
    _bytes: Ptr<usize>,
    module: Ptr<CUmod_st>,
    _name: Ptr<c_char>,
) -> Answer {
    machine.module(module)?;
    Err(CUresult::CUDA_ERROR_NOT_FOUND)
}

pub(crate) fn function_name(
    machine: &mut Machine,
    out: Ptr<*const c_char>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    out.set(machine.function(function)?.kernel.name.as_ptr())
}

pub(crate) fn function_module(
    machine: &mut Machine,
    out: Ptr<CUmodule>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    out.set(machine.function(function)?.module as CUmodule)
}

/// Threads in a block, and the versions of the capability; memory and registers are 0.
pub(crate) fn get_attribute(
    machine: &mut Machine,
    out: Ptr<i32>,
    attribute: u32,
    function: Ptr<CUfunc_st>,
) -> Answer {
    machine.function(function)?;
    match attribute {
        0 => out.set(1024),
        5 | 6 => out.set(90),
        1..=15 => out.set(0),
        _ => Err(INVALID_VALUE),
    }
}

/// The two that can be set are of no consequence here.
pub(crate) fn set_attribute(
    machine: &mut Machine,
    function: Ptr<CUfunc_st>,
    attribute: u32,
    value: i32,
) -> Answer {
    machine.function(function)?;
    match attribute {
        8 | 9 if value >= -1 => Ok(()),
        8 | 9 => Err(INVALID_VALUE),
        _ => Err(NOT_SUPPORTED),
    }
}

pub(crate) fn set_cache_config(
    machine: &mut Machine,
    function: Ptr<CUfunc_st>,
    config: u32,
) -> Answer {
    machine.function(function)?;
    if config > 3 { Err(INVALID_VALUE) } else { Ok(()) }
}
