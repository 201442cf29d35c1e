/* Weights from whatever a path holds: checkpoints of this trainer, resumable ones too, and all that model/hf.h opens.
 */
#ifndef MX8_TRAIN_OPEN_WEIGHTS_H
#define MX8_TRAIN_OPEN_WEIGHTS_H

#include "model/hf.h"

/* A folder with manifest.json is a checkpoint, whose sums are checked and whose manifest tells the architecture;
 * anything else goes to mx8i_open_weights. config: the architecture to assume, NULL for the path's own. */
enum mx8_status mx8i_open_saved_weights(
    const char *path, const struct mx8_model_config *config, struct mx8_weights *out);
enum mx8_status mx8i_read_saved_config(const char *path, struct mx8_model_config *out);

#endif
