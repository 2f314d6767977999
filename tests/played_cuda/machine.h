// The machine: which GPUs it has, which of them this process sees, what is wrong with each.
#pragma once
#include "settings.h"

// TFLOP/s of 16-bit tensor cores and of fp32, GB/s of memory: orders of magnitude, so that probes end in their time.
struct Kind {
    const char *key, *name;
    int major, minor, sms;
    size_t mib;
    double tflops_16, tflops_32, gb_per_s;
};
static const Kind KINDS[] = {
    {"v100", "Tesla V100-SXM2-16GB", 7, 0, 80, 16160, 100, 14, 800},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 81251, 270, 18, 1700},
    {"h200", "NVIDIA H200", 9, 0, 132, 143771, 800, 55, 4000},
    {"b200", "NVIDIA B200", 10, 0, 148, 183359, 1700, 70, 7000},
    {"rtx", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, 97280, 400, 100, 1500}};

// PLAYED_KIND is one kind for all GPUs, or a list with commas; its last one is that of all further GPUs.
static const Kind &kind_of(int physical) {
    static auto *kinds = [] {
        auto *found = new std::vector<const Kind *>;
        for (auto &key : split(setting("PLAYED_KIND", "a100"), ','))
            for (auto &kind : KINDS)
                if (key == kind.key) found->push_back(&kind);
        if (found->empty()) abort(); // a misspelt kind would play another machine than the test's
        return found;
    }();
    return *(*kinds)[std::min((size_t)std::max(physical, 0), kinds->size() - 1)];
}

// A UUID's first eight digits number the GPU, as tests/nvml_stand_in does it; machines that must differ begin
// elsewhere.
static int first_uuid() { return atoi(setting("PLAYED_FIRST_UUID", "0")); }

// The physical number that one item of CUDA_VISIBLE_DEVICES means: an index or a UUID; -1: none.
static int visible_item(const std::string &item, const std::vector<int> &there) {
    if (!item.compare(0, 4, "GPU-")) {
        int physical = (int)strtol(item.substr(4, 8).c_str(), 0, 16) - first_uuid();
        return std::count(there.begin(), there.end(), physical) ? physical : -1;
    }
    int index = item.empty() || !isdigit(item[0]) ? -1 : atoi(item.c_str());
    return index >= 0 && index < (int)there.size() ? there[index] : -1;
}

// Physical numbers of the GPUs that this process sees. CUDA leaves out those of PLAYED_LOST and counts on without them.
static const std::vector<int> &gpus() {
    static auto *seen = [] {
        auto *result = new std::vector<int>;
        auto lost = split(setting("PLAYED_LOST", ""), ',');
        std::vector<int> there;
        for (int i = 0; i < atoi(setting("PLAYED_GPUS", "8")); i++)
            if (!std::count(lost.begin(), lost.end(), std::to_string(i))) there.push_back(i);
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (!visible) {
            *result = there;
            return result;
        }
        for (auto &item : split(visible, ',')) { // the first one that does not exist ends the list, as with CUDA
            int physical = visible_item(item, there);
            if (physical < 0) break;
            result->push_back(physical);
        }
        return result;
    }();
    return *seen;
}

// The current device, as this process numbers them.
static thread_local int cur = 0;
static const Kind &kind() { return kind_of(cur < (int)gpus().size() ? gpus()[cur] : 0); }

// ---- faults ----------------------------------------------------------------------------------------------------

// PLAYED_FAULT=gpu=3,launch=5000,error=719;gpu=1,collective=40,nccl=2;gpu=2,slow=100
struct Fault {
    int gpu = -1;
    // When it strikes: at that launch, synchronization or collective of a process, or at that time.
    long launch = -1, sync = -1, collective = -1;
    double at_unix_s = 0;
    // What happens: a CUDA error from then on, an error of NCCL, one that only ncclCommGetAsyncError gives, a signal,
    // seconds in which the call does not return, NaN in what the host reads, no allocation from then on.
    int error = 0, nccl = 0, async = 0, kill = 0;
    double hang_s = 0;
    bool nan = false, oom = false;
    // What always holds: a factor of time, no context (compute mode), never joins a communicator, others' memory, no
    // fabric manager (of the whole machine: CUDA finds no GPU, NVML all).
    double slow = 0, held_mib = 0;
    bool busy = false, never_joins = false, not_ready = false;
};

