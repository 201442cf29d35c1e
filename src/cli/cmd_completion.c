/* Completion scripts for bash and zsh, made of the command table and the option tables. */
#include <stdio.h>
#include <string.h>
#include "cli/cli.h"
#include "train/resolve.h"

static const char usage[] =
    "usage: mx8 completion bash|zsh\n\n"
    "Prints a completion script, which `make install` also puts in place. For this shell alone:\n\n"
    "  bash   source <(mx8 completion bash)\n"
    "  zsh    source <(mx8 completion zsh)     after compinit\n";

/* Options that change nothing are in the way. */
static int is_useful(const struct mx8_option *o) {
    return !o->help || (strncmp(o->help, MX8_MARK_ONLY, strlen(MX8_MARK_ONLY)) != 0 &&
                           strncmp(o->help, MX8_MARK_IDLE, strlen(MX8_MARK_IDLE)) != 0);
}

/* Values to offer after an option, joined by blanks: "FILES" and "NONE" are words of the scripts. */
static void describe_values(const struct mx8_option *o, char *out, size_t size) {
    static const char *const paths[] = {"path", "folder", "file", "output", "json", "tokenizer"};
    snprintf(out, size, "NONE");
    if (o->type == MX8_OPT_BOOL) snprintf(out, size, "true false");
    for (size_t i = 0; o->type == MX8_OPT_TEXT && i < sizeof paths / sizeof paths[0]; i++)
        if (strstr(o->key, paths[i])) snprintf(out, size, "FILES");
    if (o->choices) snprintf(out, size, "%s", o->choices);
    if (strcmp(o->key, "model.flavor") == 0) snprintf(out, size, "%s", mx8i_list_presets());
    char *to = out;
    for (const char *from = out; *from; from++)
        if (*from != ',') *to++ = *from == '|' ? ' ' : *from;
    *to = 0;
}

static int has_key(const struct mx8_help *h, const char *name, size_t size) {
    for (int32_t i = 0; i < h->count; i++) {
        const char *key = h->table[i].key;
        size_t n = 0;
        while (n < size && key[n] && (key[n] == name[n] || (key[n] == '_' && name[n] == '-'))) n++;
        if (n == size && !key[n]) return 1;
    }
    return 0;
}

/* The flags that only the usage text knows, each once. */
static void each_plain_flag(const struct mx8_help *h, void (*item)(const char *flag, size_t size)) {
    size_t size, seen_size;
    for (const char *at = mx8i_next_flag(h->usage, &size); at; at = mx8i_next_flag(at + size, &size)) {
        int seen = has_key(h, at + 2, size - 2);
        for (const char *s = mx8i_next_flag(h->usage, &seen_size); s && s < at && !seen;
             s = mx8i_next_flag(s + seen_size, &seen_size))
            seen = seen_size == size && memcmp(s, at, size) == 0;
        if (!seen) item(at, size);
    }
}

/* ---- bash ---- */

static void print_bash_flag(const char *flag, size_t size) {
    printf(" %.*s", (int)size, flag);
}

static void print_bash_words(const char *name, const struct mx8_help *h) {
    char values[512];
    printf("    %s)\n        words=\"", name);
    for (int32_t i = 0; i < h->count; i++)
        if (is_useful(&h->table[i])) printf(" --%s", h->table[i].key);
    each_plain_flag(h, print_bash_flag);
    printf(" --help\"\n        case $before in\n");
    for (int32_t i = 0; i < h->count; i++) {
        const struct mx8_option *o = &h->table[i];
        if (!is_useful(o)) continue;
        if (o->type == MX8_OPT_BOOL) continue; /* needs no value */
        describe_values(o, values, sizeof values);
        printf("        --%s) values=\"%s\" ;;\n", o->key, values);
    }
    printf("        esac ;;\n");
}

