/* libnvidia-ml.so.1 without a GPU: what the tests load in place of NVIDIA's library.
 *
 * The machine it pretends to be is a text file named by NVML_STAND_IN, lines of key=value:
 *
 *   driver_version=570.86.15
 *   fail.<function>=<nvmlReturn_t>          that function fails, for every GPU; nvmlInit for all its versions
 *   gpu.<i>.name=Tesla V100-SXM2-16GB       GPUs are counted by their names, from 0
 *   gpu.<i>.uuid=GPU-...
 *   gpu.<i>.pci_device_id=1db1              hexadecimal
 *   gpu.<i>.memory_mib=16384
 *   gpu.<i>.utilization_pct=97              then optionally <unix_s>:<pct> ..., from then on that much
 *   gpu.<i>.fail.<function>=<nvmlReturn_t>  that function fails for this GPU
 *   gpu.<i>.fail.any=<nvmlReturn_t>         every function fails for this GPU
 *
 * The file is read anew in every call, so a test can change the machine while a program runs on it.
 * Names and structures are those of nvml.h, as far as nvidia-ml-py uses them.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 64
#define MAX_TEXT 256
#define SAMPLE_PERIOD_US 100000ULL
#define BUFFERED_SAMPLES 100U
#define MIB (1024ULL * 1024ULL)

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};
enum { NVML_GPU_UTILIZATION_SAMPLES = 1 };
enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1 };

typedef struct { unsigned int index; } *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
#define NVML_MEMORY_V2 (sizeof(nvmlMemory_v2_t) | (2U << 24))
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef union {
    double dVal;
    unsigned int uiVal;
    unsigned long long ullVal;
} nvmlValue_t;
typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

static unsigned int users; /* nvmlInit calls not yet answered by nvmlShutdown */

/* ---- the machine file ---------------------------------------------------------------------- */

