/* What launchers tell a process about itself. */
#include <stdlib.h>
#include "base/error.h"
#include "dist/dist.h"

/* -1: not set, or no number. */
static int32_t read_number(const char *variable) {
    const char *text = variable ? getenv(variable) : NULL;
    if (!text || !*text) return -1;
    char *end;
    long value = strtol(text, &end, 10);
    return *end || value < 0 || value > 1 << 24 ? -1 : (int32_t)value;
}

enum mx8_status mx8i_find_launch(struct mx8_launch *out) {
    /* In the order of trust: mpirun's own variables, srun's process manager, then torchrun's, which people set by hand.
     */
    static const struct {
        const char *size, *rank, *local, *needs;
    } launchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", NULL},
        {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", NULL},
        {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID"}, /* sbatch alone starts one process */
        {"WORLD_SIZE", "RANK", "LOCAL_RANK", NULL}};
    *out = (struct mx8_launch){.size = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const int32_t size = read_number(launchers[i].size), rank = read_number(launchers[i].rank);
        if (size < 1 || (launchers[i].needs && !getenv(launchers[i].needs))) continue;
        if (size > 1 && (rank < 0 || rank >= size)) {
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s is %d, but %s is \"%s\": expected 0 to %d", launchers[i].size,
                (int)size, launchers[i].rank, getenv(launchers[i].rank) ? getenv(launchers[i].rank) : "",
                (int)size - 1);
        }
        const int32_t local = read_number(launchers[i].local);
        *out = (struct mx8_launch){size > 1 ? rank : 0, size, local > 0 ? local : 0, launchers[i].size};
        if (size > 1) return MX8_OK;
    }
    return MX8_OK;
}
