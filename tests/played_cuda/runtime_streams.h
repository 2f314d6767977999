// The CUDA runtime: streams, events and graphs.
#pragma once
#include "runtime_memory.h"

extern "C" {
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority) {
    CHECKED();
    Lock lock(M);
    use(cur);
    *handle = (cudaStream_t)new_stream(flags, priority);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; } // what is queued still runs, as with CUDA
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
    *priority = stream_of(s)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    CHECKED();
    return fail(drain(stream_of(s)));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    CHECKED();
    Lock lock(M);
    Stream *s = stream_of(handle);
    return advance(*s) && s->end <= now() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned) {
    CHECKED();
    Lock lock(M);
    MarkPointer mark = ((Event *)event)->mark;
    if (!mark) return cudaSuccess;
    put(*stream_of(s), [mark](Stream &x) {
        if (!mark->done) return false;
        x.end = std::max(x.end, mark->at);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *argument) {
    CHECKED();
    Lock lock(M);
    put(*stream_of(s), [=](Stream &x) {
        if (x.end > now()) return false;
        function(argument);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t function, void *argument, unsigned) {
    CHECKED();
    Lock lock(M);
    put(*stream_of(s), [=](Stream &x) {
        if (x.end > now()) return false;
        function(s, cudaSuccess, argument);
        return true;
    });
    return cudaSuccess;
}

// ---- events ----------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    CHECKED();
    *event = (cudaEvent_t) new Event{cur};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete (Event *)event;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
    CHECKED();
    Lock lock(M);
    Stream *s = stream_of(stream);
    if (s->capturing) return cudaSuccess;
    Event *event = (Event *)handle;
    MarkPointer mark(new Mark);
    event->mark = mark;
    event->device = s->device;
    ns_t at = now();
    put(*s, [=](Stream &x) {
        mark->at = std::max(x.end, at);
        return mark->done = true;
    });
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) { return cudaEventRecordWithFlags(event, s, 0); }
cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Lock lock(M);
    Event *event = (Event *)handle;
    if (dev(event->device).sticky) return fail(dev(event->device).sticky);
    if (!event->mark || (event->mark->done && event->mark->at <= now())) return cudaSuccess;
    return last_error = cudaErrorNotReady; // an answer, not an error: no line in the trace
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    for (;;) {
        auto error = cudaEventQuery(event);
        if (error != cudaErrorNotReady) return fail(error);
        last_error = cudaSuccess;
        nap(100000);
    }
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
    Lock lock(M);
    auto a = ((Event *)first)->mark, b = ((Event *)second)->mark;
    if (!a || !b) return fail(cudaErrorInvalidResourceHandle);
    if (!a->done || !b->done || b->at > now()) return fail(cudaErrorNotReady);
    *ms = (b->at - a->at) / 1e6f;
    return cudaSuccess;
}

// ---- graphs: what is captured is not done, and a graph takes a millisecond ---------------------------------------

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
    Lock lock(M);
    *status = stream_of(s)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    cudaStreamIsCapturing(s, status);
    if (id) *id = stream_of(s)->capturing;
    if (graph) *graph = (cudaGraph_t)1;
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    static int captured = 0;
    Lock lock(M);
    stream_of(s)->capturing = ++captured;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    Lock lock(M);
    stream_of(s)->capturing = 0;
    *graph = (cudaGraph_t)0x1000;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t, unsigned long long) {
    *executable = (cudaGraphExec_t)0x2000;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t, unsigned long long) {
    *executable = (cudaGraphExec_t)0x2000;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t s) {
    work(stream_of(s), 1e6);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *, size_t *count) {
    *count = 1;
    return cudaSuccess;
}
}
