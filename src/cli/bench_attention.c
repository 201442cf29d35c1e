/* attention and lm_head_loss: the two whose results depend on whole sequences or vocabularies. */
#include <math.h>
#include "base/error.h"
#include "cli/bench.h"

#define SAMPLES 32

static int64_t pick(struct mx8_bench *b, int64_t size) {
    return (int64_t)(mx8i_draw(&b->seed) % (uint64_t)size);
}

/* ---- attention BxSxHxKVxd ---- */

enum { B, S, H, KV, d };

enum mx8_status mx8i_build_attention(struct mx8_bench *b) {
    int64_t T = b->dim[B] * b->dim[S], q[] = {T, b->dim[H] * b->dim[d]}, kv[] = {T, b->dim[KV] * b->dim[d]};
    b->forward.options.n_heads = (int32_t)b->dim[H];
    b->forward.options.n_kv_heads = (int32_t)b->dim[KV];
    b->forward.options.seq_len = b->dim[S];
    b->forward.n_in = 4; /* no document ids */
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, q));
    MX8_TRY(mx8i_make_input(b, &b->forward.in[1], b->dtype, 1, 2, kv));
    return mx8i_make_input(b, &b->forward.in[2], b->dtype, 1, 2, kv);
}

enum mx8_status mx8i_build_attention_backward(struct mx8_bench *b) {
    b->call.n_in = 7;
    for (int i = 0; i < 3; i++) b->call.in[i + 1] = b->forward.in[i];
    b->call.in[4] = b->forward.out[0];
    b->call.in[5] = b->forward.out[1];
    return mx8i_make_input(b, &b->call.in[0], b->dtype, 1, 2, b->forward.out[0].shape);
}

/* Multiplications that the mask leaves: two products forward, five backward. */
double mx8i_count_attention_flops(const struct mx8_bench *b) {
    double pairs = (double)b->dim[S] * (double)(b->dim[S] + 1) / 2 * (double)b->dim[B] * (double)b->dim[H];
    return (b->backward ? 10 : 4) * pairs * (double)b->dim[d];
}

static double dot(const struct mx8_tensor *x, int64_t x_at, const struct mx8_tensor *y, int64_t y_at, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += mx8i_read_element(x, x_at + i) * mx8i_read_element(y, y_at + i);
    return sum;
}

/* Softmax of query (t, h) over its keys into p; returns how many keys there are. */
static int64_t weigh_keys(const struct mx8_bench *b, int64_t t, int64_t h, double *p) {
    int64_t start = t / b->dim[S] * b->dim[S], n = t - start + 1, kv = h / (b->dim[H] / b->dim[KV]);
    double scale = 1 / sqrt((double)b->dim[d]), most = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = scale * dot(&b->forward.in[0], (t * b->dim[H] + h) * b->dim[d], &b->forward.in[1],
                           ((start + j) * b->dim[KV] + kv) * b->dim[d], b->dim[d]);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return n;
}

/* out[i] = sum of p[j] x[j][i], against element i of head h of row t. Probabilities and their gradients may be rounded
 * to the operands' dtype before the second product, which `rounding` allows for. */
static void compare_head(struct mx8_check *check, const struct mx8_bench *b, const struct mx8_tensor *got, int64_t at,
    const double *p, int64_t n, const struct mx8_tensor *x, int64_t x_at, double floor) {
    int64_t stride = b->dim[KV] * b->dim[d];
    for (int64_t i = 0; i < b->dim[d]; i++) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < n; j++) {
            double product = p[j] * mx8i_read_element(x, x_at + j * stride + i);
            sum += product;
            magnitude += fabs(product);
        }
        double rounding = mx8i_get_rounding(b->dtype);
        mx8i_compare_value(check, mx8i_read_element(got, at + i), sum,
            rounding * (fabs(sum) + magnitude + floor) + 0x1p-16 * (magnitude + floor) + 1e-30);
    }
}

