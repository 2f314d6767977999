/* NVLink. */
#include "played.h"

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    const Json *gpu, *links, *found;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    links = part_of(gpu, "nvlinks");
    found = json_element(links, link);
    if (found == NULL)
        return json_length(links) > 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *active = (unsigned int)number_at(part_of(found, "active"), now_us());
    return NVML_SUCCESS;
}
