/* NVLink, and the fields by number that carry its counters. */
#include "played.h"

#define ALL_LINKS 0xffffffffU /* as a field's scope */
#define MILLI 1e3 /* per unit */
#define KILO 1e3

typedef enum { NOW, COUNTED } Reading; /* the number itself, or its integral since the driver was loaded */

/* ---- links --------------------------------------------------------------------------------- */

static nvmlReturn_t find_link(const Json *gpu, unsigned int link, const Json **found)
{
    const Json *links = part_of(gpu, "nvlinks");
    *found = json_element(links, link);
    if (*found != NULL)
        return NVML_SUCCESS;
    return json_length(links) > 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_link(const Json *gpu, unsigned int link, const char *key, Reading reading, double *value)
{
    const Json *found, *number;
    nvmlReturn_t failure = find_link(gpu, link, &found);
    if (failure != NVML_SUCCESS)
        return failure;
    number = part_of(found, key);
    if (number == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *value = reading == COUNTED ? integral_of(number, counting_since_us(), now_us()) : number_at(number, now_us());
    return NVML_SUCCESS;
}

static nvmlReturn_t read_links(const Json *gpu, unsigned int scope, const char *key, Reading reading, double *sum)
{
    double value;
    unsigned int link;
    nvmlReturn_t failure;
    if (scope != ALL_LINKS)
        return read_link(gpu, scope, key, reading, sum);
    failure = read_link(gpu, 0, key, reading, sum);
    for (link = 1; failure == NVML_SUCCESS && read_link(gpu, link, key, reading, &value) == NVML_SUCCESS; link++)
        *sum += value;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    const Json *gpu;
    double value;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure == NVML_SUCCESS)
        failure = read_link(gpu, link, "active", NOW, &value);
    if (failure == NVML_SUCCESS)
        *active = (unsigned int)value;
    return failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    const Json *gpu, *found;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure == NVML_SUCCESS)
        failure = find_link(gpu, link, &found);
    return failure == NVML_SUCCESS ? give_unsigned(__func__, device, "nvlink_version", 1, version) : failure;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                    unsigned long long *count)
{
    static const char *const keys[] = {"replays", "recoveries", "crc_flit_errors", "crc_data_errors"};
    const Json *gpu;
    double value;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    if (counter > NVML_NVLINK_ERROR_DL_CRC_DATA)
        return NVML_ERROR_NOT_SUPPORTED;
    failure = read_link(gpu, link, keys[counter], NOW, &value);
    if (failure == NVML_SUCCESS)
        *count = (unsigned long long)value;
    return failure;
}

/* ---- fields -------------------------------------------------------------------------------- */

/* Fields NVML_FI_DEV_…: from `first` to `last`, one per link from `first_link` on or one scoped by the caller. */
typedef enum { OF_GPU, OF_LINK_BY_NUMBER, OF_ALL_LINKS, OF_LINK_BY_SCOPE } Owner;
typedef struct {
    unsigned int first, last;
    Owner owner;
    unsigned int first_link;
    const char *key;
    Reading reading;
} Field;

static const Field fields[] = {
    {1, 1, OF_GPU, 0, "ecc.enabled", NOW},
    {2, 2, OF_GPU, 0, "ecc.enabled_after_reboot", NOW},
    {3, 3, OF_GPU, 0, "ecc.corrected_volatile", NOW},
    {4, 4, OF_GPU, 0, "ecc.uncorrected_volatile", NOW},
    {5, 5, OF_GPU, 0, "ecc.corrected_aggregate", NOW},
    {6, 6, OF_GPU, 0, "ecc.uncorrected_aggregate", NOW},
    {29, 29, OF_GPU, 0, "retired_pages.single_bit", NOW},
    {30, 30, OF_GPU, 0, "retired_pages.double_bit", NOW},
    {31, 31, OF_GPU, 0, "retired_pages.pending", NOW},
    {32, 37, OF_LINK_BY_NUMBER, 0, "crc_flit_errors", NOW},
    {38, 38, OF_ALL_LINKS, 0, "crc_flit_errors", NOW},
    {39, 44, OF_LINK_BY_NUMBER, 0, "crc_data_errors", NOW},
    {45, 45, OF_ALL_LINKS, 0, "crc_data_errors", NOW},
    {46, 51, OF_LINK_BY_NUMBER, 0, "replays", NOW},
    {52, 52, OF_ALL_LINKS, 0, "replays", NOW},
    {53, 58, OF_LINK_BY_NUMBER, 0, "recoveries", NOW},
    {59, 59, OF_ALL_LINKS, 0, "recoveries", NOW},
    {94, 94, OF_GPU, 0, "pcie.replays", NOW},
    {96, 101, OF_LINK_BY_NUMBER, 6, "crc_flit_errors", NOW},
    {102, 107, OF_LINK_BY_NUMBER, 6, "crc_data_errors", NOW},
    {108, 113, OF_LINK_BY_NUMBER, 6, "replays", NOW},
    {114, 119, OF_LINK_BY_NUMBER, 6, "recoveries", NOW},
    {138, 138, OF_LINK_BY_SCOPE, 0, "tx_kib_s", COUNTED},
    {139, 139, OF_LINK_BY_SCOPE, 0, "rx_kib_s", COUNTED},
    {142, 142, OF_GPU, 0, "remapped_rows.correctable", NOW},
    {143, 143, OF_GPU, 0, "remapped_rows.uncorrectable", NOW},
    {144, 144, OF_GPU, 0, "remapped_rows.pending", NOW},
    {145, 145, OF_GPU, 0, "remapped_rows.failed", NOW},
    {161, 161, OF_LINK_BY_SCOPE, 0, "replays", NOW},
    {162, 162, OF_LINK_BY_SCOPE, 0, "recoveries", NOW},
    {163, 163, OF_LINK_BY_SCOPE, 0, "crc_flit_errors", NOW},
    {165, 165, OF_LINK_BY_SCOPE, 0, "active", NOW},
    {208, 208, OF_LINK_BY_SCOPE, 0, "receive_errors", NOW},
    {211, 211, OF_LINK_BY_SCOPE, 0, "integrity_errors", NOW},
    {215, 215, OF_LINK_BY_SCOPE, 0, "recovery_events", NOW},
};
enum {
    FIELD_TOTAL_ENERGY = 83,
    FIELD_LINK_COUNT = 91,
    FIELD_POWER_INSTANT = 186,
    FIELD_PCIE_TX_BYTES = 197,
    FIELD_PCIE_RX_BYTES = 198
};

