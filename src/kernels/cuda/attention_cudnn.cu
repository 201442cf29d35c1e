// Running attention through cuDNN where it is present and takes the job; attention.cu's own kernels do the rest. Plans
// are compiled once per shape and kept. The log-sum-exp of the operator, (T, H), is turned into cuDNN's (B, H, S) and
// back, about 10 us for 65,536 tokens of 40 heads, so that either implementation reads what the other has saved.
//
// cuDNN adds dq up atomically unless a graph asks for the whole product: that needs 2 bytes a pair of positions, which
// bounds how many heads one launch may take, but every run gives the same bits. MX8_ATTENTION_ORDER=any takes the
// atomic form. Launches run on two streams in turn: the last blocks of a causal launch are its longest, and the next
// launch fills the multiprocessors that wait for them.
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <mutex>
#include "attention_cudnn.cuh"

using namespace attention;

enum { MAX_PLANS = 256, DEFAULT_WORKSPACE_MIB = 3072, LANES = 2, LAST_RESORT = 4, ALIGNMENT = 256, SLACK = 65536 };
enum choice { AUTO, ONLY_CUDNN, ONLY_OWN }; // of MX8_ATTENTION

struct kept_plan {
    struct cudnn_shape shape;
    struct cudnn::graph graph;
    struct cudnn::plan plan;
    char failure[320];
};

// What a job needs, known without a plan.
struct need {
    struct cudnn_shape shape; // strides are zero
    int64_t library_bytes;    // with some to spare: rows that are not packed could cost padding
    bool possible;
};

struct attention_library {
    const struct cudnn::library *lib;
    void *handle; // of the device; made when first needed
    int capability;
    enum choice choice;
    bool any_order, broken; // broken: no handle to be had
    cudaStream_t side;      // of the second lane, made with the handle
    cudaEvent_t begun, done;
    int64_t limit;          // bytes of the workspace of all lanes
    struct kept_plan *plans[MAX_PLANS];
    struct need needs[MAX_PLANS];
    int n_plans, n_needs;
    char failure[320]; // of the last job that cuDNN refused
};

// infer asks for workspaces without a context, so the library opened last speaks for all. Guards everything below.
static std::mutex guard;
static struct attention_library *opened;

// $MX8_CUDNN_LOG names a file that receives a line for each plan and each refusal.
static void note(const char *format, ...) {
    const char *path = getenv("MX8_CUDNN_LOG");
    FILE *f = path && *path ? fopen(path, "a") : NULL;
    if (!f) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(f, format, arguments);
    va_end(arguments);
    fputc('\n', f);
    fclose(f);
}

static void note_shape(const struct cudnn_shape &s, const char *what, const char *detail) {
    note("attention %s, B %lld, S %lld, H %lld, KV %lld, d %lld%s: %s %s", s.backward ? "backward" : "forward",
        (long long)s.B, (long long)s.S, (long long)s.H, (long long)s.KV, (long long)s.d,
        s.any_order ? ", any order" : "", what, detail);
}

// ---- which jobs ----

static bool masks_more(const struct mx8_attention_job *j) {
    return j->doc || (j->chunk > 0 && j->chunk < j->S);
}

static bool backward_rows_fit(const struct mx8_attention_job *j) {
    return rows_fit(j->dout, j->do_ls) && rows_fit(j->dq, j->dq_ls) && rows_fit(j->dk, j->dk_ls) &&
           rows_fit(j->dv, j->dv_ls);
}

// The form of the job; whether this cuDNN is known to be right about it is in the second function.
static bool takes(const struct mx8_attention_job *j, bool backward) {
    return is_fast(j) && !masks_more(j) && j->S >= 64 && j->T % j->S == 0 && (!backward || backward_rows_fit(j));
}

