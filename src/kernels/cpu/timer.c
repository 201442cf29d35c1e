/* Marks of a device that has done everything by the time a call returns: the clock. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "kernels/cpu/cpu_kernels.h"

struct timer {
    int64_t room;
    double *seconds;
};

enum mx8_status mx8i_cpu_mark(const struct mx8_exec *x, void **timer, int64_t index) {
    (void)x;
    struct timer *t = *timer;
    if (!t) *timer = t = mx8i_allocate(sizeof *t, "timer");
    if (!t) return MX8_OUT_OF_MEMORY;
    if (index >= t->room) {
        const int64_t room = index < 128 ? 256 : 2 * index;
        double *more = mx8i_reallocate(t->seconds, (size_t)room * sizeof *more, "timer");
        if (!more) return MX8_OUT_OF_MEMORY;
        t->seconds = more;
        t->room = room;
    }
    t->seconds[index] = mx8i_get_seconds();
    return MX8_OK;
}

enum mx8_status mx8i_cpu_read_marks(const struct mx8_exec *x, void *timer, int64_t count, double *seconds) {
    (void)x;
    const struct timer *t = timer;
    if (count > 0 && (!t || count > t->room))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "read marks: %lld asked for, expected at most the %lld that were made",
            (long long)count, (long long)(t ? t->room : 0));
    for (int64_t i = 0; i < count; i++) seconds[i] = t->seconds[i] - t->seconds[0];
    return MX8_OK;
}

void mx8i_cpu_release_timer(const struct mx8_exec *x, void *timer) {
    (void)x;
    struct timer *t = timer;
    if (t) mx8i_release(t->seconds);
    mx8i_release(t);
}
