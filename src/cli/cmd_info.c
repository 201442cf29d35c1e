#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/cpu.h"
#include "cli/cli.h"

static const char usage[] =
    "usage: mx8 info\n\n"
    "Shows the version, the CPU's features, which kernels were chosen and why, threads, memory, whether a CUDA\n"
    "device can be used, and the model flavors that `mx8 train` knows. MX8_ISA=scalar|avx2|avx512 and\n"
    "OMP_NUM_THREADS change the choice.\n";

static const char *yes(int32_t flag) {
    return flag ? "yes" : "no";
}

int mx8i_run_info(int argc, char **argv) {
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (argc > 1) return mx8i_report_usage("info", "unexpected \"%s\"", argv[1]);
    struct mx8_cpu cpu = mx8i_get_cpu();
    struct mx8_context *ctx = NULL;
    struct mx8_context_options cuda = {.device = 1};
    enum mx8_status status = mx8_create_context(NULL, &ctx);
    if (status != MX8_OK) return mx8i_report_failure("info", status, MX8_EXIT_FAILURE);
    printf("version    %s\n", mx8_get_version_text());
    printf("cpu        %s\n", cpu.brand[0] ? cpu.brand : "unknown");
    printf("features   avx2+fma %s, avx512 %s, avx512_bf16 %s\n", yes(cpu.avx2_fma), yes(cpu.avx512),
        yes(cpu.avx512_bf16));
    printf("kernels    %s: %s\n", mx8_get_backend_name(ctx), mx8_get_backend_reason(ctx));
    printf("threads    %d of %d cores\n", mx8_get_thread_count(ctx), cpu.cores);
    printf("memory     %.2f GiB available\n", (double)mx8i_get_available_memory() / (1 << 30));
    mx8_destroy_context(ctx);
    ctx = NULL;
    status = mx8_create_context(&cuda, &ctx);
    if (status == MX8_OK) {
        printf("cuda       %s: %s\n", mx8_get_backend_name(ctx), mx8_get_backend_reason(ctx));
        printf("           %.2f GiB free\n", (double)ctx->exec.k->get_free_memory(&ctx->exec) / (1 << 30));
    } else {
        printf("cuda       %s\n", mx8_get_last_error());
    }
    mx8_destroy_context(ctx);
    printf("flavors    %s\n", mx8i_list_presets());
    return MX8_EXIT_OK;
}