// cuDNN before 9.6 wants its sums cleared; 9.10.0 and 9.10.1 have a wrong backward; up to 9.15 keys past a sequence
// that is no multiple of 128 need a mask of their own. From Blackwell on only the atomic backward has this form.
static bool trusts(const struct attention_library *a, const struct mx8_attention_job *j, bool backward) {
    const size_t v = a->lib->version;
    if (v < 90600 || j->d > (a->capability / 10 == 9 ? 256 : 128)) return false;
    if (!backward) return true;
    if (v == 91000 || v == 91001 || (v <= 91500 && j->S % 128 != 0)) return false;
    return a->any_order || a->capability < 100;
}

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}
static int64_t stats_bytes(const struct cudnn_shape &s) {
    return aligned(s.B * s.H * s.S * (int64_t)sizeof(float));
}
static int64_t dq_sum_bytes(const struct cudnn_shape &s) {
    return s.any_order ? aligned(s.B * s.H * s.S * s.d * (int64_t)sizeof(float)) : 0;
}
// What a backward launch needs, to choose its size; cuDNN's own answer decides how much it gets.
static int64_t guess_bytes(const struct cudnn_shape &s) {
    const int64_t pairs = s.any_order ? 0 : s.B * s.H * ceil_div(s.S, 64) * 64 * ceil_div(s.S, 128) * 128 * 2;
    return pairs + dq_sum_bytes(s) + (s.KV < s.H ? 4 * s.B * s.H * s.S * s.d : 0);
}

// Launches that run beside each other.
static int count_lanes(const struct mx8_attention_job *j, const struct cudnn_shape &s) {
    const int64_t launches = j->T / j->S / s.B * (j->KV / s.KV);
    return launches < LANES ? (int)launches : LANES;
}
static int64_t guess_all(const struct mx8_attention_job *j, const struct cudnn_shape &s) {
    return guess_bytes(s) * count_lanes(j, s);
}
// Of one lane: row terms, the f32 sum of dq, and what cuDNN asks for.
static int64_t lane_bytes(const struct cudnn_shape &s, const struct need *need) {
    return (s.backward ? stats_bytes(s) + dq_sum_bytes(s) : 0) + aligned(need->library_bytes);
}

// The launch that covers the job in equal parts: all of it, whole sequences, or some key heads of one sequence.
static bool choose_launch(
    const struct attention_library *a, const struct mx8_attention_job *j, bool backward, struct cudnn_shape *s) {
    const int64_t group = j->H / j->KV, sequences = j->T / j->S;
    *s = (struct cudnn_shape){sequences, j->S, j->H, j->KV, j->d};
    s->q_ls = j->q_ls, s->k_ls = j->k_ls, s->v_ls = j->v_ls, s->o_ls = j->o_ls;
    if (!backward) return true;
    s->do_ls = j->do_ls, s->dq_ls = j->dq_ls, s->dk_ls = j->dk_ls, s->dv_ls = j->dv_ls;
    s->backward = 1;
    s->any_order = a->any_order;
    for (; s->B > 1 && (sequences % s->B != 0 || guess_all(j, *s) > a->limit);) s->B--;
    while (s->B == 1 && s->KV > 1 && (j->KV % s->KV != 0 || guess_all(j, *s) > a->limit)) {
        s->KV--;
        s->H = s->KV * group;
    }
    return guess_all(j, *s) <= a->limit * LAST_RESORT;
}

// ---- plans ----

static bool have_handle(struct attention_library *a) {
    if (a->handle) return true;
    if (a->broken) return false;
    const int status = a->lib->create(&a->handle);
    a->broken = status != 0;
    if (a->broken) {
        a->handle = NULL;
        snprintf(a->failure, sizeof a->failure, "cudnnCreate: %s", a->lib->get_error_string(status));
        note("%s", a->failure);
        return false;
    }
    // Without a second stream the launches follow each other on the first.
    if (cudaStreamCreateWithFlags(&a->side, cudaStreamNonBlocking) != cudaSuccess) a->side = NULL;
    if (cudaEventCreateWithFlags(&a->begun, cudaEventDisableTiming) != cudaSuccess) a->begun = NULL;
    if (cudaEventCreateWithFlags(&a->done, cudaEventDisableTiming) != cudaSuccess) a->done = NULL;
    return true;
}

static void describe(struct cudnn::graph *g, const struct cudnn_shape &s) {
    if (s.backward)
        describe_backward(g, s);
    else
        describe_forward(g, s);
}

