# Lines of validations.awk, the first recipe the baseline -> a Markdown table of loss and gap; JSON into the file `json`.
BEGIN { FS = "|" }
{
    if (!($1 in seen)) name[++recipes] = $1
    seen[$1] = 1
    if ($2 == "speed") {
        speed[$1] = $3
        next
    }
    if (!($2 in known)) step[++steps] = $2
    known[$2] = 1
    loss[$1, $2] = $3
}
function gap_of(i, s) {
    return (loss[name[i], step[s]] / loss[name[1], step[s]] - 1) * 100
}
END {
    printf "\n| step | %s |", name[1]
    for (i = 2; i <= recipes; i++) printf " %s | gap |", name[i]
    printf "\n|--:|--:|"
    for (i = 2; i <= recipes; i++) printf "--:|--:|"
    printf "\n"
    printf("{\"recipes\": [") > json
    for (s = 1; s <= steps; s++) {
        printf "| %d | %.5f |", step[s], loss[name[1], step[s]]
        for (i = 2; i <= recipes; i++) printf " %.5f | %+.3f %% |", loss[name[i], step[s]], gap_of(i, s)
        printf "\n"
    }
    printf "| tokens/s | %d |", speed[name[1]]
    for (i = 2; i <= recipes; i++) printf " %d | |", speed[name[i]]
    print "\n\nValidation loss on held-out files; tokens/s is the median over the steps but the first."
    for (i = 1; i <= recipes; i++) {
        printf("%s\n  {\"name\": \"%s\", \"tokens_per_second\": %d, ", i > 1 ? "," : "", name[i], speed[name[i]]) > json
        printf("\"gap_per_cent\": %.6f, \"validation\": [", steps ? gap_of(i, steps) : 0) > json
        for (s = 1; s <= steps; s++)
            printf("%s[%d, %s]", s > 1 ? ", " : "", step[s], loss[name[i], step[s]]) > json
        printf("]}") > json
    }
    print "\n]}" > json
}