/* Copy the value of `key` into `value`; 0 if the file has no such line. */
static int look_up(const char *key, char *value, size_t size)
{
    char line[MAX_TEXT * 4];
    size_t key_length = strlen(key);
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    int found = 0;

    if (file == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (strncmp(line, key, key_length) == 0 && line[key_length] == '=') {
            snprintf(value, size, "%s", line + key_length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int look_up_of_gpu(unsigned int index, const char *name, char *value, size_t size)
{
    char key[MAX_TEXT];
    snprintf(key, sizeof key, "gpu.%u.%s", index, name);
    return look_up(key, value, size);
}

static unsigned long long number_of_gpu(unsigned int index, const char *name, int base)
{
    char value[MAX_TEXT];
    return look_up_of_gpu(index, name, value, sizeof value) ? strtoull(value, NULL, base) : 0;
}

static unsigned int count_gpus(void)
{
    char name[MAX_TEXT];
    unsigned int count = 0;
    while (count < MAX_GPUS && look_up_of_gpu(count, "name", name, sizeof name))
        count++;
    return count;
}

/* ---- failures ------------------------------------------------------------------------------ */

static nvmlReturn_t failure_of_machine(const char *function)
{
    char key[MAX_TEXT], value[MAX_TEXT];
    snprintf(key, sizeof key, "fail.%s", function);
    return look_up(key, value, sizeof value) ? atoi(value) : NVML_SUCCESS;
}

static nvmlReturn_t failure_of_gpu(unsigned int index, const char *function)
{
    char name[MAX_TEXT], value[MAX_TEXT];
    snprintf(name, sizeof name, "fail.%s", function);
    if (look_up_of_gpu(index, name, value, sizeof value) || look_up_of_gpu(index, "fail.any", value, sizeof value))
        return atoi(value);
    return NVML_SUCCESS;
}

/* First lines of every function: fail as the machine file says. */
#define BEGIN()                                                  \
    do {                                                         \
        nvmlReturn_t failure_ = failure_of_machine(__func__);    \
        if (users == 0)                                          \
            return NVML_ERROR_UNINITIALIZED;                     \
        if (failure_ != NVML_SUCCESS)                            \
            return failure_;                                     \
    } while (0)

#define BEGIN_GPU(index)                                         \
    do {                                                         \
        nvmlReturn_t failure_;                                   \
        BEGIN();                                                 \
        failure_ = failure_of_gpu((index), __func__);            \
        if (failure_ != NVML_SUCCESS)                            \
            return failure_;                                     \
    } while (0)

/* ---- library and system -------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t failure = failure_of_machine("nvmlInit");
    (void)flags;
    if (failure != NVML_SUCCESS)
        return failure;
    users++;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    BEGIN();
    users--;
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int length)
{
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    char value[MAX_TEXT];
    BEGIN();
    if (!look_up("driver_version", value, sizeof value))
        return NVML_ERROR_NOT_SUPPORTED;
    return copy_text(value, version, length);
}

/* ---- finding devices ----------------------------------------------------------------------- */

static nvmlReturn_t open_device(unsigned int index, nvmlDevice_t *device)
{
    static struct { unsigned int index; } devices[MAX_GPUS];
    devices[index].index = index;
    *device = (nvmlDevice_t)(void *)&devices[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    BEGIN();
    *count = count_gpus();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    BEGIN();
    if (index >= count_gpus())
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_GPU(index);
    return open_device(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char value[MAX_TEXT];
    unsigned int index, count;
    BEGIN();
    count = count_gpus();
    for (index = 0; index < count; index++) {
        if (look_up_of_gpu(index, "uuid", value, sizeof value) && strcmp(value, uuid) == 0) {
            BEGIN_GPU(index);
            return open_device(index, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- properties of a device ---------------------------------------------------------------- */

static nvmlReturn_t copy_text_of_gpu(unsigned int index, const char *name, char *buffer, unsigned int length)
{
    char value[MAX_TEXT];
    if (!look_up_of_gpu(index, name, value, sizeof value))
        return NVML_ERROR_NOT_SUPPORTED;
    return copy_text(value, buffer, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    BEGIN_GPU(device->index);
    return copy_text_of_gpu(device->index, "name", name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    BEGIN_GPU(device->index);
    return copy_text_of_gpu(device->index, "uuid", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    BEGIN_GPU(device->index);
    *index = device->index;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    BEGIN_GPU(device->index);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10 + device->index;
    pci->pciDeviceId = (unsigned int)number_of_gpu(device->index, "pci_device_id", 16) << 16 | 0x10deU;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    BEGIN_GPU(device->index);
    memory->total = number_of_gpu(device->index, "memory_mib", 10) * MIB;
    memory->free = memory->total;
    memory->used = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    BEGIN_GPU(device->index);
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = number_of_gpu(device->index, "memory_mib", 10) * MIB;
    memory->reserved = 0;
    memory->free = memory->total;
    memory->used = 0;
    return NVML_SUCCESS;
}

/* ---- utilization --------------------------------------------------------------------------- */

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000ULL;
}

/* Per cent at a time, by "97" or "97 1700000000.5:20 ...". */
static unsigned int utilization_at(unsigned int index, unsigned long long time_us)
{
    char value[MAX_TEXT];
    char *rest = value;
    unsigned int percent;

    if (!look_up_of_gpu(index, "utilization_pct", value, sizeof value))
        return 0;
    percent = (unsigned int)strtoul(rest, &rest, 10);
    while (*rest == ' ') {
        double from_s = strtod(rest, &rest);
        unsigned int then = *rest == ':' ? (unsigned int)strtoul(rest + 1, &rest, 10) : percent;
        if ((double)time_us >= from_s * 1e6)
            percent = then;
    }
    return percent;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    BEGIN_GPU(device->index);
    utilization->gpu = utilization_at(device->index, now_us());
    utilization->memory = utilization->gpu / 2;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen_us,
                                         int *value_type, unsigned int *count, nvmlSample_t *samples)
{
    unsigned long long newest_us = now_us() / SAMPLE_PERIOD_US * SAMPLE_PERIOD_US;
    unsigned int capacity = *count, age;

    BEGIN_GPU(device->index);
    if (type != NVML_GPU_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (newest_us <= last_seen_us)
        return NVML_ERROR_NOT_FOUND;
    if (samples == NULL) { /* how many may come: the whole buffer, whatever was seen */
        *count = BUFFERED_SAMPLES;
        return NVML_SUCCESS;
    }
    *count = 0;
    for (age = BUFFERED_SAMPLES; age-- > 0 && *count < capacity;) {
        nvmlSample_t *sample = &samples[*count];
        unsigned long long time_us = newest_us - age * SAMPLE_PERIOD_US;
        if (time_us <= last_seen_us)
            continue;
        sample->timeStamp = time_us;
        sample->sampleValue.ullVal = 0;
        sample->sampleValue.uiVal = utilization_at(device->index, time_us);
        (*count)++;
    }
    return NVML_SUCCESS;
}
