/* CPUID says what the CPU can do, XGETBV which registers the operating system saves; both must agree. */
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has_bits(uint64_t word, uint64_t bits) {
    return (word & bits) == bits;
}

static void read_brand(char brand[64]) {
    union {
        uint32_t word[12];
        char text[12 * sizeof(uint32_t) + 1];
    } id = {.text = ""};
    if ((uint32_t)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) return; /* an int to clang */
    for (uint32_t i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &id.word[4 * i], &id.word[4 * i + 1], &id.word[4 * i + 2], &id.word[4 * i + 3]);
    id.text[sizeof id.word] = 0;
    const char *start = id.text + strspn(id.text, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ') length--;
    snprintf(brand, 64, "%.*s", (int)length, start);
}

static void read_features(struct mx8_cpu *cpu) {
    /* bits: Intel SDM volume 2A, CPUID; volume 1, 13.3 for XCR0 */
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8;                                      /* leaf 7, ebx */
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;       /* F DQ CD BW VL */
    const uint64_t save_ymm = 0x6, save_zmm = 0xE6;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_bits(ecx, fma | osxsave | avx | f16c)) return;
    uint64_t saved = read_xcr0();
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;
    cpu->avx2_fma = has_bits(ebx, avx2 | bmi2) && has_bits(saved, save_ymm);
    cpu->avx512 = cpu->avx2_fma && has_bits(ebx, avx512) && has_bits(saved, save_zmm);
    if (cpu->avx512 && eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
        cpu->avx512_bf16 = has_bits(eax, 1u << 5);
}
#else
static void read_brand(char brand[64]) {
    (void)brand;
}
static void read_features(struct mx8_cpu *cpu) {
    (void)cpu;
}
#endif

/* The kernel refuses a mask smaller than the machine's, so the mask grows until it fits. */
static int32_t count_cores(void) {
    for (size_t cores = CPU_SETSIZE; cores <= (size_t)1 << 20; cores *= 4) {
        size_t size = CPU_ALLOC_SIZE(cores);
        cpu_set_t *set = mx8i_allocate(size, "a CPU mask");
        if (!set) return 1;
        int32_t count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        mx8i_release(set);
        if (count > 0) return count;
    }
    return 1;
}

struct mx8_cpu mx8i_get_cpu(void) {
    struct mx8_cpu cpu = {0};
    read_features(&cpu);
    read_brand(cpu.brand);
    cpu.cores = count_cores();
    return cpu;
}
