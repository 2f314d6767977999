// Time, settings and the trace: what every other part begins with.
#pragma once

typedef int64_t ns_t;

static ns_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double unix_s() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void nap(ns_t ns) {
    if (ns <= 0) return;
    timespec t{ns / 1000000000, ns % 1000000000};
    nanosleep(&t, nullptr);
}

// One lock for all of it: calls are short, and what waits lets go of it. It is never destroyed, because torch still
// calls while the process ends; so it is with every other object here that is made with `new` and kept in a static.
typedef std::recursive_mutex Mutex;
typedef std::unique_lock<Mutex> Lock;
static Mutex &M = *new Mutex;

// Settings are lines NAME=VALUE in the file played.conf beside this library, so that every process of the machine has
// them: the plugin hands few environment variables on to its ranks. What the environment says already stays.
__attribute__((constructor(101))) static void read_settings() {
    Dl_info self;
    if (!dladdr((void *)read_settings, &self)) return;
    std::string path(self.dli_fname);
    path = path.substr(0, path.rfind('/')) + "/played.conf";
    FILE *file = fopen(path.c_str(), "r");
    if (!file) return;
    char line[1000];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (!value || *line == '#') continue;
        *value = 0;
        setenv(line, value + 1, 0);
    }
    fclose(file);
}

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static std::vector<std::string> split(const std::string &text, char separator) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size() && !text.empty();) {
        size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// A line in the file PLAYED_TRACE: pid, seconds, text.
__attribute__((format(printf, 1, 2))) static void trace(const char *format, ...) {
    static const char *path = getenv("PLAYED_TRACE");
    if (!path) return;
    char line[600];
    int n = snprintf(line, 40, "%d %.6f ", getpid(), now() / 1e9);
    va_list arguments;
    va_start(arguments, format);
    n += std::min(vsnprintf(line + n, 500, format, arguments), 499);
    va_end(arguments);
    line[n++] = '\n';
    static int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (write(fd, line, n) != n) return;
}