// Rows as an operator lays them out when nobody asks for more: strides do not change what a launch needs.
static struct cudnn_shape without_strides(const struct cudnn_shape &s) {
    struct cudnn_shape r = {s.B, s.S, s.H, s.KV, s.d};
    r.backward = s.backward;
    r.any_order = s.any_order;
    return r;
}
static struct cudnn_shape with_packed_rows(struct cudnn_shape s) {
    s.q_ls = s.o_ls = s.do_ls = s.dq_ls = s.H * s.d;
    s.k_ls = s.v_ls = s.dk_ls = s.dv_ls = s.KV * s.d;
    return s;
}

static const struct need *find_need(struct attention_library *a, const struct cudnn_shape &shape) {
    const struct cudnn_shape key = without_strides(shape);
    for (int i = 0; i < a->n_needs; i++)
        if (memcmp(&a->needs[i].shape, &key, sizeof key) == 0) return &a->needs[i];
    if (a->n_needs == MAX_PLANS || !have_handle(a)) return NULL;
    struct need *n = &a->needs[a->n_needs++];
    struct cudnn::graph g;
    n->shape = key;
    cudnn::begin_graph(&g, a->lib);
    describe(&g, with_packed_rows(key));
    n->possible = cudnn::ask_workspace(&g, a->handle, &n->library_bytes);
    n->library_bytes += SLACK;
    if (!n->possible) snprintf(a->failure, sizeof a->failure, "%s", g.failure);
    note_shape(key, n->possible ? "possible" : "refused:", g.failure);
    cudnn::end_graph(&g);
    return n;
}

// Not while a CUDA graph is recorded: compiling loads modules, which a capture may forbid.
static const struct kept_plan *find_plan(
    struct attention_library *a, const struct cudnn_shape &shape, cudaStream_t stream, int64_t room) {
    for (int i = 0; i < a->n_plans; i++)
        if (memcmp(&a->plans[i]->shape, &shape, sizeof shape) == 0) return a->plans[i];
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) {
        snprintf(a->failure, sizeof a->failure, "a CUDA graph is recorded before this shape has a plan");
        note_shape(shape, "refused:", a->failure);
        return NULL;
    }
    struct kept_plan *kept = a->n_plans < MAX_PLANS ? new kept_plan() : NULL;
    if (!kept) return NULL;
    a->plans[a->n_plans++] = kept;
    kept->shape = shape;
    cudnn::begin_graph(&kept->graph, a->lib);
    describe(&kept->graph, shape);
    if (!cudnn::make_plan(&kept->graph, a->handle, &kept->plan))
        snprintf(kept->failure, sizeof kept->failure, "%s", kept->graph.failure);
    else if (kept->plan.workspace > room)
        snprintf(kept->failure, sizeof kept->failure, "engine %d needs %lld bytes of workspace, %lld were announced",
            (int)kept->plan.engine, (long long)kept->plan.workspace, (long long)room);
    char detail[96];
    snprintf(detail, sizeof detail, "engine %d, %d tried before, %.1f MiB", (int)kept->plan.engine, kept->plan.tried,
        (double)kept->plan.workspace / 1048576.0);
    note_shape(shape, kept->failure[0] ? "refused:" : "planned:", kept->failure[0] ? kept->failure : detail);
    return kept;
}

// ---- running ----

