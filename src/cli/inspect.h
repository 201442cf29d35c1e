/* What `mx8 inspect` does with checkpoints. */
#ifndef MX8_CLI_INSPECT_H
#define MX8_CLI_INSPECT_H

#include "cli/cli.h"

struct mx8_inspection {
    int verify;  /* read every byte and compare its sum */
    int tensors; /* list every one */
};

/* Shows the checkpoint at path, or each of those in a folder of them; 0 when there is none. *status: what became of it. */
int mx8i_inspect_checkpoint(const char *path, const struct mx8_inspection *how, enum mx8_status *status);

#endif
