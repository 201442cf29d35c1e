/* Open weights: Hugging Face folders (config.json, model.safetensors or its shards) and safetensors files under
 * torchtitan's names, read as the tensors of this model and written back, without a bit changed where the dtype stays.
 *
 * A family is a table: the names of its tensors, and how each lies compared with ours. The engine (hf_source.c,
 * hf_export.c) knows layouts, not families. Everything streams from maps of the files in blocks of rows. */
#ifndef MX8_MODEL_HF_H
#define MX8_MODEL_HF_H

#include <jansson.h>
#include "model/params.h"
#include "base/log.h"
#include "base/safetensors.h"

/* How a tensor of a family lies, compared with ours of N rows and K columns (per expert). */
enum mx8_hf_layout {
    MX8_HF_SAME,
    MX8_HF_HALVES,     /* rows of a head: first the even ones of ours, then the odd (RoPE by halves, not by pairs) */
    MX8_HF_TRANSPOSED, /* (E, K, N) */
    MX8_HF_GATE,       /* columns [0, N) of (E, K, 2N) */
    MX8_HF_UP          /* columns [N, 2N) of the same tensor */
};

/* Names without "layers.%d." stand outside the blocks. '#' is the expert's number: one tensor an expert. */
struct mx8_hf_rule {
    const char *ours, *theirs;
    enum mx8_hf_layout layout;
};

/* One key of a family's config.json. */
enum mx8_hf_kind {
    MX8_HF_INT,
    MX8_HF_REAL,
    MX8_HF_BOOL,   /* a field of our configuration; `otherwise` when the key is absent */
    MX8_HF_FIXED,  /* must have the value `fixed` (JSON text), absent means the same */
    MX8_HF_IDLE,   /* read over: changes nothing that is computed here */
    MX8_HF_SPECIAL /* read and written by the family's own functions */
};
struct mx8_hf_key {
    const char *key;
    enum mx8_hf_kind kind;
    size_t at;
    double otherwise; /* NaN: the key must be there */
    const char *fixed;
};

struct mx8_hf_family {
    const char *name, *architecture, *model_type;
    const struct mx8_hf_rule *rule;
    int32_t n_rules;
    const struct mx8_hf_key *key; /* ends with a NULL key */
    /* What every configuration of the family has in common; then the SPECIAL keys; `where` begins messages. */
    struct mx8_model_config base;
    enum mx8_status (*read)(const char *where, const json_t *object, struct mx8_model_config *c);
    int (*write)(json_t *object, const struct mx8_model_config *c); /* 0 when all went well */
};

extern const struct mx8_hf_family *const mx8i_hf_families[];
const struct mx8_hf_family *mx8i_find_hf_family(const char *name); /* by name or architecture; NULL */
const char *mx8i_list_hf_families(void);
/* The first family whose config.json can say what the configuration is; UNSUPPORTED when there is none. */
enum mx8_status mx8i_guess_hf_family(const struct mx8_model_config *c, const struct mx8_hf_family **out);

/* The rule of one of our tensors, NULL when the family has none. *layer is -1 outside the blocks. */
const struct mx8_hf_rule *mx8i_find_hf_rule(const struct mx8_hf_family *f, const char *ours, int64_t *layer);
/* Their name of it. */
void mx8i_format_hf_name(const struct mx8_hf_rule *rule, int64_t layer, int64_t expert, char name[128]);

/* What a config.json says. idle: the keys that change nothing here (token ids, longest sequence, ...), as JSON, so that
 * they can be written again; release it. prefix: before the names of all tensors. */
struct mx8_hf_config {
    const struct mx8_hf_family *family;
    struct mx8_model_config config;
    char *idle;
    const char *prefix;
};
/* UNSUPPORTED names the key that asks for what mx8 has not. */
enum mx8_status mx8i_read_hf_config(const char *where, const char *text, struct mx8_hf_config *out);
/* Fails when the family cannot say what the configuration asks for. dtype: of the weights beside it; idle may be NULL.
 * Release *text. */
