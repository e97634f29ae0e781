//! The functions of the driver, each listed once.
//!
//! From the lists come the table of function pointers that crosses the library's border, this build's
//! own table, and the exported functions, which call the table that is installed and otherwise their
//! own. A function that is refused is exported with no arguments: in the C calling conventions of the
//! platforms that CUDA runs on, the caller alone looks after those it passes.
#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUhostFn,
    CUlaunchConfig, CUmemoryPool, CUmodule, CUresult, CUstream, CUstreamCallback, CUuuid,
};

use crate::pointer::Arg;
use crate::{entry, pool, virtual_memory};

/// The table that calls go to; null for this build's own.
static INSTALLED: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

fn table() -> &'static Table {
    // Acquire: pairs with the release in `install`, so that the table is seen whole.
    let installed = INSTALLED.load(Ordering::Acquire);
    // SAFETY: null, or a table of this very layout that lives for good, as `fakecuda_install` demands.
    unsafe { installed.as_ref() }.unwrap_or(&OWN)
}

/// Makes the exported functions call another build's table; answers whether it did. `digest` and
/// `size` must be this build's, so that a library left over from an earlier build is found out.
///
/// # Safety
///
/// Where they are, `table` must point to a [`Table`] that is never freed or changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_install(table: *const Table, size: usize, digest: u64) -> bool {
    let known = size == size_of::<Table>() && digest == DIGEST && !table.is_null();
    if known {
        INSTALLED.store(table.cast_mut(), Ordering::Release);
    }
    known
}

/// Says what the machine that the environment has put in place has found, and how much that is; see
/// the README.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_report() -> u64 {
    crate::environment::report()
}

/// A number for the names and their order, by which two builds know each other (FNV-1a).
const fn digest(names: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < names.len() {
        let bytes = names[at].as_bytes();
        let mut byte = 0;
        while byte < bytes.len() {
            hash = (hash ^ bytes[byte] as u64).wrapping_mul(0x100_0000_01b3);
            byte += 1;
        }
        hash = (hash ^ 0xff).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}

/// This build's functions and their order.
pub(crate) const DIGEST: u64 = digest(Function::NAMES);

/// Functions that do something, by name.
pub fn covered() -> &'static [&'static str] {
    &Function::NAMES[..Function::COVERED]
}

/// Functions that answer `CUDA_ERROR_NOT_SUPPORTED` and do nothing, by name.
pub fn refused() -> &'static [&'static str] {
    &Function::NAMES[Function::COVERED..]
}

