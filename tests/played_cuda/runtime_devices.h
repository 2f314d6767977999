// The CUDA runtime: devices and errors.
#pragma once
#include "kernels.h"

extern "C" {
static int driver_version() { return atoi(setting("PLAYED_DRIVER", "13020")); } // 1000 × major + 10 × minor
static bool is_driver_too_old() { return driver_version() / 1000 < CUDART_VERSION / 1000; }
static cudaError_t why_no_devices() {
    for (auto &f : faults())
        if (f.not_ready) return cudaErrorSystemNotReady;
    return is_driver_too_old() ? cudaErrorInsufficientDriver : cudaSuccess;
}
static bool is_device(int index) { return index >= 0 && index < (int)gpus().size(); }

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    if (auto error = why_no_devices()) return fail(error);
    *count = gpus().size();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *index) {
    *index = cur;
    return gpus().empty() ? fail(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
    if (auto error = why_no_devices()) return fail(error);
    if (!is_device(index)) return fail(cudaErrorInvalidDevice);
    cur = index;
    if (is_busy(index)) return fail(cudaErrorDevicesUnavailable);
    Lock lock(M);
    use(index);
    return fail(dev(index).sticky);
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// The same UUID and PCI bus as tests/nvml_stand_in gives: the two play one machine.
static void write_uuid(int physical, void *to) {
    uint32_t number = physical + first_uuid();
    unsigned char uuid[16] = {0, 0, 0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x66, 0x66};
    for (int i = 0; i < 4; i++) uuid[i] = number >> (24 - 8 * i);
    memcpy(to, uuid, sizeof uuid);
}
static int pci_bus(int physical) { return 0x10 + physical; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int index) {
    if (!is_device(index)) return fail(cudaErrorInvalidDevice);
    const int physical = dev(index).physical;
    const Kind &kind = kind_of(physical);
    memset(p, 0, sizeof *p);
    strcpy(p->name, kind.name);
    write_uuid(physical, &p->uuid);
    p->pciBusID = pci_bus(physical);
    p->major = kind.major;
    p->minor = kind.minor;
    p->multiProcessorCount = kind.sms;
    p->totalGlobalMem = total_bytes(index);
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 163 << 10;
    p->sharedMemPerMultiprocessor = 164 << 10;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 1u << 31;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 40 << 20;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->cooperativeLaunch = p->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int index) {
    cudaDeviceProp p;
    if (auto error = cudaGetDeviceProperties(&p, index)) return error;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrClockRate: *value = 1410000; break;
    case cudaDevAttrMemoryClockRate: *value = 1593000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    default: *value = 0; // whatever else can be asked, these GPUs do not support
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int index) {
    snprintf(text, length, "0000:%02x:00.0", pci_bus(dev(index).physical));
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) {
    *can = a != b;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
    *pool = (cudaMemPool_t)1;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    CHECKED();
    std::vector<Stream *> own;
    {
        Lock lock(M);
        for (auto *s : streams())
            if (s->device == cur) own.push_back(s);
    }
    for (auto *s : own)
        if (auto error = drain(s)) return fail(error);
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- errors ----------------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError() { return last_error ? last_error : dev(cur).sticky; }
cudaError_t cudaGetLastError() {
    auto error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

// Names and texts as CUDA has them: messages and verdicts quote them.
struct ErrorText {
    int code;
    const char *name, *text;
};
static const ErrorText ERROR_TEXTS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "system not yet initialized"},
    {999, "cudaErrorUnknown", "unknown error"}};
static const ErrorText &error_text(cudaError_t error) {
    static const ErrorText other = {-1, "cudaErrorPlayed", "played error"};
    for (auto &one : ERROR_TEXTS)
        if (one.code == error) return one;
    return other;
}
const char *cudaGetErrorName(cudaError_t error) { return error_text(error).name; }
const char *cudaGetErrorString(cudaError_t error) { return error_text(error).text; }
}
