/* Reads the machine file, again whenever it changes, and says what holds at which time. */
#define _POSIX_C_SOURCE 200809L

#include "played.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define US_PER_S 1e6
/* A file younger than this may change again without a visible sign: time stamps are as coarse as the kernel's tick. */
#define SETTLED_US 50000ULL
#define HANG (-1) /* in place of an nvmlReturn_t: the call does not return */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users; /* nvmlInit calls not yet answered by nvmlShutdown */

unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000ULL;
}

/* ---- the machine file ---------------------------------------------------------------------- */

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t size = 0, got;
    char *text = NULL;
    if (file == NULL)
        return NULL;
    do {
        text = realloc(text, size + 65537);
        if (text == NULL)
            abort();
        got = fread(text + size, 1, 65536, file);
        size += got;
    } while (got > 0);
    text[size] = '\0';
    fclose(file);
    return text;
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int settled(const struct stat *file)
{
    double changed_us = (double)file->st_mtim.tv_sec * US_PER_S + (double)file->st_mtim.tv_nsec / 1e3;
    return (double)now_us() > changed_us + (double)SETTLED_US;
}

/* The machine as the file says now; NULL, with a word on stderr, if it says nothing intelligible.
 * A machine that was replaced is never freed: another thread's call may still be reading it. */
static const Json *read_machine(void)
{
    static struct stat seen;
    static int trusted;
    static char *text;
    static Json *machine;
    const char *path = getenv("NVML_STAND_IN");
    struct stat file;
    char *new_text;

    if (path == NULL || stat(path, &file) != 0) {
        fprintf(stderr, "NVML stand-in: NVML_STAND_IN names no file\n");
        return NULL;
    }
    if (trusted && same_file(&file, &seen))
        return machine;
    seen = file;
    trusted = settled(&file);
    new_text = read_file(path);
    if (text != NULL && new_text != NULL && strcmp(text, new_text) == 0) {
        free(new_text);
        return machine;
    }
    free(text);
    text = new_text;
    machine = text != NULL ? json_read(text) : NULL;
    if (machine == NULL)
        fprintf(stderr, "NVML stand-in: %s is no JSON document\n", path);
    return machine;
}

static const Json *current_machine(void)
{
    const Json *machine;
    pthread_mutex_lock(&lock);
    machine = read_machine();
    pthread_mutex_unlock(&lock);
    return machine;
}

const Json *part_of(const Json *value, const char *path)
{
    char key[64];
    while (value != NULL && *path != '\0') {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        value = json_member(value, key);
        path += length + (path[length] == '.');
    }
    return value != NULL && value->kind != JSON_NULL ? value : NULL;
}

/* ---- failures ------------------------------------------------------------------------------ */

/* How the failure of that name fails now: an nvmlReturn_t, or {"code": …, "from_unix_s": …}. */
static nvmlReturn_t failure_named(const Json *failures, const char *name)
{
    const Json *failure = part_of(failures, name);
    double code;
    if (failure == NULL)
        return NVML_SUCCESS;
    code = failure->number;
    if (failure->kind == JSON_OBJECT) {
        if ((double)now_us() < json_member(failure, "from_unix_s")->number * US_PER_S)
            return NVML_SUCCESS;
        code = json_member(failure, "code")->number;
    }
    if ((int)code == HANG)
        for (;;)
            pause();
    return (nvmlReturn_t)code;
}

static nvmlReturn_t failure_by(const Json *failures, const char *function)
{
    nvmlReturn_t failure = failure_named(failures, function);
    return failure != NVML_SUCCESS ? failure : failure_named(failures, "any");
}

static nvmlReturn_t open_machine(const char *function, const Json **machine)
{
    *machine = current_machine();
    return *machine != NULL ? failure_by(part_of(*machine, "failures"), function) : NVML_ERROR_UNKNOWN;
}

static int is_open(void)
{
    int open;
    pthread_mutex_lock(&lock);
    open = users > 0;
    pthread_mutex_unlock(&lock);
    return open;
}

nvmlReturn_t enter_machine(const char *function, const Json **machine)
{
    return is_open() ? open_machine(function, machine) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t enter_gpu_at(const char *function, unsigned int index, const Json **gpu)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine(function, &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    *gpu = json_element(part_of(machine, "gpus"), index);
    return *gpu != NULL ? failure_by(part_of(*gpu, "failures"), function) : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, const Json **gpu)
{
    return device != NULL ? enter_gpu_at(function, device->index, gpu) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t enter_library(void)
{
    const Json *machine;
    nvmlReturn_t failure = open_machine("nvmlInit", &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    pthread_mutex_lock(&lock);
    users++;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t leave_library(void)
{
    const Json *machine;
    nvmlReturn_t failure = enter_machine("nvmlShutdown", &machine);
    if (failure != NVML_SUCCESS)
        return failure;
    pthread_mutex_lock(&lock);
    users--;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

/* ---- numbers that change with time --------------------------------------------------------- */

static const Json *changes_of(const Json *number)
{
    const Json *changes = json_member(number, "changes");
    return changes != NULL ? changes->first : NULL;
}

static double first_value(const Json *number)
{
    return number->kind == JSON_OBJECT ? json_member(number, "value")->number : number->number;
}

double number_at(const Json *number, unsigned long long time_us)
{
    double value = first_value(number);
    const Json *change;
    for (change = changes_of(number); change != NULL; change = change->next)
        if ((double)time_us >= change->first->number * US_PER_S)
            value = change->first->next->number;
    return value;
}

double integral_of(const Json *number, unsigned long long from_us, unsigned long long to_us)
{
    double value = number_at(number, from_us), since_us = (double)from_us, sum = 0;
    const Json *change;
    for (change = changes_of(number); change != NULL; change = change->next) {
        double at_us = change->first->number * US_PER_S;
        if (at_us <= since_us || at_us > (double)to_us)
            continue;
        sum += value * (at_us - since_us);
        since_us = at_us;
        value = change->first->next->number;
    }
    return (sum + value * ((double)to_us - since_us)) / US_PER_S;
}

unsigned long long counting_since_us(void)
{
    const Json *since = part_of(current_machine(), "driver_loaded_unix_s");
    return since != NULL ? (unsigned long long)(since->number * US_PER_S) : 0;
}

nvmlReturn_t number_now(const Json *gpu, const char *path, double *value)
{
    const Json *number = part_of(gpu, path);
    if (number == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *value = number_at(number, now_us());
    return NVML_SUCCESS;
}

nvmlReturn_t give_unsigned(const char *function, nvmlDevice_t device, const char *path, double scale,
                           unsigned int *value)
{
    const Json *gpu;
    double number;
    nvmlReturn_t failure = enter_gpu(function, device, &gpu);
    if (failure == NVML_SUCCESS && value == NULL)
        failure = NVML_ERROR_INVALID_ARGUMENT;
    if (failure == NVML_SUCCESS)
        failure = number_now(gpu, path, &number);
    if (failure == NVML_SUCCESS)
        *value = (unsigned int)(number * scale + 0.5);
    return failure;
}

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int length)
{
    if (text == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}
