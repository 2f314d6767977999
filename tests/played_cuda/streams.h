// Streams: queues in order, with virtual time. Work is done at once where nothing is queued before it; the time that it
// takes is added to the stream's end, and who waits for the stream sleeps until then.
#pragma once
#include "memory.h"

struct Stream;
typedef std::function<bool(Stream &)> Operation; // true: done; false: ask again later

struct Stream {
    int device;
    int priority = 0;
    unsigned flags = 0;
    ns_t end = 0;
    std::deque<Operation> queue;
    int capturing = 0; // the number of the graph that is being captured; nothing is done in that time
    // The last long copy: the same one again only takes its time (a probe of bandwidth would copy for real otherwise).
    const void *last_to = nullptr, *last_from = nullptr;
    size_t last_bytes = 0;
};

struct Mark {
    bool done = false;
    ns_t at = 0;
};
typedef std::shared_ptr<Mark> MarkPointer;
struct Event {
    int device = 0;
    MarkPointer mark;
};

static std::vector<Stream *> &streams() {
    static auto *all = new std::vector<Stream *>;
    return *all;
}

static Stream *new_stream(unsigned flags, int priority) {
    auto *made = new Stream{cur};
    made->flags = flags;
    made->priority = priority;
    streams().push_back(made);
    return made;
}

// Handles 0, 1 and 2 are the current device's default stream: legacy and per thread are one here.
static Stream *stream_of(cudaStream_t handle) {
    static auto &defaults = *new std::map<int, Stream *>;
    if ((uintptr_t)handle > 2) return (Stream *)handle;
    auto *&found = defaults[cur];
    if (!found) found = new_stream(0, 0);
    return found;
}

// Does what is at the front of the queue as far as it goes; true: nothing is left.
static bool advance(Stream &s) {
    while (!s.queue.empty()) {
        if (!s.queue.front()(s)) return false;
        s.queue.pop_front();
    }
    return true;
}

static std::condition_variable_any &wake = *new std::condition_variable_any;

// The thread that advances queues while nobody waits for them, as a GPU does.
static void progress() {
    for (;;) {
        Lock lock(M);
        bool is_busy = false;
        for (size_t i = 0; i < streams().size(); i++) is_busy |= !advance(*streams()[i]);
        if (!is_busy) wake.wait(lock);
        else {
            lock.unlock();
            nap(150000);
        }
    }
}

static void start_progress() {
    static int owner = 0; // a fork has no threads but its own
    if (owner == getpid()) return;
    owner = getpid();
    sigset_t all, old; // signals belong to the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::thread(progress).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

static void put(Stream &s, Operation operation) {
    if (advance(s) && operation(s)) return;
    s.queue.push_back(std::move(operation));
    start_progress();
    wake.notify_all();
}

// Adds `ns` of work, given to the stream at the time `at`, to its end.
static void add_time(Stream &s, ns_t at, double ns) { s.end = std::max(s.end, at) + (ns_t)(ns * dev(s.device).slow); }

// A kernel: nothing but its time. PLAYED_SPEED divides that of all kernels.
static void work(Stream *s, double ns) {
    static double speed = atof(setting("PLAYED_SPEED", "1"));
    Lock lock(M);
    use(s->device);
    count_launch(dev(s->device), lock);
    if (s->capturing) return;
    ns_t at = now();
    if (s->queue.empty()) add_time(*s, at, ns / speed); // without an allocation: there are many kernels
    else
        put(*s, [=](Stream &x) {
            add_time(x, at, ns / speed);
            return true;
        });
}

// Waits until all is done that the stream was given, or its device has failed.
static cudaError_t drain(Stream *s) {
    Device &device = dev(s->device);
    Lock lock(M);
    if (s->queue.empty() && s->end == 0) return device.sticky;
    MarkPointer mark(new Mark);
    ns_t at = now();
    put(*s, [=](Stream &x) {
        mark->at = std::max(x.end, at);
        return mark->done = true;
    });
    while (!mark->done) {
        if (device.sticky) return device.sticky;
        lock.unlock();
        nap(100000);
        lock.lock();
        advance(*s);
    }
    lock.unlock();
    nap(mark->at - now());
    lock.lock();
    count_sync(device, lock);
    return device.sticky;
}