// to (columns, rows) of each sequence = from (rows, columns).
static __global__ void turn(float *to, const float *from, int64_t rows, int64_t columns) {
    __shared__ float tile[32][33];
    const int64_t row = (int64_t)blockIdx.x * 32, column = (int64_t)blockIdx.y * 32;
    to += blockIdx.z * rows * columns;
    from += blockIdx.z * rows * columns;
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        if (row + i < rows && column + threadIdx.x < columns)
            tile[i][threadIdx.x] = from[(row + i) * columns + column + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        if (column + i < columns && row + threadIdx.x < rows)
            to[(column + i) * rows + row + threadIdx.x] = tile[threadIdx.x][i];
}

static enum mx8_status turn_all(
    cudaStream_t stream, float *to, const float *from, int64_t B, int64_t rows, int64_t columns) {
    const int64_t most = 65535; // of a grid's third dimension
    for (int64_t b = 0; b < B; b += most) {
        const dim3 grid(
            (unsigned)ceil_div(rows, 32), (unsigned)ceil_div(columns, 32), (unsigned)(B - b < most ? B - b : most));
        turn<<<grid, dim3(32, 8), 0, stream>>>(to + b * rows * columns, from + b * rows * columns, rows, columns);
    }
    CUDA_LAUNCHED("attention: log-sum-exp");
}

struct values {
    int64_t ids[16];
    void *at[16];
    int count;
    void add(int64_t id, const void *value) {
        ids[count] = id;
        at[count++] = (void *)value;
    }
};

static const float ONE = 1.0f, HIDDEN = -INFINITY, OLD_HIDDEN = -FLT_MAX;

// Part of the job: sequence b and key head kv on, as much as the plan's shape says.
static void add_inputs(struct values *v, const struct attention_library *a, const struct mx8_attention_job *j,
    const struct cudnn_shape &s, float *stats, int64_t b, int64_t kv) {
    const int64_t row = b * j->S, head = kv * (j->H / j->KV);
    v->count = 0;
    v->add(ID_Q, (const bf16 *)j->q + row * j->q_ls + head * j->d);
    v->add(ID_K, (const bf16 *)j->k + row * j->k_ls + kv * j->d);
    v->add(ID_V, (const bf16 *)j->v + row * j->v_ls + kv * j->d);
    v->add(ID_O, (const bf16 *)j->o + row * j->o_ls + head * j->d);
    v->add(ID_STATS, stats + (b * j->H + head) * j->S);
    v->add(ID_SCALE, &j->scale);
    v->add(ID_HIDDEN, a->lib->version < 91000 ? &OLD_HIDDEN : &HIDDEN);
    if (!s.backward) return;
    v->add(ID_ONE, &ONE);
    v->add(ID_DO, (const bf16 *)j->dout + row * j->do_ls + head * j->d);
    v->add(ID_DQ, (const bf16 *)j->dq + row * j->dq_ls + head * j->d);
    v->add(ID_DK, (const bf16 *)j->dk + row * j->dk_ls + kv * j->d);
    v->add(ID_DV, (const bf16 *)j->dv + row * j->dv_ls + kv * j->d);
}

// The second lane waits for what the first has been given so far, or the first for all of the second's.
static enum mx8_status wait_for(cudaEvent_t event, cudaStream_t before, cudaStream_t after) {
    CUDA_TRY(cudaEventRecord(event, before), "attention");
    CUDA_TRY(cudaStreamWaitEvent(after, event, 0), "attention");
    return MX8_OK;
}

static void launch_part(struct attention_library *a, const struct mx8_attention_job *j, struct kept_plan *kept,
    cudaStream_t stream, char *at, int64_t b, int64_t kv) {
    const struct cudnn_shape &s = kept->shape;
    const int status = a->lib->set_stream(a->handle, stream);
    if (status != 0) {
        snprintf(kept->failure, sizeof kept->failure, "cudnnSetStream: %s", a->lib->get_error_string(status));
        return;
    }
    struct values v;
    add_inputs(&v, a, j, s, (float *)j->workspace, b, kv);
    if (s.backward) {
        v.add(ID_ROW_TERMS, at);
        at += stats_bytes(s);
    }
    if (s.any_order) v.add(ID_DQ_SUM, at);
    at += dq_sum_bytes(s);
    cudnn::run_plan(a->lib, a->handle, &kept->plan, v.ids, v.at, v.count, at, kept->failure, sizeof kept->failure);
}

// Workspace: statistics of the whole job, then the lanes'. A failure of cuDNN is left in kept->failure.
static enum mx8_status launch_all(struct attention_library *a, const struct mx8_exec *x,
    const struct mx8_attention_job *j, struct kept_plan *kept, int64_t bytes) {
    const struct cudnn_shape &s = kept->shape;
    char *const lanes = (char *)j->workspace + aligned(j->T * j->H * (int64_t)sizeof(float));
    const int count = a->side && a->begun && a->done ? count_lanes(j, s) : 1;
    int lane = 0;
    const enum mx8_status forked = count > 1 ? wait_for(a->begun, stream_of(x), a->side) : MX8_OK;
    if (forked != MX8_OK) return forked;
    for (int64_t b = 0; b < j->T / j->S && !kept->failure[0]; b += s.B)
        for (int64_t kv = 0; kv < j->KV && !kept->failure[0]; kv += s.KV) {
            launch_part(a, j, kept, lane ? a->side : stream_of(x), lanes + lane * bytes, b, kv);
            lane = (lane + 1) % count;
        }
    if (kept->failure[0]) note_shape(s, "failed:", kept->failure);
    return count > 1 ? wait_for(a->done, a->side, stream_of(x)) : MX8_OK;
}

// OK, a CUDA error, or UNSUPPORTED with a->failure.
static enum mx8_status run(
    struct attention_library *a, const struct mx8_exec *x, const struct mx8_attention_job *j, bool backward) {
    struct cudnn_shape s;
    if (!trusts(a, j, backward) || !choose_launch(a, j, backward, &s)) {
        snprintf(a->failure, sizeof a->failure, "cuDNN %d.%d is not used for %lld positions of heads of %lld",
            (int)(a->lib->version / 10000), (int)(a->lib->version / 100 % 100), (long long)j->S, (long long)j->d);
        return MX8_UNSUPPORTED;
    }
    const struct need *need = find_need(a, s);
    if (!need || !need->possible) return MX8_UNSUPPORTED;
    struct kept_plan *kept = (struct kept_plan *)find_plan(a, s, stream_of(x), need->library_bytes);
    if (!kept) return MX8_UNSUPPORTED;
    float *const stats = (float *)j->workspace;
    const int64_t B = j->T / j->S;
    enum mx8_status turned = MX8_OK;
    if (backward && !kept->failure[0]) turned = turn_all(stream_of(x), stats, j->lse, B, j->S, j->H);
    if (turned != MX8_OK) return turned;
    const enum mx8_status launched = kept->failure[0] ? MX8_OK : launch_all(a, x, j, kept, lane_bytes(s, need));
    if (launched != MX8_OK) return launched;
    if (kept->failure[0]) {
        snprintf(a->failure, sizeof a->failure, "%s", kept->failure);
        return MX8_UNSUPPORTED;
    }
    return backward ? MX8_OK : turn_all(stream_of(x), j->lse, stats, B, j->H, j->S);
}

enum mx8_status cuda_attention_cudnn(const struct mx8_exec *x, const struct mx8_attention_job *j, int32_t backward) {
    struct attention_library *a = backend_of(x)->attention;
    if (!a || !takes(j, backward != 0)) return MX8_UNSUPPORTED;
    const std::lock_guard<std::mutex> lock(guard);
    const enum mx8_status status = run(a, x, j, backward != 0);
    if (status == MX8_UNSUPPORTED && a->choice == ONLY_CUDNN)
        return CUDA_FAIL(MX8_LIBRARY_ERROR, "cuda attention: MX8_ATTENTION is cudnn, but %s", a->failure);
    return status;
}

size_t cuda_attention_cudnn_workspace(const struct mx8_attention_job *j, int32_t backward) {
    const std::lock_guard<std::mutex> lock(guard);
    struct attention_library *a = opened;
    struct cudnn_shape s;
    if (!a || j->T == 0 || j->H * j->d == 0 || j->dtype != MX8_BF16 || masks_more(j) || j->S < 64) return 0;
    if (j->d % 8 != 0 || !trusts(a, j, backward != 0) || !choose_launch(a, j, backward != 0, &s)) return 0;
    const struct need *need = find_need(a, s);
    if (!need || !need->possible) return 0;
    const int64_t stats = aligned(j->T * j->H * (int64_t)sizeof(float));
    return (size_t)(stats + lane_bytes(s, need) * count_lanes(j, s));
}

// ---- opening ----

// Which of the words, the first when the variable is not set; -1 with an error for another.
static int read_choice(const char *name, const char *const (&words)[3], enum mx8_status *status) {
    const char *text = getenv(name);
    for (int i = 0; i < 3; i++)
        if (words[i] && strcmp(text && *text ? text : words[0], words[i]) == 0) return i;
    *status = CUDA_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: %s is \"%s\", expected %s%s%s or %s", name, text,
        words[0], words[2] ? ", " : "", words[2] ? words[1] : "", words[2] ? words[2] : words[1]);
    return -1;
}

