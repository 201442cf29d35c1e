/* Workspace bounds over the kernel tables that a later context may have. */
#include "ops/device.h"

#include <omp.h>

#include "kernels/cpu/cpu_kernels.h"

/* What the CPU's tables ask for does not depend on their instruction set, so the one that runs everywhere speaks for
 * all; CUDA's joins once a device was opened. Nothing here asks the CPU what it can do: calls infer often. */
enum { TABLES = 2 };

static const struct mx8_kernels *get_table(int index) {
    return index == 0 ? &mx8i_kernels_scalar : mx8i_get_cuda_table();
}

size_t mx8i_bound_attention(const struct mx8_attention_job *j, int32_t backward) {
    size_t most = 0;
    for (int i = 0; i < TABLES; i++) {
        const struct mx8_kernels *k = get_table(i);
        size_t bytes = k ? k->attention_workspace(j, backward, omp_get_num_procs()) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t mx8i_bound_embedding(const struct mx8_embedding_job *j) {
    size_t most = 0;
    for (int i = 0; i < TABLES; i++) {
        const struct mx8_kernels *k = get_table(i);
        size_t bytes = k ? k->embedding_workspace(j) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}
