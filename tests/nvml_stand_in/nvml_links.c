/* NVLink. */
#include "played.h"

#include <stdio.h>
#include <string.h>

#define SWITCH_PCI_BUS 0xf0U

/* The link of a GPU; an error where it has none of that number. */
static nvmlReturn_t enter_link(const char *function, nvmlDevice_t device, unsigned int link, const Json **found)
{
    const Json *gpu, *links;
    nvmlReturn_t failure = enter_gpu(function, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    links = part_of(gpu, "nvlinks");
    *found = json_element(links, link);
    if (*found == NULL)
        return json_length(links) > 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    const Json *found;
    nvmlReturn_t failure = enter_link(__func__, device, link, &found);
    if (failure == NVML_SUCCESS)
        *active = (unsigned int)number_at(part_of(found, "active"), now_us());
    return failure;
}

/* What torch looks up together with nvmlInit_v2: were one of them missing, it would use none. Every link leads to an
 * NVSwitch, as in machines of eight GPUs since the DGX-2. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *type)
{
    const Json *found;
    nvmlReturn_t failure = enter_link(__func__, device, link, &found);
    if (failure == NVML_SUCCESS)
        *type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    const Json *found;
    nvmlReturn_t failure = enter_link(__func__, device, link, &found);
    if (failure != NVML_SUCCESS)
        return failure;
    memset(pci, 0, sizeof *pci);
    pci->bus = SWITCH_PCI_BUS;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}