static enum mx8_status read_environment(struct attention_library *a) {
    static const char *const choices[] = {"auto", "cudnn", "own"}, *const orders[] = {"fixed", "any", NULL};
    const char *limit = getenv("MX8_CUDNN_WORKSPACE");
    char *end = NULL;
    enum mx8_status status = MX8_OK;
    a->choice = (enum choice)read_choice("MX8_ATTENTION", choices, &status);
    a->any_order = status == MX8_OK && read_choice("MX8_ATTENTION_ORDER", orders, &status) == 1;
    if (status != MX8_OK) return status;
    const long mib = limit && *limit ? strtol(limit, &end, 10) : DEFAULT_WORKSPACE_MIB;
    if (mib < 1 || mib > 1 << 20 || (end && *end))
        return CUDA_FAIL(
            MX8_INVALID_ARGUMENT, "mx8_create_context: MX8_CUDNN_WORKSPACE is \"%s\", expected MiB from 1 on", limit);
    a->limit = (int64_t)mib << 20;
    return MX8_OK;
}

// Opens the library; without one a->lib stays NULL and `text` says why.
static enum mx8_status find_library(struct attention_library *a, char *text, size_t text_size) {
    char why[256] = "";
    if (a->choice == ONLY_OWN) {
        snprintf(text, text_size, "own kernels (MX8_ATTENTION)");
        return MX8_OK;
    }
    a->lib = cudnn::open_library(why, sizeof why);
    if (!a->lib && a->choice == ONLY_CUDNN)
        return CUDA_FAIL(MX8_LIBRARY_ERROR, "mx8_create_context: MX8_ATTENTION is cudnn, but %s", why);
    if (!a->lib) {
        snprintf(text, text_size, "own kernels (%.70s)", why);
        return MX8_OK;
    }
    const int v = (int)a->lib->version;
    snprintf(text, text_size, "cuDNN %d.%d.%d%s", v / 10000, v / 100 % 100, v % 100, a->any_order ? ", any order" : "");
    note("cuDNN %d of %s", v, a->lib->path);
    return MX8_OK;
}

