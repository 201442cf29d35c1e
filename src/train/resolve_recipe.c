/* From the option table to the recipe: which weights are converted, and how their tensors are quantized.
 * Two spellings, one meaning. September 2025: converter "mx" converts the linears that mx.filter_fqns leaves, and the
 * experts named by mx.moe_fqns_prototype. Later: converters "quantize.linear.mx" and "quantize.grouped_mm.mx", each
 * with the names it is for in `fqns`. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "train/resolve.h"

/* torchtitan's recipe names say which CUDA kernel multiplies; here only two of their properties are left. */
static const struct {
    const char *name;
    int32_t exact, wgrad_hp;
} recipes[] = {
    {"mxfp8_cublas", 0, 0},
    {"mxfp8_cublas_rceil", 0, 0},
    {"mxfp8_rceil", 0, 0},
    {"mxfp8_rceil_wgrad_with_hp", 0, 1},
    {"mxfp8_emulated", 1, 0},
    {"mxfp8_emulated_rceil", 1, 0},
    {"mxfp8", 0, 0},
};

struct joined {
    char *text;
    size_t size, used;
    int too_long;
};

static void join_item(void *user, const char *item) {
    struct joined *j = user;
    size_t length = strlen(item), comma = j->used > 0;
    if (j->used + comma + length >= j->size) {
        j->too_long = 1;
        return;
    }
    if (comma) j->text[j->used++] = ',';
    memcpy(j->text + j->used, item, length + 1);
    j->used += length;
}

enum mx8_status mx8i_join_list(const struct mx8_options *o, const char *key, char *text, size_t size) {
    struct joined j = {.text = text, .size = size};
    text[0] = 0;
    if (mx8i_get_list(o, key, join_item, &j) < 0) return MX8_OUT_OF_MEMORY;
    if (j.too_long) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: expected at most %zu characters in all", key, size - 1);
    return MX8_OK;
}

struct converters {
    int32_t mx, linear, grouped;
    char unknown[64];
};

static void read_converter(void *user, const char *item) {
    struct converters *c = user;
    if (!strcmp(item, "mx"))
        c->mx = 1;
    else if (!strcmp(item, "quantize.linear.mx"))
        c->linear = 1;
    else if (!strcmp(item, "quantize.grouped_mm.mx"))
        c->grouped = 1;
    else if (!c->unknown[0])
        strncpy(c->unknown, item, sizeof c->unknown - 1);
}

static enum mx8_status resolve_converters(const struct mx8_options *o, struct mx8_recipe *recipe) {
    struct converters c = {0};
    if (mx8i_get_list(o, "model.converters", read_converter, &c) < 0) return MX8_OUT_OF_MEMORY;
    if (strstr(c.unknown, "float8"))
        return MX8_FAIL(
            MX8_UNSUPPORTED, "model.converters: \"%s\" is not supported, mx8 converts to MXFP8: use mx", c.unknown);
    if (c.unknown[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "model.converters: unknown converter \"%s\", expected mx, quantize.linear.mx "
            "or quantize.grouped_mm.mx",
            c.unknown);

    recipe->convert_linear = c.mx || c.linear;
    if (c.linear) MX8_TRY(mx8i_join_list(o, "quantize.linear.mx.fqns", recipe->linear_fqns, sizeof recipe->linear_fqns));
    if (recipe->convert_linear)
        MX8_TRY(mx8i_join_list(o, "mx.filter_fqns", recipe->filter_fqns, sizeof recipe->filter_fqns));
    if (c.mx) MX8_TRY(mx8i_join_list(o, "mx.moe_fqns_prototype", recipe->expert_fqns, sizeof recipe->expert_fqns));
    if (c.grouped)
        MX8_TRY(mx8i_join_list(o, "quantize.grouped_mm.mx.fqns", recipe->expert_fqns, sizeof recipe->expert_fqns));
    recipe->convert_experts = recipe->expert_fqns[0] != 0;
    if (c.grouped && !recipe->convert_experts)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "quantize.grouped_mm.mx.fqns is empty: the converter would convert nothing");
    return MX8_OK;
}

