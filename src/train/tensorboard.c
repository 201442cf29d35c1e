#include "train/tensorboard.h"
#include <math.h>
#include <string.h>
#include <time.h>
#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/memory.h"

#define GIB 1073741824.0

/* The newest of a run's folders, which are named by time; *name NULL when there is none. */
static enum mx8_status find_newest(const char *folder, char **name) {
    char **names;
    int64_t count;
    *name = NULL;
    if (!mx8i_is_folder(folder)) return MX8_OK;
    MX8_TRY(mx8i_list_folder(folder, &names, &count));
    enum mx8_status status = MX8_OK;
    for (int64_t i = count - 1; i >= 0 && status == MX8_OK && !*name; i--) {
        char *path = mx8i_format_text("%s/%s", folder, names[i]);
        if (!path)
            status = MX8_OUT_OF_MEMORY;
        else if (mx8i_is_folder(path))
            *name = path;
        else
            mx8i_release(path);
    }
    mx8i_release_list(names, count);
    return status;
}

static char *make_new_name(const char *folder) {
    time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M", &local);
    return mx8i_format_text("%s/%s", folder, stamp);
}

enum mx8_status mx8i_open_board(const struct mx8_job *job, int64_t step, double peak_flops, struct mx8_board *out) {
    *out = (struct mx8_board){.job = job,
        .flops_per_token = mx8i_count_model(&job->config, job->model.seq_len).flops_per_token,
        .peak_flops = peak_flops};
    char *all = mx8i_format_text("%s/%s", job->dump_folder, job->tensorboard_folder), *folder = NULL;
    enum mx8_status status = all ? MX8_OK : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK && step > 0) status = find_newest(all, &folder);
    if (status == MX8_OK && !folder && !(folder = make_new_name(all))) status = MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = mx8i_open_events(folder, step > 0 ? step + 1 : 0, &out->events);
    mx8i_release(folder);
    mx8i_release(all);
    return status;
}

void mx8i_close_board(struct mx8_board *b) {
    mx8i_close_events(&b->events);
}

/* One process with one arena: what is reserved is what is active, and an allocation is never tried again. */
static int list_scalars(const struct mx8_board *b, const struct mx8_step *s, int64_t capacity, struct mx8_scalar *out) {
    double seconds = fmax(b->seconds, 1e-9), tps = (double)b->tokens / seconds;
    double gib = (double)s->memory / GIB,
           share = capacity > 0 ? 100 * (double)s->memory / (double)capacity : (double)NAN;
    const struct mx8_scalar all[] = {
        {"loss_metrics/global_avg_loss", s->loss},
        {"loss_metrics/global_max_loss", s->loss},
        {"grad_norm", s->grad_norm},
        {"throughput(tps)", tps},
        {"tflops", tps * b->flops_per_token / 1e12},
        {"mfu(%)", b->peak_flops > 0 ? 100 * tps * b->flops_per_token / b->peak_flops : (double)NAN},
        {"time_metrics/end_to_end(s)", seconds / (double)b->steps},
        {"time_metrics/data_loading(s)", b->data_seconds / (double)b->steps},
        {"time_metrics/data_loading(%)", 100 * b->data_seconds / seconds},
        {"memory/max_active(GiB)", gib},
        {"memory/max_active(%)", share},
        {"memory/max_reserved(GiB)", gib},
        {"memory/max_reserved(%)", share},
        {"memory/num_alloc_retries", 0},
        {"memory/num_ooms", 0},
        {"n_tokens_seen", (double)s->tokens},
        {"lr", s->lr},
        {"mx8/saturated", (double)s->saturated},
        {"mx8/wide_blocks", (double)s->wide_blocks},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const int is_share = strncmp(all[i].tag, "memory/max", 10) == 0 && strchr(all[i].tag, '%');
        if (is_share && capacity <= 0) continue;
        if (!strcmp(all[i].tag, "mx8/wide_blocks") && !b->job->model.count_gaps) continue;
        if (!strcmp(all[i].tag, "mfu(%)") && b->peak_flops <= 0) continue;
        out[n++] = all[i];
    }
    return n;
}

static enum mx8_status write_validation(struct mx8_board *b, const struct mx8_step *s) {
    const struct mx8_scalar scalars[] = {
        {"validation_metrics/loss", s->validation_loss},
        {"validation_metrics/throughput(tps)", (double)s->validation_tokens / fmax(s->validation_seconds, 1e-9)},
        {"validation_metrics/memory/max_active(GiB)", (double)s->memory / GIB},
    };
    return mx8i_write_events(&b->events, s->step, scalars, 3);
}

enum mx8_status mx8i_write_board(struct mx8_board *b, const struct mx8_step *s, int64_t capacity) {
    struct mx8_scalar scalars[32];
    b->seconds += s->seconds;
    b->data_seconds += s->data_seconds;
    b->tokens += b->job->local_batch_size * b->job->accumulation * b->job->model.seq_len;
    b->steps++;
    if (s->validated) MX8_TRY(write_validation(b, s));
    if (s->step != 1 && s->step % b->job->log_freq != 0) return MX8_OK;
    MX8_TRY(mx8i_write_events(&b->events, s->step, scalars, list_scalars(b, s, capacity, scalars)));
    b->seconds = b->data_seconds = 0;
    b->tokens = b->steps = 0;
    return MX8_OK;
}
