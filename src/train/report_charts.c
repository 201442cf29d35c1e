#include "train/report_charts.h"

#include <math.h>
#include <stdio.h>
#include "base/memory.h"

#define LEFT        76.0 /* room for the axis' name and labels */
#define RIGHT       22.0
#define LINE_POINTS 480 /* of a line as wide as the page: more points than that no screen shows */

static double get_last_step(const struct mx8_report_run *runs, int32_t n_runs) {
    double last = 1;
    for (int32_t i = 0; i < n_runs; i++) last = fmax(last, runs[i].step[runs[i].n - 1]);
    return last;
}

static struct mx8_plot make_plot(double x, double y, double width, double height, double last_step) {
    struct mx8_plot p = {.x = x, .y = y, .width = width, .height = height};
    p.ax = mx8i_make_axis(1, last_step, 8, 1);
    return p;
}

static void open_svg(struct mx8_text *t, double width, double height, const char *label) {
    mx8i_append(t, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">\n", width, height, label);
}

/* Lines are cut off at the plot's edge; every plot of the page needs a name of its own for that. */
static void open_clip(struct mx8_text *t, const struct mx8_plot *p, const char *name) {
    mx8i_append(t,
        "<clipPath id=\"%s\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n"
        "<g clip-path=\"url(#%s)\">\n",
        name, p->x, p->y - 1, p->width, p->height + 2, name);
}

int64_t mx8i_get_smoothing(const struct mx8_report_run *runs, int32_t n_runs) {
    int64_t most = 1;
    for (int32_t i = 0; i < n_runs; i++) most = runs[i].n > most ? runs[i].n : most;
    int64_t window = most / 20;
    return window < 3 ? 1 : window | 1;
}

/* out[i] = (a / b - 1) in per cent, where both runs made step i. */
static int64_t take_gap(const double *a, int64_t n_a, const double *b, int64_t n_b, double *out) {
    int64_t n = n_a < n_b ? n_a : n_b;
    for (int64_t i = 0; i < n; i++) out[i] = (a[i] / b[i] - 1) * 100;
    return n;
}

struct curves {
    double *smooth[16], *gap[16], *raw_gap[16];
    int64_t n_gap[16];
};

static enum mx8_status make_curves(struct curves *c, const struct mx8_report_run *runs, int32_t n_runs) {
    int64_t window = mx8i_get_smoothing(runs, n_runs);
    for (int32_t i = 0; i < n_runs; i++) {
        size_t bytes = (size_t)runs[i].n * sizeof(double);
        c->smooth[i] = mx8i_allocate(bytes, "smoothed loss");
        c->gap[i] = mx8i_allocate(bytes, "loss gap");
        c->raw_gap[i] = mx8i_allocate(bytes, "loss gap");
        if (!c->smooth[i] || !c->gap[i] || !c->raw_gap[i]) return MX8_OUT_OF_MEMORY;
        mx8i_smooth(runs[i].loss, runs[i].n, window, c->smooth[i]);
        c->n_gap[i] = take_gap(c->smooth[i], runs[i].n, c->smooth[0], runs[0].n, c->gap[i]);
        take_gap(runs[i].loss, runs[i].n, runs[0].loss, runs[0].n, c->raw_gap[i]);
    }
    return MX8_OK;
}

static void release_curves(struct curves *c, int32_t n_runs) {
    for (int32_t i = 0; i < n_runs; i++) {
        mx8i_release(c->smooth[i]);
        mx8i_release(c->gap[i]);
        mx8i_release(c->raw_gap[i]);
    }
}

static void draw_gap(
    struct mx8_text *t, struct mx8_plot *p, const struct curves *c, const struct mx8_report_run *runs, int32_t n_runs) {
    char css[24];
    double low = 0, high = 0;
    /* the first tenth, where the loss falls fast, must not flatten the rest */
    for (int32_t i = 1; i < n_runs; i++) mx8i_find_range(c->gap[i], c->n_gap[i], c->n_gap[i] / 10, &low, &high);
    double room = fmax((high - low) * 0.15, 0.02);
    p->ay = mx8i_make_axis(low - room, high + room, 5, 0);
    mx8i_draw_frame(t, p, "step", "gap, per cent");
    open_clip(t, p, "gap");
    for (int32_t i = 1; i < n_runs; i++) {
        snprintf(css, sizeof css, "l s%d raw", i);
        mx8i_draw_line(t, p, runs[i].step, c->raw_gap[i], c->n_gap[i], LINE_POINTS, css);
    }
    for (int32_t i = 1; i < n_runs; i++) {
        snprintf(css, sizeof css, "l s%d", i);
        mx8i_draw_line(t, p, runs[i].step, c->gap[i], c->n_gap[i], LINE_POINTS, css);
    }
    mx8i_append(t, "</g>\n");
}

