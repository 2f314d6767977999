// NCCL's calls: what is called between ncclGroupStart and ncclGroupEnd starts together.
#pragma once
#include "collectives.h"

static thread_local int group_depth = 0;
static thread_local std::vector<std::pair<Collective, Stream *>> group_collectives;
static thread_local std::vector<std::pair<Hop, Stream *>> group_hops;

// Counts one collective of a device, and lets the faults strike that are due at it.
static ncclResult_t count_collective(Device &device, Communicator *c, Lock &lock) {
    long n = ++device.collectives;
    for (auto &f : faults()) {
        if (f.gpu != device.physical || n != f.collective) continue;
        strike(f, device, "collective", n, lock);
        if (f.async) c->error = f.async;
        if (!f.nccl) continue;
        nccl_text = "played failure of a link";
        return (ncclResult_t)f.nccl;
    }
    return ncclSuccess;
}

static ncclResult_t start_collective(Collective &&given, Stream *s, Lock &lock) {
    static bool is_traced = atoi(setting("PLAYED_TRACE_NCCL", "0"));
    auto v = std::make_shared<Collective>(std::move(given));
    Communicator *c = v->communicator;
    use(s->device);
    if (auto error = count_collective(dev(s->device), c, lock)) return error;
    if (s->capturing) return ncclSuccess;
    if (is_traced)
        trace("comm %s %d/%d %s %lu x %d", c->name.c_str(), c->rank, c->ranks, NAMES[v->what], v->count, v->type);
    c->pending++;
    ns_t at = now();
    put(*s, [=](Stream &x) {
        if (!step(*v, x, at)) return false;
        c->pending--;
        return true;
    });
    return ncclSuccess;
}

static ncclResult_t start_hops(std::vector<std::pair<Hop, Stream *>> &&given, Lock &lock) {
    Stream *s = given[0].second;
    if (auto error = count_collective(dev(s->device), given[0].first.communicator, lock)) return error;
    auto hops = std::make_shared<std::vector<Hop>>();
    for (auto &one : given) hops->push_back(one.first);
    ns_t at = now();
    put(*s, [=](Stream &x) { return step(*hops, x, at); });
    return ncclSuccess;
}

static ncclResult_t start_group() {
    Lock lock(M);
    auto collectives = std::move(group_collectives);
    auto hops = std::move(group_hops);
    group_collectives.clear();
    group_hops.clear();
    for (auto &one : collectives)
        if (auto error = start_collective(std::move(one.first), one.second, lock)) return error;
    return hops.empty() ? ncclSuccess : start_hops(std::move(hops), lock);
}

static ncclResult_t collective(ncclComm_t handle, What what, const void *send, void *receive, size_t count,
                               ncclDataType_t type, int op, int root, cudaStream_t s) {
    Communicator *c = opened(handle);
    if (dev(cur).sticky) return ncclUnhandledCudaError;
    if (c->error) return (ncclResult_t)(int)c->error;
    Collective v{c, what, (const char *)send, (char *)receive, count, (int)type, op, root};
    group_collectives.push_back({std::move(v), stream_of(s)});
    return group_depth ? ncclSuccess : start_group();
}

static ncclResult_t hop(bool sends, const void *address, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                        cudaStream_t s) {
    if (dev(cur).sticky) return ncclUnhandledCudaError;
    group_hops.push_back({Hop{opened(c), sends, (char *)address, count * WIDTHS[type], peer}, stream_of(s)});
    return group_depth ? ncclSuccess : start_group();
}

extern "C" {
ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --group_depth ? ncclSuccess : start_group(); }

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s) {
    return collective(c, ALL_REDUCE, send, receive, n, t, op, 0, s);
}
ncclResult_t ncclReduce(const void *send, void *receive, size_t n, ncclDataType_t t, ncclRedOp_t op, int root,
                        ncclComm_t c, cudaStream_t s) {
    return collective(c, REDUCE, send, receive, n, t, op, root, s);
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s) {
    return collective(c, REDUCE_SCATTER, send, receive, n, t, op, 0, s);
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
    return collective(c, BROADCAST, send, receive, n, t, 0, root, s);
}
ncclResult_t ncclBcast(void *buffer, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s) {
    return collective(c, BROADCAST, buffer, buffer, n, t, 0, root, s);
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return collective(c, ALL_GATHER, send, receive, n, t, 0, 0, s);
}
ncclResult_t ncclGather(const void *send, void *receive, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                        cudaStream_t s) {
    return collective(c, GATHER, send, receive, n, t, 0, root, s);
}
ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return collective(c, ALL_TO_ALL, send, receive, n, t, 0, 0, s);
}
ncclResult_t ncclSend(const void *address, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return hop(true, address, n, t, peer, c, s);
}
ncclResult_t ncclRecv(void *address, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return hop(false, address, n, t, peer, c, s);
}

// A scaled sum is given as a sum: numbers are not what is played.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
    *op = (ncclRedOp_t)ncclNumOps;
    return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void **address, size_t bytes) {
    return cudaMalloc(address, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}
ncclResult_t ncclMemFree(void *address) { return cudaFree(address) ? ncclUnhandledCudaError : ncclSuccess; }
ncclResult_t ncclCommRegister(const ncclComm_t, void *, size_t, void **handle) {
    *handle = (void *)8;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void *) { return ncclSuccess; }
ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *window, int) {
    *window = nullptr;
    return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void **address) {
    *address = nullptr;
    return ncclInvalidUsage;
}
}
