// NCCL's communicators: members meet in a file in shared memory, and read each other's buffers from there on.
#pragma once
#include "dnn.h"

const int DEPTH = 16, MOST_RANKS = 64; // collectives under way, members
const int64_t COMMUNICATOR_BYTES = 200LL << 20;

// What a member says of one collective, in the slot of its number modulo DEPTH.
struct Post {
    std::atomic<uint64_t> posted, read; // number of the collective, plus one
    ns_t at;
    const char *send;
    uint64_t bytes;
    int what, root;
};

// What one member sends to one other.
struct Pair {
    std::atomic<uint64_t> posted, taken; // messages so far
    const char *send;
    uint64_t bytes;
    ns_t at, end;
};

struct Shared {
    std::atomic<int> joined, ready;
    struct {
        std::atomic<int> count;
        int color, key;
    } split[MOST_RANKS];
    std::atomic<int> pid[MOST_RANKS];
    Post post[MOST_RANKS][DEPTH];
    Pair pair[MOST_RANKS][MOST_RANKS];
};

struct Communicator {
    Shared *shared;
    int ranks, rank, device;
    std::string name;
    uint64_t collectives = 0, sent[MOST_RANKS] = {}, received[MOST_RANKS] = {};
    std::atomic<int> error{0}, pending{0};
    std::atomic<bool> is_aborted{false};
};

static Communicator *opened(ncclComm_t handle) { return (Communicator *)handle; }
static thread_local std::string nccl_text; // what ncclGetLastError says

// NCCL's own log, in the form that the plugin reads, into NCCL_DEBUG_FILE.
__attribute__((format(printf, 1, 2))) static void nccl_log(const char *format, ...) {
    const char *level = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE");
    if (!level || !file) return;
    char host[100];
    gethostname(host, sizeof host);
    std::string path;
    for (const char *c = file; *c; c++) {
        if (*c != '%' || !c[1]) path += *c;
        else if (*++c == 'p') path += std::to_string(getpid());
        else if (*c == 'h') path += host;
        else path += *c;
    }
    FILE *log = fopen(path.c_str(), "a");
    if (!log) return;
    fprintf(log, "%s:%d:%ld [%d] NCCL INFO ", host, getpid(), syscall(SYS_gettid), cur);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

static void log_init(const Communicator *c, const char *state) {
    const int physical = dev(cur).physical;
    nccl_log("ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %x000 commId 0x1 - Init %s",
             (void *)c, c->rank, c->ranks, cur, physical, pci_bus(physical), state);
}

static void log_channels(const Communicator *c) {
    const int next = (c->rank + 1) % c->ranks;
    const char *via = setting("PLAYED_VIA", "P2P/CUMEM");
    nccl_log("Using network %s", setting("PLAYED_NETWORK", "IB"));
    for (int channel = 0; channel < 2 && c->ranks > 1; channel++)
        nccl_log("Channel %02d/0 : %d[%d] -> %d[%d] via %s", channel, c->rank, c->rank, next, next, via);
    nccl_log("2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer");
}

// Machines that play one network have the same PLAYED_FABRIC, and each its own PLAYED_ID.
static std::string meeting_point(const char *id) {
    char path[200];
    const char *fabric = setting("PLAYED_FABRIC", setting("PLAYED_ID", "0"));
    snprintf(path, sizeof path, "/dev/shm/played-%s-nccl-%.60s", fabric, id);
    return path;
}

// Returns when all have joined. Rank 0 removes the file's name once everybody has it open.
static ncclResult_t join(ncclComm_t *out, int ranks, int rank, const ncclUniqueId &id) {
    if (dev(cur).sticky) return ncclUnhandledCudaError;
    if (ranks > MOST_RANKS) return ncclInvalidArgument;
    for (auto &f : faults())
        if (f.gpu == dev(cur).physical && f.never_joins && ranks > 1) {
            trace("FAULT gpu %d never joins", f.gpu);
            for (;;) nap(1000000000);
        }
    std::string path = meeting_point(id.internal);
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof(Shared))) return ncclSystemError;
    auto *c = new Communicator;
    c->shared = (Shared *)mmap(0, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    c->ranks = ranks;
    c->rank = rank;
    c->device = cur;
    c->name = id.internal;
    log_init(c, "START");
    c->shared->pid[rank] = getpid();
    c->shared->joined++;
    trace("comm %s: rank %d of %d on gpu %d joins", id.internal, rank, ranks, dev(cur).physical);
    while (c->shared->joined < ranks) nap(200000);
    {
        Lock lock(M);
        use(cur);
        account(cur, COMMUNICATOR_BYTES);
    }
    c->shared->ready++;
    if (rank == 0) {
        while (c->shared->ready < ranks) nap(200000);
        unlink(path.c_str());
    }
    log_channels(c);
    log_init(c, "COMPLETE");
    *out = (ncclComm_t)c;
    return ncclSuccess;
}

