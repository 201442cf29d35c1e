/* Conformance vectors on disk: writing them, computing their outputs with mx8's own kernels, and holding a folder of
 * results against the oracle. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "cli/cli.h"
#include "formats/conformance.h"

static const char usage[] =
    "usage: mx8 conformance write FOLDER\n"
    "       mx8 conformance run FOLDER\n"
    "       mx8 conformance check FOLDER\n\n"
    "Test vectors for implementations of MXFP8 (docs/conformance.md). write: every case with its inputs, options and\n"
    "expected outputs, a safetensors file each, and index.json. run: the same cases computed by mx8's own kernels\n"
    "(MX8_ISA picks which).\n"
    "check: compares the outputs in FOLDER's files, whoever wrote them, with the oracle, byte by byte; a file or an\n"
    "output that is not there is listed, not counted. The exit code is 1 when something differs or nothing was "
    "compared.\n";

/* ---- files ---- */

static enum mx8_status write_vector(const char *folder, const struct mx8_vector *v) {
    struct mx8_st_entry entries[MX8_VECTOR_TENSORS];
    struct mx8_st_writer w;
    const char *metadata[] = {"format", "mx8 conformance 1", "case", v->name, "operation", v->operation, NULL};
    for (int32_t i = 0; i < v->n; i++) {
        const struct mx8_vector_tensor *t = &v->tensor[i];
        entries[i] = (struct mx8_st_entry){
            .name = (char *)(uintptr_t)t->name, .dtype = t->view.dtype, .ndim = t->view.ndim, .size = t->size};
        for (int32_t k = 0; k < t->view.ndim; k++) entries[i].shape[k] = t->view.shape[k];
    }
    char *path = mx8i_format_text("%s/%s.safetensors", folder, v->name);
    if (!path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_begin_safetensors(path, entries, v->n, metadata, &w);
    mx8i_release(path);
    if (status != MX8_OK) return status;
    for (int32_t i = 0; i < v->n && status == MX8_OK; i++)
        if (v->tensor[i].size) status = mx8i_write_tensor(&w, v->tensor[i].view.data, v->tensor[i].size);
    if (status == MX8_OK) return mx8i_commit_safetensors(&w);
    mx8i_abandon_safetensors(&w);
    return status;
}

static json_t *list_tensors(const struct mx8_vector *v, int outputs) {
    json_t *list = json_array();
    for (int32_t i = 0; i < v->n; i++)
        if (v->tensor[i].is_output == outputs) json_array_append_new(list, json_string(v->tensor[i].name));
    return list;
}

static json_t *describe_vector(const struct mx8_vector *v) {
    const struct mx8_op_options *o = &v->options;
    json_t *options = json_object();
    if (o->format) json_object_set_new(options, "element", json_string(mx8_get_dtype_name(o->format) + 3));
    if (!strncmp(v->operation, "quantize", 8)) {
        json_object_set_new(options, "scale_rule", json_string(mx8i_get_rule_name(o->scale_rule)));
        json_object_set_new(options, "scale_group", json_integer(o->scale_group ? o->scale_group : MX8_BLOCK));
        json_object_set_new(options, "tile_rows", json_integer(o->tile_rows ? o->tile_rows : 1));
    }
    if (!strcmp(v->operation, "block_scales"))
        json_object_set_new(options, "layout", json_string(mx8i_get_layout_name(o->layout)));
    if (!strcmp(v->operation, "group_pad")) json_object_set_new(options, "alignment", json_integer(MX8_BLOCK));
    char file[96];
    snprintf(file, sizeof file, "%s.safetensors", v->name);
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "name", v->name, "file", file, "operation", v->operation,
        "options", options, "inputs", list_tensors(v, 0), "outputs", list_tensors(v, 1));
}

static enum mx8_status write_index(const char *folder, json_t *cases) {
    json_t *root = json_pack("{s:s, s:i, s:s, s:o}", "format", "mx8 conformance", "version", 1, "written_by",
        mx8_get_version_text(), "cases", cases);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL, *path = mx8i_format_text("%s/index.json", folder);
    enum mx8_status status = text && path ? mx8i_write_text(path, text) : MX8_OUT_OF_MEMORY;
    json_decref(root);
    free(text);
    mx8i_release(path);
    return status;
}

/* ---- mx8's own kernels ---- */

