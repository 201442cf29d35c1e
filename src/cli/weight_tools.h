/* What convert and generate share: a command's own options followed by those of the architecture. */
#ifndef MX8_CLI_WEIGHT_TOOLS_H
#define MX8_CLI_WEIGHT_TOOLS_H

#include "cli/cli.h"
#include "model/hf.h"

/* Fills `table` with the rows of `own`, then model.flavor and every option that describes an architecture, at most
 * n_own + MX8_MODEL_OPTIONS rows. Returns their number. */
enum { MX8_MODEL_OPTIONS = 64 };
int32_t mx8i_join_model_options(const struct mx8_option *own, int32_t n_own, struct mx8_option *table);
/* The architecture that the options give on top of a flavor, or of what the path says about itself. *given 0: no option
 * was set, and the path speaks for itself. */
enum mx8_status mx8i_find_architecture(
    const struct mx8_options *o, const char *path, struct mx8_model_config *config, int32_t *given);

#endif