static void wait_for_split(const Communicator *c, int count) {
    for (int i = 0; i < c->ranks; i++)
        while (c->shared->split[i].count < count) nap(200000);
}

// Members of the same color, in the order of their keys. A splits' places are used again, so all must have come before.
static ncclResult_t split_off(Communicator *c, int color, int key, ncclComm_t *out) {
    auto &splits = c->shared->split;
    trace("comm %s split, color %d", c->name.c_str(), color);
    int count = splits[c->rank].count + 1, ranks = 0, rank = 0;
    wait_for_split(c, count - 1);
    splits[c->rank].color = color;
    splits[c->rank].key = key;
    splits[c->rank].count = count;
    wait_for_split(c, count);
    for (int i = 0; i < c->ranks; i++) {
        if (splits[i].color != color) continue;
        ranks++;
        if (splits[i].key < key || (splits[i].key == key && i < c->rank)) rank++;
    }
    *out = nullptr;
    if (color < 0) return ncclSuccess; // NCCL_SPLIT_NOCOLOR: takes part in none
    ncclUniqueId id;
    snprintf(id.internal, sizeof id.internal, "%.50s_%d_%d", c->name.c_str(), count, color);
    return join(out, ranks, rank, id);
}

extern "C" {
ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<int> made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d-%d-%lx", getpid(), made++, (long)now());
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId id, int rank, ncclConfig_t *) {
    return join(c, n, rank, id);
}
ncclResult_t ncclCommInitRank(ncclComm_t *c, int n, ncclUniqueId id, int rank) { return join(c, n, rank, id); }
ncclResult_t ncclCommInitRankScalable(ncclComm_t *c, int n, int rank, int, ncclUniqueId *ids, ncclConfig_t *) {
    return join(c, n, rank, ids[0]);
}
ncclResult_t ncclCommInitAll(ncclComm_t *c, int n, const int *devices) { // nn.DataParallel: all in one process
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> members;
    for (int i = 0; i < n; i++)
        members.emplace_back([=] {
            cudaSetDevice(devices ? devices[i] : i);
            join(&c[i], n, i, id);
        });
    for (auto &member : members) member.join();
    return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *) {
    return split_off(opened(parent), color, key, out);
}
ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int) { return ncclInvalidUsage; }
ncclResult_t ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *) {
    return ncclInvalidUsage;
}
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *) { return ncclInvalidUsage; }
ncclResult_t ncclCommRevoke(ncclComm_t c, int) {
    opened(c)->is_aborted = true;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
    trace("comm %s aborted", opened(c)->name.c_str());
    opened(c)->is_aborted = true;
    return ncclSuccess;
}

// Waits for what the communicator still has to do, unless it never will.
static ncclResult_t settle(Communicator *c) {
    while (c->pending > 0 && !c->is_aborted && !dev(c->device).sticky) {
        {
            Lock lock(M);
            for (size_t i = 0; i < streams().size(); i++) advance(*streams()[i]);
        }
        nap(100000);
    }
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) { return settle(opened(c)); }
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    trace("comm %s destroyed", opened(c)->name.c_str());
    settle(opened(c));
    Lock lock(M);
    account(opened(c)->device, -COMMUNICATOR_BYTES);
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
    *error = (ncclResult_t)(int)opened(c)->error;
    if (*error) nccl_text = "played asynchronous failure";
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n) {
    *n = opened(c)->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *n) {
    *n = opened(c)->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *n) {
    *n = opened(c)->device;
    return ncclSuccess;
}
const char *ncclGetLastError(ncclComm_t) { return nccl_text.c_str(); }
const char *ncclGetErrorString(ncclResult_t error) {
    switch ((int)error) {
    case 0: return "no error";
    case 1: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case 2: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case 3: return "internal error - please report this issue to the NCCL developers";
    case 4: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case 5: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case 6: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}
}
