// The NCCL transport, part of libmx8_cuda.so; libnccl.so.2 is opened when it is first needed. Operations run on a stream of
// their own: starting one makes that stream wait for what the kernels' stream has been given so far, waiting for one makes
// the kernels' stream wait, and the host waits for neither. Ranges of equal length use NCCL's own all-gather and
// reduce-scatter, others a group of broadcasts or reductions, one a rank.
//
// The host finds out that a peer is gone where it would wait for the device anyway: settle() polls until a deadline and
// then asks the host transport who is alive. Sums are in the order of NCCL's algorithm: the same bits in every run on the
// same machines, not those of MPI.
#include <dlfcn.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "dist/comm.h"

namespace {

enum { TICKETS = 64 };

struct functions {
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRank) init_rank;
    decltype(&ncclCommSplit) split;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommGetAsyncError) get_async_error;
    decltype(&ncclGetErrorString) get_error_string;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclReduce) reduce;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
};

struct world {
    const struct mx8_comm_host *host;
    struct mx8_comm *peers; // the host transport
    functions f;
    cudaStream_t compute, stream;
    cudaEvent_t begin, done[TICKETS];
    int32_t used[TICKETS], last; // last: ticket that was started last; 0: none since the last settle
    double timeout;
};

struct group {
    world *w;
    ncclComm_t comm;
    int32_t is_world;
};

group *group_of(struct mx8_comm *c) { return (group *)c->backend; }

double get_seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum mx8_status check(const world *w, ncclResult_t result, const char *what) {
    if (result == ncclSuccess || result == ncclInProgress) return MX8_OK;
    return w->host->fail(MX8_COMM_ERROR, "NCCL %s: %s", what, w->f.get_error_string(result));
}

enum mx8_status check_cuda(const world *w, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return MX8_OK;
    return w->host->fail(MX8_CUDA_ERROR, "NCCL transport, %s: %s", what, cudaGetErrorString(error));
}

#define TRY(expression)                                 \
    do {                                                \
        enum mx8_status status_ = (expression);         \
        if (status_ != MX8_OK) return status_;          \
    } while (0)

// ---- starting ----

enum mx8_status begin(world *w, int32_t *ticket) {
    for (int32_t i = 0; i < TICKETS; i++) {
        if (w->used[i]) continue;
        w->used[i] = 1;
        *ticket = i + 1;
        TRY(check_cuda(w, cudaEventRecord(w->begin, w->compute), "event"));
        return check_cuda(w, cudaStreamWaitEvent(w->stream, w->begin, 0), "wait");
    }
    return w->host->fail(MX8_INTERNAL, "the NCCL transport has %d operations under way, expected fewer", TICKETS);
}

enum mx8_status end(world *w, int32_t ticket) {
    w->last = ticket;
    return check_cuda(w, cudaEventRecord(w->done[ticket - 1], w->stream), "event");
}

int is_even(const struct mx8_comm *c, const size_t *cut) {
    for (int32_t r = 1; r < c->size; r++)
        if (cut[r + 1] - cut[r] != cut[1] - cut[0]) return 0;
    return cut[0] == 0;
}

void count_sent(struct mx8_comm *c, size_t bytes) {
    if (c->traffic) c->traffic->sent += (int64_t)bytes;
}

enum mx8_status start_gather(struct mx8_comm *c, void *buffer, const size_t *cut, int32_t *ticket) {
    group *g = group_of(c);
    world *w = g->w;
    char *bytes = (char *)buffer;
    TRY(begin(w, ticket));
    if (is_even(c, cut)) {
        const char *own = bytes + cut[c->rank];
        TRY(check(w, w->f.all_gather(own, bytes, cut[1] - cut[0], ncclInt8, g->comm, w->stream), "all-gather"));
    } else {
        TRY(check(w, w->f.group_start(), "group"));
        for (int32_t r = 0; r < c->size; r++) {
            if (cut[r + 1] == cut[r]) continue;
            char *part = bytes + cut[r];
            TRY(check(w, w->f.broadcast(part, part, cut[r + 1] - cut[r], ncclInt8, r, g->comm, w->stream), "broadcast"));
        }
        TRY(check(w, w->f.group_end(), "group"));
    }
    count_sent(c, (cut[c->rank + 1] - cut[c->rank]) * (size_t)(c->size - 1));
    return end(w, *ticket);
}

