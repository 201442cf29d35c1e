/* Which weights a recipe converts to MXFP8, and where their codes live. torchtitan's converters match substrings of a
 * module's name; two things are stricter here: an entry that matches nothing and a shape that cannot be quantized are
 * errors, where torchtitan goes on in silence. */
#include <stdio.h>
#include <string.h>
#include "model/params.h"
#include "base/error.h"

enum { CODE_ALIGNMENT = 256, ENTRY_MAX = 128 };

/* One entry of a comma separated list, without blanks around it. Returns where the next one starts, NULL at the end. */
static const char *next_entry(const char *list, char entry[ENTRY_MAX]) {
    while (*list) {
        size_t length = strcspn(list, ",");
        const char *next = list[length] ? list + length + 1 : list + length;
        while (length && *list == ' ') list++, length--;
        while (length && list[length - 1] == ' ') length--;
        if (length) {
            snprintf(entry, ENTRY_MAX, "%.*s", (int)length, list);
            return next;
        }
        list = next;
    }
    return NULL;
}

/* The module's name: of a weight without ".weight", so that no filter matches by accident. */
static void get_module_name(const struct mx8_param *p, char name[sizeof p->name]) {
    snprintf(name, sizeof p->name, "%s", p->name);
    char *suffix = strstr(name, ".weight");
    if (suffix) *suffix = 0;
}

int mx8i_param_matches(const struct mx8_param *p, const char *list) {
    char name[sizeof p->name], entry[ENTRY_MAX];
    get_module_name(p, name);
    for (const char *rest = next_entry(list, entry); rest; rest = next_entry(rest, entry)) {
        if (strstr(name, entry)) return 1;
    }
    return 0;
}

static int is_linear(const struct mx8_param *p) {
    return p->kind == MX8_PARAM_LINEAR || p->kind == MX8_PARAM_ROUTER || p->kind == MX8_PARAM_HEAD;
}

static int is_expert(const struct mx8_param *p) {
    return p->kind == MX8_PARAM_EXPERT;
}

/* Every entry of `list` must be part of the name of some tensor that `candidate` accepts. */
static enum mx8_status check_entries(
    const struct mx8_param_table *t, const char *option, const char *list, int (*candidate)(const struct mx8_param *)) {
    char entry[ENTRY_MAX], name[sizeof t->param->name];
    for (const char *rest = next_entry(list, entry); rest; rest = next_entry(rest, entry)) {
        int found = 0;
        for (int64_t i = 0; i < t->count && !found; i++) {
            get_module_name(&t->param[i], name);
            found = candidate(&t->param[i]) && strstr(name, entry) != NULL;
        }
        if (!found) {
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: \"%s\" is part of no %s's name, expected one such as \"%s\"",
                option, entry, candidate == is_expert ? "expert tensor" : "linear layer",
                candidate == is_expert ? "experts" : "attention.wk");
        }
    }
    return MX8_OK;
}

/* Routed experts follow expert_fqns alone: filter_fqns belongs to the linear converter. The other way round, "experts"
 * in expert_fqns is part of "moe.shared_experts.w1" too, but those are linears and follow the linear converter. */
static int is_converted(const struct mx8_param *p, const struct mx8_recipe *r) {
    if (is_expert(p)) return r->convert_experts && mx8i_param_matches(p, r->expert_fqns);
    if (!is_linear(p) || !r->convert_linear || mx8i_param_matches(p, r->filter_fqns)) return 0;
    return !r->linear_fqns[0] || mx8i_param_matches(p, r->linear_fqns);
}

static enum mx8_status check_shape(const struct mx8_param *p, const struct mx8_recipe *r) {
    int64_t N = p->shape[p->ndim - 2], K = p->shape[p->ndim - 1];
    if (N % MX8_BLOCK || K % MX8_BLOCK) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s (%lld, %lld) cannot be quantized: both axes must be multiples of %d; leave it out with mx.filter_fqns",
            p->name, (long long)N, (long long)K, MX8_BLOCK);
    }
    if (is_expert(p) && r->weight_tile_rows > 1 && N % r->weight_tile_rows) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s has %lld rows per expert, expected a multiple of the weight tile's %d rows", p->name, (long long)N,
            (int)r->weight_tile_rows);
    }
    return MX8_OK;
}

static size_t reserve_codes(struct mx8_param_table *t, int64_t bytes) {
    size_t at = t->code_bytes;
    t->code_bytes += ((size_t)bytes + CODE_ALIGNMENT - 1) / CODE_ALIGNMENT * CODE_ALIGNMENT;
    return at;
}

enum mx8_status mx8i_apply_recipe(struct mx8_param_table *t, const struct mx8_recipe *r) {
    if (r->convert_linear) {
        MX8_TRY(check_entries(t, "mx.filter_fqns", r->filter_fqns, is_linear));
        MX8_TRY(check_entries(t, "quantize.linear.mx.fqns", r->linear_fqns, is_linear));
    }
    if (r->convert_experts) MX8_TRY(check_entries(t, "mx.moe_fqns_prototype", r->expert_fqns, is_expert));
    int64_t converted = 0;
    t->code_bytes = 0;
    for (int64_t i = 0; i < t->count; i++) {
        struct mx8_param *p = &t->param[i];
        p->mxfp8 = is_converted(p, r);
        p->row_codes = p->row_scales = p->col_codes = p->col_scales = SIZE_MAX;
        if (!p->mxfp8) continue;
        MX8_TRY(check_shape(p, r));
        p->row_codes = reserve_codes(t, p->count);
        p->row_scales = reserve_codes(t, p->count / MX8_BLOCK);
        p->col_codes = reserve_codes(t, p->count);
        p->col_scales = reserve_codes(t, p->count / MX8_BLOCK);
        converted++;
    }
    if ((r->convert_linear || r->convert_experts) && !converted) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "recipe %s converts nothing: no tensor passes mx.filter_fqns \"%s\" and mx.moe_fqns_prototype \"%s\"",
            r->name, r->filter_fqns, r->expert_fqns);
    }
    return MX8_OK;
}
