/* Several processes, seen from the loop: agreement before the first step, and one small exchange a step. */
#include "train/parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"

int64_t mx8i_count_ranks(const struct mx8_job *job) {
    return job->grid.world > 1 ? job->grid.world : 1;
}

int mx8i_is_first_rank(const struct mx8_job *job) {
    return job->grid.rank == 0;
}

enum mx8_status mx8i_resolve_parallel(
    const struct mx8_options *o, const struct mx8_launch *launch, struct mx8_job *job) {
    job->launch = *launch;
    MX8_TRY(mx8i_make_grid(job->launch.size, job->launch.rank,
        mx8i_get_int(o, "parallelism.data_parallel_replicate_degree"),
        mx8i_get_int(o, "parallelism.data_parallel_shard_degree"),
        mx8i_get_int(o, "parallelism.expert_parallel_degree"), &job->grid));
    if (job->grid.world > 1 && mx8i_get_text(o, "debug.dump_tensors")[0])
        return MX8_FAIL(MX8_UNSUPPORTED, "debug.dump_tensors: only one process can write its linears");
    job->init_timeout = (double)mx8i_get_int(o, "comm.init_timeout_seconds");
    job->train_timeout = (double)mx8i_get_int(o, "comm.train_timeout_seconds");
    job->log_all_ranks = mx8i_get_bool(o, "comm.log_all_ranks");
    job->save_for_all_ranks = mx8i_get_bool(o, "metrics.save_for_all_ranks");
    job->model.keep_gathered = !strcmp(mx8i_get_text(o, "parallelism.fsdp_reshard_after_forward"), "never");
    job->model.no_overlap = !mx8i_get_bool(o, "parallelism.fsdp_overlap");
    job->model.gather_mxfp8 = !strcmp(mx8i_get_text(o, "parallelism.fsdp_gather_dtype"), "mxfp8");
    job->model.dispatch_mxfp8 = !strcmp(mx8i_get_text(o, "parallelism.expert_parallel_dtype"), "mxfp8");
    return MX8_OK;
}

/* ---- agreement ---- */

/* What may differ from process to process. */
static int is_local(const char *key) {
    static const char *const keys[] = {"job.config_file", "job.threads", "job.dump_folder"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!strcmp(keys[i], key)) return 1;
    }
    return 0;
}

/* The first entry in which a rank differs from rank 0; -1: none. *rank: the lowest that does. */
static int64_t find_difference(const uint64_t *all, int64_t n, int32_t ranks, int32_t *rank) {
    for (int64_t i = 0; i < n; i++) {
        for (int32_t r = 1; r < ranks; r++) {
            if (all[r * n + i] == all[i]) continue;
            *rank = r;
            return i;
        }
    }
    return -1;
}

/* Every rank knows which option it is, so every rank can show both values. */
static enum mx8_status show_difference(struct mx8_comm *c, const struct mx8_options *o, int64_t option, int32_t rank) {
    enum { WIDTH = 96 };
    const char *key = o->table[option].key;
    char *texts = mx8i_allocate((size_t)c->size * WIDTH, "options of all ranks");
    if (!texts) return MX8_OUT_OF_MEMORY;
    snprintf(texts + c->rank * WIDTH, WIDTH, "%s", mx8i_get_text(o, key));
    enum mx8_status status = mx8i_gather_entries(c, texts, WIDTH);
    if (status == MX8_OK) {
        status = MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s is \"%s\" on rank 0 and \"%s\" on rank %d: every process needs the same options", key, texts,
            texts + rank * WIDTH, (int)rank);
    }
    mx8i_release(texts);
    return status;
}

static enum mx8_status check_options(struct mx8_comm *c, const struct mx8_options *o) {
    const int64_t n = o->count;
    int32_t rank = 0;
    uint64_t *all = mx8i_allocate((size_t)(c->size * n) * sizeof *all, "options of all ranks");
    if (!all) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        const char *key = o->table[i].key;
        all[c->rank * n + i] = is_local(key) ? 0 : mx8i_hash_text(mx8i_get_text(o, key));
    }
    enum mx8_status status = mx8i_gather_entries(c, all, (size_t)n * sizeof *all);
    const int64_t differs = status == MX8_OK ? find_difference(all, n, c->size, &rank) : -1;
    mx8i_release(all);
    return differs < 0 ? status : show_difference(c, o, differs, rank);
}

static uint64_t mix(uint64_t hash, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)(uint32_t)ids[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Of a few samples spread over the corpus; reading all of it would take longer than some jobs. */
static enum mx8_status hash_data(struct mx8_run *r, uint64_t *hash) {
    enum { SAMPLES = 5 };
    const int64_t S = r->job->model.seq_len, count = mx8i_count_samples(r->data);
    int32_t *ids = mx8i_allocate(2 * (size_t)S * sizeof *ids, "a sample");
    enum mx8_status status = ids ? MX8_OK : MX8_OUT_OF_MEMORY;
    *hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < SAMPLES && status == MX8_OK; i++) {
        status = mx8i_read_sample(r->data, (count - 1) / (SAMPLES - 1) * i, ids, ids + S, NULL);
        if (status == MX8_OK) *hash = mix(*hash, ids, 2 * S);
    }
    mx8i_release(ids);
    return status;
}

