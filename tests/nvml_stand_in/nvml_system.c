/* The library itself, the driver's versions, and how devices are found. */
#include "played.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return enter_library();
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return enter_library();
}

/* The first version, which torch.cuda.device_count() calls. */
EXPORT nvmlReturn_t nvmlInit(void)
{
    return enter_library();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return leave_library();
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

/* ---- versions ------------------------------------------------------------------------------ */

static nvmlReturn_t give_text_of_machine(const char *function, const char *key, char *buffer, unsigned int length)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine(function, &machine);
    return failure != NVML_SUCCESS ? failure : copy_text(json_text(part_of(machine, key)), buffer, length);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return give_text_of_machine(__func__, "driver_version", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return give_text_of_machine(__func__, "nvml_version", version, length);
}

static nvmlReturn_t give_cuda_version(const char *function, int *version)
{
    const Json *machine, *number;
    nvmlReturn_t failure = enter_machine(function, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    number = part_of(machine, "cuda_driver_version");
    if (number == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *version = (int)number->number;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return give_cuda_version(__func__, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return give_cuda_version(__func__, version);
}

/* ---- finding devices ----------------------------------------------------------------------- */

static nvmlReturn_t open_device(const char *function, unsigned int index, nvmlDevice_t *device)
{
    static struct nvmlDevice_st devices[MAX_GPUS];
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu_at(function, index, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    devices[index].index = index;
    *device = &devices[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine(__func__, &machine);
    if (failure == NVML_SUCCESS)
        *count = (unsigned int)json_length(part_of(machine, "gpus"));
    return failure;
}

static nvmlReturn_t open_device_at(const char *function, unsigned int index, nvmlDevice_t *device)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine(function, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    if (index >= MAX_GPUS || index >= json_length(part_of(machine, "gpus")))
        return NVML_ERROR_INVALID_ARGUMENT;
    return open_device(function, index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return open_device_at(__func__, index, device);
}

/* The first version left out GPUs that this process may not use; here it may use all. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return open_device_at(__func__, index, device);
}

/* By "domain:bus:device.function", where the domain may have four or eight digits. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    const Json *machine;
    unsigned int domain, bus, slot, function;
    nvmlReturn_t failure = enter_machine(__func__, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    if (bus_id == NULL || sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (domain != 0 || slot != 0 || bus < FIRST_PCI_BUS || bus - FIRST_PCI_BUS >= json_length(part_of(machine, "gpus")))
        return NVML_ERROR_NOT_FOUND;
    return open_device(__func__, bus - FIRST_PCI_BUS, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    const Json *machine, *gpus;
    unsigned int index;
    nvmlReturn_t failure = enter_machine(__func__, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    gpus = part_of(machine, "gpus");
    for (index = 0; index < MAX_GPUS && index < json_length(gpus); index++)
        if (strcmp(json_text(part_of(json_element(gpus, index), "uuid")), uuid) == 0)
            return open_device(__func__, index, device);
    return NVML_ERROR_NOT_FOUND;
}