enum mx8_status mx8i_check_attention(struct mx8_bench *b, struct mx8_check *out) {
    int64_t T = b->dim[B] * b->dim[S], width = b->dim[d];
    double *p = mx8i_take_block(b, (size_t)b->dim[S] * sizeof *p);
    if (!p) return MX8_OUT_OF_MEMORY;
    out->against = b->backward ? "sampled rows of dq in double" : "sampled rows in double";
    for (int64_t s = 0; s < SAMPLES && T > 0; s++) {
        int64_t t = pick(b, T), h = pick(b, b->dim[H]), kv = h / (b->dim[H] / b->dim[KV]);
        int64_t head = (t * b->dim[H] + h) * width, first = (t / b->dim[S] * b->dim[S] * b->dim[KV] + kv) * width;
        int64_t n = weigh_keys(b, t, h, p);
        if (!b->backward) {
            compare_head(out, b, &b->call.out[0], head, p, n, &b->forward.in[2], first, 0);
            continue;
        }
        double inner = 0, slack = 0;
        for (int64_t j = 0; j < n; j++) {
            double dp = dot(&b->call.in[0], head, &b->forward.in[2], first + j * b->dim[KV] * width, width);
            inner += p[j] * dp;
            slack += p[j] * fabs(dp);
        }
        for (int64_t j = 0; j < n; j++) {
            double dp = dot(&b->call.in[0], head, &b->forward.in[2], first + j * b->dim[KV] * width, width);
            p[j] *= (dp - inner) / sqrt((double)width);
        }
        compare_head(out, b, &b->call.out[0], head, p, n, &b->forward.in[1], first, slack / sqrt((double)width));
    }
    return MX8_OK;
}

/* ---- lm_head_loss TxDxV ---- */

enum mx8_status mx8i_build_loss(struct mx8_bench *b) {
    int64_t w[] = {b->dim[2], b->dim[1]};
    b->forward.n_in = 5;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim));
    MX8_TRY(mx8i_make_input(b, &b->forward.in[1], b->dtype, 0.05, 2, w));
    return mx8i_make_integers(b, &b->forward.in[2], b->dim[2], 1, b->dim);
}

enum mx8_status mx8i_build_loss_backward(struct mx8_bench *b) {
    b->call.n_in = 7;
    for (int i = 0; i < 3; i++) b->call.in[i] = b->forward.in[i];
    return MX8_OK;
}

double mx8i_count_loss_flops(const struct mx8_bench *b) {
    return (b->backward ? 6.0 : 2.0) * (double)b->dim[0] * (double)b->dim[1] * (double)b->dim[2];
}

/* Once more with targets on a few rows only, whose loss is quick to work out. Logits are rounded to the dtype of h. */
enum mx8_status mx8i_check_loss(struct mx8_bench *b, struct mx8_check *out) {
    int32_t *target = b->call.in[2].data;
    int64_t T = b->dim[0], D = b->dim[1], V = b->dim[2], step = T / SAMPLES > 0 ? T / SAMPLES : 1;
    double *logits = mx8i_take_block(b, (size_t)V * sizeof *logits), loss = 0, most_logit = 1;
    int64_t rows = 0;
    if (!logits) return MX8_OUT_OF_MEMORY;
    for (int64_t t = 0; t < T; t++) {
        double most = -(double)INFINITY, sum = 0;
        if (t % step != 0) {
            target[t] = -1;
            continue;
        }
        for (int64_t v = 0; v < V; v++) {
            logits[v] = dot(&b->call.in[0], t * D, &b->call.in[1], v * D, D);
            most = fmax(most, logits[v]);
            most_logit = fmax(most_logit, fabs(logits[v]));
        }
        for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - most);
        loss += log(sum) + most - logits[target[t]];
        rows++;
    }
    MX8_TRY(mx8i_run_pass(b));
    out->against = "the loss of sampled rows in double";
    mx8i_compare_value(out, *(const double *)b->call.out[0].data, loss / (double)T,
        (2 * mx8i_get_rounding(b->dtype) + 0x1p-18) * most_logit * (double)rows / (double)T + 1e-30);
    return MX8_OK;
}
