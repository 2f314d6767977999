/* GPU performance monitoring (GPM, since Hopper): activity of the SMs between two samples. */
#include "played.h"

#include <stdlib.h>

struct nvmlGpmSample_st {
    unsigned int index;
    unsigned long long time_us; /* 0: never taken */
};

static const struct {
    unsigned int id;
    const char *key, *unit;
} metrics[] = {
    {2, "sm_util_pct", "%"},
};

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = part_of(gpu, "gpm") != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine(__func__, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    *sample = calloc(1, sizeof **sample);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    free(sample);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    const Json *gpu;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (part_of(gpu, "gpm") == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    sample->index = device->index;
    sample->time_us = now_us();
    return NVML_SUCCESS;
}

static nvmlReturn_t read_metric(const Json *gpm, unsigned long long from_us, unsigned long long to_us,
                                nvmlGpmMetric_t *metric)
{
    const Json *number = NULL;
    size_t i;
    for (i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        if (metrics[i].id == metric->metricId) {
            number = part_of(gpm, metrics[i].key);
            metric->metricInfo.shortName = metric->metricInfo.longName = metrics[i].key;
            metric->metricInfo.unit = metrics[i].unit;
        }
    }
    if (number == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    metric->value = integral_of(number, from_us, to_us) / ((double)(to_us - from_us) / 1e6);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    const Json *gpu;
    unsigned int i;
    nvmlReturn_t failure;
    if (get->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (get->sample1 == NULL || get->sample2 == NULL || get->sample1->time_us == 0 ||
        get->sample1->index != get->sample2->index || get->sample1->time_us >= get->sample2->time_us)
        return NVML_ERROR_INVALID_ARGUMENT;
    failure = enter_gpu_at(__func__, get->sample1->index, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    for (i = 0; i < get->numMetrics; i++)
        get->metrics[i].nvmlReturn =
            read_metric(part_of(gpu, "gpm"), get->sample1->time_us, get->sample2->time_us, &get->metrics[i]);
    return NVML_SUCCESS;
}