enum mx8_status mx8i_check_agreement(struct mx8_run *r) {
    static const char *const what[] = {"version of mx8", "number of tokens", "samples of training data"};
    enum { FACTS = sizeof what / sizeof what[0] };
    struct mx8_dist *d = r->job->model.dist;
    if (!d) return MX8_OK;
    struct mx8_comm *c = &d->host;
    MX8_TRY(check_options(c, r->job->options));
    uint64_t *all = mx8i_allocate((size_t)c->size * FACTS * sizeof *all, "facts of all ranks");
    if (!all) return MX8_OUT_OF_MEMORY;
    uint64_t *own = all + c->rank * FACTS;
    int32_t rank = 0;
    own[0] = mx8i_hash_text(mx8_get_version_text());
    own[1] = (uint64_t)mx8i_count_tokens(r->data);
    enum mx8_status status = hash_data(r, &own[2]);
    if (status == MX8_OK) status = mx8i_gather_entries(c, all, FACTS * sizeof *all);
    const int64_t differs = status == MX8_OK ? find_difference(all, FACTS, c->size, &rank) : -1;
    mx8i_release(all);
    if (differs < 0) return status;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "rank %d has another %s than rank 0 (%s)", (int)rank, what[differs],
        mx8i_describe_data(r->data));
}

/* ---- a step ---- */

struct record {
    double loss, busy;
    int64_t stop;
};

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum mx8_status find_median(const struct record *all, int32_t n, double *median) {
    double *sorted = mx8i_allocate((size_t)n * sizeof *sorted, "times of all ranks");
    if (!sorted) return MX8_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n; i++) sorted[i] = all[i].busy;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    *median = sorted[(n - 1) / 2];
    mx8i_release(sorted);
    return MX8_OK;
}

/* One slow page or disk read is no reason to end a job: a rank is suspected from its first step of more than ten times
 * the median's time on, and found far behind when there were several such steps within a few dozen, its time over all
 * of them is still ten times the median's, and it matters. */
static enum mx8_status find_straggler(struct mx8_run *r, const struct record *all, int32_t n) {
    enum { EVENTS = 3, WINDOW = 32 };
    const double factor = 10, least_seconds = 1;
    struct mx8_straggler *s = &r->straggler;
    double median = 0;
    MX8_TRY(find_median(all, n, &median));
    int32_t slowest = 0;
    for (int32_t i = 1; i < n; i++) {
        if (all[i].busy > all[slowest].busy) slowest = i;
    }
    const int32_t is_slow = all[slowest].busy > factor * median;
    if (s->steps == WINDOW || (is_slow && s->rank != slowest)) *s = (struct mx8_straggler){0};
    if (!s->steps && !is_slow) return MX8_OK;
    if (is_slow) s->rank = slowest;
    s->events += is_slow;
    s->steps++;
    s->seconds += all[s->rank].busy;
    s->median += median;
    if (s->events < EVENTS || s->seconds < least_seconds || s->seconds < factor * s->median) return MX8_OK;
    return MX8_FAIL(MX8_COMM_ERROR,
        "rank %d is far behind: over the last %d steps it took %.3f s a step, more than %g times the median rank's "
        "%.3f s",
        (int)s->rank, (int)s->steps, s->seconds / s->steps, factor, s->median / s->steps);
}

double mx8i_get_waited(const struct mx8_run *r) {
    return r->job->model.dist ? r->job->model.dist->traffic.waited : 0;
}

/* The watch is asked once a step, here, and everyone hears everyone's answer. */
static enum mx8_status share_record(struct mx8_run *r, struct mx8_step *s, double busy) {
    const struct mx8_watch *w = r->watch;
    struct mx8_comm *c = &r->job->model.dist->host;
    struct record *all = mx8i_allocate((size_t)c->size * sizeof *all, "records of all ranks");
    if (!all) return MX8_OUT_OF_MEMORY;
    all[c->rank] = (struct record){s->loss, busy, w->should_stop && w->should_stop(w->user)};
    enum mx8_status status = mx8i_gather_entries(c, all, sizeof *all);
    s->loss = 0;
    for (int32_t i = 0; i < c->size; i++) {
        s->loss += all[i].loss;
        r->stopping |= all[i].stop != 0;
    }
    if (status == MX8_OK && s->step > 1) status = find_straggler(r, all, c->size); /* the first step is never typical */
    mx8i_release(all);
    return status;
}

enum mx8_status mx8i_join_step(struct mx8_run *r, struct mx8_step *s, double began, double waited) {
    struct mx8_dist *d = r->job->model.dist;
    if (!d) return MX8_OK;
    const double busy = mx8i_get_seconds() - began - (mx8i_get_waited(r) - waited);
    MX8_TRY(mx8i_sum_gradients(r->model));
    MX8_TRY(share_record(r, s, busy));
    mx8i_set_dist_timeout(d, r->job->train_timeout);
    return mx8i_sum_expert_load(r->model);
}

enum mx8_status mx8i_join_saturated(struct mx8_run *r, struct mx8_step *s) {
    int64_t counts[2] = {s->saturated, s->wide_blocks};
    if (!r->job->model.dist) return MX8_OK;
    MX8_TRY(mx8i_sum_integers(&r->job->model.dist->host, counts, 2));
    s->saturated = counts[0];
    s->wide_blocks = counts[1];
    return MX8_OK;
}

int mx8i_should_stop(struct mx8_run *r) {
    if (r->job->model.dist) return r->stopping;
    return r->watch->should_stop && r->watch->should_stop(r->watch->user);
}
