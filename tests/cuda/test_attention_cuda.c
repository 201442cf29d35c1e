/* CUDA attention against the CPU's: masks, grouped heads, strided rows, sizes off every tile. f32 and odd heads take
 * the SIMT kernels, bf16 heads of whole chunks the tensor cores, whose probabilities are rounded to bf16: there the
 * largest error is bounded loosely and the root mean square tightly. The same cases through cuDNN, which takes those of
 * them that have no other mask than the causal one. */
#include "pairs.h"

static const struct shape {
    int64_t B, S, H, KV, d, chunk;
    int docs;
    int64_t gap;
} shapes[] = {
    {1, 1, 1, 1, 8, 0, 0, 0},
    {3, 7, 2, 2, 2, 3, 0, 0},
    {1, 65, 2, 1, 6, 0, 1, 3},
    {2, 33, 4, 2, 24, 0, 1, 8},
    {1, 64, 2, 1, 64, 16, 0, 8},
    {1, 130, 4, 2, 64, 0, 0, 0},
    {2, 97, 4, 4, 64, 40, 1, 8},
    {1, 200, 4, 2, 128, 0, 1, 0},
    {1, 291, 3, 1, 16, 100, 1, 0},
    {1, 513, 2, 2, 128, 0, 0, 8},
    {1, 260, 2, 1, 80, 96, 0, 0},
    {1, 150, 5, 1, 128, 0, 2, 0},
    {1, 100, 2, 1, 256, 0, 0, 0},
    {2, 70, 2, 2, 136, 48, 1, 8},
    {1, 400, 1, 1, 64, 128, 2, 0},
    {1, 129, 2, 1, 128, 1, 0, 0},
    {2, 128, 4, 2, 64, 0, 0, 8},
    {3, 256, 5, 1, 128, 300, 0, 0},
};

/* docs 1: falling and rising numbers, a stranger among them; 2: documents of 64 and some positions, so that whole tiles
 * are hidden. */
static int32_t document(const struct shape *s, int64_t t) {
    if (s->docs == 2) return (int32_t)(t % s->S / 67);
    return (int32_t)(t * t / (31 * 31)) - (t % s->S == 40 ? 5 : 0);
}

static void check_shape(const struct shape *s, int32_t dtype) {
    const int64_t T = s->B * s->S, ls = (s->H + 2 * s->KV) * s->d + s->gap, o_ls = s->H * s->d + s->gap;
    const size_t e = mx8_get_dtype_size(dtype), k_at = (size_t)(s->H * s->d) * e,
                 v_at = k_at + (size_t)(s->KV * s->d) * e;
    char what[120];
    snprintf(what, sizeof what, "%s, B %d, S %d, H %d, KV %d, d %d, chunk %d, docs %d", mx8_get_dtype_name(dtype),
        (int)s->B, (int)s->S, (int)s->H, (int)s->KV, (int)s->d, (int)s->chunk, s->docs);
    begin_case();
    struct pair *qkv = make_normal(dtype, T * ls, 1), *o = make_output(dtype, T * o_ls),
                *lse = make_output(MX8_F32, T * s->H);
    struct pair *dout = make_normal(dtype, T * o_ls, 1), *dqkv = make_output(dtype, T * ls),
                *doc = s->docs ? make_output(MX8_I32, T) : NULL;
    for (int64_t t = 0; doc && t < T; t++) set_value(doc, t, document(s, t));
    struct mx8_attention_job j[SIDES];
    for (int side = CPU; side < SIDES; side++) {
        char *q = side_of(qkv, side), *dq = side_of(dqkv, side);
        j[side] = (struct mx8_attention_job){.T = T,
            .S = s->S,
            .H = s->H,
            .KV = s->KV,
            .d = s->d,
            .dtype = dtype,
            .scale = 1.0f / sqrtf((float)s->d),
            .chunk = s->chunk,
            .doc = side_of(doc, side),
            .q = q,
            .k = q + k_at,
            .v = q + v_at,
            .q_ls = ls,
            .k_ls = ls,
            .v_ls = ls,
            .o_ls = o_ls,
            .o = side_of(o, side),
            .lse = side_of(lse, side),
            .dout = side_of(dout, side),
            .dq = dq,
            .dk = dq + k_at,
            .dv = dq + v_at,
            .do_ls = o_ls,
            .dq_ls = ls,
            .dk_ls = ls,
            .dv_ls = ls};
    }
    for (int backward = 0; backward < 2; backward++) {
        struct pair *space = make_space(cpu.k->attention_workspace(&j[CPU], backward, cpu.threads),
            cuda.exec.k->attention_workspace(&j[CUDA], backward, 1));
        for (int side = CPU; side < SIDES; side++) j[side].workspace = side_of(space, side);
        if (!backward)
            RUN(attention, &j[side]);
        else
            RUN(attention_backward, &j[side]);
        const double rough = dtype == MX8_BF16 ? 0.03 : 3e-5;
        CLOSE(what, lse, 1e-6, 1e-4);
        CLOSE(what, backward ? dqkv : o, 1e-5, rough);
        SMALL_ERROR(what, backward ? dqkv : o, dtype == MX8_BF16 ? 0.006 : 3e-6);
    }
}

static void test_f32(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int i = 0; i < COUNT(shapes); i++) check_shape(&shapes[i], MX8_F32);
}

