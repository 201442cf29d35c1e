/* Quantizes two matrices to MXFP8 and multiplies them: y = x w^T, each block of 32 along k with one power-of-two scale.
 *
 *     cc quantize_multiply.c $(pkg-config --cflags --libs mx8) -lm -o quantize_multiply */
#include <math.h>
#include <mx8/mx8.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 64, N = 48, K = 256 };

static float x[M * K], w[N * K], y[M * N];
static uint8_t x_codes[M * K], x_scales[M * K / MX8_BLOCK], w_codes[N * K], w_scales[N * K / MX8_BLOCK];

static void check(enum mx8_status status) {
    if (status == MX8_OK) return;
    fprintf(stderr, "%s: %s\n", mx8_get_status_name(status), mx8_get_last_error());
    exit(1);
}

static struct mx8_tensor view(void *data, int32_t dtype, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns};
    return mx8_make_tensor(data, dtype, 2, shape);
}

/* Any numbers will do. */
static void fill(float *values, int n, unsigned seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
}

int main(void) {
    struct mx8_context *ctx;
    check(mx8_create_context(NULL, &ctx));
    fill(x, M * K, 1);
    fill(w, N * K, 2);

    /* One scale byte for 32 codes along k; NULL options: e4m3 codes, scales so that nothing saturates. */
    struct mx8_tensor tx = view(x, MX8_F32, M, K), tw = view(w, MX8_F32, N, K);
    struct mx8_tensor xq = view(x_codes, MX8_F8_E4M3, M, K), xs = view(x_scales, MX8_F8_E8M0, M, K / MX8_BLOCK);
    struct mx8_tensor wq = view(w_codes, MX8_F8_E4M3, N, K), ws = view(w_scales, MX8_F8_E8M0, N, K / MX8_BLOCK);
    check(mx8_quantize_rows(ctx, &xq, &xs, &tx, NULL));
    check(mx8_quantize_rows(ctx, &wq, &ws, &tw, NULL));

    /* The operator `linear` (x, w, bias, codes of x, scales of x, codes of w, scales of w) takes codes in place of x
     * and w; what is absent stays zeroed. */
    const struct mx8_op *linear = mx8_find_op("linear");
    struct mx8_op_call call = {.in = {[3] = xq, [4] = xs, [5] = wq, [6] = ws},
        .n_in = 7,
        .options = {.precision = MX8_PRECISION_MXFP8, .out_dtype = 1 + MX8_F32}};
    check(mx8_infer_op(linear, 0, &call)); /* fills out[0]'s shape and workspace_size */
    call.out[0].data = y;
    call.workspace = call.workspace_size ? aligned_alloc(64, (call.workspace_size + 63) / 64 * 64) : NULL;
    check(mx8_run_op(ctx, linear, 0, &call));

    double error = 0, size = 0;
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            double exact = 0;
            for (int k = 0; k < K; k++) exact += (double)x[m * K + k] * (double)w[n * K + k];
            double off = (double)y[m * N + n] - exact;
            error += off * off;
            size += exact * exact;
        }
    }
    printf("%d x %d x %d in MXFP8 on %s: 8.25 bits a value, relative error %.2f %%\n", M, N, K,
        mx8_get_backend_name(ctx), 100 * sqrt(error / size));
    free(call.workspace);
    mx8_destroy_context(ctx);
    return error < 0.06 * 0.06 * size ? 0 : 1;
}
