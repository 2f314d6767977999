// Memory: which process has how much of each GPU, and which addresses are whose.
#pragma once
#include "machine.h"

const int64_t CONTEXT_BYTES = 480LL << 20; // as much as a CUDA context with torch's kernels takes

// Bytes in use by each process, in shared memory, for all processes of the machine to see.
struct Usage {
    struct {
        std::atomic<int> pid;
        std::atomic<int64_t> bytes;
    } of[64];
};

static Usage *usage(int physical) {
    static std::map<int, Usage *> all;
    auto *&found = all[physical];
    if (found) return found;
    char path[200];
    snprintf(path, sizeof path, "/dev/shm/played-%s-gpu%d", setting("PLAYED_ID", "0"), physical);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof(Usage))) abort();
    found = (Usage *)mmap(0, sizeof(Usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return found;
}

// What all living processes use of a device, and what a fault holds of it. Dead processes are forgotten.
static int64_t used_bytes(int index) {
    int physical = dev(index).physical;
    int64_t sum = 0;
    for (auto &one : usage(physical)->of) {
        int pid = one.pid;
        if (pid && (kill(pid, 0) == 0 || errno != ESRCH)) sum += one.bytes;
        else if (pid) {
            one.bytes = 0;
            one.pid = 0;
        }
    }
    for (auto &f : faults())
        if (f.gpu == physical) sum += (int64_t)(f.held_mib * 1048576);
    return sum;
}

static void account(int index, int64_t bytes) {
    Usage *shared = usage(dev(index).physical);
    int self = getpid();
    for (auto &one : shared->of)
        if (one.pid == self) {
            one.bytes += bytes;
            return;
        }
    used_bytes(index); // frees the places of the dead
    for (auto &one : shared->of) {
        int nobody = 0;
        if (one.pid.compare_exchange_strong(nobody, self)) {
            one.bytes = bytes;
            return;
        }
    }
}

// The first call on a device makes its context.
static void use(int index) {
    if (dev(index).used) return;
    dev(index).used = true;
    account(index, CONTEXT_BYTES);
}

static size_t total_bytes(int index = cur) { return kind_of(dev(index).physical).mib << 20; }

struct Block {
    size_t bytes;
    int device;
    bool on_host; // pinned or registered
};

static std::map<uintptr_t, Block> &blocks() {
    static auto *all = new std::map<uintptr_t, Block>;
    return *all;
}

static const std::pair<const uintptr_t, Block> *block_of(const void *address) {
    auto next = blocks().upper_bound((uintptr_t)address);
    if (next == blocks().begin()) return nullptr;
    --next;
    return (uintptr_t)address < next->first + next->second.bytes ? &*next : nullptr;
}

static bool is_on_host(const void *address) {
    auto *block = block_of(address);
    return !block || block->second.on_host;
}
