/* MX8_AC_OPS: the operands of weight gradients are not kept by forward but made again by backward, with the same bits. */
#include "model/internal.h"
#include "base/error.h"

static int32_t remakes(const struct mx8_model *m) {
    return m->options.ac_mode == MX8_AC_OPS;
}

int32_t mx8i_keeps_forms(const struct mx8_model *m) {
    return m->keep && !remakes(m);
}

struct mx8_need mx8i_find_backward_need(const struct mx8_model *m, int32_t count, const struct mx8_param *const *p) {
    struct mx8_need need = mx8i_find_need(m, remakes(m), count, p);
    need.row = 0;
    return need;
}

struct mx8_tensor mx8i_take_remade(struct mx8_model *m, struct mx8_need need, struct mx8_tensor spare) {
    if (!need.hp) return spare;
    return mx8i_take(&m->scratch, spare.dtype, spare.ndim, spare.shape);
}

/* The counter of clipped values, taken away while values are made again. */
static int64_t *swap_counter(struct mx8_model *m, int64_t *counter) {
    if (!m->ctx) return NULL;
    int64_t *old = m->ctx->saturated;
    m->ctx->saturated = counter;
    return old;
}

enum mx8_status mx8i_remake_codes(
    struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor offsets) {
    if (!remakes(m)) return MX8_OK;
    int64_t *counter = swap_counter(m, NULL);
    enum mx8_status status = mx8i_quantize_forms(m, f, need, offsets, &m->scratch, 0);
    swap_counter(m, counter);
    return status;
}

enum mx8_status mx8i_remake_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    const struct mx8_maker *maker, struct mx8_tensor offsets) {
    if (!remakes(m)) return MX8_OK;
    int64_t *counter = swap_counter(m, NULL);
    enum mx8_status status = mx8i_make_forms(m, f, need, maker, offsets, &m->scratch);
    swap_counter(m, counter);
    return status;
}

enum mx8_status mx8i_remake_norm(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor x,
    struct mx8_tensor rstd, const struct mx8_param *p) {
    if (!remakes(m)) return MX8_OK;
    *f = (struct mx8_forms){.hp = mx8i_take(&m->scratch, x.dtype, x.ndim, x.shape)};
    MX8_TRY(mx8i_run_norm(m, f->hp, rstd, MX8_ABSENT, x, MX8_ABSENT, p));
    return mx8i_remake_codes(m, f, need, MX8_ABSENT);
}
