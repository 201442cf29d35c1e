/* Text that grows, and the few SVG shapes a report is drawn from. Colours are CSS classes, so that one drawing serves
 * the light and the dark page. */
#ifndef MX8_TRAIN_REPORT_SVG_H
#define MX8_TRAIN_REPORT_SVG_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

/* Appending to a text that failed does nothing, so that callers check `status` once, at the end. */
struct mx8_text {
    char *data;
    size_t size, capacity;
    enum mx8_status status;
};
void mx8i_append(struct mx8_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mx8i_append_escaped(struct mx8_text *t, const char *text); /* & < > " as entities */
void mx8i_release_text(struct mx8_text *t);

/* A linear axis with round ticks: low + i * step, i = 0 .. count - 1, covers the data. */
struct mx8_axis {
    double low, high, step;
    int32_t count, decimals;
};
/* About `wanted` ticks. `tight`: the axis ends at the data, ticks only inside it (steps); else at round numbers. */
struct mx8_axis mx8i_make_axis(double low, double high, int32_t wanted, int32_t tight);
/* "0", "0.25", "150", "15k", "2M": as many decimals as the step needs. */
const char *mx8i_format_tick(char buffer[32], const struct mx8_axis *axis, double value);

/* A plot area inside an SVG, in its units, with its axes. */
struct mx8_plot {
    double x, y, width, height;
    struct mx8_axis ax, ay;
};
double mx8i_plot_x(const struct mx8_plot *p, double value);
double mx8i_plot_y(const struct mx8_plot *p, double value);
/* Grid lines, tick labels, the axes' names; x_label NULL: no labels below (a panel that shares the axis beneath). */
void mx8i_draw_frame(struct mx8_text *t, const struct mx8_plot *p, const char *x_label, const char *y_label);
/* A polyline, clipped to the plot, at most `most` points (means of equal buckets); NaN points break the line. */
void mx8i_draw_line(struct mx8_text *t, const struct mx8_plot *p, const double *x, const double *y, int64_t n,
    int64_t most, const char *css);
/* Smallest and largest finite value among the n of y from `from` on, merged into *low and *high. */
void mx8i_find_range(const double *y, int64_t n, int64_t from, double *low, double *high);

#endif
