/* Chooses the kernel table: what the caller asked for, else what MX8_ISA asks for, else the best that the CPU has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cpu.h"
#include "base/error.h"
#include "kernels/cpu/cpu_kernels.h"

struct isa {
    const char *name;
    const struct mx8_kernels *table;
    const char *reason; /* why it is the best choice where it is */
};

static const struct isa isas[] = { /* best last */
    {"scalar", &mx8i_kernels_scalar, "AVX2 and FMA absent"},
    {"avx2", &mx8i_kernels_avx2, "AVX2 and FMA present, AVX-512 absent"},
    {"avx512", &mx8i_kernels_avx512, "AVX-512 F, BW, VL, DQ and CD present"},
};
enum { isa_count = sizeof isas / sizeof isas[0] };

static int best_isa(void) {
    struct mx8_cpu cpu = mx8i_get_cpu();
    if (cpu.avx512 && cpu.avx2_fma) return 2;
    return cpu.avx2_fma ? 1 : 0;
}

static int find_isa(const char *name) {
    for (int i = 0; i < isa_count; i++)
        if (strcmp(isas[i].name, name) == 0) return i;
    return -1;
}

static const char *const available_names[] = {"scalar", "scalar, avx2", "scalar, avx2, avx512"};

enum mx8_status mx8i_find_cpu_kernels(
    const char *isa, const struct mx8_kernels **out, char *reason, size_t reason_size) {
    const char *source = "asked for by the caller";
    if (!isa) {
        isa = getenv("MX8_ISA");
        source = "asked for by MX8_ISA";
    }
    int best = best_isa(), chosen = best;
    if (isa && *isa) {
        chosen = find_isa(isa);
        if (chosen < 0)
            return MX8_FAIL(MX8_INVALID_ARGUMENT,
                "mx8_create_context: isa is \"%s\" (%s), expected one of scalar, avx2, avx512", isa, source);
        if (chosen > best)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: isa is \"%s\" (%s), but this CPU has only %s",
                isa, source, available_names[best]);
    } else {
        source = isas[best].reason;
    }
    *out = isas[chosen].table;
    if (reason_size > 0) snprintf(reason, reason_size, "%s", source);
    return MX8_OK;
}
