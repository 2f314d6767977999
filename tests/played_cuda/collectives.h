// Collectives: matched by communicator and order, they wait for all members and carry data. Peers' buffers are read
// with process_vm_readv.
#pragma once
#include "communicators.h"

enum What { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER };
static const char *const NAMES[] = {"",          "AllReduce",     "Broadcast", "Reduce",
                                    "AllGather", "ReduceScatter", "AlltoAll",  "Gather"};
static const size_t WIDTHS[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; // bytes of each ncclDataType_t

static double link_gb_per_s() {
    static double rate = atof(setting("PLAYED_LINK_GBS", "230"));
    return rate;
}

static bool read_of(const Communicator *c, int rank, const void *from, void *to, size_t bytes) {
    int pid = c->shared->pid[rank];
    if (rank == c->rank || pid == getpid()) {
        memmove(to, from, bytes);
        return true;
    }
    iovec local{to, bytes}, remote{(void *)from, bytes};
    while (local.iov_len) {
        ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (n <= 0) {
            trace("process_vm_readv of %d: %s", pid, strerror(errno));
            return false;
        }
        local.iov_base = (char *)local.iov_base + n;
        local.iov_len -= n;
        remote.iov_base = (char *)remote.iov_base + n;
        remote.iov_len -= n;
    }
    return true;
}

// ---- reductions ------------------------------------------------------------------------------------------------

static float from_half(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return half;
}
static uint16_t to_half(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
static float from_bfloat(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}
static uint16_t to_bfloat(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    return (word + 0x7fff + ((word >> 16) & 1)) >> 16;
}

template <class T> static void combine(char *into, const char *from, size_t bytes, int op) {
    T *a = (T *)into;
    const T *b = (const T *)from;
    for (size_t i = 0; i < bytes / sizeof(T); i++)
        a[i] = op == ncclProd  ? a[i] * b[i]
               : op == ncclMax ? std::max(a[i], b[i])
               : op == ncclMin ? std::min(a[i], b[i])
                               : a[i] + b[i];
}

static void combine_16(char *into, const char *from, size_t bytes, int op, bool is_half) {
    auto *a = (uint16_t *)into;
    auto *b = (const uint16_t *)from;
    for (size_t i = 0; i < bytes / 2; i++) {
        float x = is_half ? from_half(a[i]) : from_bfloat(a[i]), y = is_half ? from_half(b[i]) : from_bfloat(b[i]);
        combine<float>((char *)&x, (const char *)&y, sizeof x, op);
        a[i] = is_half ? to_half(x) : to_bfloat(x);
    }
}

static void reduce_into(char *into, const char *from, size_t bytes, int type, int op) {
    switch (type) {
    case ncclFloat32: return combine<float>(into, from, bytes, op);
    case ncclFloat64: return combine<double>(into, from, bytes, op);
    case ncclInt32: return combine<int32_t>(into, from, bytes, op);
    case ncclUint32: return combine<uint32_t>(into, from, bytes, op);
    case ncclInt64: return combine<int64_t>(into, from, bytes, op);
    case ncclUint64: return combine<uint64_t>(into, from, bytes, op);
    case ncclInt8: return combine<int8_t>(into, from, bytes, op);
    case ncclUint8: return combine<uint8_t>(into, from, bytes, op);
    default: return combine_16(into, from, bytes, op, type == ncclFloat16);
    }
}

static void divide(char *sum, size_t bytes, int type, int by) {
    if (type == ncclFloat32)
        for (size_t i = 0; i < bytes / 4; i++) ((float *)sum)[i] /= by;
}

// ---- one collective ----------------------------------------------------------------------------------------------

struct Piece { // of what is received
    size_t to;
    std::vector<char> bytes;
};

struct Collective {
    Communicator *communicator;
    What what;
    const char *send;
    char *receive;
    uint64_t count;
    int type, op, root;
    uint64_t number = 0;
    bool is_posted = false, is_taken = false;
    std::vector<Piece> pieces = {};
    uint64_t bytes() const { return count * WIDTHS[type]; }
};

// What really moves of a message, as (offset, bytes): all of a short one, both ends of a long one.
static std::vector<std::pair<size_t, size_t>> moved_parts(size_t bytes) {
    const size_t real = 64 << 10;
    if (bytes <= 2 * real) return {{0, bytes}};
    return {{0, real}, {bytes - real, real}};
}

static void take_from(Collective &v, int rank, size_t from, size_t to) {
    const Post &post = v.communicator->shared->post[rank][v.number % DEPTH];
    for (auto &part : moved_parts(v.bytes())) {
        Piece piece{to + part.first, std::vector<char>(part.second)};
        read_of(v.communicator, rank, post.send + from + part.first, piece.bytes.data(), part.second);
        v.pieces.push_back(std::move(piece));
    }
}

static void take_sum(Collective &v, size_t from) {
    const Communicator *c = v.communicator;
    for (auto &part : moved_parts(v.bytes())) {
        std::vector<char> sum(part.second), one(part.second);
        for (int rank = 0; rank < c->ranks; rank++) {
            const char *send = c->shared->post[rank][v.number % DEPTH].send + from + part.first;
            read_of(c, rank, send, rank ? one.data() : sum.data(), part.second);
            if (rank) reduce_into(sum.data(), one.data(), part.second, v.type, v.op);
        }
        if (v.op == ncclAvg) divide(sum.data(), part.second, v.type, c->ranks);
        v.pieces.push_back({part.first, std::move(sum)});
    }
}

static void take_from_all(Collective &v, size_t from) {
    for (int rank = 0; rank < v.communicator->ranks; rank++) take_from(v, rank, from, rank * v.bytes());
}

// Reads what this member receives, once all have posted. Returns how often its bytes pass its link.
static double take(Collective &v) {
    const int ranks = v.communicator->ranks, rank = v.communicator->rank;
    switch (v.what) {
    case ALL_REDUCE: take_sum(v, 0); return 2.0 * (ranks - 1) / ranks;
    case REDUCE_SCATTER: take_sum(v, rank * v.bytes()); return ranks - 1;
    case ALL_GATHER: take_from_all(v, 0); return ranks - 1;
    case ALL_TO_ALL: take_from_all(v, rank * v.bytes()); return ranks - 1;
    case BROADCAST: take_from(v, v.root, 0, 0); return 1;
    case REDUCE:
        if (rank == v.root) take_sum(v, 0);
        return 1;
    case GATHER:
        if (rank == v.root) take_from_all(v, 0);
        return ranks - 1;
    }
    return 1;
}

// NCCL would hang or give wrong numbers where members call different collectives; here it is said.
static void check_match(const Collective &v, int rank, const Post &post) {
    if (post.what == v.what && post.bytes == v.bytes()) return;
    fprintf(stderr, "PLAYED NCCL MISMATCH comm %s op %lu: rank %d %s %lu bytes, rank %d %s %lu bytes\n",
            v.communicator->name.c_str(), v.number, v.communicator->rank, NAMES[v.what], v.bytes(), rank,
            NAMES[post.what], post.bytes);
    trace("MISMATCH");
}

static void post(Collective &v, ns_t at) {
    Communicator *c = v.communicator;
    v.number = c->collectives++;
    Post &own = c->shared->post[c->rank][v.number % DEPTH];
    own.at = at;
    own.send = v.send;
    own.bytes = v.bytes();
    own.what = v.what;
    own.root = v.root;
    own.posted = v.number + 1;
    v.is_posted = true;
}

// As an operation of a stream: posts, waits for all, reads, waits until all have read, and only then writes, because
// many collectives are done in place.
static bool step(Collective &v, Stream &s, ns_t given_at) {
    Communicator *c = v.communicator;
    if (c->is_aborted) return true;
    if (!v.is_posted) post(v, std::max(s.end, given_at));
    const int slot = v.number % DEPTH;
    auto &posts = c->shared->post;
    if (!v.is_taken) {
        ns_t start = 0;
        for (int i = 0; i < c->ranks; i++)
            if (posts[i][slot].posted != v.number + 1) return false;
        for (int i = 0; i < c->ranks; i++) {
            check_match(v, i, posts[i][slot]);
            start = std::max(start, posts[i][slot].at);
        }
        double ns = 12000 + 2000.0 * c->ranks + take(v) * v.bytes() / link_gb_per_s();
        s.end = std::max(s.end, start + (ns_t)(c->ranks == 1 ? 3000 : ns));
        posts[c->rank][slot].read = v.number + 1;
        v.is_taken = true;
    }
    for (int i = 0; i < c->ranks; i++)
        if (posts[i][slot].read < v.number + 1) return false;
    for (auto &piece : v.pieces) memmove(v.receive + piece.to, piece.bytes.data(), piece.bytes.size());
    return true;
}

// ---- sends and receives ------------------------------------------------------------------------------------------

struct Hop {
    Communicator *communicator;
    bool sends;
    char *address;
    uint64_t bytes;
    int peer;
    bool is_posted = false, is_done = false;
    uint64_t number = 0;
    Pair &pair() const {
        auto &pairs = communicator->shared->pair;
        return sends ? pairs[communicator->rank][peer] : pairs[peer][communicator->rank];
    }
};

static bool post(Hop &hop, ns_t at) {
    Pair &pair = hop.pair();
    if (pair.posted != pair.taken) return false; // the message before it is still on its way
    hop.number = ++hop.communicator->sent[hop.peer];
    pair.send = hop.address;
    pair.bytes = hop.bytes;
    pair.at = at;
    pair.posted = hop.number;
    return hop.is_posted = true;
}

static bool receive(Hop &hop, ns_t at) {
    Pair &pair = hop.pair();
    if (!hop.is_posted) hop.number = ++hop.communicator->received[hop.peer];
    hop.is_posted = true;
    if (pair.posted < hop.number) return false;
    for (auto &part : moved_parts(hop.bytes))
        read_of(hop.communicator, hop.peer, pair.send + part.first, hop.address + part.first, part.second);
    pair.end = std::max(pair.at, at) + (ns_t)(10000 + hop.bytes / link_gb_per_s());
    pair.taken = hop.number;
    return hop.is_done = true;
}

// Those of one group go at once: all sends are posted before a receive waits.
static bool step(std::vector<Hop> &hops, Stream &s, ns_t given_at) {
    bool is_done = true;
    const ns_t start = std::max(s.end, given_at);
    for (auto &hop : hops)
        if (hop.sends && !hop.is_posted && !hop.communicator->is_aborted) is_done &= post(hop, start);
    for (auto &hop : hops) {
        if (hop.is_done || hop.communicator->is_aborted) continue;
        if (hop.sends) hop.is_done = hop.is_posted && hop.pair().taken >= hop.number;
        else receive(hop, start);
        if (hop.is_done) s.end = std::max(s.end, hop.pair().end);
        is_done &= hop.is_done;
    }
    return is_done;
}