macro_rules! functions {
    (
        machine { $($name:ident($($arg:ident: $ty:ty),*) = $module:ident::$function:ident;)* }
        stateless { $($free:ident($($farg:ident: $fty:ty),*) = $fmodule:ident::$ffunction:ident;)* }
        refused { $($refused:ident,)* }
    ) => {
        /// A function of the driver.
        #[expect(clippy::enum_variant_names, reason = "`cuLaunch` is the driver's word")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Function { $($name,)* $($free,)* $($refused,)* }

        impl Function {
            const ALL: &[Self] = &[
                $(Self::$name,)* $(Self::$free,)* $(Self::$refused,)*
            ];
            const NAMES: &[&str] = &[
                $(stringify!($name),)* $(stringify!($free),)* $(stringify!($refused),)*
            ];
            const COVERED: usize = [$(stringify!($name),)* $(stringify!($free),)*].len();
            pub(crate) const COUNT: usize = Self::NAMES.len();
        }

        /// A pointer to each function. Opaque: to be passed from one build of the crate to its like.
        #[repr(C)]
        pub struct Table {
            $($name: unsafe extern "C" fn($($ty),*) -> CUresult,)*
            $($free: unsafe extern "C" fn($($fty),*) -> CUresult,)*
            refuse: extern "C" fn(usize) -> CUresult,
        }

        /// This build's functions.
        pub(crate) static OWN: Table = Table {
            $($name: own::$name,)*
            $($free: own::$free,)*
            refuse: own::refuse,
        };

        /// What this build does.
        mod own {
            use super::*;

            $(
                pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                    // SAFETY: the caller keeps the promises that the driver asks of it.
                    $(let $arg = unsafe { Arg::take($arg) };)*
                    entry::enter(Function::$name, move |machine| {
                        crate::$module::$function(machine $(, $arg)*)
                    })
                }
            )*

            $(
                pub(super) unsafe extern "C" fn $free($($farg: $fty),*) -> CUresult {
                    // SAFETY: the caller keeps the promises that the driver asks of it.
                    $(let $farg = unsafe { Arg::take($farg) };)*
                    entry::without_machine(Function::$free, move || {
                        crate::$fmodule::$ffunction($($farg),*)
                    })
                }
            )*

            pub(super) extern "C" fn refuse(function: usize) -> CUresult {
                match Function::ALL.get(function) {
                    Some(function) => entry::refuse(*function),
                    None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                }
            }
        }

        /// What the shared library exports.
        mod exported {
            use super::*;

            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                    // SAFETY: passed on as they came, with the caller's promises.
                    unsafe { (table().$name)($($arg),*) }
                }
            )*

            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $free($($farg: $fty),*) -> CUresult {
                    // SAFETY: passed on as they came, with the caller's promises.
                    unsafe { (table().$free)($($farg),*) }
                }
            )*

            $(
                #[unsafe(no_mangle)]
                extern "C" fn $refused() -> CUresult {
                    (table().refuse)(Function::$refused as usize)
                }
            )*
        }
    };
}

impl Function {
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let at = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self::ALL[at])
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

