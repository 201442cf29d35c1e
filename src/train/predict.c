/* The model behind mx8 plan. docs/distributed.md has the same formulas in words.
 *
 * products: 2 operations a weight and token forward, 4 backward, 2 more where a layer runs again; converted tensors at
 * the MXFP8 rate, the others at bf16's.
 *
 * elements: about 50 passes over (tokens, dim) bf16 values forward and 100 backward in each layer, 50 more where they
 * are made again.
 *
 * weights: each gathered weight is read once (2 bytes) and its codes are written in two orientations (2.06 bytes);
 * gathered as codes, those are copied once.
 *
 * gather, reduce: bytes that arrive over the group's bandwidth, and one latency a unit; hidden behind computing but for
 * the first unit's gather and the last unit's reduction.
 *
 * dispatch: four exchanges a MoE layer, six where it runs again; nothing hides them.
 *
 * sum: over the replicas, once a step; nothing hides it.
 */
#include "train/predict.h"
#include <math.h>
#include <string.h>

/* Products: what bench/run_h200 reaches at 65,536 tokens (bf16 0.70 of 989 TFLOP/s, MXFP8 0.6 of 1,979); B200 by the
 * ratio of the data sheets' peaks (2.25 and 4.5 PFLOP/s dense). NVLink and network: 0.8 of the data sheet's rate in one
 * direction, with one 400 Gb/s card a GPU. */
#define GIB 1073741824.0
static const struct mx8_gpu gpus[] = {
    /* name    memory   peak      bf16      mxfp8     attention hbm       nvlink   network latency per machine */
    {"h200", 139.8 * GIB, 989e12, 690e12, 1180e12, 450e12, 3.9e12, 360e9, 40e9, 30e-6, 8},
    {"b200", 178.0 * GIB, 2250e12, 1570e12, 2680e12, 1000e12, 6.5e12, 720e9, 40e9, 30e-6, 8},
};

const struct mx8_gpu *mx8i_find_gpu(const char *name) {
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (!strcmp(gpus[i].name, name)) return &gpus[i];
    }
    return NULL;
}

double mx8i_get_group_bandwidth(const struct mx8_gpu *gpu, int32_t size, int32_t together) {
    if (size <= 1) return HUGE_VAL;
    if (together >= size) return gpu->nvlink;
    /* rings through all machines: the cards of the group's GPUs in a machine carry everything between them */
    const double cards = together * gpu->network;
    return cards < gpu->nvlink ? cards : gpu->nvlink;
}

/* Ranks of a group that share a machine, when ranks fill machines in order. */
static int32_t count_together(const struct mx8_gpu *gpu, int32_t size, int32_t stride) {
    int32_t together = gpu->per_machine / stride;
    if (together < 1) together = 1;
    return together < size ? together : size;
}

static int32_t count_recomputed(const struct mx8_job *job, int64_t *moe) {
    int32_t layers = 0;
    *moe = 0;
    for (int64_t i = 0; i < job->config.n_layers; i++) {
        const int again = job->model.ac_mode == MX8_AC_FULL ||
                          (job->model.ac_mode == MX8_AC_EVERY_N && (i + 1) % job->model.ac_every == 0);
        layers += again;
        *moe += again && mx8i_is_moe_layer(&job->config, i);
    }
    return layers;
}

static void predict_computing(const struct mx8_job *job, const struct mx8_model *m, const struct mx8_gpu *gpu,
    double *again, struct mx8_prediction *p) {
    const struct mx8_model_config *c = &job->config;
    const struct mx8_param_table *t = mx8i_get_params(m);
    const double T = (double)job->model.batch * (double)job->model.seq_len;
    const double all = mx8i_count_model(c, job->model.seq_len).flops_per_token * T;
    int64_t moe;
    *again = (double)count_recomputed(job, &moe) / (double)c->n_layers;
    double share = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *w = &t->param[i];
        const double repeat = w->layer >= 0 ? 1 + *again / 3 : 1;
        share += w->flops_share;
        p->products += all * w->flops_share * repeat / (w->mxfp8 ? gpu->mxfp8 : gpu->bf16);
    }
    /* 12 L H d S counts every pair of positions; a causal mask leaves half of them */
    p->attention = all * (1 - share) / 2 * (1 + *again / 3) / gpu->attention;
    const double remade = job->model.ac_mode == MX8_AC_OPS ? 1 : *again;
    p->elements = (double)c->n_layers * T * (double)c->dim * 2 * (150 + 50 * remade) / gpu->hbm;
}

