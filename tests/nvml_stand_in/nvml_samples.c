/* What the driver measures all the time: utilization, sample buffers, energy. */
#include "played.h"

#define SAMPLE_PERIOD_US 100000ULL
#define BUFFERED_SAMPLES 100U
#define MILLI 1e3

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlReturn_t failure = give_unsigned(__func__, device, "utilization_pct", 1, &utilization->gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    return give_unsigned(__func__, device, "memory_utilization_pct", 1, &utilization->memory);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    const Json *gpu, *power_w;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    power_w = part_of(gpu, "power_w");
    if (power_w == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *millijoules = (unsigned long long)(MILLI * integral_of(power_w, counting_since_us(), now_us()));
    return NVML_SUCCESS;
}

/* ---- sample buffers ------------------------------------------------------------------------ */

static const char *path_of_samples(unsigned int type, double *scale)
{
    *scale = type == NVML_TOTAL_POWER_SAMPLES ? MILLI : 1;
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: return "power_w";
    case NVML_GPU_UTILIZATION_SAMPLES: return "utilization_pct";
    case NVML_PROCESSOR_CLK_SAMPLES: return "sm_clock_mhz";
    default: return "";
    }
}

/* The numbers that the buffer of this type samples; NULL if the GPU keeps no such buffer. */
static const Json *sampled(const Json *gpu, unsigned int type, double *scale)
{
    const char *path = path_of_samples(type, scale);
    const Json *kept = part_of(gpu, "sample_buffers");
    for (kept = kept != NULL ? kept->first : NULL; kept != NULL; kept = kept->next)
        if (kept->number == type && *path != '\0')
            return part_of(gpu, path);
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long last_seen_us,
                                         unsigned int *value_type, unsigned int *count, nvmlSample_t *samples)
{
    unsigned long long newest_us = now_us() / SAMPLE_PERIOD_US * SAMPLE_PERIOD_US;
    unsigned int capacity = *count, age;
    const Json *gpu, *number;
    double scale;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);

    if (failure != NVML_SUCCESS)
        return failure;
    number = sampled(gpu, type, &scale);
    if (number == NULL)
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
        sample->sampleValue.uiVal = (unsigned int)(number_at(number, time_us) * scale + 0.5);
        (*count)++;
    }
    return NVML_SUCCESS;
}
