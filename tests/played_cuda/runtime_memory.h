// The CUDA runtime: memory, copies and fills. Device memory is host memory that is only taken when it is touched.
#pragma once
#include "runtime_devices.h"

extern "C" {
const size_t PAGE = 4096, MIB = 1 << 20;

static void *map_bytes(size_t bytes, int flags) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
}

// In steps of 2 MiB, as CUDA does. What is over the GPU's memory, with that of all processes, fails.
cudaError_t cudaMalloc(void **address, size_t bytes) {
    CHECKED();
    Lock lock(M);
    use(cur);
    size_t rounded = (bytes + 2 * MIB - 1) & ~(2 * MIB - 1);
    if (dev(cur).oom || used_bytes(cur) + (int64_t)rounded > (int64_t)total_bytes())
        return fail(cudaErrorMemoryAllocation);
    *address = map_bytes(rounded, MAP_NORESERVE);
    if (!*address) return fail(cudaErrorMemoryAllocation);
    blocks()[(uintptr_t)*address] = {rounded, cur, false};
    account(cur, rounded);
    return cudaSuccess;
}

// As CUDA's, it waits for the device whose memory it is.
cudaError_t cudaFree(void *address) {
    if (!address) {
        Lock lock(M);
        use(cur);
        return fail(dev(cur).sticky);
    }
    CHECKED();
    int owner, caller = cur;
    {
        Lock lock(M);
        auto found = blocks().find((uintptr_t)address);
        if (found == blocks().end()) return fail(cudaErrorInvalidValue);
        owner = found->second.device;
    }
    cur = owner;
    auto error = cudaDeviceSynchronize();
    cur = caller;
    Lock lock(M);
    auto found = blocks().find((uintptr_t)address);
    munmap(address, found->second.bytes);
    account(owner, -(int64_t)found->second.bytes);
    blocks().erase(found);
    return error;
}
cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
cudaError_t cudaFreeAsync(void *address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned) { return cudaMalloc(address, bytes); }

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
    CHECKED();
    *address = map_bytes(bytes, 0);
    if (!*address) return fail(cudaErrorMemoryAllocation);
    Lock lock(M);
    use(cur);
    blocks()[(uintptr_t)*address] = {bytes, cur, true};
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void *address) {
    Lock lock(M);
    auto found = blocks().find((uintptr_t)address);
    if (found == blocks().end()) return fail(cudaErrorInvalidValue);
    munmap(address, found->second.bytes);
    blocks().erase(found);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned) {
    Lock lock(M);
    blocks()[(uintptr_t)address] = {bytes, cur, true};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *address) {
    Lock lock(M);
    blocks().erase((uintptr_t)address);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes) {
    CHECKED();
    Lock lock(M);
    use(cur);
    int64_t used = used_bytes(cur);
    *all_bytes = total_bytes();
    *free_bytes = used > (int64_t)*all_bytes ? 0 : *all_bytes - used;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *address) {
    Lock lock(M);
    memset(a, 0, sizeof *a);
    auto *block = block_of(address);
    a->device = -2;
    a->type = cudaMemoryTypeUnregistered;
    if (!block) return cudaSuccess;
    a->type = block->second.on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    a->device = block->second.device;
    a->hostPointer = block->second.on_host ? (void *)address : nullptr;
    a->devicePointer = (void *)address;
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) { return fail(cudaErrorNotSupported); }

// ---- copies ----------------------------------------------------------------------------------------------------

const uint32_t FLOAT_ONE = 0x3f800000, FLOAT_NAN = 0x7fc00000, FLOAT_EXPONENT = 0x7f800000, ALL_ONES = 0xffffffff;