/* cuDNN's own kernels have findings under compute-sanitizer: MX8_ATTENTION=own around the program leaves them out. */
static int wants_no_cudnn(void) {
    const char *attention = getenv("MX8_ATTENTION");
    return attention && strcmp(attention, "own") == 0;
}

/* Another backend on the device, with MX8_ATTENTION as given; NULL with the reason in mx8_get_last_error. */
static void *open_with(const char *attention, const char *order) {
    static const struct mx8_cuda_host host = {mx8i_fail};
    mx8_open_cuda_function open;
    void *symbol = dlsym(cuda.library, "mx8_open_cuda"), *backend = NULL;
    const struct mx8_kernels *k;
    struct mx8_cuda_info info;
    memcpy(&open, &symbol, sizeof open);
    const int no_cudnn = wants_no_cudnn();
    setenv("MX8_ATTENTION", attention, 1);
    setenv("MX8_ATTENTION_ORDER", order, 1);
    const enum mx8_status status = open(&host, 0, &k, &backend, &info, &cuda.close);
    unsetenv("MX8_ATTENTION_ORDER");
    if (no_cudnn)
        setenv("MX8_ATTENTION", "own", 1);
    else
        unsetenv("MX8_ATTENTION");
    return status == MX8_OK ? backend : NULL;
}

static void close_with(void *backend) {
    cuda.exec.backend = cuda.backend;
    cuda.close(backend);
}

static void test_bf16(void **state) {
    (void)state;
    NEEDS_CUDA();
    void *backend = open_with("own", "fixed");
    assert_non_null(backend);
    cuda.exec.backend = backend;
    for (int i = 0; i < COUNT(shapes); i++) check_shape(&shapes[i], MX8_BF16);
    close_with(backend);
}

/* What cuDNN is offered and refuses is an error here, not a quiet fallback. */
static void test_cudnn(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (wants_no_cudnn()) skip();
    void *backend = open_with("cudnn", "fixed");
    if (!backend) {
        print_message("skipped, no cuDNN: %s\n", mx8_get_last_error());
        skip();
    }
    cuda.exec.backend = backend;
    for (int i = 0; i < COUNT(shapes); i++) check_shape(&shapes[i], MX8_BF16);
    close_with(backend);
}

/* A workspace that is too small for all heads at once: launches of some key heads, on two streams in turn. */
static void test_cudnn_in_parts(void **state) {
    static const struct shape large = {2, 640, 8, 4, 64, 0, 0, 0}, odd = {3, 640, 6, 3, 64, 0, 0, 8};
    (void)state;
    NEEDS_CUDA();
    if (wants_no_cudnn()) skip();
    setenv("MX8_CUDNN_WORKSPACE", "4", 1); /* MiB; two heads of 640 positions need 1.6 */
    void *backend = open_with("cudnn", "fixed");
    unsetenv("MX8_CUDNN_WORKSPACE");
    if (!backend) {
        print_message("skipped, no cuDNN: %s\n", mx8_get_last_error());
        skip();
    }
    cuda.exec.backend = backend;
    for (int i = 0; i < 5; i++) {
        check_shape(&large, MX8_BF16);
        check_shape(&odd, MX8_BF16);
    }
    close_with(backend);
}

/* cuDNN takes the description of every pass, which needs the library but no GPU. */
static void test_cudnn_graphs(void **state) {
    char why[400] = "";
    int (*check)(char *why, size_t size);
    (void)state;
    if (!cuda.library) skip();
    void *symbol = dlsym(cuda.library, "mx8_check_cudnn_graphs");
    assert_non_null(symbol);
    memcpy(&check, &symbol, sizeof check);
    const int result = check(why, sizeof why);
    if (result == 2) {
        print_message("skipped, no cuDNN: %s\n", why);
        skip();
    }
    if (result != 0) fail_msg("%s", why);
}

/* A choice that is not one is refused. */
static void test_unknown_choice(void **state) {
    (void)state;
    NEEDS_CUDA();
    assert_null(open_with("flash", "fixed"));
    assert_non_null(strstr(mx8_get_last_error(), "MX8_ATTENTION is \"flash\""));
    assert_null(open_with("auto", "some"));
    assert_non_null(strstr(mx8_get_last_error(), "MX8_ATTENTION_ORDER is \"some\""));
}

/* Nothing to do is done. */
static void test_no_tokens(void **state) {
    (void)state;
    NEEDS_CUDA();
    struct mx8_attention_job j = {.T = 0, .S = 1, .H = 1, .KV = 1, .d = 64, .dtype = MX8_BF16, .scale = 1};
    assert_ok(cuda.exec.k->attention(&cuda.exec, &j));
    assert_ok(cuda.exec.k->attention_backward(&cuda.exec, &j));
}

int main(void) {
    const struct CMUnitTest tests[] = {cuda_unit_test(test_f32), cuda_unit_test(test_bf16), cuda_unit_test(test_cudnn),
        cuda_unit_test(test_cudnn_graphs), cuda_unit_test(test_cudnn_in_parts), cuda_unit_test(test_unknown_choice),
        cuda_unit_test(test_no_tokens)};
    return cmocka_run_group_tests_name("cuda attention", tests, open_both, close_both);
}