__global__ void add_to(float *out, const float *in, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) out[i] += in[i];
}

enum mx8_status start_reduce(struct mx8_comm *c, float *out, const float *in, const size_t *cut, int32_t accumulate,
                             void *scratch, int32_t *ticket) {
    group *g = group_of(c);
    world *w = g->w;
    const size_t own = cut[c->rank + 1] - cut[c->rank];
    TRY(begin(w, ticket));
    const float *sum = in + cut[c->rank];
    if (c->size > 1) {
        float *to = accumulate ? (float *)scratch : out; // a piece of every other rank would fit: at least one
        if (is_even(c, cut)) {
            TRY(check(w, w->f.reduce_scatter(in, to, own, ncclFloat, ncclSum, g->comm, w->stream), "reduce-scatter"));
        } else {
            TRY(check(w, w->f.group_start(), "group"));
            for (int32_t r = 0; r < c->size; r++) {
                if (cut[r + 1] == cut[r]) continue;
                TRY(check(w, w->f.reduce(in + cut[r], r == c->rank ? to : NULL, cut[r + 1] - cut[r], ncclFloat, ncclSum, r,
                                         g->comm, w->stream), "reduce"));
            }
            TRY(check(w, w->f.group_end(), "group"));
        }
        sum = to;
    }
    if (own && accumulate) {
        const size_t blocks = (own + 255) / 256;
        add_to<<<(unsigned)(blocks < 4096 ? blocks : 4096), 256, 0, w->stream>>>(out, sum, own);
        TRY(check_cuda(w, cudaGetLastError(), "sum"));
    } else if (own && sum != out) {
        TRY(check_cuda(w, cudaMemcpyAsync(out, sum, own * sizeof *out, cudaMemcpyDeviceToDevice, w->stream), "copy"));
    }
    count_sent(c, (cut[c->size] - cut[0] - own) * sizeof(float));
    return end(w, *ticket);
}

enum mx8_status start_exchange(struct mx8_comm *c, const struct mx8_part *part, int32_t count, int32_t *ticket) {
    group *g = group_of(c);
    world *w = g->w;
    TRY(begin(w, ticket));
    TRY(check(w, w->f.group_start(), "group"));
    for (int32_t i = 0; i < count; i++) {
        const struct mx8_part *p = &part[i];
        if (p->peer == c->rank) {
            if (p->receive_bytes)
                TRY(check_cuda(w, cudaMemcpyAsync(p->receive, p->send, p->receive_bytes, cudaMemcpyDeviceToDevice, w->stream),
                               "copy"));
            continue;
        }
        if (p->receive_bytes)
            TRY(check(w, w->f.recv(p->receive, p->receive_bytes, ncclInt8, p->peer, g->comm, w->stream), "receive"));
        if (p->send_bytes) {
            TRY(check(w, w->f.send(p->send, p->send_bytes, ncclInt8, p->peer, g->comm, w->stream), "send"));
            count_sent(c, p->send_bytes);
        }
    }
    TRY(check(w, w->f.group_end(), "group"));
    return end(w, *ticket);
}

// ---- waiting ----

enum mx8_status wait(struct mx8_comm *c, int32_t *ticket) {
    world *w = group_of(c)->w;
    if (*ticket <= 0) return MX8_OK;
    const int32_t i = *ticket - 1;
    *ticket = 0;
    w->used[i] = 0;
    return check_cuda(w, cudaStreamWaitEvent(w->compute, w->done[i], 0), "wait");
}

