// Describing graphs to cuDNN, making plans of them, running plans.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "cudnn.cuh"

namespace cudnn {

static void fail(struct graph *g, int status, const char *format, ...) {
    if (g->failure[0]) return;
    char detail[160] = "";
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(g->failure, sizeof g->failure, format, arguments);
    va_end(arguments);
    if (status == 0 || used < 0 || (size_t)used >= sizeof g->failure) return;
    g->lib->get_last_error(detail, sizeof detail);
    for (char *c = detail; *c; c++)
        if (*c == '\n') *c = ' ';
    snprintf(
        g->failure + used, sizeof g->failure - (size_t)used, ": %s (%s)", g->lib->get_error_string(status), detail);
}

void begin_graph(struct graph *g, const struct library *lib) {
    memset(g, 0, sizeof *g);
    g->lib = lib;
    g->next_id = FIRST_INNER_ID;
}

void end_graph(struct graph *g) {
    while (g->n_owned > 0) g->lib->destroy_descriptor(g->owned[--g->n_owned]);
}

static descriptor create(struct graph *g, const char *what, int type) {
    descriptor d = NULL;
    if (g->failure[0]) return NULL;
    if (g->n_owned == MAX_DESCRIPTORS) {
        fail(g, 0, "%s: more than %d descriptors", what, (int)MAX_DESCRIPTORS);
        return NULL;
    }
    const int status = g->lib->create_descriptor(type, &d);
    if (status != 0) {
        fail(g, status, "%s: creating a descriptor of type %d", what, type);
        return NULL;
    }
    g->owned[g->n_owned++] = d;
    return d;
}

static void set(
    struct graph *g, const char *what, descriptor d, int name, int type, const void *values, int64_t count = 1) {
    if (g->failure[0]) return;
    const int status = g->lib->set_attribute(d, name, type, count, values);
    if (status != 0) fail(g, status, "%s: setting attribute %d", what, name);
}

static void finalize(struct graph *g, const char *what, descriptor d) {
    if (g->failure[0]) return;
    const int status = g->lib->finalize(d);
    if (status != 0) fail(g, status, "%s: finalizing", what);
}

// ---- tensors ----

static struct tensor make_tensor(struct graph *g, int64_t id, const int64_t (&dim)[4], const int64_t (&stride)[4],
    int type, bool is_virtual, bool by_value) {
    char what[32];
    struct tensor t;
    const int64_t alignment = 16;
    snprintf(what, sizeof what, "tensor %d", (int)id);
    t.id = id;
    memcpy(t.dim, dim, sizeof t.dim);
    memcpy(t.stride, stride, sizeof t.stride);
    t.d = create(g, what, TENSOR);
    set(g, what, t.d, TENSOR_TYPE, OF_DATA_TYPE, &type);
    set(g, what, t.d, TENSOR_DIMENSIONS, OF_INT64, dim, 4);
    set(g, what, t.d, TENSOR_STRIDES, OF_INT64, stride, 4);
    set(g, what, t.d, TENSOR_ID, OF_INT64, &id);
    set(g, what, t.d, TENSOR_ALIGNMENT, OF_INT64, &alignment);
    if (is_virtual) set(g, what, t.d, TENSOR_VIRTUAL, OF_BOOLEAN, &is_virtual);
    if (by_value) set(g, what, t.d, TENSOR_BY_VALUE, OF_BOOLEAN, &by_value);
    finalize(g, what, t.d);
    return t;
}

struct tensor outer(struct graph *g, int64_t id, const int64_t (&dim)[4], const int64_t (&stride)[4], int type) {
    return make_tensor(g, id, dim, stride, type, false, false);
}

struct tensor scalar(struct graph *g, int64_t id) {
    const int64_t ones[4] = {1, 1, 1, 1};
    return make_tensor(g, id, ones, ones, FLOAT, false, true);
}

struct tensor inner_strided(struct graph *g, const int64_t (&dim)[4], const int64_t (&stride)[4], int type) {
    return make_tensor(g, g->next_id++, dim, stride, type, true, false);
}

struct tensor inner(struct graph *g, int64_t d0, int64_t d1, int64_t d2, int64_t d3, int type) {
    const int64_t dim[4] = {d0, d1, d2, d3}, stride[4] = {d1 * d2 * d3, d2 * d3, d3, 1};
    return inner_strided(g, dim, stride, type);
}

// ---- operations ----

static void add_operation(struct graph *g, const char *what, descriptor d) {
    finalize(g, what, d);
    if (g->failure[0]) return;
    if (g->n_operations == MAX_OPERATIONS)
        fail(g, 0, "%s: more than %d operations", what, (int)MAX_OPERATIONS);
    else
        g->operations[g->n_operations++] = d;
}

void multiply(struct graph *g, const char *what, const tensor &a, const tensor &b, const tensor &c) {
    const int type = FLOAT;
    const descriptor product = create(g, what, MATMUL);
    set(g, what, product, MATMUL_TYPE, OF_DATA_TYPE, &type);
    finalize(g, what, product);
    const descriptor d = create(g, what, OPERATION_MATMUL);
    set(g, what, d, OP_MATMUL_A, OF_DESCRIPTOR, &a.d);
    set(g, what, d, OP_MATMUL_B, OF_DESCRIPTOR, &b.d);
    set(g, what, d, OP_MATMUL_C, OF_DESCRIPTOR, &c.d);
    set(g, what, d, OP_MATMUL_DESC, OF_DESCRIPTOR, &product);
    add_operation(g, what, d);
}

void reduce(struct graph *g, const char *what, int mode, const tensor &x, const tensor &y) {
    const int type = FLOAT;
    const descriptor reduction = create(g, what, REDUCTION);
    set(g, what, reduction, REDUCTION_TYPE, OF_DATA_TYPE, &type);
    set(g, what, reduction, REDUCTION_MODE, OF_REDUCTION_MODE, &mode);
    finalize(g, what, reduction);
    const descriptor d = create(g, what, OPERATION_REDUCTION);
    set(g, what, d, OP_REDUCTION_X, OF_DESCRIPTOR, &x.d);
    set(g, what, d, OP_REDUCTION_Y, OF_DESCRIPTOR, &y.d);
    set(g, what, d, OP_REDUCTION_DESC, OF_DESCRIPTOR, &reduction);
    add_operation(g, what, d);
}

void reshape(struct graph *g, const char *what, const tensor &x, const tensor &y) {
    const descriptor d = create(g, what, OPERATION_RESHAPE);
    set(g, what, d, OP_RESHAPE_X, OF_DESCRIPTOR, &x.d);
    set(g, what, d, OP_RESHAPE_Y, OF_DESCRIPTOR, &y.d);
    add_operation(g, what, d);
}

void apply(struct graph *g, const char *what, int mode, const tensor &y, const tensor &x, const tensor *b,
    const tensor *t, int math_type, int64_t axis) {
    const descriptor pointwise = create(g, what, POINTWISE);
    set(g, what, pointwise, POINTWISE_MODE, OF_POINTWISE_MODE, &mode);
    set(g, what, pointwise, POINTWISE_MATH_TYPE, OF_DATA_TYPE, &math_type);
    if (axis >= 0) set(g, what, pointwise, POINTWISE_AXIS, OF_INT64, &axis);
    finalize(g, what, pointwise);
    const descriptor d = create(g, what, OPERATION_POINTWISE);
    set(g, what, d, OP_POINTWISE_DESC, OF_DESCRIPTOR, &pointwise);
    set(g, what, d, OP_POINTWISE_X, OF_DESCRIPTOR, &x.d);
    set(g, what, d, OP_POINTWISE_Y, OF_DESCRIPTOR, &y.d);
    if (b) set(g, what, d, OP_POINTWISE_B, OF_DESCRIPTOR, &b->d);
    if (t) set(g, what, d, OP_POINTWISE_T, OF_DESCRIPTOR, &t->d);
    add_operation(g, what, d);
}

// ---- plans ----

enum { MAX_CONFIGS = 16, HEURISTICS_A = 3, HEURISTICS_FALLBACK = 2 };

// The number of a configuration's engine, for messages; -1 when cuDNN does not tell.
static int64_t find_engine(struct graph *g, descriptor config) {
    descriptor engine = create(g, "engine", ENGINE);
    int64_t count = 0, index = -1;
    if (engine && g->lib->get_attribute(config, CONFIG_ENGINE, OF_DESCRIPTOR, 1, &count, &engine) == 0)
        g->lib->get_attribute(engine, ENGINE_INDEX, OF_INT64, 1, &count, &index);
    return index;
}

static descriptor finish_operations(struct graph *g, void *handle) {
    const descriptor d = create(g, "graph", OPERATION_GRAPH);
    set(g, "graph", d, GRAPH_OPS, OF_DESCRIPTOR, g->operations, g->n_operations);
    if (handle) set(g, "graph", d, GRAPH_HANDLE, OF_HANDLE, &handle);
    finalize(g, "graph", d);
    return d;
}

// Configurations in the order cuDNN prefers; how many.
static int64_t ask_heuristics(struct graph *g, descriptor operations, int mode, descriptor (&configs)[MAX_CONFIGS]) {
    const descriptor d = create(g, "heuristics", ENGINE_HEURISTICS);
    set(g, "heuristics", d, HEURISTICS_GRAPH, OF_DESCRIPTOR, &operations);
    set(g, "heuristics", d, HEURISTICS_MODE, OF_HEURISTICS_MODE, &mode);
    finalize(g, "heuristics", d);
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = create(g, "configuration", ENGINE_CONFIG);
    int64_t count = 0;
    if (g->failure[0]) return 0;
    const int status = g->lib->get_attribute(d, HEURISTICS_RESULTS, OF_DESCRIPTOR, MAX_CONFIGS, &count, configs);
    if (status != 0) fail(g, status, "heuristics: asking for configurations");
    return status == 0 ? count < MAX_CONFIGS ? count : MAX_CONFIGS : 0;
}

static bool compile(struct graph *g, void *handle, descriptor config, struct plan *out) {
    const struct library *lib = g->lib;
    descriptor d = NULL;
    int64_t count = 0;
    int status = lib->create_descriptor(EXECUTION_PLAN, &d);
    if (status == 0) status = lib->set_attribute(d, PLAN_HANDLE, OF_HANDLE, 1, &handle);
    if (status == 0) status = lib->set_attribute(d, PLAN_CONFIG, OF_DESCRIPTOR, 1, &config);
    if (status == 0) status = lib->finalize(d);
    if (status == 0) status = lib->get_attribute(d, PLAN_WORKSPACE_SIZE, OF_INT64, 1, &count, &out->workspace);
    if (status == 0) {
        out->d = d;
        return true;
    }
    fail(g, status, "plan for engine %d", (int)out->engine);
    if (d) lib->destroy_descriptor(d);
    return false;
}

bool check_graph(struct graph *g) {
    finish_operations(g, NULL);
    return !g->failure[0];
}

bool ask_workspace(struct graph *g, void *handle, int64_t *bytes) {
    descriptor configs[MAX_CONFIGS];
    int64_t count = 0;
    *bytes = 0;
    if (ask_heuristics(g, finish_operations(g, handle), HEURISTICS_A, configs) < 1) {
        fail(g, 0, "heuristics: cuDNN knows no engine for this graph");
        return false;
    }
    const int status = g->lib->get_attribute(configs[0], CONFIG_WORKSPACE_SIZE, OF_INT64, 1, &count, bytes);
    if (status != 0) fail(g, status, "configuration: asking for its workspace");
    return status == 0;
}

bool make_plan(struct graph *g, void *handle, struct plan *out) {
    static const int modes[] = {HEURISTICS_A, HEURISTICS_FALLBACK};
    char first_failure[sizeof g->failure] = "";
    const descriptor operations = finish_operations(g, handle);
    memset(out, 0, sizeof *out);
    if (g->failure[0]) return false;
    for (int m = 0; m < 2; m++) {
        descriptor configs[MAX_CONFIGS];
        const int64_t count = ask_heuristics(g, operations, modes[m], configs);
        for (int64_t i = 0; i < count; i++, out->tried++) {
            out->engine = find_engine(g, configs[i]);
            if (compile(g, handle, configs[i], out)) return true;
            if (!first_failure[0]) memcpy(first_failure, g->failure, sizeof first_failure);
            g->failure[0] = 0;
        }
        if (g->failure[0] && !first_failure[0]) memcpy(first_failure, g->failure, sizeof first_failure);
        g->failure[0] = 0;
    }
    fail(g, 0, "%s", first_failure[0] ? first_failure : "heuristics: cuDNN knows no engine for this graph");
    return false;
}

void run_plan(const struct library *lib, void *handle, const struct plan *plan, const int64_t *ids, void *const *values,
    int count, void *workspace, char *failure, size_t failure_size) {
    struct graph g;
    begin_graph(&g, lib);
    const descriptor pack = create(&g, "variant pack", VARIANT_PACK);
    set(&g, "variant pack", pack, PACK_POINTERS, OF_POINTER, values, count);
    set(&g, "variant pack", pack, PACK_IDS, OF_INT64, ids, count);
    set(&g, "variant pack", pack, PACK_WORKSPACE, OF_POINTER, &workspace);
    finalize(&g, "variant pack", pack);
    if (!g.failure[0]) {
        const int status = lib->execute(handle, plan->d, pack);
        if (status != 0) fail(&g, status, "executing");
    }
    end_graph(&g);
    snprintf(failure, failure_size, "%s", g.failure);
}

} // namespace cudnn
