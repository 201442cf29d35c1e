/* A training job: what the option table says, resolved and checked. The table itself is train/option_table.c. */
#ifndef MX8_TRAIN_JOB_H
#define MX8_TRAIN_JOB_H

#include "base/options.h"
#include "model/model.h"

/* torchtitan's sections and names (research note (c)), plus mx8's own: job.device, job.threads, model.<architecture>,
 * moe.<...>, mx.scale_rule, mx.scale_group, mx.wgrad_hp, training.on_nan, debug.force_load_balance. */
extern const struct mx8_option mx8i_option_table[];
extern const int32_t mx8i_option_count;

enum mx8_on_nan { MX8_ON_NAN_STOP, MX8_ON_NAN_SKIP, MX8_ON_NAN_CONTINUE };
enum mx8_decay { MX8_DECAY_LINEAR, MX8_DECAY_SQRT, MX8_DECAY_COSINE };

struct mx8_schedule { double lr, min_lr_factor; int64_t warmup, stable, decay; enum mx8_decay type; };
struct mx8_adamw { double beta1, beta2, eps, weight_decay; };

/* Validation during training; samples of the set are read from its start each time. */
struct mx8_validation {
    int32_t enabled;
    const char *dataset, *dataset_path; /* borrowed from the options */
    int64_t batch, seq_len, freq;       /* freq: after step 1, every multiple of it, and the last step */
    int64_t steps;                      /* batches; -1: the whole set, the last batch as long as what is left */
};

/* Experiments; zero is off. */
struct mx8_job_debug {
    int64_t outlier_every, dump_step;
    double outlier_factor;
    const char *dump_folder; /* borrowed from the options */
    char dump_names[512];
};

/* What checkpoint.exclude_from_loading leaves at its start, in torchtitan's words. */
enum mx8_exclude {
    MX8_EXCLUDE_MODEL = 1,
    MX8_EXCLUDE_OPTIMIZER = 2,
    MX8_EXCLUDE_LR_SCHEDULER = 4,
    MX8_EXCLUDE_DATALOADER = 8,
    MX8_EXCLUDE_TRAIN_STATE = 16
};

struct mx8_checkpoint_options {
    const char *folder, *initial_load_path; /* folder: below the dump folder */
    int64_t interval, keep, load_step;      /* keep 0: all; load_step -1: the newest */
    size_t shard_bytes;
    int32_t enable, async, first_step, initial_model_only, last_model_only, export_dtype;
    int32_t initial_in_hf, last_in_hf;
    int32_t exclude;       /* enum mx8_exclude, added up */
    int32_t goes_on;       /* a save that fails is a warning */
};

struct mx8_job {
    struct mx8_model_config config;
    struct mx8_recipe recipe;
    struct mx8_model_options model;
    struct mx8_schedule schedule;
    struct mx8_adamw adamw;
    double max_norm;
    int64_t steps, local_batch_size, accumulation, log_freq;
    uint64_t seed;
    enum mx8_on_nan on_nan;
    const char *dataset, *dataset_path;              /* borrowed from the options */
    struct mx8_checkpoint_options checkpoint;
    const char *tensorboard_folder; /* below dump_folder; "": no events are written */
    const char *dump_folder, *description;
    int64_t dataset_bytes;                           /* most text that is read; 0: all of it */
    int64_t document_end;                            /* id of the token that ends documents; -1: as the shards say */
    int32_t shuffle, prefetch;
    struct mx8_validation validation;
    struct mx8_job_debug debug;
    /* several processes */
    struct mx8_launch launch;
    struct mx8_grid grid;
    double init_timeout, train_timeout;              /* seconds */
    int32_t log_all_ranks, save_for_all_ranks;
    const struct mx8_options *options;               /* what the job was made from: printed and written to run.json */
    int32_t print_after_conversion, print_args, compile, profile, device, threads, color, dry_run;
};

/* Checks everything that can be checked without data or memory: unsupported parallel degrees, impossible shapes, recipe
 * names, presets. Each option of torchtitan's that mx8 does not support is an error when set to anything but its
 * harmless default. `notes` receives lines the user should see ("compile.enable does nothing on the CPU"). */
enum mx8_status mx8i_resolve_job(const struct mx8_options *o, struct mx8_job *out, const struct mx8_log *notes);
/* The same for another process than this one: what `launch` says, not what the environment does. */
enum mx8_status mx8i_resolve_job_as(const struct mx8_options *o, const struct mx8_launch *launch, struct mx8_job *out,
    const struct mx8_log *notes);
/* lr multiplier rules of torchtitan; step counts from 1. */
double mx8i_get_learning_rate(const struct mx8_schedule *s, int64_t step);

#endif
