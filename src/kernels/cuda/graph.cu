// Marks (events) and graphs (captures of a context's stream).
#include <new>
#include "backend.h"

namespace {
struct timer {
    int64_t count, room;
    cudaEvent_t *event;
};

enum mx8_status grow(timer *t, int64_t room) {
    cudaEvent_t *more = new (std::nothrow) cudaEvent_t[(size_t)room];
    if (!more) return CUDA_FAIL(MX8_OUT_OF_MEMORY, "cuda mark: no memory for %lld events", (long long)room);
    for (int64_t i = 0; i < t->count; i++) more[i] = t->event[i];
    delete[] t->event;
    t->event = more;
    t->room = room;
    return MX8_OK;
}
} // namespace

enum mx8_status cuda_mark(const struct mx8_exec *x, void **out, int64_t index) {
    timer *t = (timer *)*out;
    if (!t) *out = t = new (std::nothrow) timer();
    if (!t) return CUDA_FAIL(MX8_OUT_OF_MEMORY, "cuda mark: no memory for a timer");
    if (index >= t->room) {
        const enum mx8_status s = grow(t, index < 128 ? 256 : 2 * index);
        if (s != MX8_OK) return s;
    }
    for (; t->count <= index; t->count++) CUDA_TRY(cudaEventCreate(&t->event[t->count]), "mark");
    CUDA_TRY(cudaEventRecord(t->event[index], stream_of(x)), "mark");
    return MX8_OK;
}

// The clock of events counts half microseconds in floats: from one mark to the next, not from the first, keeps them exact.
enum mx8_status cuda_read_marks(const struct mx8_exec *x, void *timer_, int64_t count, double *seconds) {
    const timer *t = (const timer *)timer_;
    if (count > 0 && (!t || count > t->count))
        return CUDA_FAIL(MX8_INVALID_ARGUMENT, "read marks: %lld asked for, expected at most the %lld that were made", (long long)count,
                         (long long)(t ? t->count : 0));
    CUDA_TRY(cudaStreamSynchronize(stream_of(x)), "read marks");
    for (int64_t i = 0; i < count; i++) {
        float ms = 0;
        if (i > 0) CUDA_TRY(cudaEventElapsedTime(&ms, t->event[i - 1], t->event[i]), "read marks");
        seconds[i] = (i > 0 ? seconds[i - 1] : 0) + (double)ms * 1e-3;
    }
    return MX8_OK;
}

void cuda_release_timer(const struct mx8_exec *x, void *timer_) {
    (void)x;
    timer *t = (timer *)timer_;
    if (!t) return;
    for (int64_t i = 0; i < t->count; i++) cudaEventDestroy(t->event[i]);
    delete[] t->event;
    delete t;
}

// ---- graphs ----

enum mx8_status cuda_make_stream(const struct mx8_exec *x, void **stream) {
    cuda_backend *b = (cuda_backend *)x->backend;
    if (!b->stream) CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "make stream");
    *stream = b->stream;
    return MX8_OK;
}

enum mx8_status cuda_begin_graph(const struct mx8_exec *x) {
    if (!x->stream)
        return CUDA_FAIL(MX8_UNSUPPORTED, "cuda graph: the context runs on the default stream, which cannot be captured");
    CUDA_TRY(cudaStreamBeginCapture(stream_of(x), cudaStreamCaptureModeThreadLocal), "begin graph");
    return MX8_OK;
}

enum mx8_status cuda_end_graph(const struct mx8_exec *x, void **out) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *out = NULL;
    cudaError_t e = cudaStreamEndCapture(stream_of(x), &graph);
    if (e == cudaSuccess && graph) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); // reported here; it must not surface at the next launch
    if (e != cudaSuccess || !exec) return CUDA_FAIL(MX8_CUDA_ERROR, "cuda graph: %s", e == cudaSuccess ? "nothing was captured" : cudaGetErrorString(e));
    *out = exec;
    return MX8_OK;
}

enum mx8_status cuda_launch_graph(const struct mx8_exec *x, void *graph) {
    CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)graph, stream_of(x)), "launch graph");
    return MX8_OK;
}

void cuda_release_graph(const struct mx8_exec *x, void *graph) {
    (void)x;
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
