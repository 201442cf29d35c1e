/* Every differentiable row of the operator table against central differences of its own f32 forward.
 *
 * The wiring follows from names: a backward input is a forward input or output of that name, or the gradient d<name> of
 * an output; a backward output d<name> is the gradient of a forward input. The scalar that is differentiated is
 * L = sum over outputs of gradient * output (+ dres * x where a residual gradient enters). */
#include "ops_test.h"

enum { T = 6, D = 8, E = 5, K = 2 };

static struct mx8_tensor absent;

/* ---- forward inputs of each operator ---- */

static void set_linear(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(7, 9));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(5, 9));
    c->in[2] = new_normal(MX8_F32, 1, SHAPE(5));
}

static void set_grouped_linear(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(9, 6));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(4, 5, 6));
    c->in[2] = new_i32(4, (int32_t[]){3, 3, 4, 8}); /* an empty group, and a row past the last */
    c->in[3] = new_normal(MX8_F32, 1, SHAPE(5));
}

static void set_group_pad(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(9, 3));
    c->in[1] = new_i32(3, (int32_t[]){2, 2, 8});
    c->options.alignment = 4;
}

static void set_embedding(struct mx8_op_call *c) {
    c->in[0] = new_i32(7, (int32_t[]){3, 0, 3, -1, 4, 9, 0}); /* two are outside the vocabulary */
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(5, 4));
}

static void set_rmsnorm(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(T, D));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(D));
}

static void set_rmsnorm_add(struct mx8_op_call *c) {
    set_rmsnorm(c);
    c->in[2] = new_normal(MX8_F32, 1, SHAPE(T, D));
    c->options.eps = 0.1f;
}

static void set_rope(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(T, 3 * 4));
    c->in[1] = new_tensor(MX8_F32, SHAPE(8, 2, 2));
    for (int64_t i = 0; i < 16; i++) {
        put(&c->in[1], 2 * i, cos(0.7 * (double)i));
        put(&c->in[1], 2 * i + 1, sin(0.7 * (double)i));
    }
    c->options.n_heads = 3;
    c->options.seq_len = 3;
}

static void set_attention(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(8, 4 * 4));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(8, 2 * 4));
    c->in[2] = new_normal(MX8_F32, 1, SHAPE(8, 2 * 4));
    c->options.n_heads = 4;
    c->options.n_kv_heads = 2;
    c->options.seq_len = 4;
}

static void set_attention_masked(struct mx8_op_call *c) {
    set_attention(c);
    c->in[3] = new_i32(8, (int32_t[]){0, 0, 1, 1, 5, 5, 5, 6});
    c->options.mask = MX8_MASK_DOCUMENT;
    c->options.chunk = 3;
    c->options.attn_scale = 0.8f;
}

/* Logits far enough apart that a difference step changes no choice. */
static void set_router(struct mx8_op_call *c) {
    c->in[0] = new_tensor(MX8_F32, SHAPE(T, E));
    for (int64_t t = 0; t < T; t++)
        for (int64_t e = 0; e < E; e++) put(&c->in[0], t * E + e, 0.4 * (double)((3 * e + 2 * t) % E) - 0.9);
    c->options.top_k = K;
}

static void set_router_softmax(struct mx8_op_call *c) {
    set_router(c);
    c->options.score_func = MX8_SCORE_SOFTMAX;
    c->options.route_norm = 1;
    c->options.route_scale = 2.5f;
}

static void set_router_norm(struct mx8_op_call *c) {
    set_router(c);
    c->options.route_norm = 1;
}

static void set_slots(struct mx8_tensor *order, struct mx8_tensor *positions) {
    *order = new_tensor(MX8_I32, SHAPE(T * K));
    *positions = new_tensor(MX8_I32, SHAPE(T, K));
    for (int64_t p = 0; p < T * K; p++) {
        int64_t slot = (5 * p + 3) % (T * K);
        put(order, p, (double)slot);
        put(positions, slot, (double)p);
    }
}

static void set_permute(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(T, D));
    set_slots(&c->in[1], &c->in[2]);
}

static void set_permute_weighted(struct mx8_op_call *c) {
    set_permute(c);
    c->in[3] = new_normal(MX8_F32, 1, SHAPE(T, K));
}