enum mx8_status mx8i_write_hf_config(
    const struct mx8_hf_family *f, const struct mx8_model_config *c, int32_t dtype, const char *idle, char **text);

/* UNSUPPORTED when the two compute differently: names the field. What matters to training alone is not compared. */
enum mx8_status mx8i_compare_configs(
    const char *where, const struct mx8_model_config *a, const struct mx8_model_config *b);

/* ---- reading ---- */

/* Tensors under torchtitan's names that come from elsewhere: elements [from, from + n) as F32 or BF16. */
struct mx8_weights_reader {
    enum mx8_status (*read)(void *user, const char *name, int64_t from, int64_t n, int32_t dtype, void *out);
    int (*has)(void *user, const char *name);
    void (*close)(void *user); /* may be NULL */
    void *user;
    int32_t dtype; /* as stored */
};

struct mx8_weights {
    char *path;
    const struct mx8_hf_family *family; /* NULL: torchtitan's names */
    struct mx8_model_config config;
    struct mx8_param_table params;
    struct mx8_safetensors *file;
    int64_t n_files;
    const struct mx8_st_entry **sorted; /* by name */
    int64_t n_entries;
    const char *prefix;               /* before every name of the family ("language_model.") */
    struct mx8_weights_reader reader; /* reader.read NULL: the files above */
    char *idle;                       /* of struct mx8_hf_config; NULL: none */
};

/* Opens a folder of the kinds above, or a file, and checks every tensor: all that is missing, misshapen, of a strange
 * dtype or left over is named in one error. `config` is the architecture for files that do not tell it (NULL: none). */
enum mx8_status mx8i_open_weights(const char *path, const struct mx8_model_config *config, struct mx8_weights *out);
/* Weights of a reader, which must have every tensor of the configuration. Closes the reader when it fails. */
enum mx8_status mx8i_wrap_weights(const char *path, const struct mx8_model_config *config,
    const struct mx8_weights_reader *reader, struct mx8_weights *out);
void mx8i_close_weights(struct mx8_weights *s);
/* The architecture that a path tells about itself; UNSUPPORTED when it tells none. */
enum mx8_status mx8i_read_weights_config(const char *path, struct mx8_model_config *out);
/* Dtype of the weights as stored: BF16 when every tensor is, else F32. */
int32_t mx8i_get_weights_dtype(const struct mx8_weights *s);
/* Elements [from, from + n) of one of our tensors, as dtype (F32 or BF16): bits are copied where the dtypes agree. */
enum mx8_status mx8i_read_weights(
    const struct mx8_weights *s, const struct mx8_param *p, int64_t from, int64_t n, int32_t dtype, void *out);
/* An expert bias; *found 0 when the file has none. */
enum mx8_status mx8i_read_weights_bias(
    const struct mx8_weights *s, const struct mx8_buffer *b, float *out, int32_t *found);

/* Rows [r0, r1) x columns [c0, c1) of our matrix `expert` of p, or of its transpose, to out with row stride ls. halves:
 * rows are counted as MX8_HF_HALVES lays them. */
struct mx8_window {
    int64_t expert, r0, r1, c0, c1;
    int32_t transposed, halves;
};
enum mx8_status mx8i_read_window(const struct mx8_weights *s, const struct mx8_param *p, const struct mx8_window *w,
    int32_t dtype, void *out, int64_t ls);

/* ---- writing ---- */

struct mx8_export_options {
    const struct mx8_hf_family *family; /* NULL: torchtitan's names */
    int32_t dtype;                      /* F32 or BF16 */
    size_t shard_bytes;                 /* most bytes of a file; 0: 5 GB */
    int32_t drop_expert_bias;           /* write a family that has no place for it all the same */
    const struct mx8_recipe *mxfp8;     /* torchtitan's names: weights that the recipe converts as codes and scales */
    struct mx8_context *ctx;            /* that quantizes them */
};
/* Writes a new folder (or fills an empty one): config.json or the architecture in the metadata, and the weights. */
enum mx8_status mx8i_export_weights(
    const struct mx8_weights *s, const char *folder, const struct mx8_export_options *o, const struct mx8_log *log);

#endif