enum mx8_status cuda_open_attention(struct cuda_backend *b, char *text, size_t text_size) {
    struct attention_library *a = new attention_library();
    a->capability = b->capability;
    enum mx8_status status = read_environment(a);
    if (status == MX8_OK) status = find_library(a, text, text_size);
    if (status != MX8_OK || !a->lib) {
        delete a;
        return status;
    }
    const std::lock_guard<std::mutex> lock(guard);
    b->attention = opened = a;
    return MX8_OK;
}

void cuda_close_attention(struct cuda_backend *b) {
    struct attention_library *a = b->attention;
    if (!a) return;
    const std::lock_guard<std::mutex> lock(guard);
    if (opened == a) opened = NULL;
    for (int i = 0; i < a->n_plans; i++) {
        if (a->plans[i]->plan.d) a->lib->destroy_descriptor(a->plans[i]->plan.d);
        cudnn::end_graph(&a->plans[i]->graph);
        delete a->plans[i];
    }
    if (a->handle) a->lib->destroy(a->handle);
    if (a->side) cudaStreamDestroy(a->side);
    if (a->begun) cudaEventDestroy(a->begun);
    if (a->done) cudaEventDestroy(a->done);
    b->attention = NULL;
    delete a;
}

// For tests, with or without a GPU: describes both passes of some shapes to cuDNN. 0: accepted; 1: refused; 2: no
// library. `why` receives the reason.
extern "C" __attribute__((visibility("default"))) int mx8_check_cudnn_graphs(char *why, size_t why_size) {
    static const struct cudnn_shape shapes[] = {{8, 8192, 40, 8, 128}, {1, 640, 2, 1, 64}, {3, 130, 4, 4, 256}};
    const struct cudnn::library *lib = cudnn::open_library(why, why_size);
    if (!lib) return 2;
    for (size_t i = 0; i < 3 * sizeof shapes / sizeof *shapes; i++) {
        struct cudnn_shape s = with_packed_rows(shapes[i / 3]);
        struct cudnn::graph g;
        s.backward = i % 3 > 0;
        s.any_order = i % 3 > 1;
        cudnn::begin_graph(&g, lib);
        describe(&g, s);
        const bool accepted = cudnn::check_graph(&g);
        if (!accepted) snprintf(why, why_size, "S %d, pass %d: %s", (int)s.S, (int)(i % 3), g.failure);
        cudnn::end_graph(&g);
        if (!accepted) return 1;
    }
    return 0;
}