/* Converted weights that a gather brings here. */
static double count_converted(const struct mx8_param_table *t, int64_t experts_here, int64_t experts) {
    double weights = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *w = &t->param[i];
        const double held = w->kind == MX8_PARAM_EXPERT ? (double)experts_here / (double)experts : 1;
        if (w->mxfp8) weights += (double)w->count * held;
    }
    return weights;
}

/* Bytes that weights cost in memory in a microbatch: read and quantized in both orientations wherever they were
 * gathered; or codes of one orientation a pass, of both where a layer runs again, that arrive and are moved to their
 * places (the own share is quantized, too). */
static double count_weight_bytes(const struct mx8_job *job, const struct mx8_param_table *t, double again) {
    const int64_t E = job->config.num_experts;
    const double weights = count_converted(t, E / job->grid.expert, E), codes = 1.03;
    const int32_t sharded = job->grid.world > 1, gathers = sharded && !job->model.keep_gathered ? 2 : 1;
    if (!sharded || !job->model.gather_mxfp8) return gathers * weights * (2 + 2 * codes);
    const double orientations = 2 + (job->model.keep_gathered ? 0 : again);
    const double own = count_converted(t, E, E) / job->grid.shard;
    return weights * 2 * codes * orientations + own * (2 * gathers + codes * orientations);
}

static void predict_traffic(const struct mx8_job *job, const struct mx8_model *m, const struct mx8_gpu *gpu,
    double again, struct mx8_prediction *p) {
    const struct mx8_grid *g = &job->grid;
    const struct mx8_traffic_plan *t = mx8i_get_traffic_plan(m);
    const double shards = mx8i_get_group_bandwidth(gpu, g->shard, count_together(gpu, g->shard, 1));
    const double replicas = mx8i_get_group_bandwidth(gpu, g->replicate, count_together(gpu, g->replicate, g->shard));
    const double units = (double)job->config.n_layers + 2, gathers = job->model.keep_gathered ? units : 2 * units;
    if (g->shard > 1) {
        p->gather = (double)t->gathered / shards + gathers * gpu->latency;
        p->reduce = (double)t->reduced / shards + units * gpu->latency;
    }
    if (g->replicate > 1) p->sum = (double)t->summed / replicas + gpu->latency;
    if (g->expert > 1) {
        const int32_t together = count_together(gpu, g->expert, 1);
        const double outside = (double)(g->expert - together) / (double)(g->expert - 1);
        const double slow = outside / gpu->network, fast = (1 - outside) / gpu->nvlink;
        const double exchanges = (double)mx8i_count_moe_layers(m) * (4 + 2 * again);
        p->dispatch = (double)t->dispatched * (slow > fast ? slow : fast) + exchanges * gpu->latency;
    }
}

void mx8i_predict_step(
    const struct mx8_job *job, const struct mx8_model *m, const struct mx8_gpu *gpu, struct mx8_prediction *p) {
    const struct mx8_traffic_plan *t = mx8i_get_traffic_plan(m);
    const struct mx8_param_table *table = mx8i_get_params(m);
    const double microbatches = (double)job->accumulation, units = (double)job->config.n_layers + 2;
    double again = 0;
    *p = (struct mx8_prediction){0};
    predict_computing(job, m, gpu, &again, p);
    predict_traffic(job, m, gpu, again, p);
    p->weights = count_weight_bytes(job, table, again) / gpu->hbm;
    /* reads master and gradient, writes master and bf16 copy: 14 bytes; reads and writes two moments */
    const double moments = 4 * (double)mx8_get_dtype_size(job->model.moment_dtype);
    p->optimizer = (double)table->elements * (14 + moments) / gpu->hbm;
    const double computing = p->products + p->attention + p->elements + p->weights;
    const double moving = p->gather + p->reduce, first = moving / units;
    p->hidden = job->model.no_overlap ? 0 : moving - first < computing ? moving - first : computing;
    double repeated = computing + p->dispatch + moving - p->hidden;
    p->step = microbatches * repeated + p->optimizer + p->sum;
    const double T = (double)job->model.batch * (double)job->model.seq_len * microbatches;
    p->tokens_per_second = T / p->step;
    p->mfu = p->tokens_per_second * mx8i_count_model(&job->config, job->model.seq_len).flops_per_token / gpu->peak_bf16;
    p->bytes = microbatches * (double)(t->gathered + t->reduced + t->dispatched) + (double)t->summed;
    p->fits = (double)mx8i_get_memory_plan(m, NULL)->total <= 0.95 * gpu->memory; /* CUDA and NCCL keep some */
}
