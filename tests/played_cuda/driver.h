// The CUDA driver's own interface, which Triton, Inductor and parts of torch use.
#pragma once
#include "runtime_streams.h"

extern "C" {
static CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult result(cudaError_t error) { return (CUresult)error; } // the numbers are the same

CUresult cuInit(unsigned) { return gpus().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return result(cudaDriverGetVersion(version)); }
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

// A function that is not played is found, and says that it is not supported.
CUresult cuGetProcAddress_v2(const char *name, void **address, int, cuuint64_t, CUdriverProcAddressQueryResult *found) {
    *address = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
    if (!*address) *address = dlsym(RTLD_DEFAULT, name);
    if (!*address) *address = (void *)unsupported;
    if (found) *found = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **address, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found) {
    cuGetProcAddress_v2(name, address, 0, 0, nullptr);
    if (found) *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

// ---- devices and contexts: a context is the device's number plus one -----------------------------------------------

CUresult cuDeviceGet(CUdevice *device, int index) {
    *device = index;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
    *count = gpus().size();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "%s", kind_of(dev(device).physical).name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return result(cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device));
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    write_uuid(dev(device).physical, uuid);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = total_bytes(device);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    if (flags) *flags = 0;
    *is_active = dev(device).used;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(uintptr_t)(device + 1);
    Lock lock(M);
    use(device);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = dev(cur).used ? (CUcontext)(uintptr_t)(cur + 1) : nullptr;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) cur = (int)(uintptr_t)context - 1;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = cur;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext) { return cuCtxGetDevice(device); }
CUresult cuCtxSynchronize() { return result(cudaDeviceSynchronize()); }

// ---- modules and kernels: a function is its name -------------------------------------------------------------------

static CUresult load_module(CUmodule *module) {
    *module = (CUmodule) "module";
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *module, const char *) { return load_module(module); }
CUresult cuModuleLoadData(CUmodule *module, const void *) { return load_module(module); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *, unsigned, CUjit_option *, void **) {
    return load_module(module);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
    char *kept = strdup(name);
    Lock lock(M);
    kernel_names()[kept] = kept;
    *function = (CUfunction)kept;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction) {
    bool is_threads = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    *value = is_threads ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction, const CUlaunchConfig *) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction, int, size_t) {
    *count = 2;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned, CUstream s, void **arguments, void **) {
    return result(launch((void *)f, dim3{gx, gy, gz}, dim3{bx, by, bz}, arguments, (cudaStream_t)s));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **arguments, void **) {
    dim3 grid{c->gridDimX, c->gridDimY, c->gridDimZ}, block{c->blockDimX, c->blockDimY, c->blockDimZ};
    return result(launch((void *)f, grid, block, arguments, (cudaStream_t)c->hStream));
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned, CUstream s, void **arguments) {
    return result(launch((void *)f, dim3{gx, gy, gz}, dim3{bx, by, bz}, arguments, (cudaStream_t)s));
}

// ---- memory ----------------------------------------------------------------------------------------------------

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    Lock lock(M);
    auto *block = block_of((void *)address);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = block->first; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = block->second.bytes; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = CU_MEMORYTYPE_DEVICE; break;
    default: *(unsigned *)value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *all_bytes) {
    return result(cudaMemGetInfo(free_bytes, all_bytes));
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *begin, size_t *bytes, CUdeviceptr address) {
    Lock lock(M);
    auto *block = block_of((void *)address);
    if (!block) return CUDA_ERROR_NOT_FOUND;
    if (begin) *begin = block->first;
    if (bytes) *bytes = block->second.bytes;
    return CUDA_SUCCESS;
}
}