/* Outputs are spoilt first, so that what a kernel leaves out shows. */
static void spoil_outputs(struct mx8_vector *v) {
    for (int32_t i = 0; i < v->n; i++)
        if (v->tensor[i].is_output) memset(v->tensor[i].view.data, 0xA5, v->tensor[i].size);
}

static void run_elements(struct mx8_vector *v) {
    int encode = !strcmp(v->operation, "encode");
    const struct mx8_vector_tensor *in = &v->tensor[0], *out = &v->tensor[1];
    for (int64_t i = 0; i < in->view.shape[0]; i++) {
        const float *values = in->view.data;
        const uint8_t *codes = in->view.data;
        if (encode)
            ((uint8_t *)out->view.data)[i] =
                v->options.format == MX8_F8_E4M3 ? mx8_encode_e4m3(values[i]) : mx8_encode_e5m2(values[i]);
        else
            ((float *)out->view.data)[i] = v->options.format == MX8_F8_E4M3   ? mx8_decode_e4m3(codes[i])
                                           : v->options.format == MX8_F8_E5M2 ? mx8_decode_e5m2(codes[i])
                                                                              : mx8_decode_e8m0(codes[i]);
    }
}

/* The operator's outputs in the order of its schema; quantize_3d's codes are (E,N,K) with N adjacent. */
static void place_outputs(const struct mx8_vector *v, struct mx8_op_call *call, struct mx8_tensor *out) {
    int32_t at = 0;
    for (int32_t i = 0; i < v->n; i++) {
        if (!v->tensor[i].is_output) continue;
        while (at < MX8_MAX_OUTPUTS - 1 && !call->out[at].ndim) at++;
        out[at] = call->out[at];
        out[at++].data = v->tensor[i].view.data;
    }
}

static enum mx8_status run_vector(struct mx8_context *ctx, struct mx8_vector *v) {
    const struct mx8_op *op = mx8_find_op(v->operation);
    struct mx8_op_call call = {.options = v->options};
    struct mx8_tensor out[MX8_MAX_OUTPUTS] = {{0}};
    spoil_outputs(v);
    if (!op) {
        run_elements(v);
        return MX8_OK;
    }
    for (int32_t i = 0; i < v->n; i++)
        if (!v->tensor[i].is_output) call.in[call.n_in++] = v->tensor[i].view;
    MX8_TRY(mx8_infer_op(op, 0, &call));
    place_outputs(v, &call, out);
    memcpy(call.out, out, sizeof out);
    call.workspace = mx8i_allocate_aligned(call.workspace_size + 64, 64, "workspace");
    if (!call.workspace) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8_run_op(ctx, op, 0, &call);
    if (status == MX8_OK) status = mx8_synchronize_context(ctx);
    mx8i_release(call.workspace);
    return status;
}

static enum mx8_status write_all(const char *folder, struct mx8_context *ctx) {
    json_t *cases = json_array();
    int32_t n = mx8i_count_vectors();
    enum mx8_status status = mx8i_make_folders(folder);
    for (int32_t i = 0; i < n && status == MX8_OK; i++) {
        struct mx8_vector v;
        status = mx8i_make_vector(i, &v);
        if (status == MX8_OK && ctx) status = run_vector(ctx, &v);
        if (status == MX8_OK) status = write_vector(folder, &v);
        if (status == MX8_OK) json_array_append_new(cases, describe_vector(&v));
        mx8i_release_vector(&v);
    }
    if (status == MX8_OK)
        status = write_index(folder, cases);
    else
        json_decref(cases);
    if (status == MX8_OK) printf("%d cases in %s\n", (int)n, folder);
    return status;
}

/* ---- checking ---- */

struct tally {
    int32_t passed, failed, absent;
};

/* NaN values of f32 and bf16 outputs are alike: which one a decoder gives is left open. */
static int is_same_value(const struct mx8_vector_tensor *t, const uint8_t *a, const uint8_t *b, size_t width) {
    if (memcmp(a, b, width) == 0) return 1;
    uint32_t x = 0, y = 0;
    memcpy(&x, a, width);
    memcpy(&y, b, width);
    if (t->view.dtype == MX8_F32) return (x & 0x7FFFFFFF) > 0x7F800000 && (y & 0x7FFFFFFF) > 0x7F800000;
    if (t->view.dtype == MX8_BF16) return (x & 0x7FFF) > 0x7F80 && (y & 0x7FFF) > 0x7F80;
    return 0;
}

