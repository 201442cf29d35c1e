/* Workspace bounds over every table of kernels that this process may run. */
#include "ops/device.h"

#include "base/cpu.h"

static const char *const cpu_names[] = {"scalar", "avx2", "avx512"};
enum { CPU_NAMES = sizeof cpu_names / sizeof cpu_names[0], TABLES = CPU_NAMES + 1 };

/* The CPU's tables from plain to wide, then CUDA's once a device was opened; NULL for one that cannot run here. */
static const struct mx8_kernels *get_table(int index) {
    const struct mx8_kernels *table;
    if (index == CPU_NAMES) return mx8i_get_cuda_table();
    char reason[8];
    struct mx8_cpu cpu = mx8i_get_cpu();
    if ((index == 1 && !cpu.avx2_fma) || (index == 2 && !(cpu.avx2_fma && cpu.avx512))) return NULL;
    return mx8i_find_cpu_kernels(cpu_names[index], &table, reason, sizeof reason) == MX8_OK ? table : NULL;
}

int32_t mx8i_get_planned_threads(void) {
    int32_t cores = mx8i_get_cpu().cores;
    return cores > 1 ? cores : 1;
}

size_t mx8i_bound_attention(const struct mx8_attention_job *j, int32_t backward) {
    size_t most = 0;
    for (int i = 0; i < TABLES; i++) {
        const struct mx8_kernels *k = get_table(i);
        size_t bytes = k ? k->attention_workspace(j, backward, mx8i_get_planned_threads()) : 0;
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