static void set_combine(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(T * K, D));
    set_slots(&c->in[1], &c->in[2]);
    c->in[4] = new_normal(MX8_F32, 1, SHAPE(T, D));
}

static void set_combine_weighted(struct mx8_op_call *c) {
    set_combine(c);
    c->in[3] = new_normal(MX8_F32, 1, SHAPE(T, K));
}

static void set_swiglu(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 1, SHAPE(T, D + 3));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(T, D + 3));
}

static void set_clamp(struct mx8_op_call *c) { /* none within a difference step of the limit */
    c->in[0] = new_tensor(MX8_F32, SHAPE(T, D));
    for (int64_t i = 0; i < T * D; i++) put(&c->in[0], i, 0.1 * (double)((7 * i) % 31) - 1.45);
    c->options.limit = 0.8f;
}

static void set_lm_head(struct mx8_op_call *c) {
    c->in[0] = new_normal(MX8_F32, 0.5, SHAPE(7, D));
    c->in[1] = new_normal(MX8_F32, 1, SHAPE(11, D));
    c->in[2] = new_i32(7, (int32_t[]){3, -1, 10, 0, 0, 7, -1});
    c->options.chunk_rows = 3;
    c->options.loss_scale = 1;
}

static const struct {
    const char *op;
    void (*set)(struct mx8_op_call *);
} cases[] = {
    {"linear", set_linear},
    {"grouped_linear", set_grouped_linear},
    {"group_pad", set_group_pad},
    {"embedding", set_embedding},
    {"rmsnorm", set_rmsnorm},
    {"rmsnorm", set_rmsnorm_add},
    {"rope", set_rope},
    {"attention", set_attention},
    {"attention", set_attention_masked},
    {"router", set_router},
    {"router", set_router_softmax},
    {"router", set_router_norm},
    {"permute", set_permute},
    {"permute", set_permute_weighted},
    {"combine", set_combine},
    {"combine", set_combine_weighted},
    {"swiglu", set_swiglu},
    {"clamp", set_clamp},
    {"lm_head_loss", set_lm_head},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- wiring by name ---- */

struct wiring {
    const struct mx8_op_row *row;
    struct mx8_op_call forward, backward;
    struct mx8_tensor gradient[MX8_MAX_OUTPUTS]; /* of each forward output; absent: it does not enter L */
    struct mx8_tensor residual;                  /* the gradient that reaches x, or the sum, by another path */
};

static int find_port(const struct mx8_port *ports, int32_t n, const char *name) {
    for (int32_t i = 0; i < n; i++)
        if (strcmp(ports[i].name, name) == 0) return i;
    return -1;
}

static const struct mx8_tensor *find_residual_input(const struct wiring *w) {
    int sum = find_port(w->row->forward.out, w->row->forward.n_out, "sum");
    return sum >= 0 && w->forward.out[sum].data ? &w->forward.out[sum] : &w->forward.in[0];
}

static struct mx8_tensor wire_input(struct wiring *w, const char *name) {
    const struct mx8_pass *f = &w->row->forward;
    if (strcmp(name, "like") == 0) return w->forward.in[0];
    if (strcmp(name, "dres") == 0) {
        const struct mx8_tensor *x = find_residual_input(w);
        return w->residual = new_normal(MX8_F32, 1, x->ndim, x->shape);
    }
    if (strcmp(name, "x") == 0 && strcmp(w->row->op.name, "rmsnorm") == 0) return *find_residual_input(w);
    int out = find_port(f->out, f->n_out, name), in = find_port(f->in, f->n_in, name);
    if (out >= 0) return w->forward.out[out];
    if (in >= 0) return w->forward.in[in];
    out = name[0] == 'd' ? find_port(f->out, f->n_out, name + 1) : -1;
    if (out < 0) return absent; /* codes */
    const struct mx8_tensor *y = &w->forward.out[out];
    return w->gradient[out] = new_normal(MX8_F32, 1, y->ndim, y->shape);
}

static void wire_backward(struct wiring *w) {
    const struct mx8_pass *b = &w->row->backward;
    int embedding = strcmp(w->row->op.name, "embedding") == 0;
    for (int32_t i = 0; i < b->n_in; i++) w->backward.in[i] = wire_input(w, b->in[i].name);
    w->backward.options = w->forward.options;
    if (embedding) w->backward.out[0] = new_tensor(MX8_F32, w->forward.in[1].ndim, w->forward.in[1].shape);
    /* a loss has gradient 1 */
    if (find_port(w->row->forward.out, w->row->forward.n_out, "loss") >= 0) {
        w->gradient[0] = new_tensor(MX8_F32, SHAPE(1));
        fill(&w->gradient[0], 1);
    }
    run_call(w->row->op.name, 1, &w->backward);
}

static double find_loss(struct wiring *w) {
    double loss = 0;
    run_call(w->row->op.name, 0, &w->forward);
    for (int i = 0; i < MX8_MAX_OUTPUTS; i++) {
        const struct mx8_tensor *g = &w->gradient[i];
        for (int64_t n = 0; g->data && n < mx8_count_elements(g); n++) loss += get(g, n) * get(&w->forward.out[i], n);
    }
    const struct mx8_tensor *r = &w->residual, *x = find_residual_input(w);
    for (int64_t n = 0; r->data && n < mx8_count_elements(r); n++) loss += get(r, n) * get(x, n);
    return loss;
}

static double differentiate(struct wiring *w, const struct mx8_tensor *x, int64_t i) {
    const double step = 1.0 / 128;
    double value = get(x, i);
    put(x, i, value + step);
    double above = get(x, i), high = find_loss(w);
    put(x, i, value - step);
    double below = get(x, i), low = find_loss(w);
    put(x, i, value);
    return (high - low) / (above - below);
}

/* The gradient of one input, against the largest of it. */
static int check_gradient(struct wiring *w, const char *name, const struct mx8_tensor *x, const struct mx8_tensor *dx) {
    int64_t n = mx8_count_elements(x);
    double *numeric = take((size_t)n * sizeof *numeric), largest = 1e-3;
    assert_int_equal(mx8_count_elements(dx), n);
    for (int64_t i = 0; i < n; i++) {
        numeric[i] = differentiate(w, x, i);
        if (fabs(numeric[i]) > largest) largest = fabs(numeric[i]);
    }
    assert_true(largest > 1e-2); /* a gradient of zeros would show nothing */
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(numeric[i] - get(dx, i)) <= 1e-3 * largest))
            fail_msg(
                "%s: d%s[%d] is %g, central differences say %g", w->row->op.name, name, (int)i, get(dx, i), numeric[i]);
    return 1;
}