static void print_bash(void) {
    printf("# bash completion of mx8 %s, written by `mx8 completion bash`\n", mx8_get_version_text());
    printf("_mx8() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= values= commands=\n"
           "    # --key=value is three words to bash\n"
           "    if [ \"$word\" = = ]; then word=; elif [ \"$before\" = = ]; then "
           "before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
           "    # - and _ are alike\n"
           "    case $before in --*) before=${before#--} before=--${before//-/_} ;; esac\n"
           "    commands=\"");
    for (int32_t i = 0; i < mx8i_command_count; i++) printf("%s ", mx8i_commands[i].name);
    printf("help\"\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$word\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n"
           "    help) values=$commands ;;\n"
           "    completion) values=\"bash zsh\" ;;\n");
    for (int32_t i = 0; i < mx8i_command_count; i++) {
        struct mx8_help h;
        if (strcmp(mx8i_commands[i].name, "completion") == 0 || !mx8i_ask_help(&mx8i_commands[i], &h)) continue;
        print_bash_words(mx8i_commands[i].name, &h);
        mx8i_release_help(&h);
    }
    printf("    esac\n"
           "    case $values in\n"
           "    FILES) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
           "    NONE) ;;\n"
           "    '')\n"
           "        case $word in\n"
           "        -*)\n"
           "            COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "            word=${word#--} word=--${word//-/_}\n"
           "            [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;\n"
           "        *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
           "        esac ;;\n"
           "    *) COMPREPLY=($(compgen -W \"$values\" -- \"$word\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -o filenames -o bashdefault -F _mx8 mx8\n");
}

/* ---- zsh ---- */

static void print_zsh_text(const char *text) {
    for (; *text; text++) {
        if (strchr("[]:\\", *text)) putchar('\\');
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*text);
    }
}

static void print_zsh_flag(const char *flag, size_t size) {
    printf(" \\\n            '%.*s=-::value:_files'", (int)size, flag);
}

static void print_zsh_option(const struct mx8_option *o) {
    char values[512];
    printf(" \\\n            '--%s=%s[", o->key, o->type == MX8_OPT_BOOL ? "-" : "");
    print_zsh_text(o->help ? o->help : "");
    printf("]%s", o->type == MX8_OPT_BOOL ? "::true or false:(true false)'" : ":value:");
    if (o->type == MX8_OPT_BOOL) return;
    describe_values(o, values, sizeof values);
    if (strcmp(values, "FILES") == 0)
        fputs("_files", stdout);
    else if (strcmp(values, "NONE") == 0)
        putchar(' ');
    else
        printf("(%s)", values);
    putchar('\'');
}

static void print_zsh(void) {
    printf("#compdef mx8\n# zsh completion of mx8 %s, written by `mx8 completion zsh`\n_mx8() {\n"
           "    local -a commands=(\n",
        mx8_get_version_text());
    for (int32_t i = 0; i < mx8i_command_count; i++) {
        printf("        '%s:", mx8i_commands[i].name);
        print_zsh_text(mx8i_commands[i].summary);
        printf("'\n");
    }
    printf("        'help:explain a command'\n    )\n"
           "    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
           "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
           "    case $command in\n"
           "    help) _describe command commands ;;\n"
           "    completion) _values shell bash zsh ;;\n");
    for (int32_t i = 0; i < mx8i_command_count; i++) {
        struct mx8_help h;
        if (strcmp(mx8i_commands[i].name, "completion") == 0 || !mx8i_ask_help(&mx8i_commands[i], &h)) continue;
        printf("    %s)\n        _arguments '--help[explain the command]'", mx8i_commands[i].name);
        for (int32_t k = 0; k < h.count; k++)
            if (is_useful(&h.table[k])) print_zsh_option(&h.table[k]);
        each_plain_flag(&h, print_zsh_flag);
        printf(" '*:file:_files' ;;\n");
        mx8i_release_help(&h);
    }
    printf("    esac\n}\n"
           "if [ \"$funcstack[1]\" = _mx8 ]; then _mx8 \"$@\"; else compdef _mx8 mx8; fi\n");
}

int mx8i_run_completion(int argc, char **argv) {
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (argc != 2) return mx8i_report_usage("completion", "needs the name of a shell, bash or zsh");
    if (strcmp(argv[1], "bash") == 0)
        print_bash();
    else if (strcmp(argv[1], "zsh") == 0)
        print_zsh();
    else
        return mx8i_report_usage("completion", "\"%s\" is none of bash, zsh", argv[1]);
    return MX8_EXIT_OK;
}