void poll(struct mx8_comm *c) { (void)c; } // the device gets on by itself

// The host transport's own wait names those that do not answer; when all do, the devices are stuck.
enum mx8_status name_silent_ranks(world *w, double waited) {
    struct mx8_comm *p = w->peers;
    int32_t ticket = 0;
    if (p->size > 1) {
        char *buffer = (char *)w->host->allocate((size_t)p->size, "signs of life");
        size_t *cut = (size_t *)w->host->allocate(((size_t)p->size + 1) * sizeof *cut, "signs of life");
        if (!buffer || !cut) return MX8_OUT_OF_MEMORY;
        for (int32_t r = 0; r <= p->size; r++) cut[r] = (size_t)r;
        enum mx8_status status = p->t->start_gather(p, buffer, cut, &ticket);
        if (status == MX8_OK) status = p->t->wait(p, &ticket);
        w->host->release(buffer);
        w->host->release(cut);
        if (status != MX8_OK) return status;
    }
    return w->host->fail(MX8_COMM_ERROR,
                         "the GPUs' communication did not end within %.1f s, though every rank answers "
                         "(comm.train_timeout_seconds; NCCL_DEBUG=INFO tells more)", waited);
}

enum mx8_status settle(struct mx8_comm *c) {
    group *g = group_of(c);
    world *w = g->w;
    if (!w->last) return MX8_OK;
    const double begin = get_seconds();
    for (;;) {
        const cudaError_t state = cudaEventQuery(w->done[w->last - 1]);
        if (state == cudaSuccess) break;
        if (state != cudaErrorNotReady) return check_cuda(w, state, "communication");
        ncclResult_t error = ncclSuccess;
        w->f.get_async_error(g->comm, &error);
        TRY(check(w, error, "communication"));
        const double waited = get_seconds() - begin;
        if (waited > w->timeout) return name_silent_ranks(w, waited);
        sched_yield();
    }
    w->last = 0;
    if (c->traffic) c->traffic->waited += get_seconds() - begin;
    return MX8_OK;
}

// ---- groups, beginning and end ----

extern const struct mx8_comm_table table;

enum mx8_status make_group(struct mx8_comm *c, const int32_t *members, int32_t count, struct mx8_comm *out) {
    world *w = group_of(c)->w;
    group *g = (group *)w->host->allocate(sizeof *g, "a group of ranks");
    if (!g) return MX8_OUT_OF_MEMORY;
    g->w = w;
    int32_t own = 0;
    while (own < count && members[own] != c->rank) own++;
    ncclResult_t result = w->f.split(group_of(c)->comm, members[0], own, &g->comm, NULL);
    *out = mx8_comm{&table, g, own, count, NULL};
    return check(w, result, "split");
}

void set_timeout(struct mx8_comm *c, double seconds) { group_of(c)->w->timeout = seconds; }

void abort_all(struct mx8_comm *c, int code) {
    world *w = group_of(c)->w;
    w->f.abort(group_of(c)->comm);
    w->peers->t->abort(w->peers, code);
}

void close(struct mx8_comm *c) {
    group *g = group_of(c);
    world *w = g->w;
    const struct mx8_comm_host *host = w->host;
    w->f.destroy(g->comm);
    if (g->is_world) { // closed last
        for (int32_t i = 0; i < TICKETS; i++) cudaEventDestroy(w->done[i]);
        cudaEventDestroy(w->begin);
        cudaStreamDestroy(w->stream);
        host->release(w);
    }
    host->release(g);
}

const struct mx8_comm_table table = {"nccl", start_gather, start_reduce, start_exchange, wait, poll, settle, make_group,
                                     set_timeout, abort_all, close};

