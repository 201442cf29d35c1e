#include <math.h>
#include <stdio.h>
#include <string.h>
#include "cli/cli.h"

static const char usage[] =
    "usage: mx8 train [--job.config_file FILE.toml] [--section.key VALUE ...] [--dry-run]\n\n"
    "Trains one model. Settings come from the defaults, then the TOML file, then the flags. Flags are written\n"
    "--section.key VALUE or --section.key=VALUE; - and _ are alike; booleans are --section.key, --section.key=false\n"
    "or --section.no-key. Metrics of every step go to metrics.jsonl in --job.dump_folder.\n\n"
    "  --dry-run   print the memory plan and stop\n\n"
    "With --checkpoint.enable the run saves checkpoints there, and the same command goes on where it stopped.\n"
    "Ctrl-C and SIGTERM finish the step, save it, and stop with exit code 0 (130 without --checkpoint.enable: the\n"
    "work is lost); a second Ctrl-C ends at once.\n";

static void print_summary(struct mx8_terminal *t, const struct mx8_summary *s, const char *folder) {
    char speed[32], steps[32], tokens[32], time[32];
    if (s->complete) {
        mx8i_print_line(t, "every step was done before: nothing to do (see checkpoint.enable)");
        if (isfinite(s->final_loss)) mx8i_print_line(t, "final loss: %.4f", s->final_loss);
        return;
    }
    char from[48] = "", first[32];
    if (s->resumed_at) snprintf(from, sizeof from, "; from step %s on", mx8i_format_count(first, s->resumed_at + 1));
    mx8i_print_line(t, "%s%s step%s, %s tokens%s in %s", s->interrupted ? "interrupted after " : "",
        mx8i_format_count(steps, s->steps), s->steps == 1 ? "" : "s", mx8i_format_count(tokens, s->tokens), from,
        mx8i_format_duration(time, s->seconds));
    mx8i_print_line(t, "median tokens/s without step 1: %s", mx8i_format_count(speed, (int64_t)(s->median_tps + 0.5)));
    mx8i_print_line(t, "peak memory: %.2f GiB", (double)s->peak_memory / (1 << 30));
    mx8i_print_line(t, "waiting for data: %.2f %% of the steps' time", 100 * s->data_share);
    mx8i_print_line(t, "final loss: %.4f", s->final_loss);
    if (s->validation_step)
        mx8i_print_line(t, "validation loss: %.4f, after step %s", s->validation_loss,
            mx8i_format_count(steps, s->validation_step));
    mx8i_print_line(t, "metrics: %s/metrics.jsonl", folder);
    if (s->interrupted && s->saved_step >= 0)
        mx8i_print_line(t, "stopped by a signal; step %s is saved, the same command goes on from there",
            mx8i_format_count(steps, s->saved_step));
}

/* A run that was stopped and can go on has done what it was asked to. */
static int is_work_lost(const struct mx8_options *o, const struct mx8_summary *s) {
    return s->interrupted && !mx8i_get_bool(o, "checkpoint.enable");
}

int mx8i_run_train(int argc, char **argv) {
    struct mx8_options options;
    struct mx8_terminal terminal;
    struct mx8_summary summary;
    int code = MX8_EXIT_FAILURE, rest_count = 0;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, mx8i_option_table, mx8i_option_count);

    enum mx8_status status = mx8i_open_options(mx8i_option_table, mx8i_option_count, &options);
    if (status != MX8_OK) return mx8i_report_failure("train", status, code);
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, "job.config_file", NULL, &rest_count, 0);
    if (status != MX8_OK) {
        code = mx8i_report_failure("train", status, status == MX8_INVALID_ARGUMENT ? MX8_EXIT_USAGE : code);
        mx8i_close_options(&options);
        return code;
    }
    mx8i_open_terminal(&terminal);
    mx8i_catch_signals();
    int dry_run = mx8i_get_bool(&options, "job.dry_run");
    if (dry_run) {
        terminal.bare = 1;
        status = mx8i_show_plan(&options, &terminal, &code);
    } else {
        status = mx8i_start_job(&options, &terminal, NULL, &summary, &code);
        if (status == MX8_OK) print_summary(&terminal, &summary, mx8i_get_text(&options, "job.dump_folder"));
    }
    if (status != MX8_OK)
        code = mx8i_report_failure("train", status, code);
    else
        code = !dry_run && is_work_lost(&options, &summary) ? MX8_EXIT_INTERRUPTED : MX8_EXIT_OK;
    mx8i_close_options(&options);
    return code;
}