static enum mx8_status resolve_recipe_name(const struct mx8_options *o, struct mx8_recipe *recipe) {
    const char *name = mx8i_get_text(o, "mx.recipe_name");
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        if (!strcmp(name, recipes[i].name)) {
            recipe->exact = recipes[i].exact || mx8i_get_bool(o, "mx.exact");
            recipe->wgrad_hp = recipes[i].wgrad_hp || mx8i_get_bool(o, "mx.wgrad_hp");
            return MX8_OK;
        }
    return MX8_FAIL(MX8_INVALID_ARGUMENT,
        "mx.recipe_name is \"%s\", expected mxfp8_cublas, mxfp8_cublas_rceil, mxfp8_rceil, "
        "mxfp8_rceil_wgrad_with_hp, mxfp8_emulated, mxfp8_emulated_rceil or mxfp8",
        name);
}

/* The table's choices are numbers, or "auto". */
static int32_t get_number(const struct mx8_options *o, const char *key, int32_t automatic) {
    int32_t number = (int32_t)strtol(mx8i_get_text(o, key), NULL, 10);
    return number > 0 ? number : automatic;
}

/* On the CPU blocks are canonical. On CUDA the defaults are what Hopper's tensor cores multiply at full rate: one scale
 * per token and 256 elements, 32 x 256 tiles for weights and for the activations' side of the weight gradient. */
static void resolve_geometry(const struct mx8_options *o, struct mx8_recipe *recipe, int32_t cuda) {
    recipe->tile_rows = get_number(o, "mx.tile_rows", 1);
    recipe->scale_group = get_number(o, "mx.scale_group", cuda ? 256 : 32);
    recipe->col_tile_rows =
        get_number(o, "mx.col_tile_rows", cuda && recipe->scale_group == 256 ? 32 : recipe->tile_rows);
    recipe->weight_scale_group = get_number(o, "mx.weight_scale_group", cuda ? 256 : 32);
    recipe->weight_tile_rows = get_number(o, "mx.weight_tile_rows", cuda && recipe->weight_scale_group == 256 ? 32 : 1);
    recipe->alignment = cuda ? 128 : 32; /* a K-block of the tensor cores' pipeline */
}

static int32_t find_scale_rule(const char *name) {
    if (!strcmp(name, "floor")) return MX8_SCALE_FLOOR;
    if (!strcmp(name, "ceil")) return MX8_SCALE_CEIL;
    if (!strcmp(name, "even")) return MX8_SCALE_EVEN;
    return MX8_SCALE_RCEIL;
}

static const char *name_recipe(const struct mx8_recipe *recipe) {
    if (recipe->convert_linear && recipe->convert_experts) return "mxfp8_moe";
    if (recipe->convert_linear) return "mxfp8_dense";
    if (recipe->convert_experts) return "mxfp8_experts";
    return recipe->dtype == MX8_F32 ? "f32" : "bf16";
}

enum mx8_status mx8i_resolve_recipe(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    struct mx8_recipe *recipe = &job->recipe;
    recipe->dtype = strcmp(mx8i_get_text(o, "training.mixed_precision_param"), "float32") ? MX8_BF16 : MX8_F32;
    MX8_TRY(resolve_converters(o, recipe));
    MX8_TRY(resolve_recipe_name(o, recipe));
    recipe->scale_rule = find_scale_rule(mx8i_get_text(o, "mx.scale_rule"));
    resolve_geometry(o, recipe, !strcmp(mx8i_get_text(o, "job.device"), "cuda"));
    recipe->format = strcmp(mx8i_get_text(o, "mx.format"), "e5m2") ? MX8_F8_E4M3 : MX8_F8_E5M2;
    if ((recipe->convert_linear || recipe->convert_experts) && recipe->format == MX8_F8_E5M2)
        mx8i_log(notes, "warning: mx.format e5m2 keeps 2 bits of mantissa; MXFP8 training uses e4m3 for every tensor");
    strcpy(recipe->name, name_recipe(recipe));
    return MX8_OK;
}
