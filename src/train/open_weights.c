/* Checkpoints as weights under torchtitan's names. */
#include "train/open_weights.h"
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "mx8/formats.h"
#include "train/checkpoint.h"

enum { PART = 4096 }; /* values rounded at a time */

static int is_checkpoint(const char *path) {
    char *manifest = mx8i_format_text("%s/" MX8_MANIFEST_NAME, path);
    const int there = manifest && mx8i_is_folder(path) && mx8i_is_file(manifest);
    mx8i_release(manifest);
    return there;
}

/* ---- architecture ---- */

static enum mx8_status read_facts(const char *path, const struct mx8_manifest *m, struct mx8_model_config *out) {
    const char *text = mx8i_get_fact(&m->job, MX8_CONFIG_KEY);
    if (text) return mx8i_parse_config(path, text, out);
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s/" MX8_MANIFEST_NAME " says nothing about the architecture", path);
}

enum mx8_status mx8i_read_saved_config(const char *path, struct mx8_model_config *out) {
    struct mx8_manifest m;
    if (!is_checkpoint(path)) return mx8i_read_weights_config(path, out);
    MX8_TRY(mx8i_read_checkpoint_head(path, &m));
    enum mx8_status status = read_facts(path, &m, out);
    mx8i_free_manifest(&m);
    return status;
}

/* ---- tensors ---- */

static int has_tensor(void *user, const char *name) {
    const struct mx8_checkpoint *c = user;
    return mx8i_find_stored_tensor(&c->manifest, name) >= 0;
}

static enum mx8_status read_tensor(void *user, const char *name, int64_t from, int64_t n, int32_t dtype, void *out) {
    const struct mx8_checkpoint *c = user;
    const int64_t tensor = mx8i_find_stored_tensor(&c->manifest, name);
    if (tensor < 0) return MX8_FAIL(MX8_FORMAT_ERROR, "%s has no tensor %s", c->folder, name);
    return mx8i_read_range(c, tensor, from, n, dtype, NULL, out);
}

static void close_checkpoint(void *user) {
    mx8i_close_checkpoint(user);
    mx8i_release(user);
}

/* Names are checked by whoever wraps the reader; here, that what has a name has the shape. */
static enum mx8_status check_shapes(const struct mx8_checkpoint *c, const struct mx8_model_config *config) {
    struct mx8_param_table t;
    MX8_TRY(mx8i_build_params(config, 1, &t));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < t.count && status == MX8_OK; i++) {
        const struct mx8_param *p = &t.param[i];
        const int64_t index = mx8i_find_stored_tensor(&c->manifest, p->name);
        const struct mx8_stored_tensor *s = index < 0 ? NULL : &c->manifest.tensor[index];
        if (s && (s->ndim != p->ndim || memcmp(s->shape, p->shape, (size_t)p->ndim * sizeof *p->shape)))
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: %s has %lld elements in another shape, expected %lld", c->folder,
                p->name, (long long)s->count, (long long)p->count);
    }
    mx8i_free_params(&t);
    return status;
}

static enum mx8_status open_checkpoint(
    const char *path, const struct mx8_model_config *given, struct mx8_weights *out) {
    struct mx8_model_config config;
    struct mx8_checkpoint *c = mx8i_allocate(sizeof *c, "a checkpoint");
    if (!c) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_open_checkpoint(path, 1, c);
    if (status != MX8_OK) {
        mx8i_release(c);
        return status;
    }
    const int64_t head = mx8i_find_stored_tensor(&c->manifest, "output.weight");
    const struct mx8_weights_reader reader = {.read = read_tensor,
        .has = has_tensor,
        .close = close_checkpoint,
        .user = c,
        .dtype = head < 0 ? (int32_t)MX8_F32 : c->manifest.tensor[head].dtype};
    if (given)
        config = *given;
    else
        status = read_facts(path, &c->manifest, &config);
    if (status == MX8_OK) status = check_shapes(c, &config);
    if (status == MX8_OK) return mx8i_wrap_weights(path, &config, &reader, out);
    close_checkpoint(c);
    return status;
}

enum mx8_status mx8i_open_saved_weights(
    const char *path, const struct mx8_model_config *config, struct mx8_weights *out) {
    *out = (struct mx8_weights){0};
    return is_checkpoint(path) ? open_checkpoint(path, config, out) : mx8i_open_weights(path, config, out);
}
