/* What one device is and how it stands: identity, memory, clocks, power, errors, PCIe, who computes on it. */
#include "played.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024ULL * 1024ULL)
#define MILLI 1e3 /* per unit */

/* A function that gives one unsigned integer of a GPU: the number at `path`, times `scale`. */
#define GIVES_UNSIGNED(function, path, scale)                                 \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *value)    \
    {                                                                         \
        return give_unsigned(__func__, device, path, scale, value);           \
    }

GIVES_UNSIGNED(nvmlDeviceGetPowerUsage, "power_w", MILLI)
GIVES_UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit_w", MILLI)
GIVES_UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "default_power_limit_w", MILLI)
GIVES_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation", 1)
GIVES_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width", 1)
GIVES_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation", 1)
GIVES_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width", 1)
GIVES_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.gpu_max_generation", 1)
GIVES_UNSIGNED(nvmlDeviceGetComputeMode, "compute_mode", 1)
GIVES_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages.pending", 1)

/* ---- identity ------------------------------------------------------------------------------ */

static nvmlReturn_t give_text(const char *function, nvmlDevice_t device, const char *key, char *text,
                              unsigned int length)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(function, device, &gpu);
    return failure != NVML_SUCCESS ? failure : copy_text(json_text(part_of(gpu, key)), text, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return give_text(__func__, device, "name", name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return give_text(__func__, device, "uuid", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    memset(pci, 0, sizeof *pci);
    pci->bus = FIRST_PCI_BUS + device->index;
    pci->pciDeviceId = (unsigned int)strtoul(json_text(part_of(gpu, "pci_device_id")), NULL, 16) << 16 | 0x10deU;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    *major = (int)json_element(part_of(gpu, "compute_capability"), 0)->number;
    *minor = (int)json_element(part_of(gpu, "compute_capability"), 1)->number;
    return NVML_SUCCESS;
}

/* ---- memory -------------------------------------------------------------------------------- */

static nvmlReturn_t read_memory(const Json *gpu, nvmlMemory_v2_t *memory)
{
    double total = 0, reserved = 0, used = 0;
    nvmlReturn_t failure = number_now(gpu, "memory_mib", &total);
    if (failure != NVML_SUCCESS)
        return failure;
    number_now(gpu, "memory_reserved_mib", &reserved);
    number_now(gpu, "memory_used_mib", &used);
    memory->total = (unsigned long long)total * MIB;
    memory->reserved = (unsigned long long)reserved * MIB;
    memory->used = (unsigned long long)used * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* The first version counts what the driver reserves as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const Json *gpu;
    nvmlMemory_v2_t now = {0};
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure == NVML_SUCCESS)
        failure = read_memory(gpu, &now);
    memory->total = now.total;
    memory->free = now.free;
    memory->used = now.used + now.reserved;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    return memory->version == NVML_MEMORY_V2 ? read_memory(gpu, memory) : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

/* ---- clocks and temperature ---------------------------------------------------------------- */

static nvmlReturn_t give_clock(const char *function, nvmlDevice_t device, unsigned int type, const char *sm,
                               const char *memory, unsigned int *mhz)
{
    /* The graphics clock is the SM clock on every GPU that is played. */
    const char *path = type == NVML_CLOCK_MEM ? memory : sm;
    return type <= NVML_CLOCK_MEM ? give_unsigned(function, device, path, 1, mhz) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return give_clock(__func__, device, type, "sm_clock_mhz", "memory_clock_mhz", mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return give_clock(__func__, device, type, "max_sm_clock_mhz", "max_memory_clock_mhz", mhz);
}

static nvmlReturn_t give_clock_event_reasons(const char *function, nvmlDevice_t device, unsigned long long *reasons)
{
    unsigned int now;
    nvmlReturn_t failure = give_unsigned(function, device, "clock_event_reasons", 1, &now);
    if (failure == NVML_SUCCESS)
        *reasons = now;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return give_clock_event_reasons(__func__, device, reasons);
}

/* The name before driver 535. */
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return give_clock_event_reasons(__func__, device, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_unsigned(__func__, device, "temperature_c", 1, celsius);
}

/* ---- memory errors ------------------------------------------------------------------------- */

static nvmlReturn_t give_two_states(const char *function, nvmlDevice_t device, const char *now, const char *pending,
                                    unsigned int *is_now, unsigned int *is_pending)
{
    nvmlReturn_t failure = give_unsigned(function, device, now, 1, is_now);
    return failure != NVML_SUCCESS ? failure : give_unsigned(function, device, pending, 1, is_pending);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    return give_two_states(__func__, device, "ecc.enabled", "ecc.enabled_after_reboot", current, pending);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    return give_two_states(__func__, device, "mig.enabled", "mig.enabled_after_reset", current, pending);
}

/* `error`: 0 corrected, 1 uncorrected. `counter`: 0 volatile, since the driver was loaded; 1 aggregate, for ever. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                unsigned long long *count)
{
    static const char *const paths[2][2] = {{"ecc.corrected_volatile", "ecc.corrected_aggregate"},
                                            {"ecc.uncorrected_volatile", "ecc.uncorrected_aggregate"}};
    const Json *gpu;
    double enabled = 0, errors;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    if (error > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (number_now(gpu, "ecc.enabled", &enabled) != NVML_SUCCESS || enabled == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    failure = number_now(gpu, paths[error][counter], &errors);
    if (failure == NVML_SUCCESS)
        *count = (unsigned long long)errors;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
    nvmlReturn_t failure = give_two_states(__func__, device, "remapped_rows.correctable",
                                           "remapped_rows.uncorrectable", correctable, uncorrectable);
    if (failure != NVML_SUCCESS)
        return failure;
    return give_two_states(__func__, device, "remapped_rows.pending", "remapped_rows.failed", pending, failed);
}

/* ---- processes ----------------------------------------------------------------------------- */

/* Room for how many processes the caller has in `*count`, and how many there are comes back in it. */
static nvmlReturn_t count_processes(const char *function, nvmlDevice_t device, const void *processes,
                                    unsigned int *count, const Json **gpu)
{
    unsigned int capacity = *count;
    nvmlReturn_t failure = enter_gpu(function, device, gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    *count = (unsigned int)json_length(part_of(*gpu, "processes"));
    return *count > (processes != NULL ? capacity : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlProcessInfo_v1_t process_at(const Json *gpu, unsigned int i)
{
    const Json *process = json_element(part_of(gpu, "processes"), i);
    nvmlProcessInfo_v1_t said = {(unsigned int)json_member(process, "pid")->number,
                                 (unsigned long long)json_member(process, "memory_mib")->number * MIB};
    return said;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *processes)
{
    const Json *gpu;
    unsigned int i = 0;
    nvmlReturn_t failure = count_processes(__func__, device, processes, count, &gpu);
    for (; failure == NVML_SUCCESS && i < *count; i++) {
        processes[i].pid = process_at(gpu, i).pid;
        processes[i].usedGpuMemory = process_at(gpu, i).usedGpuMemory;
        processes[i].gpuInstanceId = processes[i].computeInstanceId = 0xffffffffU; /* no MIG */
    }
    return failure;
}

/* The first version, which torch calls for its message about a GPU that has no memory left. */
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v1_t *processes)
{
    const Json *gpu;
    unsigned int i = 0;
    nvmlReturn_t failure = count_processes(__func__, device, processes, count, &gpu);
    for (; failure == NVML_SUCCESS && i < *count; i++)
        processes[i] = process_at(gpu, i);
    return failure;
}