functions! {
    machine {
        // Initialisation and devices
        cuInit(flags: c_uint) = device::init;
        cuDeviceGet(device: *mut c_int, ordinal: c_int) = device::get;
        cuDeviceGetCount(count: *mut c_int) = device::count;
        cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) = device::name;
        cuDeviceGetUuid(uuid: *mut CUuuid, device: c_int) = device::uuid;
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: c_int) = device::uuid;
        cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = device::total_memory;
        cuDeviceGetAttribute(
            value: *mut c_int, attribute: c_uint, device: c_int
        ) = device::attribute;
        cuDeviceComputeCapability(
            major: *mut c_int, minor: *mut c_int, device: c_int
        ) = device::capability;
        cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) = device::bus_id;
        cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) = device::by_bus_id;
        // Contexts
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int) = context::primary_retain;
        cuDevicePrimaryCtxRelease_v2(device: c_int) = context::primary_release;
        cuDevicePrimaryCtxReset_v2(device: c_int) = context::primary_reset;
        cuDevicePrimaryCtxGetState(
            device: c_int, flags: *mut c_uint, active: *mut c_int
        ) = context::primary_state;
        cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) = context::primary_set_flags;
        cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: c_int) = context::create;
        cuCtxCreate_v3(
            context: *mut CUcontext, affinities: *mut c_void, count: c_int, flags: c_uint,
            device: c_int
        ) = context::create_v3;
        cuCtxCreate_v4(
            context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: c_int
        ) = context::create_v4;
        cuCtxDestroy_v2(context: CUcontext) = context::destroy;
        cuCtxSetCurrent(context: CUcontext) = context::set_current;
        cuCtxGetCurrent(context: *mut CUcontext) = context::get_current;
        cuCtxPushCurrent_v2(context: CUcontext) = context::push;
        cuCtxPopCurrent_v2(context: *mut CUcontext) = context::pop;
        cuCtxGetDevice(device: *mut c_int) = context::get_device;
        cuCtxGetFlags(flags: *mut c_uint) = context::get_flags;
        cuCtxSetFlags(flags: c_uint) = context::set_flags;
        cuCtxGetId(context: CUcontext, id: *mut u64) = context::get_id;
        cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint) = context::api_version;
        cuCtxGetLimit(value: *mut usize, limit: c_uint) = context::get_limit;
        cuCtxSetLimit(limit: c_uint, value: usize) = context::set_limit;
        cuCtxGetCacheConfig(config: *mut c_uint) = context::get_cache_config;
        cuCtxSetCacheConfig(config: c_uint) = context::set_cache_config;
        cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) = context::priorities;
        cuCtxSynchronize() = context::synchronize;
        // Peers
        cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) = peer::can_access;
        cuDeviceGetP2PAttribute(
            value: *mut c_int, attribute: c_uint, from: c_int, to: c_int
        ) = peer::attribute;
        cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) = peer::enable;
        cuCtxDisablePeerAccess(peer: CUcontext) = peer::disable;
        // Streams
        cuStreamCreate(stream: *mut CUstream, flags: c_uint) = stream::create;
        cuStreamCreateWithPriority(
            stream: *mut CUstream, flags: c_uint, priority: c_int
        ) = stream::create_with_priority;
        cuStreamDestroy_v2(stream: CUstream) = stream::destroy;
        cuStreamQuery(stream: CUstream) = stream::query;
        cuStreamSynchronize(stream: CUstream) = stream::synchronize;
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) = stream::wait_event;
        cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) = stream::get_context;
        cuStreamGetDevice(stream: CUstream, device: *mut c_int) = stream::get_device;
        cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) = stream::get_flags;
        cuStreamGetId(stream: CUstream, id: *mut u64) = stream::get_id;
        cuStreamGetPriority(stream: CUstream, priority: *mut c_int) = stream::get_priority;
        // Events
        cuEventCreate(event: *mut CUevent, flags: c_uint) = event::create;
        cuEventDestroy_v2(event: CUevent) = event::destroy;
        cuEventRecord(event: CUevent, stream: CUstream) = event::record;
        cuEventRecordWithFlags(
            event: CUevent, stream: CUstream, flags: c_uint
        ) = event::record_with_flags;
        cuEventQuery(event: CUevent) = event::query;
        cuEventSynchronize(event: CUevent) = event::synchronize;
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) = event::elapsed;
        cuEventElapsedTime_v2(
            milliseconds: *mut f32, start: CUevent, end: CUevent
        ) = event::elapsed;
        // Memory
        cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) = memory::allocate;
        cuMemAllocPitch_v2(
            address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize,
            element: c_uint
        ) = memory::allocate_pitch;
        cuMemFree_v2(address: CUdeviceptr) = memory::free;
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = memory::info;
        cuMemGetAddressRange_v2(
            start: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr
        ) = memory::address_range;
        cuPointerGetAttribute(
            value: *mut c_void, attribute: c_uint, address: CUdeviceptr
        ) = memory::attribute;
        // Copies and fills
        cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) = copy::htod;
        cuMemcpyHtoDAsync_v2(
            to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream
        ) = copy::htod_async;
        cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) = copy::dtoh;
        cuMemcpyDtoHAsync_v2(
            to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream
        ) = copy::dtoh_async;
        cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) = copy::dtod;
        cuMemcpyDtoDAsync_v2(
            to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream
        ) = copy::dtod_async;
        cuMemcpyPeer(
            to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
            bytes: usize
        ) = copy::peer;
        cuMemcpyPeerAsync(
            to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
            bytes: usize, stream: CUstream
        ) = copy::peer_async;
        cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) = copy::unified;
        cuMemcpyAsync(
            to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream
        ) = copy::unified_async;
        cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) = copy::set_d8;
        cuMemsetD8Async(
            to: CUdeviceptr, value: u8, count: usize, stream: CUstream
        ) = copy::set_d8_async;
        cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) = copy::set_d16;
        cuMemsetD16Async(
            to: CUdeviceptr, value: u16, count: usize, stream: CUstream
        ) = copy::set_d16_async;
        cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize) = copy::set_d32;
        cuMemsetD32Async(
            to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream
        ) = copy::set_d32_async;
        // Pinned host memory
        cuMemAllocHost_v2(memory: *mut *mut c_void, bytes: usize) = host_memory::allocate;
        cuMemHostAlloc(
            memory: *mut *mut c_void, bytes: usize, flags: c_uint
        ) = host_memory::allocate_with_flags;
        cuMemFreeHost(memory: *mut c_void) = host_memory::free;
        cuMemHostRegister_v2(
            memory: *mut c_void, bytes: usize, flags: c_uint
        ) = host_memory::register;
        cuMemHostUnregister(memory: *mut c_void) = host_memory::unregister;
        cuMemHostGetFlags(flags: *mut c_uint, memory: *mut c_void) = host_memory::get_flags;
        // Virtual memory management
        cuMemGetAllocationGranularity(
            bytes: *mut usize, properties: *const virtual_memory::Properties, option: c_uint
        ) = virtual_memory::granularity;
        cuMemAddressReserve(
            address: *mut CUdeviceptr, bytes: usize, align: usize, wish: CUdeviceptr, flags: u64
        ) = virtual_memory::reserve;
        cuMemAddressFree(address: CUdeviceptr, bytes: usize) = virtual_memory::unreserve;
        cuMemCreate(
            handle: *mut u64, bytes: usize, properties: *const virtual_memory::Properties,
            flags: u64
        ) = virtual_memory::create;
        cuMemRelease(handle: u64) = virtual_memory::release;
        cuMemRetainAllocationHandle(
            handle: *mut u64, address: *mut c_void
        ) = virtual_memory::retain;
        cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64
        ) = virtual_memory::map;
        cuMemUnmap(address: CUdeviceptr, bytes: usize) = virtual_memory::unmap;
        cuMemSetAccess(
            address: CUdeviceptr, bytes: usize, wishes: *const virtual_memory::Access, count: usize
        ) = virtual_memory::set_access;
        cuMemGetAccess(
            flags: *mut u64, location: *const virtual_memory::Location, address: CUdeviceptr
        ) = virtual_memory::get_access;
        // Memory pools
        cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) = pool::allocate;
        cuMemAllocFromPoolAsync(
            address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream
        ) = pool::allocate_from;
        cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) = pool::free;
        cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: c_int) = pool::default_of;
        cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: c_int) = pool::current_of;
        cuDeviceSetMemPool(device: c_int, pool: CUmemoryPool) = pool::set_current;
        cuMemPoolCreate(
            pool: *mut CUmemoryPool, properties: *const pool::Properties
        ) = pool::create;
        cuMemPoolDestroy(pool: CUmemoryPool) = pool::destroy;
        cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) = pool::trim;
        cuMemPoolGetAttribute(
            pool: CUmemoryPool, attribute: c_uint, value: *mut c_void
        ) = pool::get_attribute;
        cuMemPoolSetAttribute(
            pool: CUmemoryPool, attribute: c_uint, value: *mut c_void
        ) = pool::set_attribute;
        // Host functions
        cuLaunchHostFunc(
            stream: CUstream, function: CUhostFn, argument: *mut c_void
        ) = host_function::launch;
        cuStreamAddCallback(
            stream: CUstream, callback: CUstreamCallback, argument: *mut c_void, flags: c_uint
        ) = host_function::add_callback;
        // Capture
        cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) = capture::begin;
        cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) = capture::end;
        cuStreamIsCapturing(stream: CUstream, status: *mut c_uint) = capture::is_capturing;
        cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
            after: *mut *const CUgraphNode, count: *mut usize
        ) = capture::info;
        cuStreamGetCaptureInfo_v3(
            stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
            after: *mut *const CUgraphNode, edges: *mut *const c_void, count: *mut usize
        ) = capture::info_v3;
        cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) = capture::exchange_mode;
        // Graphs
        cuGraphInstantiateWithFlags(
            exec: *mut CUgraphExec, graph: CUgraph, flags: u64
        ) = graph::instantiate;
        cuGraphLaunch(exec: CUgraphExec, stream: CUstream) = graph::launch;
        cuGraphUpload(exec: CUgraphExec, stream: CUstream) = graph::upload;
        cuGraphDestroy(graph: CUgraph) = graph::destroy;
        cuGraphExecDestroy(exec: CUgraphExec) = graph::exec_destroy;
        cuGraphExecGetFlags(exec: CUgraphExec, flags: *mut u64) = graph::exec_flags;
        cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) = graph::nodes;
        cuGraphGetEdges(
            graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize
        ) = graph::edges;
        cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_uint) = graph::node_type;
        // Modules and kernels
        cuModuleLoad(module: *mut CUmodule, path: *const c_char) = module::load;
        cuModuleLoadData(module: *mut CUmodule, image: *const c_void) = module::load_data;
        cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void) = module::load_data;
        cuModuleLoadDataEx(
            module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_uint,
            values: *mut *mut c_void
        ) = module::load_data_ex;
        cuModuleUnload(module: CUmodule) = module::unload;
        cuModuleGetFunction(
            function: *mut CUfunction, module: CUmodule, name: *const c_char
        ) = module::get_function;
        cuModuleGetGlobal_v2(
            address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char
        ) = module::get_global;
        cuFuncGetName(name: *mut *const c_char, function: CUfunction) = module::function_name;
        cuFuncGetModule(module: *mut CUmodule, function: CUfunction) = module::function_module;
        cuFuncGetAttribute(
            value: *mut c_int, attribute: c_uint, function: CUfunction
        ) = module::get_attribute;
        cuFuncSetAttribute(
            function: CUfunction, attribute: c_uint, value: c_int
        ) = module::set_attribute;
        cuFuncSetCacheConfig(function: CUfunction, config: c_uint) = module::set_cache_config;
        cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
            parameters: *mut *mut c_void, extra: *mut *mut c_void
        ) = kernel::launch;
        cuLaunchCooperativeKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
            parameters: *mut *mut c_void
        ) = kernel::launch_cooperative;
        cuLaunchKernelEx(
            config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
            extra: *mut *mut c_void
        ) = kernel::launch_ex;
        // Profiler
        cuProfilerStart() = device::profiler;
        cuProfilerStop() = device::profiler;
    }
    // These answer before the initialisation and after the end, too.
    stateless {
        cuDriverGetVersion(version: *mut c_int) = device::version;
        cuGetErrorName(code: c_uint, name: *mut *const c_char) = error::name;
        cuGetErrorString(code: c_uint, text: *mut *const c_char) = error::text;
    }
    refused {
        cuArray3DCreate_v2, cuArray3DGetDescriptor_v2, cuArrayCreate_v2, cuArrayDestroy,
        cuArrayGetDescriptor_v2, cuArrayGetMemoryRequirements, cuArrayGetPlane,
        cuArrayGetSparseProperties, cuCoredumpDeregisterCompleteCallback,
        cuCoredumpDeregisterStartCallback, cuCoredumpGetAttribute, cuCoredumpGetAttributeGlobal,
        cuCoredumpRegisterCompleteCallback, cuCoredumpRegisterStartCallback, cuCoredumpSetAttribute,
        cuCoredumpSetAttributeGlobal, cuCtxAttach, cuCtxDetach, cuCtxFromGreenCtx,
        cuCtxGetDevResource, cuCtxGetDevice_v2, cuCtxGetExecAffinity, cuCtxGetSharedMemConfig,
        cuCtxRecordEvent, cuCtxResetPersistingL2Cache, cuCtxSetSharedMemConfig, cuCtxSynchronize_v2,
        cuCtxWaitEvent, cuDestroyExternalMemory, cuDestroyExternalSemaphore,
        cuDevResourceGenerateDesc, cuDevSmResourceSplit, cuDevSmResourceSplitByCount,
        cuDeviceGetCliqueCount, cuDeviceGetCliqueInfo, cuDeviceGetDevResource,
        cuDeviceGetExecAffinitySupport, cuDeviceGetFabricClusterUuid, cuDeviceGetGraphMemAttribute,
        cuDeviceGetHostAtomicCapabilities, cuDeviceGetLuid, cuDeviceGetP2PAtomicCapabilities,
        cuDeviceGetProperties, cuDeviceGetTexture1DLinearMaxWidth, cuDeviceGraphMemTrim,
        cuDeviceRegisterAsyncNotification, cuDeviceSetGraphMemAttribute,
        cuDeviceUnregisterAsyncNotification, cuExternalMemoryGetMappedBuffer,
        cuExternalMemoryGetMappedMipmappedArray, cuFlushGPUDirectRDMAWrites, cuFuncGetParamCount,
        cuFuncGetParamInfo, cuFuncIsLoaded, cuFuncLoad, cuFuncSetBlockShape,
        cuFuncSetSharedMemConfig, cuFuncSetSharedSize, cuGetExportTable, cuGetProcAddress,
        cuGetProcAddress_v2, cuGraphAddBatchMemOpNode, cuGraphAddChildGraphNode,
        cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphAddEmptyNode,
        cuGraphAddEventRecordNode, cuGraphAddEventWaitNode, cuGraphAddExternalSemaphoresSignalNode,
        cuGraphAddExternalSemaphoresWaitNode, cuGraphAddHostNode, cuGraphAddKernelNode,
        cuGraphAddKernelNode_v2, cuGraphAddMemAllocNode, cuGraphAddMemFreeNode,
        cuGraphAddMemcpyNode, cuGraphAddMemsetNode, cuGraphAddNode, cuGraphAddNode_v2,
        cuGraphAddNode_v3, cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams,
        cuGraphChildGraphNodeGetGraph, cuGraphClone, cuGraphConditionalHandleCreate, cuGraphCreate,
        cuGraphDebugDotPrint, cuGraphDestroyNode, cuGraphEventRecordNodeGetEvent,
        cuGraphEventRecordNodeSetEvent, cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeSetEvent,
        cuGraphExecBatchMemOpNodeSetParams, cuGraphExecChildGraphNodeSetParams,
        cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventWaitNodeSetEvent,
        cuGraphExecExternalSemaphoresSignalNodeSetParams,
        cuGraphExecExternalSemaphoresWaitNodeSetParams, cuGraphExecGetId,
        cuGraphExecHostNodeSetParams, cuGraphExecKernelNodeSetParams,
        cuGraphExecKernelNodeSetParams_v2, cuGraphExecMemcpyNodeSetParams,
        cuGraphExecMemsetNodeSetParams, cuGraphExecNodeSetParams, cuGraphExecUpdate,
        cuGraphExecUpdate_v2, cuGraphExternalSemaphoresSignalNodeGetParams,
        cuGraphExternalSemaphoresSignalNodeSetParams, cuGraphExternalSemaphoresWaitNodeGetParams,
        cuGraphExternalSemaphoresWaitNodeSetParams, cuGraphGetEdges_v2, cuGraphGetId,
        cuGraphGetRootNodes, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams,
        cuGraphInstantiateWithParams, cuGraphInstantiate_v2, cuGraphKernelNodeCopyAttributes,
        cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2,
        cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetParams, cuGraphKernelNodeSetParams_v2,
        cuGraphMemAllocNodeGetParams, cuGraphMemFreeNodeGetParams, cuGraphMemcpyNodeGetParams,
        cuGraphMemcpyNodeSetParams, cuGraphMemsetNodeGetParams, cuGraphMemsetNodeSetParams,
        cuGraphNodeFindInClone, cuGraphNodeGetContainingGraph, cuGraphNodeGetDependencies,
        cuGraphNodeGetDependencies_v2, cuGraphNodeGetDependentNodes,
        cuGraphNodeGetDependentNodes_v2, cuGraphNodeGetEnabled, cuGraphNodeGetLocalId,
        cuGraphNodeGetParams, cuGraphNodeGetToolsId, cuGraphNodeSetEnabled, cuGraphNodeSetParams,
        cuGraphNodeSetParams_v2, cuGraphReleaseUserObject, cuGraphRemoveDependencies,
        cuGraphRemoveDependencies_v2, cuGraphRetainUserObject, cuGraphicsMapResources,
        cuGraphicsResourceGetMappedMipmappedArray, cuGraphicsResourceGetMappedPointer_v2,
        cuGraphicsResourceSetMapFlags_v2, cuGraphicsSubResourceGetMappedArray,
        cuGraphicsUnmapResources, cuGraphicsUnregisterResource, cuGreenCtxCreate, cuGreenCtxDestroy,
        cuGreenCtxGetDevResource, cuGreenCtxGetId, cuGreenCtxRecordEvent, cuGreenCtxStreamCreate,
        cuGreenCtxWaitEvent, cuImportExternalMemory, cuImportExternalSemaphore, cuIpcCloseMemHandle,
        cuIpcGetEventHandle, cuIpcGetMemHandle, cuIpcOpenEventHandle, cuIpcOpenMemHandle_v2,
        cuKernelGetAttribute, cuKernelGetFunction, cuKernelGetLibrary, cuKernelGetName,
        cuKernelGetParamCount, cuKernelGetParamInfo, cuKernelSetAttribute, cuKernelSetCacheConfig,
        cuLaunch, cuLaunchCooperativeKernelMultiDevice, cuLaunchGrid, cuLaunchGridAsync,
        cuLaunchHostFunc_v2, cuLibraryEnumerateKernels, cuLibraryGetGlobal, cuLibraryGetKernel,
        cuLibraryGetKernelCount, cuLibraryGetManaged, cuLibraryGetModule,
        cuLibraryGetUnifiedFunction, cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryUnload,
        cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkCreate_v2, cuLinkDestroy,
        cuLogicalEndpointAddDevice, cuLogicalEndpointBindAddr, cuLogicalEndpointBindMem,
        cuLogicalEndpointCreate, cuLogicalEndpointDestroy, cuLogicalEndpointExport,
        cuLogicalEndpointGetLimits, cuLogicalEndpointIdRelease, cuLogicalEndpointIdReserve,
        cuLogicalEndpointImport, cuLogicalEndpointQuery, cuLogicalEndpointUnbind, cuLogsCurrent,
        cuLogsDumpToFile, cuLogsDumpToMemory, cuLogsRegisterCallback, cuLogsUnregisterCallback,
        cuMemAdvise, cuMemAdvise_v2, cuMemAllocManaged, cuMemBatchDecompressAsync,
        cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardBatchAsync, cuMemExportToShareableHandle,
        cuMemGetAllocationPropertiesFromHandle, cuMemGetDefaultMemPool,
        cuMemGetHandleForAddressRange, cuMemGetLocationInfo, cuMemGetMemPool,
        cuMemHostGetDevicePointer_v2, cuMemImportFromShareableHandle, cuMemMapArrayAsync,
        cuMemPoolExportPointer, cuMemPoolExportToShareableHandle, cuMemPoolGetAccess,
        cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer, cuMemPoolSetAccess,
        cuMemPrefetchAsync, cuMemPrefetchAsync_v2, cuMemPrefetchBatchAsync, cuMemRangeGetAttribute,
        cuMemRangeGetAttributes, cuMemSetMemPool, cuMemcpy2DAsync_v2, cuMemcpy2DUnaligned_v2,
        cuMemcpy2D_v2, cuMemcpy3DAsync_v2, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2,
        cuMemcpy3DPeer, cuMemcpy3DPeerAsync, cuMemcpy3DWithAttributesAsync, cuMemcpy3D_v2,
        cuMemcpyAtoA_v2, cuMemcpyAtoD_v2, cuMemcpyAtoHAsync_v2, cuMemcpyAtoH_v2, cuMemcpyBatchAsync,
        cuMemcpyBatchAsync_v2, cuMemcpyDtoA_v2, cuMemcpyHtoAAsync_v2, cuMemcpyHtoA_v2,
        cuMemcpyWithAttributesAsync, cuMemsetD2D16Async, cuMemsetD2D16_v2, cuMemsetD2D32Async,
        cuMemsetD2D32_v2, cuMemsetD2D8Async, cuMemsetD2D8_v2, cuMipmappedArrayCreate,
        cuMipmappedArrayDestroy, cuMipmappedArrayGetLevel, cuMipmappedArrayGetMemoryRequirements,
        cuMipmappedArrayGetSparseProperties, cuModuleEnumerateFunctions, cuModuleGetFunctionCount,
        cuModuleGetLoadingMode, cuModuleGetSurfRef, cuModuleGetTexRef, cuMulticastAddDevice,
        cuMulticastBindAddr, cuMulticastBindAddr_v2, cuMulticastBindMem, cuMulticastBindMem_v2,
        cuMulticastCreate, cuMulticastGetGranularity, cuMulticastUnbind,
        cuOccupancyAvailableDynamicSMemPerBlock, cuOccupancyMaxActiveBlocksPerMultiprocessor,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cuOccupancyMaxActiveClusters,
        cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSizeWithFlags,
        cuOccupancyMaxPotentialClusterSize, cuParamSetSize, cuParamSetTexRef, cuParamSetf,
        cuParamSeti, cuParamSetv, cuPointerGetAttributes, cuPointerSetAttribute,
        cuProfilerInitialize, cuSignalExternalSemaphoresAsync, cuStreamAttachMemAsync,
        cuStreamBatchMemOp, cuStreamBatchMemOp_v2, cuStreamBeginCaptureToCig,
        cuStreamBeginCaptureToGraph, cuStreamBeginRecaptureToGraph, cuStreamCopyAttributes,
        cuStreamEndCaptureToCig, cuStreamGetAttribute, cuStreamGetCaptureInfo, cuStreamGetCtx_v2,
        cuStreamGetDevResource, cuStreamGetGreenCtx, cuStreamSetAttribute,
        cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2,
        cuStreamWaitValue32, cuStreamWaitValue32_v2, cuStreamWaitValue64, cuStreamWaitValue64_v2,
        cuStreamWriteValue32, cuStreamWriteValue32_v2, cuStreamWriteValue64,
        cuStreamWriteValue64_v2, cuSurfObjectCreate, cuSurfObjectDestroy,
        cuSurfObjectGetResourceDesc, cuSurfRefGetArray, cuSurfRefSetArray, cuTensorMapEncodeIm2col,
        cuTensorMapEncodeIm2colWide, cuTensorMapEncodeTiled, cuTensorMapReplaceAddress,
        cuTexObjectCreate, cuTexObjectDestroy, cuTexObjectGetResourceDesc,
        cuTexObjectGetResourceViewDesc, cuTexObjectGetTextureDesc, cuTexRefCreate, cuTexRefDestroy,
        cuTexRefGetAddressMode, cuTexRefGetAddress_v2, cuTexRefGetArray, cuTexRefGetBorderColor,
        cuTexRefGetFilterMode, cuTexRefGetFlags, cuTexRefGetFormat, cuTexRefGetMaxAnisotropy,
        cuTexRefGetMipmapFilterMode, cuTexRefGetMipmapLevelBias, cuTexRefGetMipmapLevelClamp,
        cuTexRefGetMipmappedArray, cuTexRefSetAddress2D_v3, cuTexRefSetAddressMode,
        cuTexRefSetAddress_v2, cuTexRefSetArray, cuTexRefSetBorderColor, cuTexRefSetFilterMode,
        cuTexRefSetFlags, cuTexRefSetFormat, cuTexRefSetMaxAnisotropy, cuTexRefSetMipmapFilterMode,
        cuTexRefSetMipmapLevelBias, cuTexRefSetMipmapLevelClamp, cuTexRefSetMipmappedArray,
        cuUserObjectCreate, cuUserObjectRelease, cuUserObjectRetain, cuWaitExternalSemaphoresAsync,
    }
}