static nvmlReturn_t read_listed_field(const Json *gpu, const nvmlFieldValue_t *asked, double *value)
{
    const Field *field = fields, *end = fields + sizeof fields / sizeof *fields;
    while (field < end && (asked->fieldId < field->first || asked->fieldId > field->last))
        field++;
    if (field == end)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->owner) {
    case OF_GPU:
        return number_now(gpu, field->key, value);
    case OF_LINK_BY_NUMBER:
        return read_link(gpu, field->first_link + asked->fieldId - field->first, field->key, field->reading, value);
    case OF_ALL_LINKS:
        return read_links(gpu, ALL_LINKS, field->key, field->reading, value);
    default:
        return read_links(gpu, asked->scopeId, field->key, field->reading, value);
    }
}

/* `scale` times a number of the GPU, as of now or counted since the driver was loaded. */
static nvmlReturn_t read_scaled(const Json *number, Reading reading, double scale, double *value)
{
    unsigned long long now = now_us();
    if (number == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *value = scale * (reading == COUNTED ? integral_of(number, counting_since_us(), now) : number_at(number, now));
    return NVML_SUCCESS;
}

static nvmlReturn_t read_pcie_bytes(const Json *gpu, const char *path, nvmlFieldValue_t *asked, double *value)
{
    const Json *bits = part_of(gpu, "pcie.byte_counter_bits");
    if (bits == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (bits->number == 32)
        asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    return read_scaled(part_of(gpu, path), COUNTED, KILO, value);
}

static nvmlReturn_t read_field(const Json *gpu, nvmlFieldValue_t *asked, double *value)
{
    switch (asked->fieldId) {
    case FIELD_LINK_COUNT:
        *value = (double)json_length(part_of(gpu, "nvlinks"));
        return NVML_SUCCESS;
    case FIELD_TOTAL_ENERGY:
        return read_scaled(part_of(gpu, "power_w"), COUNTED, MILLI, value);
    case FIELD_POWER_INSTANT:
        return read_scaled(part_of(gpu, "power_w"), NOW, MILLI, value);
    case FIELD_PCIE_TX_BYTES:
        return read_pcie_bytes(gpu, "pcie.tx_kb_s", asked, value);
    case FIELD_PCIE_RX_BYTES:
        return read_pcie_bytes(gpu, "pcie.rx_kb_s", asked, value);
    default:
        return read_listed_field(gpu, asked, value);
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    const Json *gpu;
    double value;
    int i;
    nvmlReturn_t failure = enter_gpu(__func__, device, &gpu);
    if (failure != NVML_SUCCESS)
        return failure;
    if (count <= 0 || values == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (i = 0; i < count; i++) { /* each field succeeds or fails by itself */
        values[i].timestamp = (long long)now_us();
        values[i].latencyUsec = 0;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = read_field(gpu, &values[i], &value);
        if (values[i].nvmlReturn == NVML_SUCCESS)
            values[i].value.ullVal = (unsigned long long)value;
        if (values[i].valueType == NVML_VALUE_TYPE_UNSIGNED_INT)
            values[i].value.ullVal &= 0xffffffffULL; /* such a counter wraps */
    }
    return NVML_SUCCESS;
}
