/* What this build knows of devices. It has the CPU; a CUDA backend would be opened here. */
#include "ops/device.h"

#include "base/cpu.h"
#include "base/error.h"

enum mx8_status mx8i_open_cuda(const struct mx8_context_options *options, struct mx8_context *ctx) {
    (void)ctx;
    return MX8_FAIL(MX8_UNSUPPORTED, "mx8_create_context: device is 1 (CUDA, ordinal %d), but this library was built without CUDA",
        (int)options->ordinal);
}

static const char *const cpu_names[] = {"scalar", "avx2", "avx512"};
enum { CPU_NAMES = sizeof cpu_names / sizeof cpu_names[0] };

/* The CPU's tables from plain to wide; NULL for one that this CPU cannot run. */
static const struct mx8_kernels *get_cpu_table(int index) {
    const struct mx8_kernels *table;
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
    for (int i = 0; i < CPU_NAMES; i++) {
        const struct mx8_kernels *k = get_cpu_table(i);
        size_t bytes = k ? k->attention_workspace(j, backward, mx8i_get_planned_threads()) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t mx8i_bound_embedding(const struct mx8_embedding_job *j) {
    size_t most = 0;
    for (int i = 0; i < CPU_NAMES; i++) {
        const struct mx8_kernels *k = get_cpu_table(i);
        size_t bytes = k ? k->embedding_workspace(j) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}
