#include <stdio.h>
#include <string.h>
#include "cli/cli.h"

static const char usage[] = "usage: mx8 ops [NAME] [--markdown]\n\n"
                            "Lists the operators with their schemas, or everything about one of them.\n\n"
                            "  --markdown   the whole table as docs/operators.md\n";

static void print_markdown(void) {
    printf(
        "# Operators\n\n"
        "Made by `mx8 ops --markdown` from the operator table; edit the table, not this file. Schemas are written as\n"
        "PyTorch's. The inputs of a backward are the output gradients, then what forward read or saved.\n");
    for (int32_t i = 0; i < mx8_get_op_count(); i++) {
        const struct mx8_op *op = mx8_get_op(i);
        printf("\n## %s\n\n```\n%s\n", op->name, op->schema);
        if (op->backward_schema) printf("%s\n", op->backward_schema);
        printf("```\n\n%s\n", op->description);
        if (!op->backward_schema) printf("\nNot differentiable.\n");
    }
}

static void print_list(void) {
    int width = 0;
    for (int32_t i = 0; i < mx8_get_op_count(); i++) {
        const int length = (int)strlen(mx8_get_op(i)->name);
        width = length > width ? length : width;
    }
    for (int32_t i = 0; i < mx8_get_op_count(); i++) {
        const struct mx8_op *op = mx8_get_op(i);
        /* a schema begins with the name */
        printf("%-*s  %s  %s\n", width, op->name, op->backward_schema ? "fb" : "f ", op->schema + strlen(op->name));
    }
    printf("\n%d operators; fb: forward and backward. `mx8 ops NAME` describes one.\n", mx8_get_op_count());
}

int mx8i_run_ops(int argc, char **argv) {
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (mx8i_take_word(&argc, argv, "--markdown")) {
        if (argc > 1) return mx8i_report_usage("ops", "\"%s\" and --markdown do not go together", argv[1]);
        print_markdown();
        return MX8_EXIT_OK;
    }
    if (argc > 2 || (argc == 2 && argv[1][0] == '-'))
        return mx8i_report_usage("ops", "unexpected \"%s\"", argv[argc - 1]);
    if (argc == 2) {
        const struct mx8_op *op = mx8_find_op(argv[1]);
        if (!op) return mx8i_report_usage("ops", "there is no operator \"%s\"; `mx8 ops` lists them", argv[1]);
        printf("%s\n\nforward   %s\nbackward  %s\n\n%s\n", op->name, op->schema,
            op->backward_schema ? op->backward_schema : "none", op->description);
        return MX8_EXIT_OK;
    }
    print_list();
    return MX8_EXIT_OK;
}