enum mx8_status open_library(world *w) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return w->host->fail(MX8_UNSUPPORTED, "more than one GPU needs NCCL, which does not load: %s", dlerror());
    const struct { const char *name; void *place; } names[] = {
        {"ncclGetUniqueId", &w->f.get_unique_id}, {"ncclCommInitRank", &w->f.init_rank}, {"ncclCommSplit", &w->f.split},
        {"ncclCommDestroy", &w->f.destroy}, {"ncclCommAbort", &w->f.abort},
        {"ncclCommGetAsyncError", &w->f.get_async_error}, {"ncclGetErrorString", &w->f.get_error_string},
        {"ncclAllGather", &w->f.all_gather}, {"ncclReduceScatter", &w->f.reduce_scatter},
        {"ncclBroadcast", &w->f.broadcast}, {"ncclReduce", &w->f.reduce}, {"ncclSend", &w->f.send},
        {"ncclRecv", &w->f.recv}, {"ncclGroupStart", &w->f.group_start}, {"ncclGroupEnd", &w->f.group_end}};
    for (const auto &n : names) {
        void *symbol = dlsym(library, n.name);
        if (!symbol) return w->host->fail(MX8_LIBRARY_ERROR, "libnccl.so.2 has no %s: expected NCCL 2.18 or newer", n.name);
        memcpy(n.place, &symbol, sizeof symbol);
    }
    return MX8_OK;
}

// NCCL's id, from the first rank through the host transport: a gather to which that rank alone gives.
enum mx8_status share_id(world *w, ncclUniqueId *id) {
    struct mx8_comm *p = w->peers;
    int32_t ticket = 0;
    if (p->rank == 0) TRY(check(w, w->f.get_unique_id(id), "unique id"));
    if (p->size == 1) return MX8_OK;
    size_t *cut = (size_t *)w->host->allocate(((size_t)p->size + 1) * sizeof *cut, "NCCL's id");
    if (!cut) return MX8_OUT_OF_MEMORY;
    for (int32_t r = 1; r <= p->size; r++) cut[r] = sizeof *id;
    enum mx8_status status = p->t->start_gather(p, id, cut, &ticket);
    if (status == MX8_OK) status = p->t->wait(p, &ticket);
    w->host->release(cut);
    return status;
}

enum mx8_status open_world(world *w, group *g) {
    ncclUniqueId id;
    int low = 0, high = 0;
    TRY(open_library(w));
    cudaDeviceGetStreamPriorityRange(&low, &high);
    TRY(check_cuda(w, cudaStreamCreateWithPriority(&w->stream, cudaStreamNonBlocking, high), "stream"));
    TRY(check_cuda(w, cudaEventCreateWithFlags(&w->begin, cudaEventDisableTiming), "event"));
    for (int32_t i = 0; i < TICKETS; i++)
        TRY(check_cuda(w, cudaEventCreateWithFlags(&w->done[i], cudaEventDisableTiming), "event"));
    TRY(share_id(w, &id));
    return check(w, w->f.init_rank(&g->comm, w->peers->size, id, w->peers->rank), "initialisation");
}

} // namespace

extern "C" __attribute__((visibility("default"))) enum mx8_status
mx8_open_nccl(const struct mx8_comm_host *host, struct mx8_comm *peers, int32_t device, void *stream, double timeout,
              struct mx8_comm *out) {
    world *w = (world *)host->allocate(sizeof *w, "the NCCL transport");
    group *g = w ? (group *)host->allocate(sizeof *g, "the NCCL transport") : NULL;
    if (!g) {
        host->release(w);
        return MX8_OUT_OF_MEMORY;
    }
    w->host = host;
    w->peers = peers;
    w->compute = (cudaStream_t)stream;
    w->timeout = timeout;
    g->w = w;
    g->is_world = 1;
    enum mx8_status status = check_cuda(w, cudaSetDevice(device), "device");
    if (status == MX8_OK) status = open_world(w, g);
    if (status != MX8_OK) {
        host->release(g);
        host->release(w);
        return status;
    }
    *out = mx8_comm{&table, g, peers->rank, peers->size, NULL};
    return MX8_OK;
}
