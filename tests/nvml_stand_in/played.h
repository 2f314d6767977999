/* The machine that is played: what the file says about it, at a time, and how its functions fail. */
#ifndef PLAYED_H
#define PLAYED_H

#include "json.h"
#include "nvml_types.h"

#define MAX_GPUS 64
#define FIRST_PCI_BUS 0x10U /* GPU 0 is at 0000:10:00.0, GPU 1 at 0000:11:00.0 */

/* First step of every function: give it the machine or the GPU, or fail as the file says, or never return.
 * A handle to a GPU that the file no longer has is lost. */
nvmlReturn_t enter_machine(const char *function, const Json **machine);
nvmlReturn_t enter_gpu_at(const char *function, unsigned int index, const Json **gpu);
nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, const Json **gpu);

/* The same for nvmlInit and nvmlShutdown, which count those who use the library. */
nvmlReturn_t enter_library(void);
nvmlReturn_t leave_library(void);

/* The part of `value` at a path of keys such as "pcie.width"; NULL if it is not there, or null. */
const Json *part_of(const Json *value, const char *path);

/* Microseconds since the epoch. */
unsigned long long now_us(void);

/* A number, or {"value": …, "changes": [[unix_s, value], …]}, at a time. */
double number_at(const Json *number, unsigned long long time_us);

/* Its integral over time: unit times seconds. */
double integral_of(const Json *number, unsigned long long from_us, unsigned long long to_us);

/* When the driver began to count energy and traffic, in microseconds since the epoch. */
unsigned long long counting_since_us(void);

/* A GPU's number as of now into `value`; NVML_ERROR_NOT_SUPPORTED if the file gives none. */
nvmlReturn_t number_now(const Json *gpu, const char *path, double *value);

/* The whole of a function that gives one unsigned integer of a GPU: the number at `path`, times `scale`. */
nvmlReturn_t give_unsigned(const char *function, nvmlDevice_t device, const char *path, double scale,
                           unsigned int *value);

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int length);

#endif
