/* A layer of experts, forward and backward, in MXFP8: each token goes to two of four experts. Below the helpers, the
 * layer is ten calls forward and ten backward, none of which looks at a group's size on the host.
 *
 *     cc moe_layer.c $(pkg-config --cflags --libs mx8) -lm -o moe_layer */
#include <math.h>
#include <mx8/mx8.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 96, D = 64, F = 128, E = 4, TOP_K = 2 };

static struct mx8_context *ctx;

static void check(enum mx8_status status) {
    if (status == MX8_OK) return;
    fprintf(stderr, "%s: %s\n", mx8_get_status_name(status), mx8_get_last_error());
    exit(1);
}

/* Memory of tensors; all of it is given back at the end. */
static void *taken[128];
static int n_taken;

static void *take(size_t size) {
    return taken[n_taken++] = calloc(1, size);
}

/* Runs one pass of an operator on inputs in the order of its schema (`mx8 ops NAME` prints it). */
struct pass {
    const char *name;
    int backward;
    struct mx8_op_options options;
    struct mx8_tensor in[MX8_MAX_INPUTS], out[MX8_MAX_OUTPUTS];
};

static struct pass run(struct pass p) {
    const struct mx8_op *op = mx8_find_op(p.name);
    struct mx8_op_call call = {.options = p.options};
    for (int i = 0; i < MX8_MAX_INPUTS; i++) call.in[i] = p.in[i];
    check(mx8_infer_op(op, p.backward, &call));
    for (int i = 0; i < call.n_out; i++)
        if (call.out[i].ndim)
            call.out[i].data = take((size_t)(mx8_count_elements(&call.out[i]) + 1) * mx8_get_dtype_size(call.out[i].dtype));
    call.workspace = aligned_alloc(64, (call.workspace_size + 64) / 64 * 64);
    check(mx8_run_op(ctx, op, p.backward, &call));
    free(call.workspace);
    for (int i = 0; i < MX8_MAX_OUTPUTS; i++) p.out[i] = call.out[i];
    return p;
}
#define FORWARD(op, opts, ...)  run((struct pass){.name = op, .options = opts, .in = {__VA_ARGS__}})
#define BACKWARD(op, opts, ...) run((struct pass){.name = op, .backward = 1, .options = opts, .in = {__VA_ARGS__}})
#define NONE                    ((struct mx8_tensor){0})

static struct mx8_tensor make_random(double scale, int32_t ndim, const int64_t *shape) {
    static unsigned seed = 1;
    struct mx8_tensor t = mx8_make_tensor(NULL, MX8_F32, ndim, shape);
    int64_t n = mx8_count_elements(&t);
    float *values = t.data = take((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(scale * ((double)(seed >> 8) / (1 << 23) - 1));
    }
    return t;
}

static struct mx8_tensor x, gate, w1, w2, w3, dy; /* experts: y = w2 (silu(w1 x) * w3 x) */

int main(void) {
    check(mx8_create_context(NULL, &ctx));
    x = make_random(1, 2, (int64_t[]){T, D}), dy = make_random(1, 2, (int64_t[]){T, D});
    gate = make_random(0.2, 2, (int64_t[]){E, D});
    w1 = make_random(0.2, 3, (int64_t[]){E, F, D}), w3 = make_random(0.2, 3, (int64_t[]){E, F, D});
    w2 = make_random(0.2, 3, (int64_t[]){E, D, F});
    struct mx8_op_options plain = {0}, top = {.top_k = TOP_K}, mx = {.precision = MX8_PRECISION_MXFP8};

    /* router: scores, indices, weights, order, positions, offsets */
    struct pass logits = FORWARD("linear", plain, x, gate);
    struct pass route = FORWARD("router", top, logits.out[0]);
    struct mx8_tensor weights = route.out[2], order = route.out[3], positions = route.out[4], offsets = route.out[5];
    struct pass rows = FORWARD("permute", plain, x, order, positions);
    struct pass a = FORWARD("grouped_linear", mx, rows.out[0], w1, offsets);
    struct pass b = FORWARD("grouped_linear", mx, rows.out[0], w3, offsets);
    struct pass h = FORWARD("swiglu", plain, a.out[0], b.out[0]);
    struct pass o = FORWARD("grouped_linear", mx, h.out[0], w2, offsets);
    struct pass y = FORWARD("combine", plain, o.out[0], order, positions, weights);

    struct pass dcombine = BACKWARD("combine", plain, dy, o.out[0], order, positions, weights);
    struct pass d2 = BACKWARD("grouped_linear", mx, dcombine.out[0], h.out[0], w2, offsets);
    struct pass dh = BACKWARD("swiglu", plain, d2.out[0], a.out[0], b.out[0]);
    struct pass d1 = BACKWARD("grouped_linear", mx, dh.out[0], rows.out[0], w1, offsets);
    struct pass d3 = BACKWARD("grouped_linear", mx, dh.out[1], rows.out[0], w3, offsets);
    struct pass drows = FORWARD("add", plain, d1.out[0], d3.out[0]);
    struct pass droute = BACKWARD("router", top, dcombine.out[1], route.out[0], route.out[1], weights);
    struct pass dgate = BACKWARD("linear", plain, droute.out[0], x, gate);
    struct pass dx = BACKWARD("permute", plain, drows.out[0], NONE, order, positions, NONE, dgate.out[0]);

    const int32_t *ends = offsets.data;
    printf("tokens of each expert:");
    for (int e = 0; e < E; e++) printf(" %d", ends[e] - (e ? ends[e - 1] : 0));
    const struct mx8_tensor *shown[] = {&y.out[0], &dx.out[0], &d1.out[1], &d2.out[1], &d3.out[1], &dgate.out[1]};
    const char *names[] = {"y", "dx", "dw1", "dw2", "dw3", "dgate"};
    int good = ends[E - 1] == T * TOP_K;
    for (int i = 0; i < 6; i++) {
        double sum = 0;
        for (int64_t j = 0; j < mx8_count_elements(shown[i]); j++)
            sum += (double)((float *)shown[i]->data)[j] * (double)((float *)shown[i]->data)[j];
        printf("%s|%s| %.3f", i ? ", " : "\n", names[i], sqrt(sum));
        good = good && sum > 0 && isfinite(sum);
    }
    printf("\n");
    mx8_destroy_context(ctx);
    while (n_taken) free(taken[--n_taken]);
    return good ? 0 : 1;
}