static void print_place(const struct mx8_vector_tensor *t, int64_t at) {
    int64_t index[MX8_MAX_DIMS] = {0};
    for (int32_t k = t->view.ndim - 1; k >= 0; k--) {
        index[k] = at % t->view.shape[k];
        at /= t->view.shape[k];
    }
    for (int32_t k = 0; k < t->view.ndim; k++) printf("%s%lld", k ? "," : "[", (long long)index[k]);
    printf("]");
}

static void print_bytes(const uint8_t *bytes, size_t width) {
    printf("0x");
    for (size_t i = width; i > 0; i--) printf("%02X", bytes[i - 1]);
}

static int check_output(const char *name, const struct mx8_vector_tensor *t, const struct mx8_st_entry *e) {
    size_t width = mx8_get_dtype_size(t->view.dtype);
    const uint8_t *got = e->data, *expected = t->view.data;
    int64_t wrong = 0, first = 0;
    if (e->size != t->size) {
        printf("FAILED  %s: %s has %zu bytes, expected %zu\n", name, t->name, e->size, t->size);
        return 0;
    }
    for (int64_t i = 0; i < mx8_count_elements(&t->view); i++) {
        if (is_same_value(t, got + (size_t)i * width, expected + (size_t)i * width, width)) continue;
        if (wrong++ == 0) first = i;
    }
    if (!wrong) return 1;
    printf("FAILED  %s: %lld of %lld %s differ, the first at ", name, (long long)wrong,
        (long long)mx8_count_elements(&t->view), t->name);
    print_place(t, first);
    printf(": ");
    print_bytes(got + (size_t)first * width, width);
    printf(", expected ");
    print_bytes(expected + (size_t)first * width, width);
    printf("\n");
    return 0;
}

static enum mx8_status check_vector(const char *folder, const struct mx8_vector *v, struct tally *tally) {
    struct mx8_safetensors st;
    char *path = mx8i_format_text("%s/%s.safetensors", folder, v->name);
    if (!path) return MX8_OUT_OF_MEMORY;
    int there = mx8i_is_file(path), compared = 0, good = 1;
    enum mx8_status status = there ? mx8i_open_safetensors(path, &st) : MX8_OK;
    mx8i_release(path);
    if (status != MX8_OK) return status;
    for (int32_t i = 0; i < v->n && there; i++) {
        const struct mx8_vector_tensor *t = &v->tensor[i];
        const struct mx8_st_entry *e = t->is_output ? mx8i_find_tensor(&st, t->name) : NULL;
        if (!e) continue;
        compared++;
        if (!check_output(v->name, t, e)) good = 0;
    }
    if (there) mx8i_close_safetensors(&st);
    if (compared)
        *(good ? &tally->passed : &tally->failed) += 1;
    else
        tally->absent++;
    if (!compared) printf("absent  %s\n", v->name);
    return MX8_OK;
}

static int check_all(const char *folder) {
    struct tally tally = {0};
    enum mx8_status status = MX8_OK;
    if (!mx8i_is_folder(folder)) return mx8i_report_usage("conformance", "%s is no folder", folder);
    for (int32_t i = 0; i < mx8i_count_vectors() && status == MX8_OK; i++) {
        struct mx8_vector v;
        status = mx8i_make_vector(i, &v);
        if (status == MX8_OK) status = check_vector(folder, &v, &tally);
        mx8i_release_vector(&v);
    }
    if (status != MX8_OK) return mx8i_report_failure("conformance", status, MX8_EXIT_FAILURE);
    printf("%d cases passed, %d failed, %d absent\n", (int)tally.passed, (int)tally.failed, (int)tally.absent);
    return tally.passed > 0 && tally.failed == 0 ? MX8_EXIT_OK : MX8_EXIT_FAILURE;
}

int mx8i_run_conformance(int argc, char **argv) {
    struct mx8_context *ctx = NULL;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (argc != 3) return mx8i_report_usage("conformance", "needs write, run or check, and a folder");
    const char *word = argv[1], *folder = argv[2];
    if (!strcmp(word, "check")) return check_all(folder);
    if (strcmp(word, "write") && strcmp(word, "run"))
        return mx8i_report_usage("conformance", "\"%s\" is none of write, run, check", word);
    enum mx8_status status = !strcmp(word, "run") ? mx8_create_context(NULL, &ctx) : MX8_OK;
    if (status == MX8_OK) status = write_all(folder, ctx);
    mx8_destroy_context(ctx);
    return status == MX8_OK ? MX8_EXIT_OK : mx8i_report_failure("conformance", status, MX8_EXIT_FAILURE);
}
