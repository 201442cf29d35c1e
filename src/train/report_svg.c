#include "train/report_svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"

void mx8i_append(struct mx8_text *t, const char *format, ...) {
    if (t->status != MX8_OK) return;
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        size_t room = t->capacity - t->size;
        int length = vsnprintf(t->data ? t->data + t->size : NULL, room, format, arguments);
        va_end(arguments);
        if (length < 0) {
            t->status = MX8_INTERNAL;
            return;
        }
        if ((size_t)length < room) {
            t->size += (size_t)length;
            return;
        }
        size_t capacity = (t->size + (size_t)length + 1) * 2;
        char *data = mx8i_reallocate(t->data, capacity, "report");
        if (!data) {
            t->status = MX8_OUT_OF_MEMORY;
            return;
        }
        t->data = data;
        t->capacity = capacity;
    }
}

void mx8i_append_escaped(struct mx8_text *t, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&':
            mx8i_append(t, "&amp;");
            break;
        case '<':
            mx8i_append(t, "&lt;");
            break;
        case '>':
            mx8i_append(t, "&gt;");
            break;
        case '"':
            mx8i_append(t, "&quot;");
            break;
        default:
            mx8i_append(t, "%c", *text);
        }
    }
}

void mx8i_release_text(struct mx8_text *t) {
    mx8i_release(t->data);
    memset(t, 0, sizeof *t);
}

struct mx8_axis mx8i_make_axis(double low, double high, int32_t wanted, int32_t tight) {
    struct mx8_axis a = {.low = low, .high = high};
    if (!(isfinite(low) && isfinite(high) && low <= high)) a.low = 0, a.high = 1;
    if (a.low == a.high) {
        double half = a.low != 0 ? fabs(a.low) * 0.05 : 0.5;
        a.low -= half;
        a.high += half;
    }
    double rough = (a.high - a.low) / wanted, power = pow(10, floor(log10(rough))), lead = rough / power;
    a.step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
    a.decimals = a.step >= 1 ? 0 : (int32_t)ceil(-log10(a.step) - 1e-9);
    if (!tight) {
        a.low = floor(a.low / a.step + 1e-9) * a.step;
        a.high = ceil(a.high / a.step - 1e-9) * a.step;
    }
    a.count = (int32_t)(floor(a.high / a.step + 1e-9) - ceil(a.low / a.step - 1e-9)) + 1;
    return a;
}

const char *mx8i_format_tick(char buffer[32], const struct mx8_axis *axis, double value) {
    if (fabs(value) < axis->step * 1e-6)
        snprintf(buffer, 32, "0");
    else if (axis->step >= 1e6)
        snprintf(buffer, 32, "%gM", value / 1e6);
    else if (axis->step >= 1000)
        snprintf(buffer, 32, "%gk", value / 1000);
    else
        snprintf(buffer, 32, "%.*f", axis->decimals, value);
    return buffer;
}

double mx8i_plot_x(const struct mx8_plot *p, double value) {
    return p->x + (value - p->ax.low) / (p->ax.high - p->ax.low) * p->width;
}

double mx8i_plot_y(const struct mx8_plot *p, double value) {
    return p->y + p->height - (value - p->ay.low) / (p->ay.high - p->ay.low) * p->height;
}

void mx8i_draw_frame(struct mx8_text *t, const struct mx8_plot *p, const char *x_label, const char *y_label) {
    char tick[32];
    double first = ceil(p->ay.low / p->ay.step - 1e-9) * p->ay.step;
    for (int32_t i = 0; i < p->ay.count; i++) {
        double value = first + i * p->ay.step, y = mx8i_plot_y(p, value);
        mx8i_append(t, "<path class=\"%s\" d=\"M%.1f %.1fh%.1f\"/>", fabs(value) < p->ay.step * 1e-6 ? "zero" : "grid",
            p->x, y, p->width);
        mx8i_append(t, "<text class=\"ty\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", p->x - 8, y + 4,
            mx8i_format_tick(tick, &p->ay, value));
    }
    first = ceil(p->ax.low / p->ax.step - 1e-9) * p->ax.step;
    for (int32_t i = 0; i < p->ax.count; i++) {
        double value = first + i * p->ax.step, x = mx8i_plot_x(p, value);
        mx8i_append(t, "<path class=\"grid\" d=\"M%.1f %.1fv%.1f\"/>", x, p->y, p->height);
        if (x_label)
            mx8i_append(t, "<text class=\"tx\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, p->y + p->height + 18,
                mx8i_format_tick(tick, &p->ax, value));
    }
    if (x_label)
        mx8i_append(t, "<text class=\"tx name\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", p->x + p->width / 2,
            p->y + p->height + 36, x_label);
    mx8i_append(t, "<text class=\"tx name\" transform=\"translate(%.1f %.1f) rotate(-90)\">%s</text>\n", p->x - 54,
        p->y + p->height / 2, y_label);
}

void mx8i_draw_line(struct mx8_text *t, const struct mx8_plot *p, const double *x, const double *y, int64_t n,
    int64_t most, const char *css) {
    int64_t bucket = n > most ? (n + most - 1) / most : 1;
    const char *command = "M";
    mx8i_append(t, "<path class=\"%s\" d=\"", css);
    for (int64_t i = 0; i < n; i += bucket) {
        double sum_x = 0, sum_y = 0;
        int64_t count = 0;
        for (int64_t j = i; j < i + bucket && j < n; j++) {
            if (!isfinite(y[j])) continue;
            sum_x += x[j];
            sum_y += y[j];
            count++;
        }
        if (count == 0) {
            command = "M";
            continue;
        }
        /* far outside the plot is as good as just outside, and keeps the numbers short */
        double at_y = mx8i_plot_y(p, sum_y / (double)count), slack = 2 * p->height;
        at_y = at_y < p->y - slack ? p->y - slack : at_y > p->y + p->height + slack ? p->y + p->height + slack : at_y;
        mx8i_append(t, "%s%.1f %.1f", command, mx8i_plot_x(p, sum_x / (double)count), at_y);
        command = "L";
    }
    mx8i_append(t, "\"/>\n");
}

void mx8i_find_range(const double *y, int64_t n, int64_t from, double *low, double *high) {
    for (int64_t i = from; i < n; i++) {
        if (!isfinite(y[i])) continue;
        if (!(y[i] >= *low)) *low = y[i];
        if (!(y[i] <= *high)) *high = y[i];
    }
}
