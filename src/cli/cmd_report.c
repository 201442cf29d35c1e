#include <stdio.h>
#include <string.h>
#include "cli/cli.h"
#include "train/report.h"

static const char usage[] =
    "usage: mx8 report DIR... [-o FILE] [--title TEXT]\n\n"
    "Writes one static HTML page (inline SVG, no scripts) of the runs in the folders DIR, each with the metrics.jsonl\n"
    "and run.json that `mx8 train` wrote. The first folder is the baseline that gaps are taken against.\n\n"
    "  -o, --output FILE   where to; report.html in the first folder when left out\n"
    "  --title TEXT        the page's heading\n";

int mx8i_run_report(int argc, char **argv) {
    const char *path = NULL, *title = NULL;
    char default_path[4096];
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (!mx8i_take_value(&argc, argv, "-o", &path) || !mx8i_take_value(&argc, argv, "--output", &path) ||
        !mx8i_take_value(&argc, argv, "--title", &title))
        return mx8i_report_usage("report", "\"%s\" needs a value", argv[argc - 1]);
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-') return mx8i_report_usage("report", "unknown flag \"%s\"", argv[i]);
    if (argc < 2) return mx8i_report_usage("report", "needs at least one folder");
    if (!path) {
        snprintf(default_path, sizeof default_path, "%s/report.html", argv[1]);
        path = default_path;
    }
    enum mx8_status status = mx8i_write_report(path, title, (const char *const *)&argv[1], argc - 1);
    if (status != MX8_OK) return mx8i_report_failure("report", status, MX8_EXIT_FAILURE);
    printf("%s\n", path);
    return MX8_EXIT_OK;
}