static void check_case(int index) {
    struct wiring w = {.row = mx8i_get_row(mx8_find_op(cases[index].op))};
    cases[index].set(&w.forward);
    run_call(cases[index].op, 0, &w.forward);
    wire_backward(&w);
    int checked = 0;
    for (int32_t i = 0; i < w.row->backward.n_out; i++) {
        const char *name = w.row->backward.out[i].name + 1; /* without the d */
        int in = find_port(w.row->forward.in, w.row->forward.n_in, name);
        if (in < 0 || !w.backward.out[i].data) continue;
        checked += check_gradient(&w, name, &w.forward.in[in], &w.backward.out[i]);
        int add = find_port(w.row->forward.in, w.row->forward.n_in, "add");
        if (add >= 0 && strcmp(name, "x") == 0 && w.forward.in[add].data)
            checked += check_gradient(&w, "add", &w.forward.in[add], &w.backward.out[i]);
    }
    assert_true(checked > 0);
}

static void test_gradients_agree_with_differences(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) check_case(i);
}

static void test_every_differentiable_row_has_a_case(void **state) {
    (void)state;
    for (int32_t i = 0; i < mx8_get_op_count(); i++) {
        const struct mx8_op *op = mx8_get_op(i);
        int found = !op->backward;
        for (int c = 0; c < CASES; c++) found |= strcmp(cases[c].op, op->name) == 0;
        if (!found) fail_msg("%s has a backward pass and no case here", op->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_gradients_agree_with_differences),
        cmocka_unit_test(test_every_differentiable_row_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
