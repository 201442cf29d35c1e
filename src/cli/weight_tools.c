/* Options that describe an architecture, for commands that are no training job. */
#include <string.h>
#include "base/error.h"
#include "cli/weight_tools.h"
#include "train/open_weights.h"
#include "train/resolve.h"

static int describes_architecture(const struct mx8_option *option) {
    if (!strcmp(option->key, "model.flavor")) return 1;
    for (int32_t i = 0; i < mx8i_config_field_count; i++)
        if (!strcmp(option->key, mx8i_config_fields[i].key)) return 1;
    return 0;
}

int32_t mx8i_join_model_options(const struct mx8_option *own, int32_t n_own, struct mx8_option *table) {
    int32_t count = n_own;
    memcpy(table, own, (size_t)n_own * sizeof *table);
    for (int32_t i = 0; i < mx8i_option_count && count < n_own + MX8_MODEL_OPTIONS; i++)
        if (describes_architecture(&mx8i_option_table[i])) table[count++] = mx8i_option_table[i];
    return count;
}

enum mx8_status mx8i_find_architecture(
    const struct mx8_options *o, const char *path, struct mx8_model_config *config, int32_t *given) {
    *given = 0;
    for (int32_t i = 0; i < o->count; i++)
        *given |= describes_architecture(&o->table[i]) && mx8i_is_set(o, o->table[i].key);
    if (!*given) return MX8_OK;
    if (mx8i_is_set(o, "model.flavor"))
        MX8_TRY(mx8i_find_preset(mx8i_get_text(o, "model.flavor"), config, NULL, NULL));
    else
        MX8_TRY(mx8i_read_saved_config(path, config));
    return mx8i_override_config(o, config);
}
