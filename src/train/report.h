/* A static HTML report with inline SVG from the metrics.jsonl of one or several runs: opens offline, no scripts. */
#ifndef MX8_TRAIN_REPORT_H
#define MX8_TRAIN_REPORT_H
#include "mx8/status.h"

/* runs: folders that hold metrics.jsonl and run.json (name, options, device, counts). The first run is the baseline
 * that gaps are taken against. Written atomically. Errors name the folder and line. */
/* As below; browsers load the page anew every `refresh` seconds, for runs that are not over. 0: never. */
enum mx8_status mx8i_refresh_report(
    const char *path, const char *title, const char *const *runs, int n_runs, int refresh);
enum mx8_status mx8i_write_report(const char *path, const char *title, const char *const *runs, int n_runs);
#endif
