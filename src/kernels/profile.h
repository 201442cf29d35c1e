/* Time per kernel. An opened profile puts a table of its own before the context's: every entry marks the stream, calls the
 * real one, and marks it again (events on CUDA, the clock on the CPU). A context without a profile has the plain table, so
 * that nothing is paid. What a kernel is called for is told by the label that is set when it is called. */
#ifndef MX8_KERNELS_PROFILE_H
#define MX8_KERNELS_PROFILE_H

#include "kernels/kernels.h"

/* What calls: texts are compared as texts, and borrowed: they outlive the profile. */
struct mx8_profile_label {
    const char *pass;       /* "forward", "backward", ... */
    int32_t layer;          /* -1: outside the layers */
    const char *op;         /* operator, "" outside of one */
    int32_t backward;       /* of the operator */
    const char *detail;     /* which weight, "" when there is none */
};

enum mx8_profile_unit { MX8_PROFILE_MEMORY, MX8_PROFILE_F32, MX8_PROFILE_BF16, MX8_PROFILE_MXFP8, MX8_PROFILE_UNITS };

/* All calls of one kernel under one label. flops and bytes: what the mathematics asks for, the least that can be moved. */
struct mx8_profile_row {
    struct mx8_profile_label label;
    const char *kernel;
    enum mx8_profile_unit unit; /* the ceiling it runs against: bytes, or floating-point operations of a format */
    int64_t calls;
    double seconds, flops, bytes;
};

struct mx8_profile;

/* Puts the timed table before x's; one profile a context. */
enum mx8_status mx8i_open_profile(struct mx8_exec *x, struct mx8_profile **out);
void mx8i_close_profile(struct mx8_exec *x, struct mx8_profile *p); /* accepts NULL */
void mx8i_label_profile(struct mx8_profile *p, const struct mx8_profile_label *label);
struct mx8_profile_label mx8i_get_profile_label(const struct mx8_profile *p);
/* x with the real table: what it runs is not timed. */
struct mx8_exec mx8i_get_untimed_exec(const struct mx8_profile *p, const struct mx8_exec *x);
/* Waits, and adds the calls since the last collection to the rows; with `drop` forgets those calls instead. */
enum mx8_status mx8i_collect_profile(struct mx8_profile *p, const struct mx8_exec *x, int32_t drop);
const struct mx8_profile_row *mx8i_get_profile_rows(const struct mx8_profile *p, int64_t *count);

/* What the device reaches without a pause, measured in `memory` (device, overwritten): a copy in bytes, square products in
 * operations a second. 0: not measured (too little memory, or `units` has no bit for it). */
struct mx8_ceilings { double rate[MX8_PROFILE_UNITS]; int64_t product; /* edge of the square products */ };
enum mx8_status mx8i_measure_ceilings(
    const struct mx8_exec *x, void *memory, size_t bytes, uint32_t units, struct mx8_ceilings *out);

#endif