enum mx8_status mx8i_draw_loss(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs) {
    struct curves c = {{0}, {0}, {0}, {0}};
    struct mx8_plot p = make_plot(LEFT, 12, 960 - LEFT - RIGHT, 300, get_last_step(runs, n_runs));
    double low = (double)NAN, high = (double)NAN;
    char css[24];
    enum mx8_status status = make_curves(&c, runs, n_runs);
    if (status != MX8_OK) {
        release_curves(&c, n_runs);
        return status;
    }
    for (int32_t i = 0; i < n_runs; i++) mx8i_find_range(c.smooth[i], runs[i].n, 0, &low, &high);
    p.ay = mx8i_make_axis(low, high, 6, 0);
    open_svg(t, 960, n_runs > 1 ? 528 : 356, "loss by step");
    mx8i_draw_frame(t, &p, n_runs > 1 ? NULL : "step", "loss");
    open_clip(t, &p, "loss");
    for (int32_t i = 0; i < n_runs; i++) {
        snprintf(css, sizeof css, "l s%d raw", i);
        mx8i_draw_line(t, &p, runs[i].step, runs[i].loss, runs[i].n, LINE_POINTS, css);
    }
    for (int32_t i = 0; i < n_runs; i++) {
        snprintf(css, sizeof css, "l s%d", i);
        mx8i_draw_line(t, &p, runs[i].step, c.smooth[i], runs[i].n, LINE_POINTS, css);
    }
    mx8i_append(t, "</g>\n");
    if (n_runs > 1) {
        p.y = 336;
        p.height = 144;
        draw_gap(t, &p, &c, runs, n_runs);
    }
    mx8i_append(t, "</svg>\n");
    release_curves(&c, n_runs);
    return MX8_OK;
}

/* One line a run, over the steps. */
struct chart {
    const double *x[16], *y[16];
    int64_t n[16];
    double width, height; /* of the plot with room for the y axis, and of the plot */
    double base;          /* what the y axis holds in any case; NaN: only what is drawn */
    int32_t x_ticks, y_ticks;
    const char *label, *unit, *name; /* for screen readers, at the y axis, and the clip path's */
};

static void draw_chart(struct mx8_text *t, const struct chart *c, const struct mx8_report_run *runs, int32_t n_runs) {
    struct mx8_plot p = make_plot(LEFT, 12, c->width - LEFT - RIGHT, c->height, get_last_step(runs, n_runs));
    double low = c->base, high = low;
    char css[24];
    p.ax = mx8i_make_axis(1, p.ax.high, c->x_ticks, 1);
    for (int32_t i = 0; i < n_runs; i++) mx8i_find_range(c->y[i], c->n[i], 0, &low, &high);
    p.ay = mx8i_make_axis(low, high, c->y_ticks, 0);
    open_svg(t, c->width, c->height + 56, c->label);
    mx8i_draw_frame(t, &p, "step", c->unit);
    open_clip(t, &p, c->name);
    for (int32_t i = 0; i < n_runs; i++) {
        snprintf(css, sizeof css, "l s%d", i);
        mx8i_draw_line(t, &p, c->x[i], c->y[i], c->n[i], (int64_t)c->width / 2, css);
    }
    mx8i_append(t, "</g></svg>\n");
}

void mx8i_draw_validation(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs) {
    struct chart c = {.width = 960,
        .height = 220,
        .base = (double)NAN,
        .x_ticks = 8,
        .y_ticks = 5,
        .label = "validation loss by step",
        .unit = "loss",
        .name = "validation"};
    for (int32_t i = 0; i < n_runs; i++) {
        c.x[i] = runs[i].validation_step;
        c.y[i] = runs[i].validation_loss;
        c.n[i] = runs[i].n_validations;
    }
    draw_chart(t, &c, runs, n_runs);
}

void mx8i_draw_speed(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs) {
    struct chart c = {.width = 560,
        .height = 200,
        .x_ticks = 5,
        .y_ticks = 4,
        .label = "tokens per second by step",
        .unit = "tokens/s",
        .name = "speed"};
    for (int32_t i = 0; i < n_runs; i++) {
        int64_t from = runs[i].n > 1; /* the first step pays for cold memory */
        c.x[i] = runs[i].step + from;
        c.y[i] = runs[i].speed + from;
        c.n[i] = runs[i].n - from;
    }
    draw_chart(t, &c, runs, n_runs);
}

void mx8i_draw_counts(
    struct mx8_text *t, enum mx8_report_count which, const struct mx8_report_run *runs, int32_t n_runs) {
    static const struct chart charts[] = {
        [MX8_COUNT_SATURATED] = {.label = "saturated values by step", .unit = "values", .name = "saturation"},
        [MX8_COUNT_WIDE_BLOCKS] = {.label = "wide blocks by step", .unit = "blocks", .name = "wide"}};
    struct chart c = charts[which];
    c.width = 960, c.height = 140, c.x_ticks = 8, c.y_ticks = 4;
    for (int32_t i = 0; i < n_runs; i++) {
        c.x[i] = runs[i].step;
        c.y[i] = runs[i].count[which];
        c.n[i] = runs[i].n;
    }
    draw_chart(t, &c, runs, n_runs);
}

void mx8i_draw_memory(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs) {
    double most = 1;
    for (int32_t i = 0; i < n_runs; i++) most = fmax(most, runs[i].peak_memory);
    open_svg(t, 380, 20 + 46 * n_runs, "peak memory");
    for (int32_t i = 0; i < n_runs; i++) {
        double y = 14 + 46 * i;
        mx8i_append(t, "<text class=\"lab\" x=\"0\" y=\"%.0f\">", y);
        mx8i_append_escaped(t, runs[i].name);
        mx8i_append(t,
            "</text><rect class=\"track\" x=\"0\" y=\"%.0f\" width=\"290\" height=\"16\" rx=\"2\"/>"
            "<rect class=\"b s%d\" x=\"0\" y=\"%.0f\" width=\"%.1f\" height=\"16\" rx=\"2\"/>"
            "<text class=\"lab\" x=\"298\" y=\"%.0f\">%.2f GiB</text>\n",
            y + 7, i, y + 7, 290 * runs[i].peak_memory / most, y + 20, runs[i].peak_memory / (1 << 30));
    }
    mx8i_append(t, "</svg>\n");
}
