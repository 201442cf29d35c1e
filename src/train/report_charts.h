/* The charts of a report: each appends one or more <svg> elements. */
#ifndef MX8_TRAIN_REPORT_CHARTS_H
#define MX8_TRAIN_REPORT_CHARTS_H

#include "train/report_data.h"
#include "train/report_svg.h"

/* Steps that a smoothed curve averages over: a twentieth of the run, odd, at least 1. */
int64_t mx8i_get_smoothing(const struct mx8_report_run *runs, int32_t n_runs);
/* Loss of every run, smoothed over raw; below it the gap of each to the first in per cent. */
enum mx8_status mx8i_draw_loss(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs);
/* Loss on the validation set, of the runs that have validated at least twice. */
void mx8i_draw_validation(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs);
void mx8i_draw_speed(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs);
void mx8i_draw_memory(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs);
void mx8i_draw_counts(
    struct mx8_text *t, enum mx8_report_count which, const struct mx8_report_run *runs, int32_t n_runs);
/* One column of strips a run, one strip a MoE layer: experts down, steps across, colour is load over the even share. */
void mx8i_draw_load(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n_runs);

#endif
