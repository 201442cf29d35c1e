/* The expert-load heat map. Cells of one colour are one path, so that a page of thousands of cells stays small. */
#include <math.h>
#include "train/report_charts.h"

#define LEVELS     9 /* 0: no token ... 4: the even share ... 8: twice the even share or more */
#define MAX_CELLS  24000
#define MAX_LAYERS 16 /* more are left out, and the page says so */
#define STRIP_GAP  12.0
#define LABEL      64.0 /* room for the layers' names */

struct grid {
    int64_t columns, layers;
    double row, x, width; /* height of an expert's row; place and width of a run's column */
};

/* Mean load of an expert over the steps of a column. */
static double get_cell(const struct mx8_report_run *r, int64_t layer, int64_t expert, int64_t column, int64_t columns) {
    int64_t from = column * r->n / columns, to = (column + 1) * r->n / columns, count = 0;
    double sum = 0;
    for (int64_t i = from; i < to; i++) {
        double v = r->load[(i * r->layers + layer) * r->experts + expert];
        if (!isfinite(v)) continue;
        sum += v;
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

static void draw_strip(
    struct mx8_text *t, const struct mx8_report_run *r, const struct grid *g, int64_t layer, double y) {
    double cell = g->width / (double)g->columns;
    for (int level = 0; level < LEVELS; level++) {
        int open = 0;
        for (int64_t e = 0; e < r->experts; e++) {
            for (int64_t c = 0; c < g->columns; c++) {
                double v = get_cell(r, layer, e, c, g->columns);
                if (!isfinite(v) || (int)fmin(round(v * (LEVELS - 1) / 2), LEVELS - 1) != level) continue;
                if (!open) mx8i_append(t, "<path class=\"h%d\" d=\"", level);
                open = 1;
                mx8i_append(t, "M%.1f %.1fh%.1fv%.1fh-%.1fz", g->x + (double)c * cell, y + (double)e * g->row,
                    cell + 0.2, g->row, cell + 0.2);
            }
        }
        if (open) mx8i_append(t, "\"/>\n");
    }
}

static void draw_key(struct mx8_text *t, double y) {
    double x = LABEL;
    mx8i_append(t, "<text class=\"lab\" x=\"%.0f\" y=\"%.1f\">no token</text>\n", x, y + 11);
    x += 62;
    for (int level = 0; level < LEVELS; level++, x += 26)
        mx8i_append(t, "<path class=\"h%d\" d=\"M%.0f %.1fh26v14h-26z\"/>", level, x, y);
    mx8i_append(t, "<text class=\"lab\" x=\"%.0f\" y=\"%.1f\">twice the even share, or more</text>\n", x + 8, y + 11);
}

void mx8i_draw_load(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs) {
    int64_t layers = 0, experts = 0, shown = 0;
    for (int32_t i = 0; i < n_runs; i++) {
        if (runs[i].layers == 0) continue;
        shown++;
        if (runs[i].layers > layers) layers = runs[i].layers;
        if (runs[i].experts > experts) experts = runs[i].experts;
    }
    if (!shown || !layers || !experts) return;
    struct grid g = {.layers = layers < MAX_LAYERS ? layers : MAX_LAYERS};
    g.columns = MAX_CELLS / (shown * g.layers * experts);
    g.columns = g.columns < 8 ? 8 : g.columns > 100 ? 100 : g.columns;
    g.row = fmin(fmax(72.0 / (double)experts, 1), 12);
    g.width = (960 - LABEL - 16 * (double)shown) / (double)shown;
    g.x = LABEL;
    double strip = g.row * (double)experts, bottom = 24 + (strip + STRIP_GAP) * (double)g.layers;

    mx8i_append(t, "<svg viewBox=\"0 0 960 %.0f\" role=\"img\" aria-label=\"expert load by step\">\n", bottom + 52);
    for (int64_t layer = 0; layer < g.layers; layer++)
        mx8i_append(t, "<text class=\"lab\" x=\"0\" y=\"%.1f\">layer %lld</text>\n",
            24 + (strip + STRIP_GAP) * (double)layer + strip / 2 + 4, (long long)layer + 1);
    for (int32_t i = 0; i < n_runs; i++) {
        const struct mx8_report_run *r = &runs[i];
        if (r->layers == 0) continue;
        struct grid own = g;
        if (own.columns > r->n) own.columns = r->n;
        mx8i_append(t, "<text class=\"lab strong\" x=\"%.1f\" y=\"14\">", g.x);
        mx8i_append_escaped(t, r->name);
        mx8i_append(t, "</text>\n");
        for (int64_t layer = 0; layer < g.layers && layer < r->layers; layer++)
            draw_strip(t, r, &own, layer, 24 + (strip + STRIP_GAP) * (double)layer);
        mx8i_append(t,
            "<text class=\"lab\" x=\"%.1f\" y=\"%.1f\">step %.0f</text>\n"
            "<text class=\"ty\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n",
            g.x, bottom + 4, r->step[0], g.x + g.width, bottom + 4, r->step[r->n - 1]);
        g.x += g.width + 16;
    }
    draw_key(t, bottom + 26);
    mx8i_append(t, "</svg>\n");
    if (layers > MAX_LAYERS)
        mx8i_append(t, "<p class=\"note\">The first %d of %lld MoE layers.</p>\n", MAX_LAYERS, (long long)layers);
}