static Fault read_fault(const std::string &text) {
    Fault f;
    for (auto &item : split(text, ',')) {
        size_t equals = item.find('=');
        std::string key = item.substr(0, equals);
        double value = equals == item.npos ? 0 : atof(item.c_str() + equals + 1);
        if (key == "gpu") f.gpu = value;
        else if (key == "launch") f.launch = value;
        else if (key == "sync") f.sync = value;
        else if (key == "collective") f.collective = value;
        else if (key == "at") f.at_unix_s = value;
        else if (key == "error") f.error = value;
        else if (key == "nccl") f.nccl = value;
        else if (key == "async") f.async = value;
        else if (key == "kill") f.kill = value;
        else if (key == "hang") f.hang_s = value;
        else if (key == "nan") f.nan = value;
        else if (key == "oom") f.oom = value;
        else if (key == "slow") f.slow = value;
        else if (key == "held") f.held_mib = value;
        else if (key == "busy") f.busy = value;
        else if (key == "join") f.never_joins = value;
        else if (key == "not-ready") f.not_ready = value;
        else abort(); // a misspelt fault would never strike, and its test prove nothing
    }
    return f;
}

static std::vector<Fault> &faults() {
    static auto *all = [] {
        auto *read = new std::vector<Fault>;
        for (auto &text : split(setting("PLAYED_FAULT", ""), ';')) read->push_back(read_fault(text));
        return read;
    }();
    return *all;
}

// ---- devices ---------------------------------------------------------------------------------------------------

struct Device {
    int physical = 0;
    cudaError_t sticky = cudaSuccess; // an error of the GPU is that of every later call of the process
    bool nan = false, oom = false, used = false;
    long launches = 0, syncs = 0, collectives = 0;
    double slow = 1;
};

static Device &dev(int index) {
    static Device *all = [] {
        auto *devices = new Device[64];
        for (size_t i = 0; i < gpus().size(); i++) {
            devices[i].physical = gpus()[i];
            for (auto &f : faults())
                if (f.gpu == devices[i].physical && f.slow) devices[i].slow = f.slow;
        }
        return devices;
    }();
    return all[index];
}

static thread_local cudaError_t last_error = cudaSuccess;
static cudaError_t fail(cudaError_t error) {
    if (error) {
        last_error = error;
        trace("error %d", error);
    }
    return error;
}
#define CHECKED()                                                                                                      \
    do {                                                                                                               \
        if (dev(cur).sticky) return fail(dev(cur).sticky);                                                             \
    } while (0)

// What NVML says changes with what happens here: a setting names another machine file, which is put in place of the one
// that NVML's stand-in reads. PLAYED_WORKING is that of the first launch, PLAYED_AFTER that of the first fault.
static void tell_nvml(const char *setting_name) {
    const char *next = getenv(setting_name), *read_now = getenv("NVML_STAND_IN");
    if (next && read_now && !rename(next, read_now)) trace("NVML tells what is in %s", setting_name);
}

// A GPU that hangs holds its own calls only: the lock is let go of for that time.
static void strike(Fault &f, Device &device, const char *when, long count, Lock &lock) {
    trace("FAULT gpu %d at %s %ld", device.physical, when, count);
    tell_nvml("PLAYED_AFTER");
    if (f.kill) kill(getpid(), f.kill);
    if (f.hang_s) {
        double seconds = f.hang_s;
        f.hang_s = f.at_unix_s = 0;
        lock.unlock();
        nap(seconds * 1e9);
        lock.lock();
    }
    device.nan |= f.nan;
    device.oom |= f.oom;
    if (f.error) device.sticky = (cudaError_t)f.error;
}

static void count_launch(Device &device, Lock &lock) {
    long n = ++device.launches;
    if (n == 1) tell_nvml("PLAYED_WORKING");
    for (auto &f : faults()) {
        if (f.gpu != device.physical) continue;
        bool is_time = f.at_unix_s && !device.sticky && n % 16 == 0 && unix_s() >= f.at_unix_s;
        if (n == f.launch || is_time) strike(f, device, "launch", n, lock);
    }
}

static void count_sync(Device &device, Lock &lock) {
    long n = ++device.syncs;
    for (auto &f : faults())
        if (f.gpu == device.physical && n == f.sync) strike(f, device, "sync", n, lock);
}

// A GPU in compute mode Prohibited, or taken by another process in mode Exclusive, gives no context.
static bool is_busy(int index) {
    for (auto &f : faults())
        if (f.gpu == dev(index).physical && f.busy) return true;
    return false;
}