// Numbers that no kernel computed are whatever lay there. Single ones are what losses, scales and counts are read from,
// and must be sensible: finite (unless the GPU is to give NaN), and no count of what was a float before.
static void make_sensible(char *read, size_t bytes, bool gives_nan) {
    auto *words = (uint32_t *)read;
    const bool was_float = bytes == 8 && (words[1] == FLOAT_ONE || words[1] == FLOAT_NAN);
    if (was_float || (bytes == 8 && (words[0] & words[1]) == ALL_ONES)) memset(read, 0, 8);
    if (bytes != 4) return;
    if (gives_nan) words[0] = FLOAT_NAN;
    else if ((words[0] & FLOAT_EXPONENT) == FLOAT_EXPONENT) words[0] = FLOAT_ONE;
}

// Between GPUs only both ends of a long copy move: the middle is never read, and would take host memory.
static void move_bytes(char *to, const char *from, size_t bytes, bool with_host) {
    if (with_host || bytes <= 2 * MIB) {
        memmove(to, from, bytes);
        return;
    }
    memmove(to, from, MIB);
    memmove(to + bytes - MIB, from + bytes - MIB, MIB);
}

static cudaError_t copy(void *to, const void *from, size_t bytes, Stream *s, bool is_waited_for) {
    CHECKED();
    if (!bytes) return cudaSuccess;
    {
        Lock lock(M);
        use(cur);
        const bool from_host = is_on_host(from), to_host = is_on_host(to), with_host = from_host || to_host;
        const double ns = 2000 + bytes / (with_host ? 22.0 : kind().gb_per_s / 2);
        const bool is_answer = is_answer_true && bytes == 1 && to_host;
        if (is_answer) is_answer_true = false;
        if (s->capturing) return cudaSuccess;
        const ns_t at = now();
        // The caller may change memory that is not pinned as soon as the call returns.
        std::shared_ptr<std::vector<char>> staged;
        if (from_host && !s->queue.empty() && !block_of(from)) {
            staged.reset(new std::vector<char>((const char *)from, (const char *)from + bytes));
            from = staged->data();
        }
        put(*s, [=](Stream &x) {
            (void)staged;
            bool again = bytes >= MIB && x.last_to == to && x.last_from == from && x.last_bytes == bytes;
            x.last_to = to;
            x.last_from = from;
            x.last_bytes = bytes;
            if (!again) move_bytes((char *)to, (const char *)from, bytes, with_host);
            if (is_answer) *(char *)to = 1;
            if (to_host) make_sensible((char *)to, bytes, dev(x.device).nan);
            add_time(x, at, ns);
            return true;
        });
    }
    return is_waited_for ? fail(drain(s)) : cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s) {
    return copy(to, from, n, stream_of(s), false);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) {
    return copy(to, from, n, stream_of(0), true);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n, cudaStream_t s) {
    return copy(to, from, n, stream_of(s), false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t s) {
    for (size_t i = 0; i < rows; i++) {
        auto error = copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, stream_of(s), false);
        if (error) return error;
    }
    return cudaSuccess;
}

// ---- fills -----------------------------------------------------------------------------------------------------

// Zeros over whole pages are given back to the host, which gives zeros again: a pass over 80 GB takes no memory.
static void set_bytes(char *to, int value, size_t bytes) {
    if (value || bytes < MIB) {
        memset(to, value, value ? std::min(bytes, MIB) : bytes);
        return;
    }
    uintptr_t begin = ((uintptr_t)to + PAGE - 1) & ~(PAGE - 1), end = ((uintptr_t)to + bytes) & ~(PAGE - 1);
    memset(to, 0, begin - (uintptr_t)to);
    madvise((void *)begin, end - begin, MADV_DONTNEED);
    memset((void *)end, 0, (uintptr_t)to + bytes - end);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle) {
    CHECKED();
    Lock lock(M);
    Stream *s = stream_of(handle);
    if (s->capturing) return cudaSuccess;
    ns_t at = now();
    double ns = 1500 + bytes / kind().gb_per_s;
    put(*s, [=](Stream &x) {
        set_bytes((char *)to, value, bytes);
        add_time(x, at, ns);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    auto error = cudaMemsetAsync(to, value, bytes, 0);
    return error ? error : fail(drain(stream_of(0)));
}
}
