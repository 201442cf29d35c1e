/* Weights from one set of names and layouts to another. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/token_tools.h"
#include "cli/weight_tools.h"
#include "train/open_weights.h"
#include "train/resolve.h"

static const char usage[] =
    "usage: mx8 convert IN OUT --to hf|torchtitan|mxfp8 [--architecture NAME] [--dtype f32|bf16]\n\n"
    "IN is a Hugging Face folder (config.json and model.safetensors or its shards), a checkpoint of mx8 train "
    "(step-N),\n"
    "or a safetensors file under torchtitan's names. OUT is a new folder. Nothing is computed: where "
    "the\n"
    "dtype stays, so does every bit. Memory stays small whatever the model's size.\n\n"
    "  --to hf          config.json and weights as `transformers` reads them\n"
    "  --to torchtitan  model.safetensors under torchtitan's names, its architecture in the metadata\n"
    "  --to mxfp8       the same with linears and experts as codes (NAME) and scales (NAME.scale), as `mx8 quantize\n"
    "                   --axis rows` stores them; IN may be such a folder too, and is dequantized\n\n"
    "Files that do not say what architecture they hold need --model.flavor and what else differs from it.\n";

static const struct mx8_option own[] = {
    {"to", MX8_OPT_CHOICE, "torchtitan", "hf|torchtitan|mxfp8", 0, 0, "names and layouts to write", NULL},
    {"architecture", MX8_OPT_CHOICE, "auto", "auto|llama4|qwen3_moe|olmoe|mixtral", 0, 0,
        "of --to hf; auto: that of IN, else the first that can hold the model", NULL},
    {"dtype", MX8_OPT_CHOICE, "keep", "keep|f32|bf16", 0, 0, "of the weights; keep: f32 if any weight of IN is", NULL},
    {"shard_mb", MX8_OPT_INT, "5000", NULL, 1, 1e9, "most megabytes of one file", NULL},
    {"drop_expert_bias", MX8_OPT_BOOL, "false", NULL, 0, 0, "go on where OUT has no place for an expert bias", NULL},
    {"filter_fqns", MX8_OPT_LIST, "output,router.gate", NULL, 0, 0,
        "mxfp8: linears whose name contains one of these keep their dtype", NULL},
    {"scale_rule", MX8_OPT_CHOICE, "rceil", "rceil|floor|ceil|even", 0, 0, "mxfp8: how a scale follows from its block",
        NULL},
};
enum { OWN_COUNT = sizeof own / sizeof own[0] };

/* What goes with the weights and is not about them. */
static const char *const companions[] = {"tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "generation_config.json"};

static enum mx8_status copy_file(const char *from, const char *to) {
    char *data;
    size_t size;
    MX8_TRY(mx8i_read_file(from, (size_t)1 << 30, &data, &size));
    enum mx8_status status = mx8i_write_file(to, data, size);
    mx8i_release(data);
    return status;
}

static enum mx8_status copy_companions(const char *from, const char *to, const struct mx8_log *log) {
    for (size_t i = 0; i < sizeof companions / sizeof companions[0] && mx8i_is_folder(from); i++) {
        char *in = mx8i_format_text("%s/%s", from, companions[i]), *out = mx8i_format_text("%s/%s", to, companions[i]);
        enum mx8_status status = in && out ? MX8_OK : MX8_OUT_OF_MEMORY;
        if (status == MX8_OK && mx8i_is_file(in)) {
            status = copy_file(in, out);
            if (status == MX8_OK) mx8i_log(log, "%s: copied", out);
        }
        mx8i_release(in);
        mx8i_release(out);
        MX8_TRY(status);
    }
    return MX8_OK;
}

/* The family that was asked for, that of the input, or the first whose config.json can say what the model is. */
static enum mx8_status find_family(
    const struct mx8_options *o, const struct mx8_weights *s, const struct mx8_hf_family **out) {
    const char *name = mx8i_get_text(o, "architecture");
    *out = strcmp(name, "auto") ? mx8i_find_hf_family(name) : s->family;
    return *out ? MX8_OK : mx8i_guess_hf_family(&s->config, out);
}

static enum mx8_status convert_source(
    const struct mx8_options *o, const struct mx8_weights *s, const char *out, const struct mx8_log *log) {
    const char *to = mx8i_get_text(o, "to"), *dtype = mx8i_get_text(o, "dtype");
    struct mx8_recipe recipe = {.name = "mxfp8",
        .convert_linear = 1,
        .convert_experts = 1,
        .expert_fqns = "experts",
        .scale_rule = mx8i_find_scale_rule(mx8i_get_text(o, "scale_rule"))};
    struct mx8_export_options e = {.dtype = !strcmp(dtype, "f32")    ? MX8_F32
                                            : !strcmp(dtype, "bf16") ? MX8_BF16
                                                                     : mx8i_get_weights_dtype(s),
        .shard_bytes = (size_t)mx8i_get_int(o, "shard_mb") * 1000 * 1000,
        .drop_expert_bias = mx8i_get_bool(o, "drop_expert_bias")};
    if (!strcmp(to, "hf")) MX8_TRY(find_family(o, s, &e.family));
    if (!strcmp(to, "mxfp8")) {
        MX8_TRY(mx8i_join_list(o, "filter_fqns", recipe.filter_fqns, sizeof recipe.filter_fqns));
        e.mxfp8 = &recipe;
        MX8_TRY(mx8_create_context(NULL, &e.ctx));
    }
    mx8i_log(log, "%s: %s, %s as %s in %s", s->path, s->family ? s->family->architecture : "torchtitan's names",
        s->config.flavor[0] ? s->config.flavor : "its own architecture",
        e.family  ? e.family->architecture
        : e.mxfp8 ? "MXFP8 under torchtitan's names"
                  : "torchtitan's names",
        mx8_get_dtype_name(e.dtype));
    enum mx8_status status = mx8i_export_weights(s, out, &e, log);
    mx8_destroy_context(e.ctx);
    return status == MX8_OK ? copy_companions(s->path, out, log) : status;
}

/* "hf/" is the folder "hf": its name stands before the files' in what is printed. */
static void drop_slashes(char *path) {
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = 0;
}

static enum mx8_status convert(
    const struct mx8_options *o, const char *in, const char *out, const struct mx8_log *log) {
    struct mx8_model_config config;
    struct mx8_weights s;
    int32_t given;
    MX8_TRY(mx8i_find_architecture(o, in, &config, &given));
    MX8_TRY(mx8i_open_saved_weights(in, given ? &config : NULL, &s));
    enum mx8_status status = convert_source(o, &s, out, log);
    mx8i_close_weights(&s);
    return status;
}

static void print_log(void *user, const char *line) {
    (void)user;
    puts(line);
}

int mx8i_run_convert(int argc, char **argv) {
    static struct mx8_option table[OWN_COUNT + MX8_MODEL_OPTIONS]; /* help is asked for it after this returns */
    const int32_t count = mx8i_join_model_options(own, OWN_COUNT, table);
    const struct mx8_log log = {.write = print_log};
    struct mx8_options o;
    const char *paths[2];
    int n_paths, code = MX8_EXIT_OK;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, count);
    if (!mx8i_parse_command(
            &o, table, count, argc, argv, paths, &n_paths, 2, 2, "what to read and a folder to write", &code))
        return code;
    char *out = mx8i_copy_text(paths[1]);
    if (out) drop_slashes(out);
    if (!mx8i_is_set(&o, "to"))
        code = mx8i_report_usage("convert", "needs --to hf, torchtitan or mxfp8");
    else if (!out || convert(&o, paths[0], out, &log) != MX8_OK)
        code = mx8i_report_failure("convert", out ? MX8_IO_ERROR : MX8_OUT_OF_MEMORY, MX8_EXIT_FAILURE);
    mx8i_release(out);
    mx8i_close_options(&o);
    return code;
}
